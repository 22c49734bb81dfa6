"""First passage of the log-odds of a decision, as a Markov chain on a grid."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["first_passage_probability", "landing"]

F64 = NDArray[np.float64]


def first_passage_probability(
    start: float, sd: float | F64, drift: F64 | None, steps: int, *, grid: F64, level: float = 0.0
) -> float:
    """Return P(z reaches `level` within `steps`) for the Markov chain z' = z + drift(z) + sd x N(0, 1).

    Computed on a grid of z below the level: absorbed above it, reflected at the grid's lower end. With no drift and a
    fine grid it approaches the discretely watched Brownian passage.

    Parameters
    ----------
    start
        Log-odds at step 0.
    sd
        Standard deviation of one step, logits; one for all or one at each grid point.
    drift
        Mean of one step at each grid point, logits; None for 0.
    steps
        Number of steps.
    grid
        Equally spaced log-odds, the last one the level.
    level
        Where passage is counted.
    """
    spread = np.broadcast_to(np.asarray(sd, float), grid.shape)
    if not (spread > 0).all():
        raise ValueError(f"sd = {spread.min()} must be positive: without noise use passage_steps")
    if not np.isclose(grid[-1], level):
        raise ValueError(f"the grid ends at {grid[-1]}, not at the level {level}")
    rise = np.zeros_like(grid) if drift is None else drift
    if steps == 0:
        return 0.0
    # The first step from the very start, the others from the middle of a cell.
    p = landing(np.array([start]), grid, rise, spread)[0]
    step = landing((grid[1:] + grid[:-1]) / 2, grid, rise, spread)
    for _ in range(steps - 1):
        p = p @ step
    return float(1 - p.sum())


def landing(z: F64, grid: F64, drift: F64, sd: F64) -> F64:
    """Return P(next in each cell | z) of the chain z' = z + drift(z) + sd(z) N(0, 1), [len(z), len(grid) - 1].

    Cells lie between neighbours of `grid`, on which `drift` and `sd` are given. What would leave at the lower end stays in
    the lowest cell; what a row lacks to 1 has passed the upper end.
    """
    centre, scale = z + np.interp(z, grid, drift), np.interp(z, grid, sd)
    below = ndtr((grid - centre[:, None]) / scale[:, None])
    cells: F64 = np.diff(below, axis=1)
    cells[:, 0] += below[:, 0]
    return cells
