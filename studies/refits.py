"""Refits of tables sampled from a fitted world: work that two studies spread over processes."""

from sim.mdp.calibration import TableFit, fit, simulate

__all__ = ["refits"]


def refits(truth: TableFit, seeds: tuple[int, ...], *, study: str) -> list[TableFit]:
    """Return the fit of one sampled table per seed, each started at the truth; `study` names the random streams."""
    return [fit(table, near=truth) for table in simulate(truth, tuple(seeds), stream=study)]
