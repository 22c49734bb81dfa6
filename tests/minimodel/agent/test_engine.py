import numpy as np
import pytest
import torch

from minimodel.agent.engine import LocalEngine
from minimodel.agent.policy import Push, TinyPolicy
from minimodel.model.compiled import available
from minimodel.model.vocabulary import ANSWER
from tests.minimodel.agent.small import TASK, environment_of, facts_of, moved, play, policy_of, taught

WRITTEN = TASK.layout.written
WATCH = (TASK.thinking, TASK.decisions)


class Uniform:
    """A network that knows nothing: every word is as likely as any other."""

    def __init__(self, words: int = 10) -> None:
        self.words, self.fed = words, []

    def start(self, batch):
        return self

    def keep(self, rows):
        self.fed.append(("keep", rows.tolist()))

    def extend(self, ids, cache):
        self.fed.append(ids.tolist())
        return torch.zeros(len(ids), self.words)


DECODING = pytest.mark.parametrize(
    "compiled",
    [pytest.param(True, marks=pytest.mark.skipif(not available(), reason="no compiled decoding")), False],
    ids=["compiled", "torch"],
)


def opened(policy, questions=8, version=0, compiled=False):
    engine = LocalEngine(compiled=compiled)
    engine.publish(version, policy)
    return engine, engine.open(environment_of(TASK).prompts(facts_of(TASK).train[:questions]))


def uniforms(rows, tokens=WRITTEN, seed=0):
    return np.random.default_rng(seed).random((tokens, rows), np.float32)


def full_logp(policy, ids):
    with torch.no_grad():
        return torch.log_softmax(policy.model(ids) / policy.temperature, -1)


# --- drawing ----------------------------------------------------------------------------------------------------------


# --- conversations ----------------------------------------------------------------------------------------------------


def test_nothing_is_sampled_before_weights_are_published():
    with pytest.raises(RuntimeError, match="call publish"):
        LocalEngine().open(np.zeros((2, 4), np.int64))


def test_a_uniform_network_writes_the_uniforms():
    model = Uniform()
    _, talk = opened(TinyPolicy(model), questions=2)
    u = np.array([[0.05, 0.95], [0.55, 0.15]], np.float32)
    wrote = talk.write(2, u, (1, (3, 4)))
    assert wrote.ids.tolist() == [[0, 5], [9, 1]]
    assert wrote.logp == pytest.approx(-np.log(10), abs=1e-6)
    assert wrote.entropy == pytest.approx(np.log(10), abs=1e-6)
    assert wrote.watched.shape == (2, 2)
    assert wrote.watched == pytest.approx(-np.log(10), abs=1e-6)


def test_every_token_is_fed_once_and_in_order():
    model = Uniform()
    _, talk = opened(TinyPolicy(model), questions=2)
    prompts = talk.ids.tolist()
    talk.write(2, np.array([[0.05, 0.95], [0.55, 0.15]], np.float32), (0, ()))
    talk.read(np.array([False, True]), np.array([[8, 7]]))
    talk.write(1, np.array([[0.35]], np.float32), (0, ()))
    assert model.fed == [prompts, [[0], [9]], ("keep", [1]), [[1, 8, 7]]]
    assert talk.ids.tolist() == [[*prompts[1], 9, 1, 8, 7, 3]]


@DECODING
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_is_noted_is_what_the_whole_network_says(temperature, compiled):
    """Log-probs, entropies and watched words, over two turns between which episodes are dropped."""
    policy = policy_of(temperature=temperature)
    _, talk = opened(policy, compiled=compiled)
    before = talk.ids
    keep = np.array([True, False, True, True, False, True, True, False])
    for turn in range(2):
        wrote = talk.write(WRITTEN, uniforms(len(before), seed=turn), WATCH)
        logp = full_logp(policy, talk.ids)[:, before.shape[1] - 1 : -1]  # [R, written, V]
        ids = torch.from_numpy(wrote.ids)
        assert torch.equal(talk.ids[:, before.shape[1] :], ids)
        np.testing.assert_allclose(wrote.logp, logp.gather(-1, ids[..., None])[..., 0], atol=1e-5)
        np.testing.assert_allclose(wrote.entropy, -(logp.exp() * logp).sum(-1), atol=1e-5)
        np.testing.assert_allclose(wrote.watched, logp[:, TASK.thinking][:, list(TASK.decisions)], atol=1e-5)
        if turn == 0:
            kept = talk.ids[torch.from_numpy(keep)]
            talk.read(keep, np.full((keep.sum(), 2), 12))
            before = talk.ids
            assert torch.equal(before, torch.cat([kept, torch.full((len(kept), 2), 12)], 1))


