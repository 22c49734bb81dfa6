"""The verdicts on conserved staleness come out otherwise where the study says they do, by its own measures."""

import numpy as np
import pytest

from sim.cluster.run import simulate
from sim.cluster.scheduling import MaxStaleness, greedy
from sim.cluster.theory.lag import capacity_mean, unsaturated_mean
from sim.mdp.latency import Constant
from sim.records.config import replace
from studies import study_staleness_conserved as study

SEED = 100


def run(config):
    return simulate(config, SEED, study="reversals")


def test_the_mean_falls_where_slots_or_drops_decide_who_starts():
    config = study.used_up(study.ETA, greedy())
    formula = capacity_mean(study.ETA, study.STEPS)
    assert study.staleness(run(config)).mean() == pytest.approx(formula, abs=1e-12)
    few, again = {"slots": 32}, {"drop": MaxStaleness(study.ETA, then="requeue")}
    assert study.staleness(run(replace(config, few))).mean() < formula - 0.5
    dropped = run(replace(config, again))
    assert dropped.books.groups.dropped.any()
    assert study.staleness(dropped).mean() < formula - 0.1


def test_an_endless_source_lowers_the_mean_as_completed_and_a_source_used_up_does_not():
    order = study.ORDERS[study.GREEDY]
    endless = run(study.agents(study.ETA, order, 16))
    taken, left = study.staleness(endless).sum(), study.ages_left(endless).sum()
    assert taken + left == study.STEPS * study.ETA * 16
    assert study.staleness(endless).mean() < capacity_mean(study.ETA, study.STEPS)
    assert len(study.ages_left(run(study.used_up(study.ETA, order)))) == 0


def test_order_decides_the_largest_staleness_and_the_tail_decides_what_order_is_worth():
    runs = {name: run(study.agents(study.ETA, order, 32)) for name, order in study.ORDERS.items()}
    largest = {name: study.staleness(r).max() for name, r in runs.items()}
    assert largest[study.FIFO] == study.ETA
    assert largest[study.GREEDY] > 2 * study.ETA
    assert runs[study.FIFO].books.end_s > 1.5 * runs[study.GREEDY].books.end_s
    tool = replace(study.agents(study.ETA, greedy()).tools[0], {"latency": Constant(study.TOOL.mean_s())})
    equal = {
        name: run(study.agents(study.ETA, order, 32, tools=(replace(tool, {"servers": 32}),)))
        for name, order in study.ORDERS.items()
    }
    assert equal[study.FIFO].books.end_s == pytest.approx(equal[study.GREEDY].books.end_s, rel=0.01)
    assert study.staleness(equal[study.GREEDY]).max() == study.ETA


def test_the_formula_for_slots_fails_where_the_learner_is_the_slower_one():
    fast, slow = (run(study.limited(study.NO_RULE, 60, train_s)) for train_s in (1.0, 3.0))
    assert study.steady(fast) == pytest.approx(unsaturated_mean(*study.cycle(fast)), rel=0.06)
    assert study.steady(slow) > 1.1 * unsaturated_mean(*study.cycle(slow))


def test_the_span_of_a_group_is_that_of_its_last_member():
    made = run(study.limited(2, 41))
    r, g = made.books.rollouts, made.books.groups
    late = g.take_version >= study.WARM
    spans = [(r.end_s - r.start_s)[r.group == i].max() for i in np.flatnonzero(late)]  # a group starts all at once
    assert study.cycle(made)[0] == pytest.approx(np.mean(spans))
