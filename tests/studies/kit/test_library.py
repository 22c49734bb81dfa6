import pytest

from studies import FOLDER
from studies.kit.library import claims_in
from studies.kit.records import load


def test_claims_come_in_the_order_they_are_written(tmp_path):
    text = """
from studies.kit import above, claim, rate

@claim("first", says="One.", kind=rate(), region=above(0))
@claim("second", says="Two.", kind=rate(), region=above(0))
def study_a(study): ...

@claim("third", says="Three.", kind=rate(), region=above(0))
def study_b(study): ...
"""
    (tmp_path / "study_x.py").write_text(text)
    (tmp_path / "other.py").write_text("raise RuntimeError")
    assert [claim.id for claim in claims_in(tmp_path)] == ["first", "second", "third"]


def test_a_broken_study_is_named(tmp_path):
    (tmp_path / "study_x.py").write_text("1 / 0")
    with pytest.raises(ImportError, match=r"study_x\.py cannot be imported: ZeroDivisionError"):
        claims_in(tmp_path)


def test_every_claim_has_held_on_three_sets_of_fresh_seeds():
    short = []
    for claim in claims_in():
        for rung in claim.rungs:
            expect = claim.expect_at(rung)
            if claim.kind.exact or claim.is_long(rung) or expect in (None, "undecided"):
                continue
            entry = load(FOLDER / "records", claim.id, rung)
            held, sets = entry.held(expect) if entry else (0, 0)
            if held < 3:
                short.append(f"{claim.id} at {rung}: held {held} of {sets}")
    assert short == []
