"""Language models: a real one out of a package, a tiny one of random weights, and what a step of either costs in memory."""
