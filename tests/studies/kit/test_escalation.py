"""Escalations: what is registered, how it is kept, how a finding is held against it."""

import dataclasses
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.kit import Prediction, above, below, claim, mean, median, rank, rate, rate_difference, within
from studies.kit import escalation as escalations
from studies.kit.escalation import Below, Foreseen, comparison, foreseen, hold, scale_free
from studies.kit.escalation_file import EscalationError, append, attempts, dumps, load, loads, place, register
from studies.kit.ladder import Rung
from tests.studies.kit.escalated import MADE, UNDER, WRITTEN


def stated(**fields):
    base = {"says": "It is.", "kind": rate(), "region": above(0.5), "rungs": ("sim", "minimodel")}
    return claim("it-is", **{**base, **fields}).args[0]


# What is predicted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "free"),
    [(rate(), True), (rate_difference(), True), (rank(), True), (mean(scale="log"), True),
     (mean(symmetric=True), False), (median(), False)],
)  # fmt: skip
def test_what_is_scale_free(kind, free):
    assert scale_free(kind) is free


def test_the_rung_below_predicts_a_share():
    under = Below("sim", "supported", 16, 1.0, 0.79, 1.0, 3, 3)
    wanted = foreseen(stated(predicts=Prediction(0.9, source="theory")), "minimodel", under)
    assert (wanted.value, wanted.low, wanted.high, wanted.verdict) == (1.0, 0.79, 1.0, "supported")
    assert wanted.source == "measured at sim, n = 16"


def test_a_prediction_for_the_rung_comes_first():
    by_rung = {"sim": Prediction(1.0), "minimodel": Prediction(0.8, 0.6, 0.9, source="less certain")}
    wanted = foreseen(stated(predicts=by_rung), "minimodel", UNDER)
    assert (wanted.value, wanted.low, wanted.high, wanted.source) == (0.8, 0.6, 0.9, "less certain")


def test_a_number_with_a_scale_is_not_carried_over():
    steps = {"kind": median(), "region": above(0)}
    under = Below("sim", "supported", 16, 40.0, 30.0, 50.0, 3, 3)
    wanted = foreseen(stated(**steps), "minimodel", under)
    assert (wanted.value, wanted.low, wanted.verdict) == (None, None, "supported")
    assert "not scale-free" in wanted.source
    own = foreseen(stated(**steps, predicts=Prediction(12.0, source="theory")), "minimodel", under)
    assert (own.value, own.source) == (12.0, "theory")
    # Nor is a share that was never measured.
    assert foreseen(stated(), "minimodel", Below("sim", "not run")).value is None


def test_the_region_is_that_of_the_rung_above():
    made = escalations.rule(stated(region={"sim": above(0.9), "minimodel": within(0.2, 0.5)}), "minimodel")
    assert made.region == within(0.2, 0.5)
    assert (made.kind, made.closed) == ("rate", True)
    assert "lies within .2 and .5" in made.words
    assert escalations.rule(stated(region=below(0.1)), "minimodel").region == below(0.1)


def test_the_evidence_below(finding):
    assert escalations.below("sim", None, None, "") == Below("sim", "not run")
    found = finding(fingerprint="e" * 64)
    assert escalations.below("sim", found, Rung("supported", 64, 3, 3), "abc123") == UNDER


# What came out --------------------------------------------------------------------------------------------------------


def held(finding, registered=WRITTEN, made=MADE, **changes):
    plain = {"rung": "minimodel", "n": 8, "seeds": 8, "base": 1234000, "high": 0.07}
    return hold(registered, finding(**{**plain, **changes}), made)


def test_a_finding_is_held_against_the_file(finding):
    result = held(finding)
    assert (result.verdict, result.as_predicted, result.agrees, result.changed) == ("supported", True, True, ())
    assert (result.n, result.seeds) == (8, "1234000..1234007")
    missed = held(finding, effect=0.5, low=0.2, high=0.8)
    assert (missed.verdict, missed.as_predicted, missed.agrees) == ("refuted", False, False)
    open_yet = held(finding, high=0.37)
    assert (open_yet.verdict, open_yet.as_predicted, open_yet.agrees) == ("undecided", False, True)
    silent = held(finding, verdict="no verdict", effect=0.0, low=None, high=None, reason="the arms did not differ")
    assert (silent.verdict, silent.as_predicted, silent.agrees) == ("no verdict", False, None)
    assert silent.reason == "the arms did not differ"


def test_the_registered_region_decides_not_that_of_the_day(finding):
    # The study has meanwhile been given a wider region, by which .07 .. .3 would be supported.
    assert held(finding, verdict="supported", region="< .5", region_high=0.5, low=0.07, high=0.3).verdict == "undecided"


def test_what_changed_since_is_named(finding):
    now = dataclasses.replace(
        MADE, fingerprint="0" * 64, study_fingerprint="1" * 16, place={"python": "3.12", "torch": "2.13", "numpy": "2"}
    )
    assert held(finding, made=now).changed == ("code", "study", "numpy", "python")


def test_the_comparison_in_words(finding):
    lines = comparison(WRITTEN)
    assert lines[0] == "sim        0 [0, .056]  n=64, supported, held on fresh seeds 3 of 3"
    assert lines[1] == "predicted  0 [0, .056]  supported (measured at sim, n = 64)"
    assert lines[2] == "minimodel  not run yet"
    done = dataclasses.replace(WRITTEN, result=held(finding, effect=0.5, low=0.2, high=0.8), anyway="to see")
    text = "\n".join(comparison(done))
    assert "minimodel  .5 [.2, .8]  n=8, refuted" in text
    assert "never-flips: refuted, NOT as predicted (supported); its interval misses the predicted one" in text
    assert "run although sim does not hold: to see" in text
    better = dataclasses.replace(WRITTEN, attempt=2, result=held(finding))
    assert "  attempt 1 at minimodel: .5 [.2, .8], n=8, refuted" in comparison(better, [done, better])
    assert not any("attempt" in line for line in comparison(done, [done, better]))


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_file_is_toml_and_reads_back(finding):
    text = dumps(WRITTEN)
    data = tomllib.loads(text)
    assert data["below"]["held"] == 3
    assert data["configs"]["sequence mean"]["rule.clip"] == 0.2
    assert "cpu_s" not in data["plan"]
    assert loads(text) == WRITTEN
    assert text.startswith("# Written before anything ran at minimodel.")


