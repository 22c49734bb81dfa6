"""A world fitted to a run, rival mechanisms ranked by what each predicts for the next steps, and that forecast registered.

data          what is read of a run
world         the world, fitted to pooled tables by turn
fields        mean and noise of one update, by exact sums
mechanisms    the rivals, each a chain with few settings; two yardsticks
filtering     what a mechanism makes of the first decision, step by step
later         what it makes of the later decisions
rank          the rivals by what each predicted
forecast      the next steps
registration  the forecast in writing, and held against what came
figure, words a picture and the terminal's text
"""
