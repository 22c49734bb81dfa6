import numpy as np
import pytest
import torch

from minimodel.agent import watch
from minimodel.agent.record import to_rollouts
from minimodel.tasks.layout import PROMPT
from sim.records.nested import describe
from sim.records.rollouts import Rollouts
from sim.records.staleness import staleness
from sim.records.tables import Outcome
from tests.minimodel.agent.small import TASK, environment_of, moved, play, policy_of

LAYOUT, ENVIRONMENT = TASK.layout, environment_of(TASK)
Q, G, STEP = 6, 8, 7


@pytest.fixture(scope="module")
def policies():
    """Four versions, each a little further on."""
    return {v: moved(policy_of(), 0.05 * v, seed=v) for v in range(4)}


@pytest.fixture(scope="module")
def batch(policies):
    """Turn t of member g is written by version min(g % 3 + t, 3)."""
    versions = np.minimum(np.arange(G)[:, None] % 3 + np.arange(LAYOUT.turns), 3)
    return play(policies, questions=Q, group=G, versions=np.broadcast_to(versions, (Q, G, 3)).copy())


@pytest.fixture(scope="module")
def record(batch, policies):
    return to_rollouts(batch, ENVIRONMENT, STEP, policies[3], policies[0])


def within(batch):
    """Where an episode has tokens, [Q, G, T]."""
    return np.arange(LAYOUT.length()) < np.vectorize(LAYOUT.length)(batch.taken)[..., None]


def test_tokens_come_back_as_they_were_sampled(batch, record):
    padded, inside = record.padded_tokens(), within(batch)
    assert np.array_equal(padded.mask, inside)
    assert np.array_equal(padded.id[inside], batch.ids[inside])
    for name in ("sampled", "train"):
        assert np.array_equal(getattr(padded, name), batch.sampled)
    assert np.array_equal(padded.version, batch.version)
    assert set(np.unique(padded.version)) == {-1, 0, 1, 2, 3}
    turn_of = np.broadcast_to(LAYOUT.turn_of, inside.shape)
    assert np.array_equal(padded.turn[inside], turn_of[inside])


def test_three_log_probabilities_a_token(batch, record, policies):
    padded, sampled = record.padded_tokens(), batch.sampled
    assert np.array_equal(padded.logp_behaviour[sampled], batch.logp[sampled])
    ids = torch.from_numpy(batch.ids.reshape(Q * G, -1))
    for name, version in (("logp_proximal", 3), ("logp_reference", 0)):
        logp = policies[version].scalars(ids, {"logp"})["logp"].detach().numpy().reshape(sampled.shape)
        assert np.array_equal(getattr(padded, name)[sampled], logp[sampled])
        assert np.isnan(getattr(padded, name)[~sampled & padded.mask]).all()
    newest = padded.version == 3
    assert np.abs(padded.logp_proximal - padded.logp_behaviour)[newest].max() < 1e-5  # the learner wrote those itself
    assert np.abs(padded.logp_proximal - padded.logp_behaviour)[sampled & ~newest].mean() > 1e-2


def test_turns_and_trajectories(batch, record):
    padded = record.padded()
    assert np.array_equal(padded.mask, batch.running)
    for ours, theirs in (("action", "action"), ("context", "context"), ("node", "state_id")):
        assert np.array_equal(getattr(batch, ours)[batch.running], getattr(padded, theirs)[batch.running])
    assert np.array_equal(padded.reward, batch.reward)
    assert np.array_equal(padded.outcome, batch.outcome)
    assert set(padded.outcome.ravel()) == {Outcome.SOLVED, Outcome.TURN_LIMIT}
    assert padded.task.tolist() == [STEP * Q + q for q in range(Q)]
    assert (padded.generated[batch.running] == LAYOUT.written).all()
    last = batch.running & (np.arange(3) == batch.taken[..., None] - 1)
    assert (padded.observed[last] == 0).all()  # nobody reads what comes back last
    assert (padded.observed[batch.running & ~last] == 2).all()
    for k, at in enumerate(LAYOUT.decisions):
        here = batch.running[..., k]
        assert np.array_equal(padded.logp_behaviour[..., k][here], batch.logp[..., at][here])
        mean = batch.entropy[..., PROMPT + k * LAYOUT.turn :][..., : LAYOUT.written].mean(-1)
        np.testing.assert_allclose(padded.entropy[..., k][here], mean[here], rtol=1e-5)
    np.testing.assert_allclose(padded.end, batch.latency_s.sum(-1))


def test_segments_span_their_versions(batch, record):
    padded = record.padded()
    oldest = np.where(batch.sampled, batch.version, 9).min(-1)
    newest = np.where(batch.sampled, batch.version, -1).max(-1)
    assert np.array_equal(padded.version_oldest, oldest)
    assert np.array_equal(padded.version_newest, newest)
    assert (oldest < newest).any()
    assert (padded.take_version == STEP).all()


def test_staleness_columns_are_those_of_the_record(batch, record):
    row, found = watch.staleness(batch, STEP), staleness(record)
    assert (row["staleness/oldest"], row["staleness/newest"]) == (found.oldest, found.newest) == (7, 4)
    assert row["staleness/token_mean"] == pytest.approx(found.token_mean)
    assert 4 < found.token_mean < 7
    assert found.coverage == 1


def test_what_did_not_arrive_is_kept_and_not_trained_on(batch, policies):
    arrived = np.arange(G) % 2 == np.zeros((Q, 1))
    found = to_rollouts(batch, ENVIRONMENT, STEP, policies[3], policies[0], arrived)
    tokens = found.padded_tokens()
    assert np.array_equal(tokens.sampled, batch.sampled)
    assert np.array_equal(tokens.train, batch.sampled & arrived[..., None])
    assert np.array_equal(found.padded().take_version, np.where(arrived, STEP, -1))


def test_it_is_saved_and_read(record):
    assert Rollouts.from_bytes(record.to_bytes()) == record
    names = ENVIRONMENT.graph
    shown = describe(
        record, 3, lambda a: names.actions[a] if a >= 0 else "invalid", lambda c: names.contexts[c]
    ).splitlines()
    assert shown[0].startswith(f"task {STEP * Q} (main), trajectory 3: ")
    assert "context start" in shown[1]
    assert "generated 4" in shown[1]
    assert len(shown) == 1 + len(record.trajectory(3).segments[0].turns)
