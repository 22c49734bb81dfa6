import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.slopes import power, slope


def test_by_hand():
    assert slope([0, 1, 2], [[1, 5], [3, 5], [8, 5]]).tolist() == [3.5, 0]
    # each seed its own x: the first rises by 2 over 1, the second by 2 over 4
    assert slope([[0, 0], [1, 4]], [[1, 1], [3, 3]]).tolist() == [2, 0.5]


@given(st.integers(2, 6), st.integers(0, 1000))
def test_it_is_the_fit_of_a_line(k, seed):
    rng = np.random.default_rng(seed)
    x, y = np.arange(k) + rng.uniform(0, 0.5, k), rng.normal(size=(k, 3))
    np.testing.assert_allclose(slope(x, y), np.polyfit(x, y, 1)[0], atol=1e-9)
    np.testing.assert_allclose(slope(np.tile(x[:, None], 3), y), slope(x, y))


def test_a_power_law_has_its_power():
    assert power({x: 7 * np.array([x**-0.5, x**3]) for x in (0.1, 1.0, 30.0)}) == pytest.approx([-0.5, 3])


def test_a_seed_that_lacks_a_setting_has_no_slope():
    found = power({1.0: [1.0, 1.0], 2.0: [np.nan, 2.0], 4.0: [4.0, 4.0]})
    assert np.isnan(found[0])
    assert found[1] == pytest.approx(1)


def test_one_setting_has_no_slope():
    with pytest.raises(ValueError, match="two settings or more, the same of x and y; got 1 and 1"):
        slope([1.0], [[2.0]])
    with pytest.raises(ValueError, match="got 3 and 2"):
        slope([1.0, 2.0, 3.0], [[2.0], [3.0]])
