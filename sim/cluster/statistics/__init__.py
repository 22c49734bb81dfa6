"""What a simulator's output says: intervals over replicas, one long run with its warm-up, and arms that share draws."""
