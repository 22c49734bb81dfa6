import numpy as np
import pytest
from scipy import stats

from fullscale.tools.checker import luck, passes
from sim.mdp.worlds import Verify

VERIFY = Verify(sensitivity=0.9, specificity=0.7)


def test_a_check_passes_by_its_rates_at_the_uniform():
    assert [passes(True, VERIFY, u) for u in (0.0, 0.899, 0.901)] == [True, True, False]
    assert [passes(False, VERIFY, u) for u in (0.0, 0.299, 0.301)] == [True, True, False]


@pytest.mark.parametrize(("right", "rate"), [(True, 0.9), (False, 0.3)])
def test_over_many_episodes_it_errs_as_often_as_it_says(right, rate):
    passed = sum(passes(right, VERIFY, luck(7, "test", episode, 4)[2]) for episode in range(2000))
    assert stats.binomtest(passed, 2000, rate).pvalue > 0.001


def test_draws_are_the_episodes_own():
    assert luck(7, "test", 3, 4).tolist() == luck(7, "test", 3, 4).tolist()
    drawn = np.stack([luck(s, name, e, 4) for s in (7, 8) for name in ("test", "other") for e in (3, 4)])
    assert len(np.unique(drawn)) == drawn.size  # no seed, stream, episode or turn shares its luck with another
