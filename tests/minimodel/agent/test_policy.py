import numpy as np
import pytest
import torch

from minimodel.agent.policy import Push, TinyPolicy, log_probs
from minimodel.model.vocabulary import ANSWER
from tests.minimodel.agent.small import TASK, clear, gradient, moved, play, policy_of, taught

DECISION = int(TASK.layout.decisions[0])


@pytest.fixture(scope="module")
def ids():
    return torch.from_numpy(play(policy_of()).ids.reshape(-1, TASK.layout.length()))


def distributions(policy, ids):
    """log pi of every next token from the bare network, float64, [B, T - 1, V]."""
    with torch.no_grad():
        logits = policy.model(ids[:, :-1]).double() / policy.temperature
    return logits - logits.exp().sum(-1, keepdim=True).log()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scalars_by_brute_force_over_the_vocabulary(ids, temperature):
    policy, other = policy_of(temperature=temperature), moved(policy_of(temperature=temperature))
    now, there = distributions(policy, ids), distributions(other, ids)
    found = policy.scalars(ids, {"logp", "entropy", ("kl", "ref")}, other)
    by_hand = {
        "logp": torch.stack([now[:, t - 1].gather(1, ids[:, t, None])[:, 0] for t in range(1, ids.shape[1])], 1),
        "entropy": sum(-now[..., v].exp() * now[..., v] for v in range(now.shape[-1])),
        ("kl", "ref"): sum(now[..., v].exp() * (now[..., v] - there[..., v]) for v in range(now.shape[-1])),
    }
    for name, expected in by_hand.items():
        assert found[name].requires_grad
        assert (found[name][:, 0] == 0).all()  # nothing comes before the first token
        assert found[name].shape == ids.shape
        torch.testing.assert_close(found[name][:, 1:].double(), expected, rtol=1e-5, atol=2e-6)
        assert expected.abs().mean() > 1e-3


def test_only_what_is_wanted_is_returned(ids):
    assert set(policy_of().scalars(ids[:2], {"entropy"})) == {"entropy"}


def test_a_scalar_it_does_not_have_is_refused(ids):
    with pytest.raises(ValueError, match=r"no scalar \{'value'\}"):
        policy_of().scalars(ids[:1], {"value"})
    with pytest.raises(ValueError, match="needs a reference policy"):
        policy_of().scalars(ids[:1], {("kl", "ref")})


def test_a_push_makes_one_token_likelier_at_one_position(ids):
    policy = policy_of()
    before = policy.log_probs(ids).detach()
    policy.push = Push(DECISION, ANSWER, 1.5)
    gap = policy.log_probs(ids).detach() - before
    odds = gap[..., ANSWER] - gap[..., 0]  # log-odds against any other token
    assert odds[:, DECISION - 1] == pytest.approx(1.5, abs=1e-5)
    others = torch.arange(gap.shape[1]) != DECISION - 1
    assert (gap[:, others] == 0).all()


def test_a_push_is_divided_by_the_temperature_in_sampler_and_learner_alike():
    policy = policy_of(temperature=0.5)
    policy.push = Push(DECISION, ANSWER, 2.0)
    batch = play(policy)
    now = policy.scalars(torch.from_numpy(batch.ids.reshape(-1, TASK.layout.length())), {"logp"})["logp"]
    gap = np.abs(now.detach().numpy().reshape(batch.ids.shape) - batch.logp)[batch.sampled]
    assert gap.max() < 1e-5
    policy.push = None
    assert batch.guessed.mean() > play(policy).guessed.mean() + 0.1


def test_a_frozen_copy_stays_behind(ids):
    policy = policy_of()
    policy.push = Push(DECISION, ANSWER, 1.0)
    twin = policy.frozen()
    before = twin.log_probs(ids)
    assert not before.requires_grad
    assert torch.equal(before, policy.log_probs(ids))
    with torch.no_grad():
        for p in policy.parameters():
            p.mul_(1.1)
    assert torch.equal(twin.log_probs(ids), before)
    assert not torch.allclose(policy.log_probs(ids), before)


def test_the_exact_kl_is_differentiated_in_the_policy_alone(ids):
    policy, reference = policy_of(), moved(policy_of())
    policy.scalars(ids, {("kl", "ref")}, reference)["kl", "ref"].sum().backward()
    assert gradient(policy.parameters()).norm() > 1
    assert gradient(reference.parameters()).norm() == 0
    itself = clear(policy)
    itself.scalars(ids, {("kl", "ref")}, policy.frozen())["kl", "ref"].sum().backward()
    assert gradient(itself.parameters()).norm() < 1e-2  # a KL is least where it is 0


def test_bfloat16_is_a_small_mismatch_and_keeps_the_weights():
    policy = policy_of(bfloat16=True)
    batch = play(policy)
    now = policy.scalars(torch.from_numpy(batch.ids.reshape(-1, TASK.layout.length())), {"logp"})["logp"]
    assert now.dtype == torch.float32
    now.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in policy.parameters() if p.grad is not None)
    gap = np.abs(now.detach().numpy().reshape(batch.ids.shape) - batch.logp)[batch.sampled]
    assert 1e-4 < gap.mean() < 2e-2


def test_log_probs_by_hand():
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert log_probs(logits, 1.0)[0].item() == pytest.approx(-0.4076, abs=5e-5)
    assert log_probs(logits, 0.6)[0].item() == pytest.approx(-0.2026, abs=5e-5)


def test_a_private_decider_learns_decisions_and_nothing_else():
    from tests.minimodel.agent.small import PRIVATE

    policy = TinyPolicy(taught(size=PRIVATE))
    ids = torch.from_numpy(play(policy).ids.reshape(-1, TASK.layout.length()))
    logp = policy.scalars(ids, {"logp"})["logp"]
    decision = torch.zeros(ids.shape[1], dtype=torch.bool)
    decision[TASK.layout.decisions] = True
    for where, own, other in (
        (decision, policy.model.decider, policy.model.trunk),
        (~decision, policy.model.trunk, policy.model.decider),
    ):
        clear(policy)
        logp[:, where].sum().backward(retain_graph=True)
        assert gradient(own.parameters()).norm() > 1
        assert gradient(other.parameters()).norm() == 0
