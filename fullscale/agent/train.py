"""Training a language model, one run a seed.

Draws are indexed by (seed, stream, step), so a run that was killed goes on as if it had not been, given the same number of
threads. How long a tool took is measured, so ``train/latency_s`` and the times in the record of rollouts are what they were.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from fullscale.agent.ranks import Ranks
from fullscale.agent.run import Run
from fullscale.agent.setup import Training
from fullscale.agent.watch import Row
from minimodel.agent.checkpoint import Checkpoint
from sim.records.config import to_dict
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs, run_key

__all__ = ["place", "train"]

Progress = Callable[[int, int], None]
"""``progress(done, total)``, in steps."""


def place(device: str) -> str:
    """Return where a network goes: ``"cuda"`` or ``"cpu"``; ``"auto"`` is a GPU where PyTorch sees one.

    Raises
    ------
    ValueError
        For anything else, or a GPU that is not there.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"device {device!r}: it takes auto, cpu or cuda; CUDA_VISIBLE_DEVICES says which cards there are"
        )
    seen = torch.cuda.is_available()
    if device == "cuda" and not seen:
        raise ValueError("device 'cuda': PyTorch sees no GPU here; use cpu")
    return "cuda" if seen and device != "cpu" else "cpu"


def train(
    config: Training,
    seeds: tuple[int, ...],
    *,
    study: str,
    progress: Progress | None = None,
    folder: Path = Path("runs"),
    device: str = "auto",
    watch: Callable[[Row], None] | None = None,
    starting: Progress | None = None,
    starts: Path | None = None,
    keep: Callable[[Runs], None] | None = None,
) -> Runs:
    """Train one policy per seed and return what was watched at every step; on several ranks, the same on each.

    Parameters
    ----------
    config
        The run.
    seeds
        One run each.
    study
        Namespace of the random streams.
    progress
        Called after every step of every seed.
    folder
        Where supervised starts, published weights and checkpoints are kept. A run that was interrupted goes on from there
        when it is asked for again.
    device
        Where the network is: ``"cpu"``, ``"cuda"``, or ``"auto"`` for a GPU where there is one.
    watch
        Called with what was written down, after every step.
    starting
        Called while a supervised start is made, in its updates.
    keep
        Called with the runs on the first rank, before their checkpoints are removed: what it raises loses nothing.
    starts
        Where supervised starts are kept; default: ``folder / "starts"``.
    """
    if isinstance(seeds, int):
        raise TypeError(f"seeds = {seeds}: give the seeds themselves, as in tuple(range({seeds}))")
    if not seeds:
        raise ValueError("no seeds; give at least one")
    fingerprint, device = code_fingerprint("fullscale"), place(device)
    parts, kept, checkpoints, seconds = [], {}, [], dict[str, float]()
    for i, seed in enumerate(seeds):
        key = run_key(to_dict(config), study, seed, "fullscale", fingerprint)
        checkpoints.append(Checkpoint(folder / "checkpoints" / f"{key}.pt", key))
        done = i * config.steps

        def report(row: Row, done: int = done) -> None:
            if watch is not None:
                watch(row)
            if progress is not None:
                progress(done + int(row["step"]) + 1, len(seeds) * config.steps)

        run = Run(config, int(seed), study, folder, checkpoints[-1], device=device, progress=starting, starts=starts)
        parts.append(run.go(report))
        for name, value in run.seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
        if run.kept is not None:
            kept[int(seed)] = run.kept
        del run  # before another is made
    columns = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    provenance = {"device": device, "ranks": Ranks.here().world, "cpu_s_by_part": dict(sorted(seconds.items()))}
    made = Runs(config, tuple(int(s) for s in seeds), study, "fullscale", fingerprint, columns, provenance, kept)
    if Ranks.here().rank == 0:
        if keep is not None:
            keep(made)
        for checkpoint in checkpoints:  # only now: if a later seed is interrupted, the earlier ones need not run again
            checkpoint.remove()
    return made
