"""Runs that tests of fitting are made of."""

import numpy as np

from sim.mdp.calibration import model_table
from sim.mdp.worlds import seed_a
from studies.kit.fitting.data import Observed
from studies.kit.fitting.fields import GRID
from studies.kit.fitting.filtering import Motion

LATER = (4.85, -4.2)


def exact_run(starts, world=None, rollouts=1_000_000):
    """Return the run whose shares are the exact ones of a world, with the first decision at each of `starts`."""
    world = world or seed_a()
    logits = np.array([[z, *LATER] for z in starts])
    table = model_table(world, logits, tuple(map(str, starts)), world)
    return Observed("exact", np.arange(len(starts)), table.accuracy, table.search_share, np.full(len(starts), rollouts))


def run_of(counts, rollouts=200, steps=None):
    """Return a run of two turns in which nothing but the first decision is to be seen."""
    counts = np.asarray(counts)
    share = np.stack([1 - counts / rollouts, np.zeros(len(counts))], 1)
    solved = np.stack([np.zeros(len(counts)), np.ones(len(counts))], 1)
    return Observed(
        "a",
        np.arange(len(counts)) if steps is None else np.asarray(steps),
        solved,
        share,
        np.full(len(counts), rollouts),
    )


def motion(drift=0.0, sd=0.2, push=0.0, **more):
    """Return a chain at one setting, the same at every z."""
    flat = np.zeros((1, len(GRID)))
    stay = np.zeros((1, len(GRID), 2))
    return Motion(flat + drift, flat + sd, np.zeros(1, np.int64), np.ones(1), np.full(1, push), stay, stay, **more)
