"""The second rung: a real tiny transformer trained on CPU with the simulator's update rule. Not built yet."""
