"""What is written down: rollouts, runs, their store, the configs that ask for them, and the draws they used."""
