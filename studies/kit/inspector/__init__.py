"""A page in which to read rollouts: shares of workflows over training, episodes turn by turn, two steps side by side."""
