"""``python -m fullscale.smoke``: the third rung end to end on a CPU, on a real model, real questions and a real search.

SmolLM2-135M out of its package gets a supervised start (kept, so made once), then trains for a few steps of GRPO with the
rule monitor on and a judge asked over HTTP: llama.cpp's server with the package's own weights. What must hold is checked at
the end; anything that does not ends the program with status 1. The judge is there for its plumbing: a model of 135 million
parameters is no judge, and what it says counts nothing in the reward.
"""

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from fullscale.agent.setup import Training
from fullscale.agent.showing import Table, bar
from fullscale.agent.train import train
from fullscale.engine.http.serving import serve
from fullscale.engine.http.serving import why_not as no_server
from fullscale.model.smollm2 import gguf_file
from fullscale.model.smollm2 import why_not as no_model
from fullscale.monitors.rewards import Judged
from fullscale.presets import smollm2_cpu
from minimodel.agent.monitor import EvidenceFirst
from sim.learning.setup import Evaluation
from sim.records.config import replace
from sim.records.store import Store

__all__ = ["checked", "main", "smoke"]

MEAN_MISMATCH, MOST_MISMATCH = 1e-4, 1e-3
"""Bounds of |log-prob by the engine - log-prob by the learner|, nats, in float32."""
_YES_OR_NO = {"grammar": 'root ::= "yes" | "no"'}


def smoke(judge: str) -> Training:
    """Return the run; `judge` is the address of the judge."""
    return replace(
        smollm2_cpu(),
        {
            "prompts": 4,
            "group": 4,
            "micro": 4,
            "steps": 3,
            "keep_rollouts": 2,
            "monitor": EvidenceFirst(),
            "judge": Judged(judge, weight=0.0, also=_YES_OR_NO, concurrent=2),
            "evaluation": Evaluation(every=3, prompts=8, group=1),
        },
    )


def checked(columns: Mapping[str, Any]) -> dict[str, bool]:
    """Return what must hold of a run's columns, [steps], and whether it does."""

    def all_within(name: str, bound: float) -> bool:
        values = np.asarray(columns[name], float)
        return bool(np.isfinite(values).all() and (values <= bound).all())

    return {
        "at least half of the rollouts call a tool after the start": float(columns["behaviour/tool_share"][0]) >= 0.5,
        "at least one group has an advantage that is not 0": float(np.min(columns["train/degenerate_share"])) < 1,
        "parameters moved": float(columns["update/moved"][-1]) > 0,
        f"engine and learner differ by at most {MEAN_MISMATCH:g} nats in the mean": all_within(
            "mismatch/mean", MEAN_MISMATCH
        ),
        f"and by at most {MOST_MISMATCH:g} anywhere": all_within("mismatch/max", MOST_MISMATCH),
        "the judge could be read on every episode": all_within("judge/unclear_share", 0.0),
        "no tool failed": all_within("train/failed_share", 0.0),
    }


def run(folder: Path = Path("runs"), store: Path = Path("runs/store"), seed: int = 0, threads: int = 2) -> int:
    """Run the smoke test of the third rung; about ten minutes on two free cores, a third of them for the start.

    Args:
        folder: Where the supervised start and checkpoints are kept.
        store: Where the record is kept.
        seed: Seed of everything that is drawn.
        threads: Threads to compute with.
    """
    import torch

    for missing in (no_model(), no_server()):
        if missing:
            sys.stderr.write(f"fullscale.smoke: {missing}\n")
            return 2
    torch.set_num_threads(threads)
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="smoke-") as scratch,
        serve(gguf_file(), slots=2, context_tokens=1024) as judge,
    ):
        config = smoke(judge.url)
        table = Table(config, sys.stdout)
        # a checkpoint would be of this judge's address, which no other run has
        runs = train(
            config,
            (seed,),
            study="smoke",
            device="cpu",
            folder=Path(scratch),
            watch=table.row,
            starting=bar("supervised start"),
            starts=folder / "starts",
        )
    (record,) = runs.records()
    Store(store).save(record)
    found = checked({name: values[0] for name, values in runs.columns.items()})
    for what, holds in found.items():
        sys.stdout.write(f"{'holds ' if holds else 'FAILS '} {what}\n")
    sys.stdout.write(f"{time.monotonic() - began:.0f} s; kept as {record.key} in {store}\n")
    (folder / "smoke.key").write_text(record.key + "\n", encoding="utf-8")
    return 0 if all(found.values()) else 1


def main() -> int:
    """Run the command line; return its exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    status: int = tyro.cli(run, prog="python -m fullscale.smoke")
    return status


if __name__ == "__main__":
    sys.exit(main())
