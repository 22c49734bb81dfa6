import pytest
import torch

from minimodel.agent.optimiser import AdamW, Optimiser, Sgd


def stepped(optimiser, gradients, start=(1.0, -2.0)):
    """A parameter after steps along these gradients."""
    p = torch.nn.Parameter(torch.tensor(start))
    built = optimiser.build([p])
    for g in gradients:
        p.grad = torch.tensor(g)
        built.step()
    return p.detach()


def test_sgd_by_hand():
    assert stepped(Sgd(0.1), [(1.0, 2.0), (3.0, -1.0)]).tolist() == pytest.approx([1 - 0.4, -2 - 0.1])


def test_adamw_by_hand():
    """Its first step is of full size; the second as Kingma and Ba's equations give it; decay pulls towards 0."""
    first = stepped(AdamW(0.01), [(5.0, -1e-3)])
    assert first.tolist() == pytest.approx([0.99, -1.99], abs=1e-5)
    m, v = 0.9 * 0.1 * 5 + 0.1 * 1, 0.99 * 0.01 * 25 + 0.01 * 1
    m, v = m / (1 - 0.9**2), v / (1 - 0.99**2)
    second = stepped(AdamW(0.01), [(5.0, 0.0), (1.0, 0.0)])
    assert second[0].item() == pytest.approx(0.99 - 0.01 * m / v**0.5, abs=1e-6)
    decayed = stepped(AdamW(0.01, decay=0.5), [(5.0, 1.0)])
    assert decayed[0].item() == pytest.approx(1 * (1 - 0.005) - 0.01, abs=1e-6)


def test_a_rate_of_zero_moves_no_bit():
    for optimiser in (AdamW(0.0), AdamW(0.0, decay=0.1), Sgd(0.0)):
        assert isinstance(optimiser, Optimiser)
        assert torch.equal(stepped(optimiser, [(1e3, -1e-3)] * 3), torch.tensor([1.0, -2.0]))


def test_nothing_may_be_negative():
    for bad in ({"rate": -1.0}, {"rate": 0.1, "clip": -1.0}, {"rate": 0.1, "warmup": -1}):
        for kind in (AdamW, Sgd):
            with pytest.raises(ValueError, match="must be at least 0"):
                kind(**bad)
