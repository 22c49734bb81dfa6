import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from studies.kit import above, below, mean, median, rate, within
from studies.kit.estimate import Estimate
from studies.kit.intervals import clopper_pearson
from studies.kit.verdict import judge, smallest_alpha, standing


def normal(effect, spread=1.0, n=8, **more):
    """An estimate with a normal interval of half-width 1.96 spread at .05."""
    return Estimate(
        effect,
        n,
        lambda alpha: (effect - spread * stats.norm.isf(alpha / 2), effect + spread * stats.norm.isf(alpha / 2)),
        "normal",
        **more,
    )


def test_one_rule():
    assert judge(normal(3.0), above(1)).verdict == "supported"
    assert judge(normal(-1.0), above(1)).verdict == "refuted"
    assert judge(normal(2.0), above(1)).verdict == "undecided"
    assert judge(normal(0.0), within(-2, 2)).verdict == "supported"
    assert judge(normal(5.0), within(-2, 2)).verdict == "refuted"


def test_p_is_that_of_the_test_behind_the_interval():
    assert judge(normal(3.0), above(1)).p == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-6)
    assert judge(normal(-1.0), above(1)).p == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-6)  # refuted as firmly
    differences = np.array([1.0, 2, 3, 4, 5, 6])
    found = mean(symmetric=True).estimate(differences=differences)
    assert judge(found, above(0)).p == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-6)
    found = median().estimate(values=np.arange(1.0, 9.0))
    assert judge(found, above(0.5)).p == pytest.approx(2 / 2**8, rel=1e-6)  # the sign test
    found = rate().estimate(outcomes=np.zeros(64, bool))
    assert judge(found, below(0.1)).p == pytest.approx(2 * 0.9**64, rel=1e-6)


def test_p_of_a_two_sided_region_is_the_larger_of_two():
    # Inside within(-2, 3) at 0: the nearer boundary is the harder one.
    assert judge(normal(0.0), within(-2, 3)).p == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-6)


def test_p_on_the_boundary_is_one():
    assert judge(normal(1.0), above(1)).p == 1.0
    assert smallest_alpha(lambda _alpha: (2.0, 3.0), above(1)) == 1e-12


def test_an_exact_p_counts_only_where_it_tests():
    assert judge(normal(3.0, p=0.001, null=0.0), above(0)).p == 0.001
    assert judge(normal(3.0, p=0.001, null=0.0), above(1)).p == pytest.approx(2 * stats.norm.sf(2.0), rel=1e-6)


@given(st.floats(-5, 5), st.floats(0.01, 3), st.sampled_from([above(0), below(1), within(-1, 2)]))
def test_decided_at_five_percent_is_p_below_five_percent(effect, spread, region):
    judged = judge(normal(effect, spread), region)
    if abs(judged.p - 0.05) > 1e-6:
        assert (judged.verdict != "undecided") == (judged.p < 0.05)


@given(st.floats(-5, 5), st.floats(0.01, 3))
def test_a_claim_and_its_denial_share_p_and_swap_verdicts(effect, spread):
    claim, denial = judge(normal(effect, spread), above(0)), judge(normal(effect, spread), below(0))
    swap = {"supported": "refuted", "refuted": "supported", "undecided": "undecided"}
    assert denial.verdict == swap[claim.verdict]
    assert denial.p == pytest.approx(claim.p, rel=1e-9)


def test_seeds_still_needed():
    # Half-width 1.96 at n=8, distance .98 to the boundary: four times the seeds, 32, so 24 more.
    assert judge(normal(0.98), above(0)).more == 24
    assert judge(normal(-0.98), above(0)).more == 24
    # Inside within(-.98, 10) the near end needs four times as many; the far one none.
    assert judge(normal(0.0), within(-0.98, 10)).more == 24
    # Outside, the far boundary does not matter.
    assert judge(normal(-1.96), within(-0.98, 100)).more == 24
    assert judge(normal(0.0), above(0)).more is None
    assert judge(normal(3.0), above(0)).more is None  # decided
    unbounded = Estimate(2.0, 8, lambda _alpha: (-math.inf, math.inf), "none")
    assert judge(unbounded, above(1)).more is None


def test_seeds_still_needed_for_a_rate_come_from_its_exact_interval():
    # At 0 of n the upper end is 1 - .025**(1/n): below .3 from n = ln .025 / ln .7 = 10.3 on.
    assert judge(rate().estimate(outcomes=np.zeros(8, bool)), below(0.3)).more == 3
    assert judge(rate().estimate(outcomes=np.ones(8, bool)), above(0.7)).more == 3
    half = rate().estimate(outcomes=np.arange(8) < 4)
    more = judge(half, above(0.3)).more
    n = 8 + more
    assert clopper_pearson(n / 2, n)[0] > 0.3 >= clopper_pearson((n - 1) / 2, n - 1)[0]
    assert judge(half, above(0.5)).more is None  # on the boundary


def test_seeds_still_needed_for_a_ratio_are_reckoned_on_logs():
    ratio = Estimate(2.0, 8, lambda _alpha: (0.5, 8.0), "t on logs", log=True)
    assert judge(ratio, above(1)).more == 24  # log 4 against log 2


def test_an_exact_kind_has_neither_p_nor_seeds():
    judged = judge(Estimate(1.0, 1, lambda _alpha: (0.5, 1.5), "value", tested=False), above(1))
    assert (judged.verdict, judged.p, judged.more) == ("undecided", None, None)


@pytest.mark.parametrize(
    ("verdict", "expect", "same", "here", "status", "fails"),
    [
        ("supported", "supported", True, True, "on record", False),
        ("refuted", "refuted", True, True, "on record", False),  # a refuted claim is green
        ("refuted", "supported", True, True, "contradicted", True),
        ("refuted", "supported", False, False, "contradicted", True),  # any seeds, anywhere
        ("supported", "refuted", False, True, "contradicted", True),
        ("undecided", "supported", True, True, "weakened", True),
        ("undecided", "supported", True, False, "weakened", False),  # other platform: shown
        ("undecided", "supported", False, True, "weakened", False),  # fresh seeds: shown
        ("no verdict", "supported", True, True, "weakened", True),
        ("supported", "undecided", True, True, "strengthened", True),
        ("supported", "undecided", False, True, "strengthened", False),
        ("undecided", "undecided", True, True, "on record", False),
        ("undecided", None, True, True, "new", False),
    ],
)
def test_standing(verdict, expect, same, here, status, fails):
    stands = standing(verdict, expect, same_seeds=same, here=here)
    assert (stands.status, stands.fails) == (status, fails)
    unrecorded = standing(verdict, expect, same_seeds=same, here=here, recorded=False)
    assert unrecorded.status == status.replace("on record", "as expected")
    assert unrecorded.fails == fails
    assert "on record as" not in unrecorded.reason
    assert bool(stands.reason) == (status != "on record")
