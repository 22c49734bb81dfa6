"""The first rung: exact theory, tabular policies on abstract tool graphs, and (later) a discrete-event cluster.

Needs numpy, scipy and networkx; loads neither torch nor matplotlib.
"""
