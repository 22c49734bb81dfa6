"""Each verdict of the study of slow prompts at the parameter it names."""

import pytest

from sim.records.config import replace
from studies import late_rules as rules

SEEDS = (0, 1)


@pytest.mark.parametrize(("label", "least", "most"), [("discard", 0.0, 0.0), ("nothing dropped", 0.3, 0.6)])
def test_without_a_drop_the_slow_half_comes_through(label, least, most):
    made = rules.counted(replace(rules.with_a_clock()[label], {"steps": 20}), SEEDS, study="reversals")
    share = rules.slow_share(made)
    assert ((least <= share) & (share <= most)).all()
