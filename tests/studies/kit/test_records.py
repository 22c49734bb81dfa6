import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from studies import FOLDER
from studies.kit import records
from studies.kit.records import Fresh, Record, RecordError, append_fresh, load, place, record, write


def test_a_finding_is_recorded_and_read_back(tmp_path, finding):
    assert record(tmp_path, finding(q=0.5, high=math.inf), "abc123")
    entry = load(tmp_path, "never-flips", "sim")
    assert entry.finding == finding(high=math.inf)  # q depends on the company: not part of the record
    assert (entry.commit, entry.place, entry.fresh) == ("abc123", place("sim"), ())
    assert load(tmp_path, "never-flips", "minimodel") is None
    assert load(tmp_path, "other", "sim") is None
    assert [path.name for path in tmp_path.iterdir()] == ["never-flips.json"]  # no temporary file is left


def test_recording_the_same_again_leaves_the_file_alone(tmp_path, finding):
    record(tmp_path, finding(), "abc123")
    before = (tmp_path / "never-flips.json").read_bytes()
    assert not record(tmp_path, finding(q=0.3), "def456")
    assert (tmp_path / "never-flips.json").read_bytes() == before
    assert record(tmp_path, finding(n=65), "def456")


def test_rungs_share_a_file(tmp_path, finding):
    record(tmp_path, finding(), "a")
    record(tmp_path, finding(rung="minimodel", n=8), "b")
    assert load(tmp_path, "never-flips", "sim").finding.n == 64
    assert load(tmp_path, "never-flips", "minimodel").finding.n == 8
    assert sorted(records.records(tmp_path)["never-flips"]) == ["minimodel", "sim"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "undecided"}, "undecided, but the claim says expect='supported'"),
        ({"expect": None}, "no expect="),
        ({"base": 1_000_000}, "seeds 1000000..1000063"),
    ],
)
def test_what_is_not_as_expected_is_not_recorded(tmp_path, finding, changes, message):
    with pytest.raises(RecordError, match=message):
        record(tmp_path, finding(**changes), "")
    assert list(tmp_path.iterdir()) == []


def test_fresh_seeds_make_a_history(tmp_path, finding):
    append_fresh(tmp_path, finding(base=1_000_000))
    append_fresh(tmp_path, finding(base=2_000_000, verdict="undecided"))  # kept: it is what happened
    record(tmp_path, finding(), "abc")
    append_fresh(tmp_path, finding(base=3_000_000))
    entry = load(tmp_path, "never-flips", "sim")
    assert [(item.base, item.n, item.verdict) for item in entry.fresh] == [
        (1_000_000, 64, "supported"),
        (2_000_000, 64, "undecided"),
        (3_000_000, 64, "supported"),
    ]
    assert entry.held("supported") == (2, 3)


@pytest.mark.parametrize("base", [1_000_000, 1_000_063, 999_937])
def test_fresh_sets_are_disjoint(tmp_path, finding, base):
    append_fresh(tmp_path, finding(base=1_000_000))
    with pytest.raises(RecordError, match="overlap"):
        append_fresh(tmp_path, finding(base=base))
    append_fresh(tmp_path, finding(base=1_000_064))


def test_recording_keeps_the_history(tmp_path, finding):
    append_fresh(tmp_path, finding(base=1_000_000))
    record(tmp_path, finding(), "a")
    record(tmp_path, finding(n=65), "b")
    assert load(tmp_path, "never-flips", "sim").held("supported") == (1, 1)


def test_a_write_that_fails_leaves_the_old_record(tmp_path, finding, monkeypatch):
    record(tmp_path, finding(), "a")
    before = (tmp_path / "never-flips.json").read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path, "never-flips", "sim", Record(finding(n=65), {}, ""))
    assert [path.name for path in tmp_path.iterdir()] == ["never-flips.json"]
    assert (tmp_path / "never-flips.json").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: "{",
        lambda data: json.dumps({**data, "schema": 99}),
        lambda data: json.dumps({**data, "claim": "other"}),
        lambda data: json.dumps({"schema": 1, "claim": "never-flips"}),
        lambda data: json.dumps([]),
        lambda data: json.dumps({**data, "rungs": {"sim": {**data["rungs"]["sim"], "extra": 1}}}),
        lambda data: json.dumps(
            {**data, "rungs": {"sim": {**data["rungs"]["sim"], "fresh": [{"base": 0, "n": 8, "verdict": "x"}]}}}
        ),
    ],
)
def test_a_damaged_record_says_which_file_and_what_to_do(tmp_path, finding, damage):
    record(tmp_path, finding(), "a")
    path = tmp_path / "never-flips.json"
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(RecordError, match=r"never-flips\.json.*(again|rename)"):
        load(tmp_path, "never-flips", "sim")


def test_place_names_what_the_bits_depend_on():
    assert {"platform", "vectors", "python", "numpy", "scipy"} == set(place("sim"))


def test_place_above_the_first_rung_names_torch_and_what_it_chose(monkeypatch):
    torch = pytest.importorskip("torch")
    found = place("minimodel")
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert found["torch_vectors"] == torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NO AVX")
    assert place("minimodel") == {**found, "torch_vectors": "NO AVX"}


def test_held_counts_only_the_verdict_on_record():
    entry = Record(None, {}, "", (Fresh(1, 8, "supported", ""), Fresh(9, 8, "refuted", "")))
    assert (entry.held("supported"), entry.held("refuted"), entry.held(None)) == ((1, 2), (1, 2), (0, 2))


def test_committed_records_can_be_read():
    for claim, rungs in records.records(FOLDER / "records").items():
        for rung, entry in rungs.items():
            if entry.finding is not None:
                assert (entry.finding.claim, entry.finding.rung) == (claim, rung)
                assert entry.finding.verdict == entry.finding.expect
                assert (entry.finding.base, entry.finding.q) == (0, None)
                assert replace(entry.finding, status="on record", fails=False) == entry.finding
