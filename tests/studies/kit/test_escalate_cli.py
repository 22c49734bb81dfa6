"""``metastable escalate`` as it is typed: what it refuses, what it writes, what it runs."""

import dataclasses
import importlib.metadata
import subprocess
import sys

import pytest

from sim.learning.presets import null
from studies import FOLDER
from studies.kit.crossing import crossings, figure, ladder_table
from studies.kit.escalate_cli import escalate
from studies.kit.escalation_file import load
from studies.kit.figures import svg
from studies.kit.library import statement
from studies.kit.planned import arms, cpu_s, digest, leaves
from studies.kit.records import append_fresh, record
from studies.kit.seeds import parse
from studies.kit.words import CommandError

STUDY = """
import numpy as np
from sim.learning.presets import null
from sim.records.config import replace
from studies.kit import above, below, claim, rate

@claim("it-climbs", says="It climbs.", kind=rate(), region={region}, seeds={{"sim": 16, "minimodel": 8}},
       expect={{"sim": "supported", "minimodel": None}}, rungs=("sim", "minimodel"), unit="share")
def study_climbs(study):
    seeds = study.seeds()
    if study.rung != "sim":
        {above}
        print("above with", len(seeds), "from", seeds.start)
    study.conclude("it-climbs", outcomes=np.arange(len(seeds)) % 16 != {missing})
"""
SWEEP = 'study.sweep({"one": replace(null(), {"steps": 1}), "two": replace(null(), {"steps": 2})}, run=None)'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine")
    return tmp_path / "mine"


def write(folder, region="above(.3)", above="pass", missing=99):
    text = STUDY.format(region=region, above=above, missing=missing)
    (folder / "study_climbs.py").write_text(text)


@pytest.fixture
def below(folder, finding):
    """A record of the rung below with one set of fresh seeds; the changes are those of the finding."""

    def put(fresh="supported", **changes):
        plain = {"claim": "it-climbs", "rungs": ("sim", "minimodel"), "n": 16, "seeds": 16, "effect": 1.0, "low": 0.79}
        found = finding(**{**plain, "high": 1.0, **changes})
        record(folder / "records", found, "abc123")
        if fresh:
            append_fresh(folder / "records", dataclasses.replace(found, base=10**6, verdict=fresh))
        return found

    return put


def run(folder, *arguments):
    """The command in a process of its own, as pytest inside it wants to be."""
    installed = importlib.metadata.entry_points(group="pytest11", name="metastable")
    plugin = {} if installed else {"PYTEST_ADDOPTS": "-p studies.kit.plugin"}
    code = "import sys, tyro; from studies.kit.escalate_cli import escalate; sys.exit(tyro.cli(escalate))"
    command = [sys.executable, "-c", code, *arguments, "--folder", "mine", "--processes", "1"]
    env = {"PATH": "", "PYTHONPATH": str(FOLDER.parent), **plugin}
    return subprocess.run(command, env=env, cwd=folder.parent, capture_output=True, text=True, check=False)


# Refusals -------------------------------------------------------------------------------------------------------------


def refused(folder, *arguments, **options):
    with pytest.raises(CommandError) as error:
        escalate(*arguments, folder=folder, **options)
    assert not (folder.parent / "escalations").exists()
    return str(error.value)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"verdict": "refuted", "expect": "refuted"}, "stops at sim: refuted; a refuted claim does not climb"),
        (
            {"verdict": "undecided", "expect": "undecided"},
            "stops at sim: undecided; `metastable run it-climbs --folder",
        ),
        ({"fresh": ""}, "waits at sim: fresh seeds first; `metastable run it-climbs --folder"),
        ({"fresh": "undecided"}, "waits at sim: held on fresh seeds 0 of 1"),
    ],
)
def test_a_claim_that_does_not_hold_below_does_not_climb(folder, below, record, why):
    below(**record)
    message = refused(folder, "it-climbs")
    assert f"it-climbs does not climb to minimodel: {why}" in message
    assert "--anyway REASON" in message


def test_nor_does_one_that_was_never_run(folder):
    assert "not run yet at sim; `metastable run it-climbs --folder" in refused(folder, "it-climbs")


def test_a_real_claim_that_is_refuted_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CommandError, match=r"sequence-ratios-pay-in-noise does not climb: stops at sim: refuted; .* alone"
    ):
        escalate("sequence-ratios-pay-in-noise")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_asked_for(folder, below):
    below()
    assert "did you mean 'it-climbs'" in refused(folder, "it-climb")
    assert "is not made at fullscale; rungs: sim, minimodel" in refused(folder, "it-climbs", to="fullscale")
    assert "--seeds 5: 6 or more" in refused(folder, "it-climbs", seeds="5")
    assert "--processes 0: it takes 1 or more" in refused(folder, "it-climbs", processes=0)
    assert "it takes a number" in refused(folder, "it-climbs", seeds="stale")
    for chosen in ("fresh:1234000", "fresh:1234000:8", "until-decided:8:1234000"):
        assert "the base is drawn and written down here" in refused(folder, "it-climbs", seeds=chosen)
    with pytest.raises(CommandError, match="no folder"):
        escalate("it-climbs", folder=folder / "nope")
    below(rung="minimodel", n=8)
    assert "on record at every rung it is made at; name one with --to" in refused(folder, "it-climbs")


