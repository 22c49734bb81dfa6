import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.episodes import Turn
from studies.kit.reading.statistics import MOST_TURNS, Lag, Mean, parts
from tests.studies.kit.reading.hand import episode, tokens

FINITE = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@given(st.lists(FINITE, min_size=1, max_size=30), st.randoms())
def test_a_mean_is_that_of_fractions_in_any_order(values, order):
    exact = float(sum(map(Fraction, values)) / len(values))
    order.shuffle(values)
    mean = Mean()
    for value in values:
        mean.add(value)
    assert mean.value == exact
    assert mean.count == len(values)


def test_a_mean_of_nothing_is_not_a_number():
    assert math.isnan(Mean().value)


def by_column(made):
    found = {}
    for name, total, count in parts(made):
        before = found.get(name, (0.0, 0))
        found[name] = before[0] + total, before[1] + count
    return {name: total / count for name, (total, count) in found.items()}


def test_decisions_by_hand():
    turns = (
        Turn("search", logp=-0.5, logp_reference=-1.5, entropy=0.25),
        Turn("none", logp=-0.25),
        Turn("answer", logp=-2.0, logp_reference=-1.0),
    )
    assert by_column(episode(turns=turns, reward=0.5)) == {
        "train/turns": 3,
        "train/reward": 0.5,
        "train/invalid_share": pytest.approx(1 / 3),
        "decision/surprisal/turn0": 0.5,
        "decision/surprisal/turn1": 0.25,
        "decision/surprisal/turn2": 2.0,
        "drift/kl_decision_sampled/turn0": 1.0,
        "drift/kl_decision_sampled/turn2": -1.0,  # an estimate from one sample may be negative
        "entropy/recorded/turn0": 0.25,
    }
    whole = (turns[0], turns[2])
    assert by_column(episode(turns=whole))["drift/kl_decisions_sampled"] == 0.0
    assert by_column(episode(turns=turns[:1]))["drift/kl_decisions_sampled"] == 1.0


def test_tokens_by_hand():
    first = tokens([0, 1, 1], behaviour=[0, -1, -3], reference=[0, -2, -2], proximal=[0, -1, -3 + math.log(1.5)])
    second = tokens([1, 0], behaviour=[-0.5, 0], reference=[-1.0, 0], proximal=[-0.5, 0])
    turns = (Turn("search", tokens=first), Turn("answer", tokens=second))
    found = by_column(episode(turns=turns, take_version=7))
    assert found["token/surprisal"] == pytest.approx(4.5 / 3)
    assert found["drift/kl_token_sampled"] == pytest.approx((1 - 1 + 0.5) / 3)
    assert found["drift/kl_token_sampled/turn0"] == 0
    assert found["drift/kl_token_sampled/turn1"] == 0.5
    assert found["drift/kl_trajectory_sampled"] == 0.5
    assert found["drift/ratio_before/token/distance"] == pytest.approx(0.5 / 3)
    assert found["drift/ratio_before/token/outside"] == pytest.approx(1 / 3)
    assert "staleness/token_mean" not in found  # no token says which version wrote it


def test_a_trajectory_of_which_a_token_is_not_scored_has_no_sum():
    table = tokens([1, 1], behaviour=[-1, -1], reference=[-2, np.nan])
    found = by_column(episode(turns=(Turn("answer", tokens=table),)))
    assert found["drift/kl_token_sampled"] == 1.0
    assert "drift/kl_trajectory_sampled" not in found
    half = (Turn("search"), Turn("answer", tokens=tokens([1], behaviour=[-1], reference=[-2])))
    assert "drift/kl_trajectory_sampled" not in by_column(episode(turns=half))


def test_what_is_no_number_is_not_there():
    turn = Turn("answer", logp=-math.inf, logp_reference=-1.0, entropy=math.nan)
    assert set(by_column(episode(turns=(turn,), reward=None))) == {"train/turns", "train/invalid_share"}


def test_turns_beyond_the_last_column_still_count_in_sums():
    turns = tuple(Turn("search", logp=-1.0, logp_reference=-1.5) for _ in range(MOST_TURNS + 8))
    found = by_column(episode(turns=turns))
    assert f"decision/surprisal/turn{MOST_TURNS - 1}" in found
    assert f"decision/surprisal/turn{MOST_TURNS}" not in found
    assert found["drift/kl_decisions_sampled"] == (MOST_TURNS + 8) / 2


def test_lag_by_hand():
    lag = Lag()
    lag.add(episode(version_oldest=1, version_newest=2))  # nobody took it
    assert lag.oldest is None
    for oldest, newest, taken in ((3, 5, 6), (4, 4, 6), (5, 6, 6)):
        lag.add(episode(version_oldest=oldest, version_newest=newest, take_version=taken))
    assert (lag.oldest, lag.newest) == (3, 0)
