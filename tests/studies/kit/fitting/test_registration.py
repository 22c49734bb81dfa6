"""A forecast in writing: read back as it was, never written twice, and held against what came, by hand."""

import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from studies.kit.fitting.data import FitError, Observed
from studies.kit.fitting.forecast import forecast
from studies.kit.fitting.rank import rank
from studies.kit.fitting.registration import _toml, check, fingerprint, read, register
from tests.studies.kit.fitting.runs import run_of

COUNTS = np.rint(1000 * expit(-4 + 0.1 * np.arange(34))).astype(int)


@pytest.fixture(scope="module")
def made():
    ranking = rank(run_of(COUNTS[:24], 1000))
    return ranking, forecast(ranking, 6, draws=400)


@pytest.fixture
def written(made, tmp_path):
    return register(tmp_path / "new" / "a.toml", *made, later_steps=0, group=8)


def test_what_is_written_is_read_back(made, written):
    ranking, foreseen = made
    content = read(written)
    assert content["first"] == ranking.rows[0].name
    assert content["code"] == fingerprint()
    assert content["data"]["last_step"] == 23
    assert content["data"]["digest"] == ranking.observed.digest()
    assert [row["name"] for row in content["mechanism"]] == [r.name for r in (*ranking.rows, *ranking.yardsticks)]
    assert [row["step"] for row in content["forecast"]] == list(range(24, 30))
    np.testing.assert_allclose(content["forecast"][2]["share"]["together"], foreseen.together.share[2], atol=1e-6)
    np.testing.assert_allclose(content["forecast"][2]["counted_90"], foreseen.together.counted[2, 1])
    assert content["world"]["chosen"]["guess_known"] == 0.97
    assert list(written.parent.iterdir()) == [written]  # nothing half-written is left


def test_a_forecast_is_never_overwritten(made, written):
    before = written.read_bytes()
    with pytest.raises(FitError, match="never overwritten"):
        register(written, *made, later_steps=0, group=8)
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_shares_near_0_keep_their_digits(tmp_path):
    ranking = rank(run_of(np.zeros(24, np.int64), 5000))
    content = read(register(tmp_path / "a.toml", ranking, forecast(ranking, 6, draws=400), later_steps=0, group=8))
    assert 0 < min(min(row["share"]["walk"]) for row in content["forecast"]) < 1e-6
    assert np.isfinite(list(check(content, run_of([0] * 27 + [1], 5000)).scores.values())).all()


def test_it_is_held_against_what_came_by_hand(written):
    content = read(written)
    for row in content["forecast"]:
        row["counted_50"], row["counted_90"] = [0.0, 0.1], [0.0, 1.0]
        row["share"] = {"together": [0.3] * 40, "sharp": [0.5] * 40}
    counts = [*COUNTS[:24], 50, 200, 100]  # the first and the last lie within the inner interval
    found = check(content, run_of(counts, 1000))
    assert found.steps == (24, 25, 26)
    assert found.inside == {0.5: (2, 3), 0.9: (3, 3)}
    n, k = 1000, np.array([50, 200, 100])
    ahead = (k * np.log(0.3 / 0.5) + (n - k) * np.log(0.7 / 0.5)).sum()
    assert found.scores["together"] - found.scores["sharp"] == pytest.approx(ahead)


def test_another_run_is_refused(written):
    content = read(written)
    other = COUNTS.copy()
    other[3] += 1
    with pytest.raises(FitError, match="not those that the forecast was made from"):
        check(content, run_of(other, 1000))
    with pytest.raises(FitError, match="none of the steps foreseen has come"):
        check(content, run_of(COUNTS[:24], 1000))


def test_what_is_no_forecast_is_refused(tmp_path):
    path = tmp_path / "a.toml"
    for text in ("not toml [", "schema = 1\n", "schema = 99\n"):
        path.write_text(text)
        with pytest.raises(FitError, match=r"a\.toml"):
            read(path)
    with pytest.raises(FitError, match="no registered forecast"):
        read(tmp_path / "absent.toml")


NAMES = st.text(min_size=1, max_size=12).filter(lambda s: s < "\ud800" or s > "\udfff")
VALUES = st.one_of(st.booleans(), st.integers(-(2**40), 2**40), st.floats(-1e9, 1e9), st.text(max_size=12))


@given(
    st.dictionaries(
        NAMES, st.one_of(VALUES, st.lists(st.integers(-9, 9)), st.dictionaries(NAMES, VALUES, max_size=3)), max_size=5
    )
)
def test_any_table_survives_being_written(table):
    back = tomllib.loads("\n".join(_toml(table)))
    assert back.keys() == table.keys()
    for name, value in table.items():
        if isinstance(value, float):
            assert back[name] == pytest.approx(value, rel=1e-7)
        elif isinstance(value, dict):
            assert back[name] == {
                k: pytest.approx(v, rel=1e-7) if isinstance(v, float) else v for k, v in value.items()
            }
        else:
            assert back[name] == value


def test_a_run_with_holes_is_checked_at_the_steps_it_has(made, tmp_path):
    ranking, foreseen = made
    path = register(tmp_path / "b.toml", ranking, foreseen, later_steps=0, group=8)
    whole = run_of(COUNTS, 1000)
    on = np.isin(whole.steps, [*range(24), 25, 28])
    holed = Observed("a", whole.steps[on], whole.accuracy[on], whole.search_share[on], whole.rollouts[on])
    assert check(read(path), holed).steps == (25, 28)
