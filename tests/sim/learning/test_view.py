import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.view import View, broadest, over_level, scope_of

LOGS = hnp.arrays(float, (2, 3, 6), elements=st.floats(-3, 3))
MASK = hnp.arrays(bool, (2, 3, 6))
TURN = np.broadcast_to(np.array([0, 0, 1, 1, 1, 2]), (2, 3, 6))


def test_levels_by_hand():
    x = np.log([[[2.0, 3.0, 0.5, 1.0]]])
    mask = np.array([[[True, True, True, False]]])
    turn = np.array([[[0, 0, 1, 1]]])
    found = {
        level: np.exp(over_level(x, level, mask, turn)).ravel() for level in ("turn", "sequence", "geometric", "least")
    }
    assert found["turn"][:3] == pytest.approx([6, 6, 0.5])
    assert found["sequence"] == pytest.approx([3])
    assert found["geometric"] == pytest.approx([3 ** (1 / 3)])
    assert found["least"] == pytest.approx([0.5])
    assert over_level(x, "token", mask, turn) is x
    assert over_level(x, "turn", mask) is x  # every entry is a turn


@given(LOGS, LOGS, MASK)
def test_a_sequence_is_the_product_of_its_turns_and_a_turn_of_its_tokens(now, behaviour, mask):
    view = View.of(now, behaviour, np.ones((2, 3, 1)), mask)
    x = view.log_ratio("now/behaviour")
    turns = over_level(x, "turn", mask, TURN)
    here = [mask & (k == TURN) for k in range(3)]
    once = sum(np.where(h.any(-1), np.where(h, turns, -np.inf).max(-1), 0.0) for h in here)
    np.testing.assert_allclose(once, over_level(x, "sequence", mask)[..., 0], atol=1e-9)
    length = np.maximum(mask.sum(-1), 1)
    np.testing.assert_allclose(over_level(x, "geometric", mask)[..., 0] * length, once, atol=1e-9)


def test_one_policy_is_told_by_identity():
    logp = np.zeros((1, 2, 3))
    view = View.of(logp, logp.copy(), np.ones((1, 2, 1)), np.ones(logp.shape, bool))
    assert view.log_ratio("proximal/behaviour") is None
    assert (view.log_ratio("now/behaviour") == 0).all()
    with pytest.raises(ValueError, match=r"a ratio now/reference needs Batch\(reference=...\)"):
        view.log_ratio("now/reference")


def test_scopes():
    assert [scope_of(level) for level in ("token", "turn", "sequence", "geometric", "least")] == [
        "token", "turn", "sequence", "sequence", "sequence",
    ]  # fmt: skip
    assert broadest("token", "batch", "turn") == "batch"
    assert broadest("token", "sequence") == "sequence"
