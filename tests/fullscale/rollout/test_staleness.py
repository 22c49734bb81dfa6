"""How old what is used is, token by token."""

import math

import numpy as np
import pytest

from fullscale.rollout.staleness import span, staleness

NONE = np.zeros((2, 3), np.bool_)


def batch(*versions, read=2):
    """Tokens of these versions, of which the first `read` were read and not sampled."""
    version = np.array([-1] * read + list(versions))
    return version, np.arange(len(version)) >= read


def test_the_span_is_of_sampled_tokens_whose_version_is_known():
    version = np.array([[0, 4, -1, 7], [9, 3, 5, -1]])
    sampled = np.array([[0, 1, 1, 1], [0, 1, 1, 1]], np.bool_)
    assert span(version, sampled) == (3, 7)
    assert span(np.full((2, 3), -1), ~NONE) == span(np.zeros((2, 3), np.int64), NONE) == (-1, -1)


def test_lags_by_hand():
    """Of 8 sampled tokens 2 are a version old, 4 two, and 2 unknown."""
    found = staleness(*batch(6, 6, 5, 5, 5, 5, -1, -1), 7)
    assert found == {
        "staleness/oldest": 2,
        "staleness/newest": 1,
        "staleness/token_mean": (2 * 1 + 4 * 2) / 6,
        "staleness/coverage": 0.75,
    }


@pytest.mark.parametrize(("given", "coverage"), [(batch(-1, -1), 0.0), (batch(), math.nan)])
def test_where_nothing_is_known_nothing_is_said(given, coverage):
    found = staleness(*given, 3)
    assert all(math.isnan(found[f"staleness/{name}"]) for name in ("oldest", "newest", "token_mean"))
    assert found["staleness/coverage"] == pytest.approx(coverage, nan_ok=True)


def test_nobody_learns_from_a_version_to_come():
    with pytest.raises(ValueError, match="version 4 wrote a token and 3 learns from it"):
        staleness(*batch(2, 4), 3)
