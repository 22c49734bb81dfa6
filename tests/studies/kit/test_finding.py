import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit import ControlFinding, Finding

CONTROL = ControlFinding("drive on", "supported", 1.0, 0.944, 1.0, 64, "> .5", "")


def test_round_trip(finding):
    full = finding(
        controls=(CONTROL,), high=math.inf, effect=math.inf, q=0.01, more_seeds=3, detail=(("seen", "3/8"), ("sd", 0.5))
    )
    again = Finding.from_json(full.to_json())
    assert again == full
    assert (again.high, again.controls[0].label, again.detail[1]) == (math.inf, "drive on", ("sd", 0.5))


@given(
    st.one_of(st.none(), st.floats(allow_nan=False)), st.text(), st.integers(-(10**9), 10**9), st.booleans() | st.none()
)
def test_round_trip_of_any_builtin(finding, number, text, count, flag):
    made = finding(effect=number, says=text, n=count, agrees=flag)
    assert Finding.from_json(made.to_json()) == made


def test_json_is_strict_and_carries_its_schema(finding):
    data = json.loads(finding(high=math.inf).to_json(), parse_constant=lambda name: pytest.fail(name))
    assert (data["schema"], data["high"]) == (1, "inf")


@pytest.mark.parametrize(
    "changes",
    [
        {"effect": np.float64(0.5)},  # a subclass of float: breaks execnet all the same
        {"n": np.int64(8)},
        {"agrees": np.True_},
        {"detail": (("sd", np.float64(1.0)),)},
        {"controls": (dataclasses.replace(CONTROL, effect=np.float64(1.0)),)},
        {"rungs": ["sim"]},
    ],
)
def test_numpy_scalars_are_refused(finding, changes):
    with pytest.raises(TypeError, match="builtin"):
        finding(**changes)


def test_nan_is_refused(finding):
    with pytest.raises(ValueError, match="NaN"):
        finding(effect=math.nan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2"),
        ({"schema": None}, "schema None"),
        ({"efect": 1.0}, "unknown field 'efect'; did you mean 'effect'"),
    ],
)
def test_another_schema_is_refused(finding, change, message):
    with pytest.raises(ValueError, match=message):
        Finding.from_dict({**finding().to_dict(), **change})


def test_a_missing_field_is_named(finding):
    data = finding().to_dict()
    del data["verdict"]
    with pytest.raises(ValueError, match="lacks the field 'verdict'"):
        Finding.from_dict(data)


def test_words(finding):
    assert finding().measurement == "0 [0, .056] share of runs"
    assert finding().span == "0..63"
    assert finding(effect=math.inf, low=120.0, high=math.inf, unit="steps").measurement == (
        "beyond the run [120, beyond the run] steps"
    )
    exact = finding(kind="identity", effect=15.0, low=15.0, high=15.0, unit="entries")
    assert exact.measurement == "15 entries"
    # An interval of a sampled number is one even where all seeds agree.
    assert finding(kind="median", effect=1.0, low=1.0, high=1.0, unit="steps").measurement == "1 [1, 1] steps"
    assert CONTROL.words == "drive on: 1 [.944, 1], must be > .5, n=64: as said"
    computed = ControlFinding("best of others", "supported", 5.0, 5.0, 5.0, 1, "< 6", "")
    assert computed.words == "best of others: 5, must be < 6: as said"
    failed = dataclasses.replace(CONTROL, verdict="undecided")
    assert "NOT as said (undecided)" in failed.words
