"""Counting tensors that are alive."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fullscale.model.live import LiveBytes


def test_views_are_counted_once_and_what_was_there_before_not_at_all() -> None:
    before = torch.ones(500)
    with LiveBytes() as live:
        view = before[:10]
        before.add_(1)
        made = before * 2
        again = made.view(50, 10).T
        del made
        assert live.now == 2000
        del again
        assert live.now == 0
        assert view.numel() == 10
    assert live.peak == 2000


def test_what_autograd_keeps_is_alive_until_the_backward() -> None:
    weight = torch.ones(100, 100, requires_grad=True)
    with LiveBytes() as live:
        y = torch.ones(50, 100) @ weight
        z = y.exp().sum()
        assert live.now == 3 * 50 * 100 * 4 + 4  # input, y by name, exp(y) for the backward, sum
        z.backward()
        del y, z
        assert weight.grad is not None
        assert live.now == 100 * 100 * 4
    assert live.peak >= 3 * 50 * 100 * 4 + 100 * 100 * 4


def test_tensors_without_content_count_the_same() -> None:
    def work() -> int:
        with LiveBytes() as live:
            x = torch.ones(64, 32)
            y = torch.softmax(x @ x.T, -1)
            del x, y
        return live.peak

    with FakeTensorMode():
        fake = work()
    assert fake == work() == 64 * 32 * 4 + 2 * 64 * 64 * 4
