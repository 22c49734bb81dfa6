import numpy as np
import pytest

from minimodel.agent.monitor import EvidenceFirst
from minimodel.tasks.environment import Environment
from sim.records.tables import Outcome
from tests.minimodel.agent import small
from tests.minimodel.agent.small import TASK, facts_of, play, policy_of

ANSWER, SEARCH = (TASK.actions.index(name) for name in ("answer", "search"))


@pytest.fixture(scope="module")
def batch():
    return play(policy_of(), group=8)


def guessed_by_hand(batch):
    """Whether the first of an episode's answers comes before its first search."""
    found = np.zeros(batch.reward.shape, bool)
    for q, g in np.ndindex(*found.shape):
        said = [a for a in batch.action[q, g, : batch.taken[q, g]] if a >= 0]
        found[q, g] = bool(said) and said[0] == ANSWER
    return found


def test_an_answer_before_any_search_earns_nothing(batch):
    guessed = guessed_by_hand(batch)
    assert np.array_equal(batch.guessed, guessed)
    shaped = EvidenceFirst()(batch)
    assert (batch.reward[guessed] == 1).any()
    assert (shaped[guessed] == 0).all()
    assert np.array_equal(shaped[~guessed], batch.reward[~guessed])
    assert shaped[~guessed].mean() > 0.2


def test_and_may_cost(batch):
    shaped = EvidenceFirst(penalty=0.5)(batch)
    assert (shaped[batch.guessed] == -0.5).all()
    assert np.array_equal(shaped[~batch.guessed], batch.reward[~batch.guessed])
    with pytest.raises(ValueError, match=r"penalty = -0\.1"):
        EvidenceFirst(penalty=-0.1)


def test_and_may_end_the_episode(batch, monkeypatch):
    ending = Environment(TASK, facts_of(TASK), ends_on_guess=True)
    monkeypatch.setattr(small, "environment_of", lambda task: ending)
    found = play(policy_of(), group=8)
    first = found.action[..., 0] == ANSWER
    assert np.array_equal(first, batch.action[..., 0] == ANSWER)
    assert (found.taken[first] == 1).all()
    assert (batch.taken[first] > 1).any()
    assert set(found.outcome[first]) == {Outcome.SOLVED, Outcome.WRONG}
    untouched = ~batch.guessed & ~found.guessed
    assert np.array_equal(found.reward[untouched], batch.reward[untouched])
