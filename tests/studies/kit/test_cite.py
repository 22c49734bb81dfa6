import json
import re

import pytest

from studies.kit.cite import Project, as_bibtex, as_json, as_text, cite, project
from studies.kit.cite_cli import cite as command
from studies.kit.records import append_fresh, record
from studies.kit.words import CommandError

ABOUT = Project("metastable: a testbed", ("A. Author", "B. Author"), "1.2.0", "2026-11-29", "Apache-2.0")


@pytest.fixture
def folder(tmp_path, finding):
    records = tmp_path / "records"
    record(records, finding(), "abc123")
    append_fresh(records, finding(base=1_000_000))
    late = finding(
        rung="minimodel", verdict="refuted", expect="refuted", effect=float("inf"), high=float("inf"), n=8, p=None
    )
    record(records, late, "")
    append_fresh(records, finding(claim="only-fresh", base=2_000_000))
    (tmp_path / "study_x.py").write_text('@claim("not-run")\ndef study_x(study): ...\n')
    return tmp_path


def test_a_citation_says_all_that_is_needed(folder):
    low, high = cite("never-flips", folder)
    assert (low.rung, high.rung) == ("sim", "minimodel")
    text = as_text(low, ABOUT)
    for words in (
        "A. Author, B. Author. metastable: a testbed, version 1.2.0 (2026-11-29). Apache-2.0.",
        "“Tabular GRPO never flips.”",
        "supported: 0 [0, .056] share of runs; needed < .1",
        "n = 64, seeds 0..63, p = .0024, Clopper-Pearson; held on fresh seeds 1 of 1",
        "ffffffffffffffff, commit abc123",
        "numpy",
        "again: pytest studies -k never-flips",
    ):
        assert words in text
    assert "commit unknown" in as_text(high, ABOUT)
    assert "beyond the run" in as_text(high, ABOUT)


def test_fresh_seeds_that_did_not_hold_are_cited_too(folder, finding):
    append_fresh(folder / "records", finding(base=3_000_000, verdict="undecided"))
    low, _ = cite("never-flips", folder)
    assert (low.held, low.sets) == (1, 2)


def test_bibtex_is_well_formed(folder):
    (made,) = cite("never-flips", folder, "sim")
    entry = as_bibtex(made, Project("50 % of {all} & more_", ("A. Author", "The B"), "1.2.0", "2026-11-29", "X"))
    assert entry.startswith("@software{metastable:never-flips:sim,\n")
    assert "author = {{A. Author} and {The B}}" in entry
    assert r"title = {{50 \% of \{all\} \& more\_}}" in entry
    assert "year = {2026}" in entry
    bare = re.sub(r"\\.", "", entry)
    assert bare.count("{") == bare.count("}")
    assert entry.endswith("}\n}")


def test_json_is_strict_and_whole(folder):
    data = json.loads(as_json(cite("never-flips", folder), ABOUT), parse_constant=pytest.fail)
    assert data["software"]["authors"] == ["A. Author", "B. Author"]
    assert [each["rung"] for each in data["claims"]] == ["sim", "minimodel"]
    assert data["claims"][1]["effect"] == "inf"
    assert data["claims"][0]["held"] == 1


@pytest.mark.parametrize(
    ("claim", "rung", "message"),
    [
        ("never-flops", None, "did you mean 'never-flips'"),
        ("not-run", None, "not on record, so there is nothing to cite: `metastable run not-run --folder .* --record`"),
        ("only-fresh", None, "not on record at any rung; on record at no rung"),
        ("never-flips", "fullscale", "not on record at fullscale; on record at sim, minimodel"),
    ],
)
def test_nothing_unrecorded_is_cited(folder, claim, rung, message):
    with pytest.raises(CommandError, match=message):
        cite(claim, folder, rung)


def test_the_project_is_what_its_citation_file_says(tmp_path):
    about = project()
    assert about.title.startswith("metastable")
    assert about.authors == ("The metastable authors",)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", about.date)
    (tmp_path / "c.cff").write_text('title: "A: b"\nauthors:\n  - name: "One"\n  - name: "Two"\nversion: 3.0\n')
    found = project(tmp_path / "c.cff")
    assert (found.title, found.authors, found.version, found.date) == ("A: b", ("One", "Two"), "3.0", "")
    assert project(tmp_path / "none.cff").version == about.version


@pytest.mark.parametrize(("form", "mark"), [("text", "again: "), ("bibtex", "@software{"), ("json", '"claims"')])
def test_the_command(folder, capsys, form, mark):
    assert command("never-flips", form, folder=folder) == 0
    out = capsys.readouterr().out
    assert mark in out
    assert out.count(mark) == (1 if form == "json" else 2)
    with pytest.raises(CommandError, match="no folder"):
        command("never-flips", form, folder=folder / "nope")
    (folder / "records/never-flips.json").write_text("{}")
    with pytest.raises(CommandError, match="not a record"):
        command("never-flips", form, folder=folder)
