"""A study over a grid of its own parameters: phase diagrams, and the boundary along one key.

from studies.kit.phase import bisect, sweep_study
swept = sweep_study("length_diagram", {"world.known": "0.1:0.6:11", "world.hit_known": (0.3, 0.6)}, seeds=8)
"""

from studies.kit.phase.bisection import Boundary, bisect
from studies.kit.phase.places import GridError
from studies.kit.phase.sweeps import Swept, sweep_study

__all__ = ["Boundary", "GridError", "Swept", "bisect", "sweep_study"]
