"""Faults that other projects shipped, in how a run of the tiny transformer keeps versions, random numbers and its place.

Written as ``test_known_faults_tokens.py`` is; the faults are in ``known_fault_mutations_runs.py``.
"""

from collections import Counter

import numpy as np
import pytest

from minimodel.agent import run as run_module
from minimodel.agent import watch
from minimodel.agent.collect import collect
from minimodel.agent.record import to_rollouts
from sim.records.staleness import staleness as staleness_of_record
from tests.minimodel.agent.small import (
    TASK,
    begin,
    environment_of,
    facts_of,
    learners_logp,
    moved,
    play,
    policy_of,
    training,
)
from tests.minimodel.known_fault_mutations_runs import MUTATIONS
from tests.mutations import fails_under

LAYOUT, ENVIRONMENT = TASK.layout, environment_of(TASK)
V, K = TASK.vocabulary.size, TASK.layout.turns


# --- versions ---------------------------------------------------------------------------------------------------------


def in_flight():
    """A batch whose turns are written by versions 3, 4 and 5, and those versions."""
    policies = {v: moved(policy_of(), 0.2, seed=v) for v in (3, 4, 5)}
    versions = np.broadcast_to(np.array([3, 4, 5]), (4, 4, 3)).copy()
    return play(policies, questions=4, versions=versions), policies


def test_f22_a_token_is_labelled_with_the_version_that_made_it():
    """Weights are published between turns: 3 3 3 3, 4 4 4 4, 5 5 5 5, and each is what those weights say."""
    batch, policies = in_flight()
    assert (batch.taken > 1).any()
    for q, g in np.ndindex(4, 4):
        assert (
            batch.version[q, g][batch.sampled[q, g]].tolist() == ([3] * 4 + [4] * 4 + [5] * 4)[: 4 * batch.taken[q, g]]
        )
    for version, policy in policies.items():
        gap = np.abs(learners_logp(policy, batch) - batch.logp)
        assert gap[batch.version == version].max() < 1e-5
        assert gap[batch.sampled & (batch.version != version)].max() > 1e-2


def test_f23_staleness_is_judged_by_token():
    """The learner is at 6: tokens are 3, 2 and 1 behind; the columns are those of the record."""
    batch, policies = in_flight()
    lengths = batch.taken.ravel()
    turns = [(lengths > k).sum() for k in range(3)]  # as many turns were written 3, 2 and 1 behind
    assert turns[0] > turns[2] > 0
    row = watch.staleness(batch, 6)
    assert (row["staleness/oldest"], row["staleness/newest"]) == (3, 1)
    assert row["staleness/token_mean"] == pytest.approx(np.average([3, 2, 1], weights=turns))
    found = staleness_of_record(to_rollouts(batch, ENVIRONMENT, 6, policies[5], policies[3]))
    assert (found.oldest, found.newest, found.coverage) == (3, 1, 1)
    assert found.token_mean == pytest.approx(row["staleness/token_mean"])


# --- randomness and resumption ----------------------------------------------------------------------------------------


def test_f28_every_member_of_a_group_has_a_stream_of_its_own():
    batch = play(policy_of(), questions=6, group=8)
    assert min(len({row.tobytes() for row in group}) for group in batch.ids) > 1
    other, later = play(policy_of(), questions=6, group=8, seed=1), play(policy_of(), questions=6, group=8, step=1)
    for another in (other, later):
        assert (another.ids != batch.ids).any((1, 2)).all()
    assert np.array_equal(play(policy_of(), questions=6, group=8).ids, batch.ids)


def test_f28_neither_company_nor_order_changes_an_episode():
    """Equal weights under three numbers: episodes are served in other groups, in another order."""
    policy, rng = policy_of(), np.random.default_rng(0)
    alone = play(policy, questions=6)
    versions = np.sort(rng.integers(0, 3, (6, 4, K)), -1)
    assert len(np.unique(versions.reshape(24, K), axis=0)) > 5
    served = play(dict.fromkeys(range(3), policy), questions=6, versions=versions)
    questions = facts_of(TASK).train[[0, 12, 2, 13, 4, 14]]
    beside = play(policy, questions=questions)
    for name in ("ids", "reward", "latency_s"):
        assert np.array_equal(getattr(served, name), getattr(alone, name))
        assert np.array_equal(getattr(beside, name)[::2], getattr(alone, name)[::2])


def test_f30_resumption_neither_skips_nor_repeats_a_question(tmp_path, monkeypatch):
    """Saved after every step and cut in the second: the same questions as many times, in their order, and an equal end."""
    asked = []

    def listening(engine, environment, question, *rest, **how):
        asked.append(question.tolist())
        return collect(engine, environment, question, *rest, **how)

    monkeypatch.setattr(run_module, "collect", listening)
    monkeypatch.setattr(run_module, "SAVE_EVERY", 1)
    config = training(steps=3)
    whole = begin(config).go()
    uninterrupted, first = asked.copy(), begin(config, folder=tmp_path)
    asked.clear()

    def interrupt(step):
        if step == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        first.go(interrupt)
    assert asked.pop() == uninterrupted[1]  # the second step is lost, and made again
    rest = begin(config, folder=tmp_path).go()
    assert asked == uninterrupted
    assert Counter(np.ravel(asked)) == Counter(np.ravel(uninterrupted))
    assert rest["step"].tolist() == [0, 1, 2]
    assert all(rest[name].tobytes() == whole[name].tobytes() for name in whole)


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [(n, m) for n, _, m in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, _ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
