"""Drawing a token, and noticing the end of a turn."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fullscale.engine.sampling import draw, stop_reached
from tests.fullscale.engine.small import tokenizer

EDGE = 1 - 2**-24


def test_by_hand_at_a_temperature() -> None:
    """Known fault F9: log-prob of the likeliest of [2, 1, 0] at T = .6 is -.2026, at T = 1 -.4076."""
    drawn = draw(torch.tensor([[2.0, 1, 0]]), 0.6, torch.tensor([0.81]))
    p = np.exp(np.array([2, 1, 0]) / 0.6)
    p /= p.sum()
    assert p[0] < 0.82 < p[0] + p[1]
    assert draw(torch.tensor([[2.0, 1, 0]]), 0.6, torch.tensor([0.82])).ids.tolist() == [1]
    assert drawn.ids.tolist() == [0]
    assert drawn.logp.item() == pytest.approx(-0.2026, abs=5e-5)
    assert drawn.entropy.item() == pytest.approx(-(p * np.log(p)).sum(), rel=1e-6)
    assert draw(torch.tensor([[2.0, 1, 0]]), 1.0, None).logp.item() == pytest.approx(-0.4076, abs=5e-5)


def test_no_token_is_left_out() -> None:
    """Known fault F10: the likeliest two of [2, 1, 0] hold .90997; the third is still drawn, beyond."""
    logits = torch.tensor([[2.0, 1, 0]])
    assert draw(logits, 1.0, torch.tensor([0.9099])).ids.tolist() == [1]
    third = draw(logits, 1.0, torch.tensor([0.9101]))
    assert (third.ids.item(), round(third.logp.exp().item(), 4)) == (2, round(1 - 0.90997, 4))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@given(
    logits=arrays(np.float32, (3, 7), elements=st.one_of(st.just(-np.inf), st.floats(-100, 100, width=32))),
    u=st.one_of(st.sampled_from([0.0, EDGE, 1 - 2**-53]), st.floats(0, 1, exclude_max=True)),
)
def test_what_is_drawn_is_possible_and_is_where_the_uniform_falls(
    temperature: float, logits: np.ndarray, u: float
) -> None:
    logits[:, 3] = 1.0  # one possible token at least
    drawn = draw(torch.from_numpy(logits), temperature, torch.full((3,), u, dtype=torch.float64))
    z = logits.astype(np.float64) / temperature
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    above = np.cumsum(p, -1)
    for row, token in enumerate(drawn.ids.tolist()):
        assert p[row, token] > 0
        assert above[row, token] - p[row, token] - 1e-6 <= u <= above[row, token] + 1e-6
        assert drawn.logp[row].item() == pytest.approx(np.log(p[row, token]), rel=1e-5, abs=1e-6)
        some = p[row][p[row] > 0]
        assert drawn.entropy[row].item() == pytest.approx(-(some * np.log(some)).sum(), rel=1e-4, abs=1e-5)


def test_luck_at_the_edges_names_the_first_and_last_possible_token() -> None:
    logits = torch.tensor([[-torch.inf, 0, 1, 2, -torch.inf]]).repeat(3, 1)
    drawn = draw(logits, 1.0, torch.tensor([0.0, EDGE, 1 - 2**-53], dtype=torch.float64))
    assert drawn.ids.tolist() == [1, 3, 3]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_no_distribution(bad: float) -> None:
    logits = torch.zeros(4, 5)
    logits[2, 1] = bad
    with pytest.raises(FloatingPointError, match=r"rows \[2\] of a batch of 4"):
        draw(logits, 1.0, torch.zeros(4))
    with pytest.raises(FloatingPointError):
        draw(torch.full((1, 5), -torch.inf), 1.0, None)


def text_of(ids: Sequence[int]) -> str:
    return str(tokenizer().decode(list(ids), clean_up_tokenization_spaces=False))


@given(
    ids=st.lists(st.integers(0, 397), min_size=1, max_size=30),
    stops=st.lists(st.sampled_from(["</search>", "e", "is ", "日本", "é", "the capital", ">", "\n"]), max_size=3),
    tail=st.sampled_from(["", "</search>", "日本", "the capital", "é", "</answer><"]),
)
def test_stops_where_the_whole_text_first_holds_a_stop_string(ids: list[int], stops: list[str], tail: str) -> None:
    ids = ids + tokenizer().encode(tail)
    for n in range(1, len(ids) + 1):
        whole = text_of(ids[:n])
        holds = [stop for stop in stops if stop in whole]
        found = stop_reached(text_of, ids[:n], stops)
        assert bool(found) == bool(holds)
        if holds:
            assert found in holds
            assert whole.find(found) == min(whole.find(stop) for stop in holds)
            return


def test_tokens_without_a_text_do_not_hide_a_stop_string() -> None:
    ids = [60, 0, 0, 0, 0, 0, 47, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 62]
    assert stop_reached(lambda ids: "".join(chr(i) for i in ids if i), ids, ["</>"]) == "</>"


def test_only_the_end_of_a_long_text_is_decoded() -> None:
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return "a" * len(ids)

    assert stop_reached(decode, [0] * 10_000, ["</answer>"]) == ""
    assert max(decoded) < 50
