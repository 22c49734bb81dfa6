"""The verdicts on windowed FIFO come out otherwise where the study says they do, by its own measures."""

import numpy as np
import pytest

from sim.cluster.measures import group_lag
from sim.cluster.theory.lag import capacity_mean, windowed_lag
from sim.records.config import replace
from studies import study_windowed_fifo as study

SEED = 100


def run(config):
    return study.play(config, (SEED,), study="reversals")[0]


def largest(made):
    return group_lag(made)[study.taken(made)[: study.FULL]].max()


def test_a_batch_taken_at_once_breaks_the_identity_of_the_mean_but_not_the_bound():
    one, many = (run(replace(study.queued(study.FORGE), {"learner.minibatches": parts})) for parts in (study.HELD, 1))
    assert group_lag(one).mean() == pytest.approx(capacity_mean(study.HELD - 1, study.PROMPTS), abs=1e-9)
    assert group_lag(many).mean() < group_lag(one).mean() - 0.5
    assert largest(many) <= largest(one) == windowed_lag(study.HELD, study.FORGE)


def test_without_a_window_nothing_bounds_the_lag():
    assert largest(run(study.queued(None))) > windowed_lag(study.HELD, study.HELD) + 100


def test_the_mix_drifts_as_completed_and_only_where_time_belongs_to_the_prompt():
    own, afresh = (run(study.queued(None, of_prompt=flag)) for flag in (True, False))
    assert study.early(study.difficulty(own), own) < -0.4
    assert abs(study.early(study.difficulty(afresh), afresh)) < 0.35
    assert study.early(study.hardness(afresh.books.rollouts.tool_s), afresh) < -0.4


def test_a_narrow_window_keeps_the_mix_of_a_queue_but_not_of_its_first_quarter():
    runs = study.play(study.queued(study.FORGE), range(100, 103), study="reversals")
    drifts = {first: np.mean([study.early(study.difficulty(r), r, first) for r in runs]) for first in (16, study.HELD)}
    assert drifts[16] < -0.2
    assert abs(drifts[study.HELD]) < 0.1


def test_with_nearly_equal_times_order_does_nothing():
    order, none = (study.when(run(study.queued(w, sigma=0.01)))[study.FULL - 1] for w in (1, None))
    assert order == pytest.approx(none, rel=0.05)
    order, none = (study.when(run(study.queued(w)))[study.FULL - 1] for w in (1, None))
    assert order > 4 * none


def test_difficulty_is_the_normal_score_of_the_time():
    made = run(study.queued(1))
    z = study.difficulty(made)[: study.PROMPTS]
    assert np.exp(study.SIGMA * z - study.SIGMA**2 / 2) == pytest.approx(made.books.rollouts.tool_s)
    assert abs(z.mean()) < 0.15
    assert z.std() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("window", [1, study.FORGE, study.HELD, None])
def test_heap_and_window_alone_take_whom_the_cluster_takes(window):
    made = run(study.queued(window))
    order, times = study.queue(made.books.rollouts.tool_s, window)
    assert study.taken(made)[: study.FULL].tolist() == order.tolist()
    assert study.when(made)[: study.FULL] == pytest.approx(times, abs=1e-4)


def test_the_queue_by_hand(monkeypatch):
    """Two held: 3 s and 1 s, then 1, 1, 1 s. In order all wait for the first; as completed it is passed over."""
    monkeypatch.setattr(study, "HELD", 2)
    order, times = study.queue([3.0, 1.0, 1.0, 1.0, 1.0], 1)
    assert order.tolist() == [0, 1, 2]
    assert times.tolist() == [3, 3, 4]
    order, times = study.queue([3.0, 1.0, 1.0, 1.0, 1.0], None)
    assert order.tolist() == [1, 2, 0]
    assert times.tolist() == [1, 2, 3]
