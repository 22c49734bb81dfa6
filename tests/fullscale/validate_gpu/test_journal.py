"""A record is on disk line by line, is gone on with where it was cut, and is refused to what would make it a mixture."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels.unlocking import RecordError, read
from fullscale.validate_gpu.journal import Journal, write_whole
from fullscale.validate_gpu.outcome import Outcome, judged, skipped
from tests.fullscale.validate_gpu import made

PASSED = judged({"logp": 1e-6}, {"logp": 2e-5})


def begin(folder, **head):
    return Journal.create(folder, made.header(**head))


def finish(journal, outcomes=()):
    for name, outcome in outcomes:
        journal.add("correct", name, "triton", outcome, 0.1)
    return journal.close(lambda record: None)


def test_every_line_is_on_disk_before_the_next_case(tmp_path):
    journal = begin(tmp_path)
    assert json.loads(journal.path.read_text())["kind"] == "header"
    for count, name in enumerate(made.CASES, 2):
        journal.add("correct", name, "triton", PASSED, 0.1)
        lines = journal.path.read_text().splitlines()
        assert len(lines) == count
        assert json.loads(lines[-1])["case"] == name
    record = finish(journal)
    assert record.closing["passed"]
    assert record.closing["counts"] == {"passed": 3, "failed": 0, "error": 0, "skipped": 0}
    found = read(journal.path)
    assert (found.header, found.cases, found.closing) == (record.header, record.cases, record.closing)


def test_numbers_that_json_lacks_are_words_and_pass_nothing(tmp_path):
    outcome = judged({"logp": float("nan"), "lse": float("inf")}, {"logp": 1.0, "lse": 1.0})
    assert outcome.status == "failed"
    assert finish(begin(tmp_path), [("tails", outcome)]).cases[0]["values"] == {"logp": "nan", "lse": "inf"}


def test_a_value_within_its_bound_and_one_at_it_pass():
    assert judged({"a": 1.0}, {"a": 1.0}).status == "passed"
    assert judged({"a": 1.1}, {"a": 1.0}).status == "failed"
    assert judged({"a": 5.0}, {}).status == "passed"
    with pytest.raises(KeyError):
        judged({}, {"a": 1.0})  # a bound on what was not found


@pytest.mark.parametrize("status", ["failed", "error", "skipped"])
def test_what_did_not_pass_is_in_the_summary(tmp_path, status):
    outcomes = [(n, PASSED) for n in made.CASES[:2]] + [(made.CASES[2], Outcome(status, reason="budget"))]
    record = finish(begin(tmp_path), outcomes)
    assert record.closing["passed"] is False
    assert record.closing["unlocks"] is None
    assert record.closing["counts"][status] == 1


def test_a_record_is_named_by_date_and_card_and_none_is_overwritten(tmp_path):
    names = [begin(tmp_path).path.name for _ in range(3)]
    assert names == ["2026-11-01-nvidia-h200.jsonl", "2026-11-01-nvidia-h200-2.jsonl", "2026-11-01-nvidia-h200-3.jsonl"]
    dry = begin(tmp_path, dry_run=True, card=None)
    assert dry.path.name == "2026-11-01-dry-run-no-card.jsonl"


# --- going on ---------------------------------------------------------------------------------------------------------


@given(st.data())
def test_cut_anywhere_it_goes_on_to_the_same_cases(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    journal = begin(folder)
    unbroken = finish(journal, [(n, PASSED) for n in made.CASES])
    content = journal.path.read_bytes()
    head = content.index(b"\n") + 1
    journal.path.write_bytes(content[: data.draw(st.integers(head, len(content)))])
    again = Journal.resume(journal.path, made.header(date="2026-11-02T00:00:00+00:00"))
    left = [n for n in made.CASES if ("correct", n) not in again.finished]
    assert left == list(made.CASES[len(made.CASES) - len(left) :])
    record = finish(again, [(n, PASSED) for n in left])
    assert [c["case"] for c in record.cases] == [c["case"] for c in unbroken.cases]
    assert read(journal.path).closing["passed"]
    assert record.header["date"] == "2026-11-01T12:00:00+00:00"  # of the first sitting


def test_what_the_budget_left_out_is_run_and_what_failed_is_not_run_again(tmp_path):
    outcomes = zip(made.CASES, [judged({"a": 2.0}, {"a": 1.0}), skipped("budget"), skipped("device lost")], strict=True)
    first = finish(begin(tmp_path), outcomes)
    again = Journal.resume(first.path, made.header())
    assert again.finished == {("correct", "tails")}
    record = finish(again, [(n, PASSED) for n in made.CASES[1:]])
    assert [c["status"] for c in record.cases] == ["failed", "passed", "passed"]
    assert record.closing["passed"] is False


def test_what_a_backend_refused_is_finished(tmp_path):
    first = finish(begin(tmp_path), [("tails", skipped("refused", "no float16"))])
    assert Journal.resume(first.path, made.header()).finished == {("correct", "tails")}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"card": "NVIDIA H100"}, "card (NVIDIA H200, here NVIDIA H100)"),
        ({"source_hash": "6" * 64}, "source_hash (5555"),
        ({"backend": "chunked"}, "backend (triton, here chunked)"),
        ({"versions": {"triton": "3.7.0", "torch": "2.11.0"}}, "versions"),
        ({"planned": {"correct": ["tails"]}}, "planned"),
        ({"dry_run": True}, "dry_run (False, here True)"),
    ],
)
def test_another_card_or_code_is_refused_by_name_and_the_file_left_alone(tmp_path, changes, told):
    journal = begin(tmp_path)
    journal.add("correct", "tails", "triton", PASSED, 0.1)
    before = journal.path.read_bytes()
    with pytest.raises(RecordError) as caught:
        Journal.resume(journal.path, made.header(**changes))
    assert told in str(caught.value)
    assert "without --resume" in str(caught.value)
    assert journal.path.read_bytes() == before


def test_a_torn_line_in_the_middle_is_damage(tmp_path):
    journal = begin(tmp_path)
    finish(journal, [(n, PASSED) for n in made.CASES])
    lines = journal.path.read_text().splitlines(keepends=True)
    journal.path.write_text(lines[0] + lines[1][:20] + "\n" + lines[2])
    with pytest.raises(RecordError, match="line 2 is no JSON object"):
        Journal.resume(journal.path, made.header())


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_whole(tmp_path / "sub" / "a.jsonl", [{"x": float("nan")}])
    assert list((tmp_path / "sub").iterdir()) == []
