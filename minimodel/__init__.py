"""The second rung: a tiny transformer trained by the same update rule in token episodes, on a CPU."""