words = st.text(st.characters(codec="utf-8"), max_size=20)
numbers = st.none() | st.floats(allow_nan=False)


@given(words, words, numbers, numbers, st.dictionaries(words, st.dictionaries(words, st.booleans() | words)))
@settings(max_examples=150)
def test_whatever_is_written_reads_back(says, source, value, high, configs):
    made = dataclasses.replace(
        WRITTEN,
        says=says,
        prediction=Foreseen("supported", value, None, high, source),
        configs=configs,
    )
    assert loads(dumps(made)) == made


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("attempt = 1", "attempt = 1\nattemps = 2", "unknown key 'attemps'; did you mean 'attempt'"),
        ("held = 3", "held = 3\nholds = 1", r"unknown key 'below\.holds'; did you mean 'held'"),
        ("held = 3", 'held = "3"', r"below\.held = '3' should be of type int"),
        ("held = 3", "held = true", r"below\.held = True should be of type int"),
        ("attempt = 1\n", "", "key 'attempt' is missing"),
        ("schema = 1", "schema = 2", "schema 2; this version reads 1"),
        ("schema = 1", "schema = ", "not TOML"),
        ('claim = "never-flips"', 'claim = ["never-flips"]', "claim = .* should be of type str"),
    ],
)
def test_a_file_is_read_strictly(old, new, message):
    text = dumps(WRITTEN)
    assert old in text
    with pytest.raises(EscalationError, match=message):
        loads(text.replace(old, new, 1))


def test_what_toml_cannot_hold_is_named():
    with pytest.raises(EscalationError, match=r"configs\.a\.b = nan"):
        dumps(dataclasses.replace(WRITTEN, configs={"a": {"b": float("nan")}}))


def test_a_whole_number_may_stand_for_a_fraction():
    assert loads(dumps(WRITTEN).replace("effect = 0.0", "effect = 0")).below.effect == 0.0


def test_the_result_is_appended_and_nothing_else_changes(tmp_path, finding):
    path = register(tmp_path, WRITTEN)
    before = path.read_bytes()
    result = held(finding)
    assert append(tmp_path, load(path), result) == path == place(tmp_path, "never-flips", 1)
    assert path.read_bytes().startswith(before)
    assert load(path) == dataclasses.replace(WRITTEN, result=result)
    with pytest.raises(EscalationError, match="has its result"):
        append(tmp_path, WRITTEN, result)
    assert [each.name for each in tmp_path.iterdir()] == ["never-flips.toml"]


def test_what_is_registered_is_not_rewritten(tmp_path, finding):
    path = register(tmp_path, WRITTEN)
    again = dataclasses.replace(WRITTEN, attempt=2)
    with pytest.raises(EscalationError, match="has no result yet"):
        register(tmp_path, again)
    with pytest.raises(EscalationError, match=r"attempt 1 .* with 1 before"):
        register(tmp_path, WRITTEN)
    path.write_text(path.read_text().replace("value = 0.0", "value = 0.04"))
    with pytest.raises(EscalationError, match="is not what was registered"):
        append(tmp_path, WRITTEN, held(finding))
    path.write_text(dumps(WRITTEN))
    append(tmp_path, WRITTEN, held(finding))
    register(tmp_path, again)
    assert [each.attempt for each in attempts(tmp_path, "never-flips")] == [1, 2]
    assert (tmp_path / "never-flips.2.toml").exists()


def test_an_attempt_that_was_taken_away_is_missed(tmp_path):
    for number in (1, 3):
        place(tmp_path, "never-flips", number).write_text(dumps(dataclasses.replace(WRITTEN, attempt=number)))
    with pytest.raises(EscalationError, match=r"never-flips\.2\.toml is missing, and there is an attempt 3"):
        attempts(tmp_path, "never-flips")
    place(tmp_path, "never-flips", 3).unlink()
    assert [each.attempt for each in attempts(tmp_path, "never-flips")] == [1]


def test_a_file_by_another_name_is_refused(tmp_path):
    (tmp_path / "other.toml").write_text(dumps(WRITTEN))
    with pytest.raises(EscalationError, match="holds attempt 1 of 'never-flips'"):
        load(tmp_path / "other.toml")


def test_of_two_that_register_at_once_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("studies.kit.escalation_file.attempts", lambda *_: [])  # both looked before either wrote
    path = register(tmp_path, WRITTEN)
    with pytest.raises(EscalationError, match="by another process meanwhile"):
        register(tmp_path, dataclasses.replace(WRITTEN, says="Another."))
    assert load(path) == WRITTEN
    assert list(tmp_path.iterdir()) == [path]


def test_seeds_until_decided_are_other_terms_than_as_many_fixed_ones():
    until = dataclasses.replace(WRITTEN, plan=dataclasses.replace(WRITTEN.plan, seeds="until-decided:8:1234000"))
    again = dataclasses.replace(WRITTEN, plan=dataclasses.replace(WRITTEN.plan, seeds="fresh:99000000"))
    assert until.terms != WRITTEN.terms == again.terms
