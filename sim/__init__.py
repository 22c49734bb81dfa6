"""The first rung: exact theory, tabular policies on abstract tool graphs, and a discrete-event cluster.

Needs numpy, scipy, networkx and simpy; loads neither torch nor matplotlib.
"""
