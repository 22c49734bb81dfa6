import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimodel.tasks.layout import OBSERVED, PROMPT, Layout
from sim.records.config import ConfigError

LAYOUTS = st.builds(Layout, st.integers(0, 5), st.integers(1, 5))


def test_the_default_layout_by_hand():
    """BOS QUESTION e r, then slots of 3 thinking + decision + 2 arguments + 2 observed."""
    layout = Layout()
    assert (layout.written, layout.turn, layout.length(), layout.length(2)) == (6, 8, 34, 18)
    assert layout.decisions.tolist() == [7, 15, 23, 31]
    assert layout.turn_of[[0, 3, 4, 9, 10, 11, 12, 33]].tolist() == [0, 0, 0, 0, 0, 0, 1, 3]


def test_what_was_sampled_by_hand():
    """One thinking token, two turns: prompt 4, then 4 sampled and 2 observed, then 4 sampled."""
    layout = Layout(thinking=1, turns=2)
    one, two = layout.sampled(np.array([1, 2]))
    assert one.tolist() == [False] * 4 + [True] * 4 + [False] * 6
    assert two.tolist() == [False] * 4 + [True] * 4 + [False] * 2 + [True] * 4


@given(LAYOUTS, st.data())
def test_the_mask_is_on_sampled_tokens_alone(layout, data):
    """Never on prompt, observations, or what follows the last turn: n turns are n x written tokens."""
    taken = np.array(data.draw(st.lists(st.integers(0, layout.turns), min_size=1, max_size=4)))
    mask = layout.sampled(taken)
    assert mask.shape == (len(taken), layout.length())
    np.testing.assert_array_equal(mask.sum(-1), taken * layout.written)
    assert not mask[:, :PROMPT].any()
    np.testing.assert_array_equal(mask[:, layout.decisions], np.arange(layout.turns) < taken[:, None])
    per_turn = [mask[taken == layout.turns][:, layout.turn_of == k].sum(-1) for k in range(layout.turns)]
    assert all((n == layout.written).all() for n in per_turn)


@given(LAYOUTS)
def test_slots_fill_the_episode(layout):
    sizes = np.bincount(layout.turn_of)
    expected = np.full(layout.turns, layout.turn)
    expected[0] += PROMPT
    expected[-1] -= OBSERVED
    np.testing.assert_array_equal(sizes, expected)
    assert sizes.sum() == layout.length()
    assert [layout.length(k + 1) for k in range(layout.turns)] == (
        PROMPT + np.arange(1, layout.turns + 1) * layout.turn - 2
    ).tolist()


@pytest.mark.parametrize(("field", "value"), [("thinking", -1), ("turns", 0)])
def test_refusals_name_the_field(field, value):
    with pytest.raises(ConfigError, match=f"{field} = {value}; a layout needs at least"):
        Layout(**{field: value})


def test_more_turns_than_the_limit_are_refused():
    with pytest.raises(ValueError, match=r"turns = 5 must lie in \[1, 4\]"):
        Layout().length(5)
    with pytest.raises(ValueError, match=r"taken holds 1 to 5; turns taken lie in \[0, 4\]"):
        Layout().sampled(np.array([1, 5]))
