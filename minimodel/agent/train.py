"""Training the tiny transformer.

Every draw is indexed by (seed, stream, step) and a run uses one thread, so a run is the same bits in any process on one
kind of machine, and a run that was killed goes on as if it had not been.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from minimodel.agent.checkpoint import Checkpoint
from minimodel.agent.run import Run
from minimodel.agent.setup import Training
from minimodel.model.compiled import available, why_not
from sim.records.config import to_dict
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs, run_key

__all__ = ["train"]

Progress = Callable[[int, int], None]
"""``progress(done, total)``, in steps."""


def train(
    config: Training,
    seeds: tuple[int, ...],
    *,
    study: str,
    progress: Progress | None = None,
    folder: Path = Path("runs"),
) -> Runs:
    """Train one policy per seed and return what was watched at every step.

    Parameters
    ----------
    config
        The run.
    seeds
        One run each; a seed's world and supervised start are those of seed // ``config.starts_shared_by``.
    study
        Namespace of the random streams.
    progress
        Called after every step of every seed.
    folder
        Where supervised starts and checkpoints are kept. A run that was interrupted goes on from there when it is asked for
        again.
    """
    if isinstance(seeds, int):
        raise TypeError(f"seeds = {seeds}: give the seeds themselves, as in tuple(range({seeds}))")
    if not seeds:
        raise ValueError("no seeds; give at least one")
    fingerprint = code_fingerprint("minimodel")
    parts, kept, checkpoints = [], {}, []
    for i, seed in enumerate(seeds):
        key = run_key(to_dict(config), study, seed, "minimodel", fingerprint)
        checkpoints.append(Checkpoint(folder / "checkpoints" / f"{key}.pt", key))
        run = Run(config, int(seed), study, folder, checkpoints[-1])
        done = i * config.steps

        def report(step: int, done: int = done) -> None:
            if progress is not None:
                progress(done + step, len(seeds) * config.steps)

        parts.append(run.go(report))
        if run.kept is not None:
            kept[int(seed)] = run.kept
    for checkpoint in checkpoints:  # only now: if a later seed is interrupted, the earlier ones need not run again
        checkpoint.remove()
    columns = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    provenance = {"decode": _decode(config)}
    return Runs(config, tuple(int(s) for s in seeds), study, "minimodel", fingerprint, columns, provenance, kept)


def _decode(config: Training) -> str:
    """Return in which arithmetic tokens were sampled: the bits of a run depend on it."""
    if config.decode == "compiled" and not available():
        return f"torch, because {why_not()}"
    return config.decode