# Registering ----------------------------------------------------------------------------------------------------------


def test_the_file_is_written_before_anything_runs(folder, below, capsys):
    write(folder, above=SWEEP)
    below()
    assert escalate("it-climbs", folder=folder, register_only=True) == 0
    out = capsys.readouterr().out
    path = folder.parent / "escalations/it-climbs.toml"
    assert f"registered: {path} (seeds fresh:" in out
    assert "at most 16 runs, CPU time unknown" in out
    assert "minimodel  not run yet" in out
    made = load(path)
    assert (made.below.verdict, made.below.n, made.below.held, made.below.sets) == ("supported", 16, 1, 1)
    assert (made.prediction.value, made.prediction.low, made.prediction.high) == (1.0, 0.79, 1.0)
    assert made.configs["one"]["steps"] == 1
    assert made.configs["two"] == {"steps": 2}
    assert len(made.plan.configs) == 16
    assert made.made.place["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    before = path.read_bytes()
    assert escalate("it-climbs", folder=folder, register_only=True) == 0
    assert "already registered" in capsys.readouterr().out
    assert path.read_bytes() == before
    assert not (folder.parent / "runs").exists()


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"region": "above(.2)"}, "rule"),
        ({"above": SWEEP}, "configs"),
        ({"region": "{'sim': above(.3), 'minimodel': below(.3)}"}, "rule"),
    ],
)
def test_what_is_registered_is_held_to(folder, below, change, differs):
    below()
    escalate("it-climbs", folder=folder, register_only=True)
    path = folder.parent / "escalations/it-climbs.toml"
    before = path.read_bytes()
    write(folder, **change)
    with pytest.raises(CommandError, match=f"now differs from it in {differs}: what is registered is not rewritten"):
        escalate("it-climbs", folder=folder, register_only=True)
    with pytest.raises(CommandError, match="differs from it in"):
        escalate("it-climbs", folder=folder, seeds="12", register_only=True)
    assert path.read_bytes() == before


def test_a_reason_lets_it_climb_and_stands_in_the_file(folder, below):
    below(verdict="undecided", expect="undecided")
    assert escalate("it-climbs", folder=folder, anyway="the table is too small", register_only=True) == 0
    made = load(folder.parent / "escalations/it-climbs.toml")
    assert made.anyway == "the table is too small"
    assert made.below.verdict == "undecided"


def test_a_reason_that_is_not_needed_is_not_written(folder, below):
    below()
    escalate("it-climbs", folder=folder, anyway="to be sure", register_only=True)
    assert load(folder.parent / "escalations/it-climbs.toml").anyway == ""


@pytest.mark.parametrize(
    ("before", "after", "differs"),
    [
        ({}, {"effect": 0.94, "low": 0.7}, "prediction"),
        ({"verdict": "undecided", "expect": "undecided"}, {}, "anyway"),
    ],
)
def test_what_is_registered_is_held_to_by_the_record_below_too(folder, below, before, after, differs):
    below(**before)
    escalate("it-climbs", folder=folder, anyway="the table is too small", register_only=True)
    below(fresh="", **after)
    with pytest.raises(CommandError, match=f"now differs from it in {differs}: what is registered is not rewritten"):
        escalate("it-climbs", folder=folder, anyway="the table is too small", register_only=True)


def test_a_damaged_file_is_no_trace_back(folder, below):
    below()
    escalate("it-climbs", folder=folder, register_only=True)
    path = folder.parent / "escalations/it-climbs.toml"
    path.write_text(path.read_text() + "surprise = 1\n")
    with pytest.raises(CommandError, match="restore it from version control"):
        escalate("it-climbs", folder=folder)


# Running --------------------------------------------------------------------------------------------------------------


