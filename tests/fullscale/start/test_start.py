"""The recipe: its bounds, and the rate from the first update to the last."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.start.start import Start


@given(st.integers(1, 60), st.floats(0, 1))
def test_the_rate_is_never_nothing_and_never_too_much(updates, warmup):
    start = Start(rate=0.25, warmup=warmup)
    rates = [start.rate_at(update, updates) for update in range(updates)]
    assert all(0 < rate <= 0.25 for rate in rates)
    top = rates.index(max(rates))
    assert rates == sorted(rates[: top + 1]) + sorted(rates[top + 1 :], reverse=True)


def test_the_rate_by_hand():
    start = Start(rate=1.0, warmup=0.5)
    assert [start.rate_at(update, 4) for update in range(4)] == [0.5, 1.0, 1.0, 0.5]
    assert [Start(rate=2.0, warmup=0.0).rate_at(update, 4) for update in range(4)] == [2.0, 1.5, 1.0, 0.5]
    assert [Start(rate=1.0, warmup=1.0).rate_at(update, 2) for update in range(2)] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("field", "value"),
    [("demonstrations", 0), ("epochs", 0), ("batch", 0), ("micro", 0), ("known", 1.5), ("warmup", -0.1), ("rate", 0.0)],
)
def test_a_value_out_of_bounds_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field} = {value}"):
        Start(**{field: value})
