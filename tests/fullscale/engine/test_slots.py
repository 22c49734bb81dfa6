"""Rows of their own lengths, against a list of what each row holds."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullscale.engine.slots import Slots

LIKE = torch.zeros(0)
LAYERS, HEADS, D = 2, 2, 3


def feed(slots: Slots, rows: list[int], counts: list[int], first: float) -> tuple[Any, list[list[float]]]:
    """Numbers first, first + 1, ... row by row; returns what a layer was given back, and what was written to each row."""
    _, mask = slots.aim(rows, counts, LIKE)
    new = torch.full((len(rows), HEADS, max(counts), D), torch.nan)
    said, number = [], first
    for b, count in enumerate(counts):
        said.append([number + i for i in range(count)])
        new[b, :, :count] = torch.tensor(said[-1])[None, :, None]
        number += count
    new = new.nan_to_num(-7.0)  # padding: finite, and to be seen by nobody
    for layer in range(LAYERS):
        keys, values = slots.update(new + 1000 * layer, -new, layer)
    return (keys - 1000 * (LAYERS - 1), values, mask), said


actions = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 90)), min_size=1, max_size=4)),
        st.tuples(st.just("move"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
        st.tuples(st.just("copy"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
        st.tuples(st.just("again"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    ),
    min_size=1,
    max_size=8,
)


@given(actions)
def test_each_row_holds_what_it_read_and_is_given_back_no_more(steps: list[Any]) -> None:
    slots, held, number = Slots(4, 500), [[] for _ in range(4)], 1.0
    for what, given_ in steps:
        if what == "read":
            counts = dict(given_)
            (keys, values, mask), said = feed(slots, list(counts), list(counts.values()), number)
            for b, row in enumerate(counts):
                held[row] += said[b]
                n, new = len(held[row]), len(said[b])
                assert keys[b, 0, :n, 0].tolist() == held[row]
                assert values[b, 1, :n, 2].tolist() == [-x for x in held[row]]
                for i in range(new):  # the i-th new token sees itself and all before it
                    assert (mask[b, 0, i] == 0).tolist() == [j <= n - new + i for j in range(mask.shape[-1])]
            number += sum(counts.values())
            continue
        source, target = given_
        if what == "move":
            slots.move(source, target)
            held[target] = held[source]
            if source != target:
                held[source] = []
            else:
                held[source] = []
        elif what == "copy" and held[source] and source != target:
            slots.copy(source, (target,), 1)
            held[target] = held[source][:1]
        elif what == "again" and held[source]:
            slots.put(target, slots.take(source, len(held[source])))
            held[target] = list(held[source])
        assert slots.lengths == [len(each) for each in held]
    for row, each in enumerate(held):
        for key, value in slots.take(row, len(each)) if slots.keys else ():
            assert key.shape == value.shape == (HEADS, len(each), D)
    if slots.keys:
        assert [slots.take(row, len(each))[0][0][0, :, 0].tolist() for row, each in enumerate(held)] == held


def test_room_grows_by_half_and_not_beyond_what_a_row_may_hold() -> None:
    slots = Slots(2, 200)
    sizes = set()
    for _ in range(200):
        feed(slots, [0], [1], 1.0)
        sizes.add(slots.keys[0].shape[2])
    assert sorted(sizes) == [64, 128, 192, 256]  # in 64s: 65, 129 and 193 places were wanted
    assert slots.nbytes == 2 * LAYERS * 2 * HEADS * 256 * D * 4


@pytest.mark.parametrize("tokens", [63, 64, 128])
def test_rows_that_fill_their_slots_are_moved_and_copied_as_others_are(tokens: int) -> None:
    slots = Slots(3, 200)
    feed(slots, [2], [tokens], 1.0)
    slots.copy(2, (0, 1), tokens)
    slots.move(2, 1)
    assert slots.lengths == [tokens, tokens, 0]
    assert slots.take(0, tokens)[1][1][1, :, 0].tolist() == slots.take(1, tokens)[1][1][1, :, 0].tolist()
    assert slots.take(0, tokens)[0][0][0, :, 0].tolist() == list(range(1, tokens + 1))


def test_new_places_are_zeros_for_what_is_masked_is_multiplied_by_nothing() -> None:
    slots = Slots(2, 100)
    feed(slots, [0, 1], [70, 1], 1.0)
    assert not slots.keys[0][1, :, 1:].any()