def test_it_runs_above_on_the_registered_seeds_and_is_compared(folder, below):
    below()
    escalate("it-climbs", folder=folder, register_only=True)
    path = folder.parent / "escalations/it-climbs.toml"
    base = int(load(path).plan.seeds.split(":")[1])
    done = run(folder, "it-climbs")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "minimodel  1 [.631, 1]  n=8, supported" in done.stdout
    assert "it-climbs: supported, as predicted; its interval meets the predicted one (share)" in done.stdout
    made = load(path)
    assert made.result.seeds == f"{base}..{base + 7}"
    assert (made.result.as_predicted, made.result.agrees, made.result.changed) == (True, True, ())
    page = (folder.parent / "runs/report/minimodel.html").read_text()
    assert "From rung to rung" in page  # the file was there, without its result
    assert "registered, not run yet" in page
    table = ladder_table(folder)
    assert "it-climbs  S (16) 1/1  not run" in table
    assert "minimodel: supported at sim" in table
    again = dataclasses.replace(made, attempt=2, result=None)
    assert "it-climbs  S (16) 1/1  tried S (8), registered" in ladder_table(folder, attempts=[made, again])
    (crossed,) = crossings(folder, [made])
    assert (crossed.below.n, crossed.above.n, crossed.above.effect) == (16, 8, 1.0)
    assert crossings(folder) == []
    second = dataclasses.replace(made, attempt=2)
    assert [each.claim for each in crossings(folder, [made, second])] == ["it-climbs", "it-climbs, attempt 2"]
    drawn = svg(figure([crossed]))
    assert "it-climbs (sim n=16, minimodel n=8)" in drawn


@pytest.mark.long
def test_that_nature_says_no_is_no_failure_and_a_second_attempt_has_its_own_file(folder, below):
    below()
    write(folder, region="{'sim': above(.3), 'minimodel': above(.97)}", missing=3)
    done = run(folder, "it-climbs", "--seeds", "until-decided:8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "it-climbs: undecided, NOT as predicted (supported)" in done.stdout
    again = run(folder, "it-climbs", "--seeds", "16")
    assert again.returncode == 0, again.stdout + again.stderr
    made = load(folder.parent / "escalations/it-climbs.2.toml")
    assert (made.attempt, made.plan.n, made.result.n) == (2, 16, 16)
    first = load(folder.parent / "escalations/it-climbs.toml")
    assert first.result.how == "beta-binomial confidence sequence"


@pytest.mark.long
def test_a_study_that_stops_is_a_failure_and_its_file_stays_open(folder, below):
    below()
    write(folder, above="1 / 0")
    done = run(folder, "it-climbs")
    assert done.returncode == 1
    assert "the study stopped with ZeroDivisionError" in done.stderr
    path = folder.parent / "escalations/it-climbs.toml"
    opened = load(path)
    assert opened.result is None
    assert "before its first sweep the study stopped with ZeroDivisionError" in opened.plan.note
    write(folder)
    mended = run(folder, "it-climbs")
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert load(path).result.changed == ("study",)


# Plans ----------------------------------------------------------------------------------------------------------------


def test_the_arms_of_a_study_are_found_without_running_it():
    made = statement("length-weighting-teaches-guessing-in-its-window")
    points, note = arms(made, "sim", parse("fresh"), FOLDER.parent)
    assert note == ""
    assert len(points) == 9
    found = leaves(points)
    assert found["sequence mean"]["steps"] == 300
    assert set(found["micro-batch 4"]) >= {"rule.normaliser.type"}
    assert digest(points) != digest({"one": null()}) != digest({"other": null()})
    assert digest({}) == ""


def test_the_cost_of_runs_is_taken_from_the_store_where_it_says(tmp_path):
    from sim.learning.loop import train
    from sim.records.config import replace
    from sim.records.store import Store

    assert cpu_s(tmp_path / "none", "mine", "sim") is None
    runs = train(replace(null(), {"steps": 2}), seeds=(0, 1, 2), study="mine")
    store = Store(tmp_path)
    for seconds, made in zip((None, 4.0, 8.0), runs.records(), strict=True):
        provenance = dict(made.provenance) if seconds is None else {**made.provenance, "cpu_s": seconds}
        store.save(dataclasses.replace(made, provenance=provenance))
    assert cpu_s(tmp_path, "mine", "sim") == 6.0
    assert cpu_s(tmp_path, "mine", "minimodel") is None
    assert cpu_s(tmp_path, "other", "sim") is None


def test_an_unreadable_file_does_not_cost_the_report(folder, below):
    below()
    (folder.parent / "escalations").mkdir()
    (folder.parent / "escalations/it-climbs.toml").write_text("schema = 7\n")
    command = [sys.executable, "-m", "pytest", "mine", "-q", "-p", "no:cacheprovider", "--processes", "1"]
    env = {"PATH": "", "PYTHONPATH": str(FOLDER.parent)}
    done = subprocess.run(command, env=env, cwd=folder.parent, capture_output=True, text=True, check=False)
    assert "1 claim: 1 supported" in done.stdout, done.stdout + done.stderr
    assert "schema 7; this version reads 1" in (folder.parent / "runs/report/index.html").read_text()
