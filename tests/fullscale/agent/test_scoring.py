"""Per-token scalars of a language model, against its own logits and autograd."""

import pytest
import torch

from fullscale.agent.policy import AdapterOff, LanguagePolicy
from fullscale.agent.scoring import Asked, ScoringModel
from tests.fullscale.agent.small import model

KL = ("kl", "ref")


def ids_of(rows=3, length=11):
    return torch.randint(3, 300, (rows, length), generator=torch.Generator().manual_seed(5))


def mask_of(ids):
    where = torch.rand(ids.shape, generator=torch.Generator().manual_seed(6)) < 0.5
    where[:, 0] = False
    return where


def own_log_probs(network, ids, temperature):
    """What the model's own forward says of every next token, [B, T - 1, V]."""
    return torch.log_softmax(network(input_ids=ids).logits.float()[:, :-1] / temperature, -1)


@pytest.mark.parametrize("tied", [True, False])
def test_scalars_are_those_of_the_models_own_logits(tied):
    network, other = model(tied=tied), model(seed=1, tied=tied)
    ids = ids_of()
    where = mask_of(ids)
    policy, reference = LanguagePolicy(ScoringModel(network), 0.7), LanguagePolicy(ScoringModel(other), 0.7)
    found = policy.scalars(ids, {"logp", "entropy", KL}, reference, where)
    now, there = own_log_probs(network, ids, 0.7), own_log_probs(other, ids, 0.7)
    true = {
        "logp": now.gather(-1, ids[:, 1:, None])[..., 0],
        "entropy": -(now.exp() * now).sum(-1),
        KL: (now.exp() * (now - there)).sum(-1),
    }
    assert found.keys() == true.keys()
    for name, x in found.items():
        assert x.shape == ids.shape
        assert torch.equal(x[~where], torch.zeros_like(x[~where])), name
        torch.testing.assert_close(x[:, 1:][where[:, 1:]], true[name][where[:, 1:]], rtol=1e-5, atol=2e-5)
        assert x[where].abs().min() > 0


def test_the_gradient_is_that_of_the_models_own_logits():
    ids = ids_of()
    where = mask_of(ids)
    weights = torch.randn(ids.shape, generator=torch.Generator().manual_seed(7))
    gradients = []
    for kernel in (True, False):
        network = model()
        if kernel:
            found = LanguagePolicy(ScoringModel(network)).scalars(ids, {"logp", "entropy"}, None, where)
            loss = (weights * (found["logp"] + 0.3 * found["entropy"])).sum()
        else:
            now = own_log_probs(network, ids, 1.0)
            both = now.gather(-1, ids[:, 1:, None])[..., 0] - 0.3 * (now.exp() * now).sum(-1)
            loss = (weights * where)[:, 1:].mul(both).sum()
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert gradients[1].norm() > 1
    assert (gradients[0] - gradients[1]).norm() / gradients[1].norm() < 1e-5


def test_without_a_mask_every_token_but_the_first_counts():
    ids = ids_of()
    policy = LanguagePolicy(ScoringModel(model()))
    found = policy.scalars(ids, {"logp"})["logp"]
    assert torch.equal(found[:, 0], torch.zeros(3))
    assert bool((found[:, 1:] < 0).all())


def test_padding_on_the_right_changes_nothing_before_it():
    ids = ids_of()
    padded = torch.cat([ids, torch.zeros(3, 4, dtype=torch.int64)], 1)
    policy = LanguagePolicy(ScoringModel(model()))
    where = mask_of(ids)
    alone = policy.scalars(ids, {"logp"}, None, where)["logp"]
    more = policy.scalars(padded, {"logp"}, None, torch.cat([where, torch.zeros(3, 4, dtype=torch.bool)], 1))["logp"]
    torch.testing.assert_close(more[:, :11], alone, rtol=1e-5, atol=1e-5)


def test_a_first_token_that_counts_is_refused():
    ids = ids_of()
    with pytest.raises(ValueError, match="first token of a row"):
        ScoringModel(model())(ids, torch.ones_like(ids, dtype=torch.bool), 1.0, Asked())


def test_what_a_language_model_has_not_is_refused():
    policy = LanguagePolicy(ScoringModel(model()))
    with pytest.raises(ValueError, match="no scalar"):
        policy.scalars(ids_of(), {"value"})
    with pytest.raises(ValueError, match="reference"):
        policy.scalars(ids_of(), {KL})
    with pytest.raises(ValueError, match=r"temperature = 0\.0"):
        LanguagePolicy(ScoringModel(model()), 0.0)


def test_a_head_that_does_more_is_found_out():
    network = model()
    scoring = ScoringModel(network)
    assert scoring.check(ids_of()) < 1e-4

    shipped = network.forward

    def changed(*given, **options):
        out = shipped(*given, **options)
        out.logits = out.logits * 1.1
        return out

    network.forward = changed
    with pytest.raises(ValueError, match="halves"):
        scoring.check(ids_of())


def test_a_frozen_copy_stays_where_it_was():
    policy = LanguagePolicy(ScoringModel(model()), 0.5)
    frozen = policy.frozen()
    before = frozen.scalars(ids_of(), {"logp"})["logp"].clone()
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    assert torch.equal(frozen.scalars(ids_of(), {"logp"})["logp"], before)
    assert frozen.temperature == 0.5
    assert list(frozen.parameters()) == []


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers by an old name
def test_under_an_adapter_the_reference_is_the_network_without_it():
    peft = pytest.importorskip("peft")
    network = model()
    base = LanguagePolicy(ScoringModel(model())).scalars(ids_of(), {"logp"})["logp"].detach()
    adapted = peft.get_peft_model(network, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    policy = LanguagePolicy(ScoringModel(adapted))
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3)
    reference = policy.frozen()
    assert isinstance(reference, AdapterOff)
    found = policy.scalars(ids_of(), {"logp", KL}, reference)
    torch.testing.assert_close(reference.scalars(ids_of(), {"logp"})["logp"], base, rtol=1e-5, atol=1e-5)
    assert (found["logp"] - base).abs().max() > 0.1
    assert found[KL][:, 1:].min() > 0
    found["logp"].sum().backward()
    assert all(p.grad is not None for p in policy.parameters())
    assert 0 < sum(p.numel() for p in policy.parameters()) < 10_000
