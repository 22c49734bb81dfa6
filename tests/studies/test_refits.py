"""Refits spread over processes are the refits done here."""

import numpy as np

from sim.mdp.calibration import fit
from sim.mdp.published import SEED_A
from studies.kit.executors import Task, processes
from studies.refits import refits


def test_blocks_and_processes_change_nothing():
    best = fit(SEED_A, starts=1)
    here = [found.logits for found in refits(best, (0, 1, 2), study="refits")]
    assert len(here) == 3
    assert not np.allclose(here[0], here[1])
    tasks = [Task("refits", best, (0, 1), "refits"), Task("refits", best, (2,), "refits")]
    with processes(2) as executor:
        blocks = dict(executor(refits, tasks))  # they come as they are done
    there = [found.logits for place in range(2) for found in blocks[place]]
    assert all(np.array_equal(a, b) for a, b in zip(here, there, strict=True))