@DECODING
def test_without_uniforms_the_likeliest_word_is_written(compiled):
    policy = policy_of()
    _, talk = opened(policy, compiled=compiled)
    P = talk.ids.shape[1]
    wrote = talk.write(WRITTEN, None, WATCH)
    assert np.array_equal(wrote.ids, full_logp(policy, talk.ids)[:, P - 1 : -1].argmax(-1))
    assert len(np.unique(wrote.ids)) > 3


@DECODING
def test_weights_published_under_way_write_the_rest(compiled):
    """What was read is read again with the new weights; tokens carry the version of the weights that wrote them."""
    old, new = policy_of(), moved(policy_of(), 0.3)
    engine, talk = opened(old, version=3, compiled=compiled)
    P = talk.ids.shape[1]
    first = talk.write(WRITTEN, uniforms(8), WATCH)
    engine.publish(4, new)
    assert (first.version == 3).all()
    talk.read(np.ones(8, bool), np.full((8, 2), 12))
    second = talk.write(WRITTEN, uniforms(8, seed=1), WATCH)
    assert (second.version == 4).all()
    for wrote, policy, at in ((first, old, P), (second, new, P + TASK.layout.turn)):
        ids = torch.from_numpy(wrote.ids)
        logp = full_logp(policy, talk.ids)[:, at - 1 : at + WRITTEN - 1].gather(-1, ids[..., None])[..., 0]
        np.testing.assert_allclose(wrote.logp, logp, atol=1e-5)
        other = new if policy is old else old
        wrong = full_logp(other, talk.ids)[:, at - 1 : at + WRITTEN - 1].gather(-1, ids[..., None])[..., 0]
        assert np.abs(wrote.logp - wrong.numpy()).max() > 0.1  # the other version would be seen


@DECODING
def test_an_open_conversation_keeps_its_weights_until_new_ones_are_published(compiled):
    policy = TinyPolicy(taught())
    engine, talk = opened(policy, compiled=compiled)
    twin = opened(policy, compiled=compiled)[1]
    talk.write(1, uniforms(8, 1), (0, ()))
    assert talk.version == 0
    engine.publish(0, policy)  # the same version again: nothing to read anew
    cache = talk.cache
    talk.write(1, uniforms(8, 1, 1), (0, ()))
    assert talk.cache is cache
    twin.write(1, uniforms(8, 1), (0, ()))
    twin.write(1, uniforms(8, 1, 1), (0, ()))
    assert torch.equal(talk.ids, twin.ids)


@DECODING
def test_log_probs_as_sampled_are_the_learners(compiled):
    """Over whole batches, episodes of one to three turns: what a ratio compares agrees to 1e-5, and entropies do."""
    for temperature in (1.0, 0.6):
        policy = policy_of(temperature=temperature)
        policy.push = Push(int(TASK.layout.decisions[0]), ANSWER, 0.5)
        batch = play(policy, group=8, compiled=compiled)
        ids = torch.from_numpy(batch.ids.reshape(-1, batch.ids.shape[-1]))
        learner = policy.scalars(ids, {"logp", "entropy"})
        for name, noted in (("logp", batch.logp), ("entropy", batch.entropy)):
            gap = np.abs(learner[name].detach().numpy().reshape(batch.ids.shape) - noted)[batch.sampled]
            assert gap.max() <= 1e-5
        assert np.abs(batch.logp[batch.sampled]).mean() > 0.1


@pytest.mark.skipif(not available(), reason="no compiled decoding")
def test_both_ways_of_decoding_write_the_same():
    batches = [play(policy_of(), group=8, compiled=compiled) for compiled in (True, False)]
    for name in ("ids", "reward", "taken", "version"):
        assert np.array_equal(*(getattr(batch, name) for batch in batches))
    for name in ("logp", "entropy", "decision"):
        np.testing.assert_allclose(*(getattr(batch, name) for batch in batches), atol=1e-5)


@pytest.mark.skipif(not available(), reason="no compiled decoding")
def test_weights_that_move_after_they_were_published_do_not_write():
    """Compiled code has a copy; the policy that is published next is the moved one."""
    policy = policy_of()
    engine, talk = opened(policy, compiled=True)
    before = opened(policy, compiled=True)[1].write(WRITTEN, uniforms(8), WATCH)
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.5)
    assert np.array_equal(talk.write(WRITTEN, uniforms(8), WATCH).logp, before.logp)
    engine.publish(1, policy)
    after = engine.open(environment_of(TASK).prompts(facts_of(TASK).train[:8])).write(WRITTEN, uniforms(8), WATCH)
    assert np.abs(after.logp - before.logp).max() > 0.1
