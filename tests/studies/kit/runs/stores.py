"""Small stores, worked by hand."""

import json
from pathlib import Path

import numpy as np

from sim.records.fingerprint import code_fingerprint
from sim.records.rollouts import Rollouts
from sim.records.run import RunRecord
from sim.records.steps import StepTable
from sim.records.store import Store
from sim.records.tables import Groups, Pauses, Segments, Tokens, Trajectories, Turns

THIS, OTHER = code_fingerprint("sim"), "0123456789abcdef" * 4


def config(known=0.5, rate=2.0, **more):
    """A config as plain data, of the shape that configs of the simulator have."""
    optimiser = {"type": "sim.learning.optimisers.Sgd", "rate": rate}
    return {
        "type": "sim.learning.setup.Training",
        "world": {"known": known},
        "optimiser": optimiser,
        "steps": 4,
        **more,
    }


def record(study="fold", seed=0, made_of=None, code=THIS, rung="sim", columns=None, rollouts=None, **provenance):
    """A run of four steps, unless columns are given."""
    if columns is None:
        steps = np.arange(4)
        columns = {"step": steps, "train/reward": 0.1 * steps + seed, "train/count": 2 * steps}
    made_of = config() if made_of is None else made_of
    return RunRecord.create(made_of, study, seed, rung, code, StepTable(columns), provenance, rollouts)


def stored(root, *records):
    """A store of these runs; returns their keys."""
    for each in records:
        Store(root).save(each)
    return [each.key for each in records]


def names(folder):
    """Names of what lies in a folder, sorted."""
    return sorted(path.name for path in Path(folder).iterdir())


def damage(root, key, file="manifest.json", text="{not json"):
    """Spoil a file of a run."""
    (root / key / file).write_text(text, encoding="utf-8")


def renew(root, key):
    """Make a run's manifest one of a newer program."""
    path = root / key / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}), encoding="utf-8")


def rollouts(tasks=(3, 5), tokens=False):
    """Two groups, three trajectories, one with two segments; with tokens and a pause, or without."""
    counts = [0, 2, 3, 5, 6] if tokens else [0] * 5
    turns = {
        "action": [1, 0, 0, 2],
        "index": [0, 1, 0, 0],
        "logp_behaviour": [-0.5, -0.1, np.nan, -0.0],
        "offsets": counts,
    }
    text = {"id": [9, 8, 7, 6, 5, 4], "sampled": [False, True] * 3, "train": [False] * 6}
    return Rollouts(
        Groups(task=list(tasks), offsets=[0, 2, 3], baseline=[0.25, np.nan]),
        Trajectories(reward=[1.0, 0.0, 1.0], outcome=[0, 1, 0], offsets=[0, 1, 2, 3]),
        Segments(parent=[-1, -1, -1], offsets=[0, 2, 3, 4], pause_offsets=[0, 1, 1, 1], start=[0.0] * 3, end=[9.0] * 3),
        Turns(**turns, generated=[1, 0, 1, 1] if tokens else None, observed=[0, 1, 0, 0] if tokens else None),
        Tokens(**text) if tokens else None,
        Pauses(start=[1.0], end=[2.5]),
    )
