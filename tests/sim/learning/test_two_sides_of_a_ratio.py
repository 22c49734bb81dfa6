"""The two sides of a ratio: one temperature, one support, one position; in numpy and torch."""

import numpy as np
import pytest

from sim.learning.logprobs import next_token_log_probability, token_log_probability, top_k, top_p

torch = pytest.importorskip("torch")

LOGITS = np.array([2.0, 1.0, 0.0])


def both(logits, token, **more):
    """The log-prob of one token, having checked that torch finds the same."""
    here = token_log_probability(logits, np.array(token), **more)
    there = token_log_probability(
        torch.from_numpy(logits),
        torch.tensor(token),
        **{name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in more.items()},
    )
    np.testing.assert_allclose(there.numpy(), here, rtol=1e-12)
    return float(here)


def test_f9_one_temperature_on_both_sides():
    sampled = both(LOGITS, 0, temperature=0.6)
    assert sampled == pytest.approx(-0.2026, abs=5e-5)
    assert both(LOGITS, 0) == pytest.approx(-0.4076, abs=5e-5)
    assert np.exp(both(LOGITS, 0, temperature=0.6) - sampled) == 1
    assert np.exp(sampled - both(LOGITS, 0)) == pytest.approx(1.2276, abs=5e-4)  # learner at .6, sampler logged at 1
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="must be positive"):
            token_log_probability(LOGITS, np.array(0), temperature=temperature)


def test_f10_one_support_on_both_sides():
    kept = top_k(LOGITS, 2)
    assert kept.tolist() == [True, True, False]
    sampled = both(LOGITS, 0, support=kept)
    assert np.exp(both(LOGITS, 0, support=kept) - sampled) == 1
    assert np.exp(both(LOGITS, 0) - sampled) == pytest.approx(0.90997, abs=5e-6)  # the kept mass
    assert both(LOGITS, 2, support=kept) == -np.inf
    # probabilities .665 .245 .090
    assert top_p(LOGITS, 0.66).tolist() == [True, False, False]
    assert top_p(LOGITS, 0.9).tolist() == [True, True, False]
    assert top_p(LOGITS, 0.92).tolist() == [True, True, True]
    assert top_p(LOGITS, 0.7, temperature=0.6).tolist() == [True, False, False]  # .816 at .6
    np.testing.assert_array_equal(top_p(torch.from_numpy(LOGITS), 0.9).numpy(), top_p(LOGITS, 0.9))
    np.testing.assert_array_equal(top_k(torch.from_numpy(LOGITS), 2).numpy(), kept)


def test_large_logits_do_not_overflow():
    assert both(np.array([1000.0, 0.0]), 0) == 0
    assert both(np.array([1000.0, 0.0]), 1) == -1000


class Bigram(torch.nn.Module):
    """An untrained causal model: a token's successor depends on the token and on where the sequence began."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(7, 7, generator=generator))

    def forward(self, tokens):
        return self.table[tokens]


def test_f11_packed_and_single_sequences_agree_and_a_shift_does_not():
    model = Bigram()
    first, second = torch.tensor([1, 4, 2, 2, 6]), torch.tensor([3, 0, 5])
    packed = torch.cat([first, second])
    start = torch.tensor([1, 0, 0, 0, 0, 1, 0, 0], dtype=torch.bool)
    with torch.no_grad():
        learner = next_token_log_probability(model(packed), packed, start)
        parts = [next_token_log_probability(model(s), s, torch.arange(len(s)) == 0) for s in (first, second)]
        engine = torch.cat(parts)
        naive = token_log_probability(model(packed), packed)  # logits[i] scored against token[i]
    assert (learner - engine).abs().max() < 1e-6
    assert learner[~start].min() < -1
    assert not learner[start].any()  # nothing predicts a first token, the other sequence's last least of all
    assert (naive - engine)[~start].abs().max() > 0.5
    assert (learner.roll(1) - engine)[~start].abs().max() > 0.5
    # log p(4 | 1), by hand
    assert learner[1] == pytest.approx(float(torch.log_softmax(model.table.detach()[1], -1)[4]), rel=1e-6)


def test_the_first_token_must_begin_a_sequence():
    with pytest.raises(ValueError, match="nothing predicts it"):
        next_token_log_probability(np.zeros((2, 3)), np.array([0, 1]), np.array([False, False]))


def test_log_probs_are_differentiable():
    logits = torch.from_numpy(LOGITS).requires_grad_()
    token_log_probability(logits, torch.tensor(0), temperature=0.6).backward()
    p = torch.softmax(torch.from_numpy(LOGITS) / 0.6, -1)
    np.testing.assert_allclose(logits.grad.numpy(), (np.array([1, 0, 0]) - p.numpy()) / 0.6, rtol=1e-12)
