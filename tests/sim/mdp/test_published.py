"""The published table: what its numbers are."""

import numpy as np
import pytest

from sim.mdp.published import SEED_A, TurnTable, implied_counts, matching_entries
from sim.signals.behaviour import hazards


def test_the_table_is_counts_over_1024():
    counts = implied_counts(SEED_A, 1024)
    assert counts.tolist() == [0, 482, 489, 584, 149, 289, 389, 427, 1008, 8, 534, 20, 331, 498, 205, 428]
    assert matching_entries(SEED_A, 1024) == 15


def test_other_denominators_match_few_entries():
    others = [matching_entries(SEED_A, n) for n in range(900, 1200) if n != 1024]
    assert max(others) == 5
    assert np.mean(others) == pytest.approx(1.54, abs=0.02)


def test_entries_are_cut_not_rounded():
    # 2/3 prints 66.66 when cut and 66.67 when rounded
    cut = TurnTable(np.array([[0.6666]]), np.array([[0.3333]]), ("only",))
    assert implied_counts(cut, 3).tolist() == [2, 1]
    rounded = TurnTable(np.array([[0.6667]]), np.array([[0.3333]]), ("only",))
    assert implied_counts(rounded, 3).tolist() == [-1, 1]


def test_hazards_of_the_table():
    searching, correct = hazards(SEED_A.accuracy, SEED_A.search_share)
    np.testing.assert_allclose(searching[0], [0.984, 0.008, 0.985, 0.037], atol=6e-4)
    np.testing.assert_allclose(searching[1], [0.323, 0.569, 0.279, 0.674], atol=6e-4)
    # second answers on evidence: the same at both checkpoints; first answers are not
    np.testing.assert_allclose(correct[:, 3], [0.1845, 0.1836], atol=6e-4)
    assert correct[0, 1] - correct[1, 1] > 0.1
