"""Studies beside other tests, other plugins and other processes."""

import json

import pytest

# Company ------------------------------------------------------------------------------------------------------------


def test_a_session_without_studies_is_left_alone(project):
    project.pytester.makepyfile(test_plain="def test_plain(): pass\n")
    result = project.run()
    result.stdout.fnmatch_lines(["*1 passed in*"])
    assert "findings" not in result.stdout.str()
    assert not (project.folder / "runs").exists()


def test_the_command_on_a_finding_makes_it_again(project):
    project.write(seeded=project.seeded(10**12), lengthy=project.LONG)
    for options in (("--seeds", "fresh:5000000"), ("--all",), ("--seeds", "16")):
        project.pytester.makeconftest(
            "def pytest_studies_finding(finding):\n    open('seen.jsonl', 'a').write(finding.to_json() + '\\n')\n"
        )
        seen = project.folder / "seen.jsonl"
        seen.unlink(missing_ok=True)
        project.run(*options)
        first = [json.loads(line) for line in seen.read_text().splitlines()]
        seen.unlink()
        for finding in first:
            project.run(*finding["rerun"].split()[2:])
        again = [json.loads(line) for line in seen.read_text().splitlines()]
        assert first
        assert [{**finding, "q": None} for finding in again] == [{**finding, "q": None} for finding in first]


EXHIBITS = """
@claim("shown", says="It shows.", kind=rate(), region=above(.3), expect="supported")
def study_shown(study):
    study.conclude("shown", outcomes=np.arange(8) < np.int64(8))
    figure, axes = figures.figure(title="Everything flips")
    axes.plot([0, 1], [0, 1])
    study.figure("shown", figure, caption="A line.", headline=True)
    study.table("shown", ["step", "share"], [[np.int64(1), np.float64(.25)]])
    study.rollouts("shown", "<script>alert(1)</script>")
"""


def test_findings_and_figures_come_home_from_workers(project):
    pytest.importorskip("xdist")
    project.write(shown=EXHIBITS, flips=project.flips(8), lengthy=project.LONG)
    serial = project.run()
    report = (project.folder / "runs/report/index.html").read_text()
    parallel = project.run("-n", "2", "--benchmark-disable")
    assert parallel.ret == serial.ret == 0
    parallel.stdout.fnmatch_lines(["*2 supported in*"])
    for claim in ("shown", "it-flips", "lengthy"):
        assert project.row(parallel.stdout.str(), claim) == project.row(serial.stdout.str(), claim)
    assert (project.folder / "runs/report/index.html").read_text() == report
    assert "Everything flips" in report
    assert "<script" not in report


def test_workers_share_one_base_of_fresh_seeds(project):
    pytest.importorskip("xdist")
    project.write(seeded=project.seeded(10**12), flips=project.flips(8))
    assert project.run("-n", "2", "--seeds", "fresh", "--record").ret == 0
    bases = {
        json.loads(path.read_text())["rungs"]["sim"]["fresh"][0]["base"] for path in project.records.glob("*.json")
    }
    assert len(bases) == 1


def test_figures_stay_out_of_junit_files(project):
    project.write(shown=EXHIBITS)
    project.run("--junitxml=junit.xml")
    text = (project.folder / "junit.xml").read_text()
    assert "metastable-finding" in text
    assert "svg" not in text


def test_a_sweep_asks_the_store_first(project):
    project.write(
        swept="""
        from sim.records.fingerprint import code_fingerprint
        from sim.records.run import Runs

        def train(config, seeds, *, study):
            open("calls", "a").write(f"{config} {seeds} {study}\\n")
            level = np.array([[config["level"] * (1.0 + seed)] * 3 for seed in seeds])
            steps = np.tile(np.arange(3), (len(seeds), 1))
            return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": steps, "level": level})

        @claim("higher", says="The level is higher.", kind=mean(symmetric=True), region=above(0), expect="supported")
        def study_swept(study):
            runs = study.sweep({"low": {"level": 1.0}, "high": {"level": 2.0}}, run=train)
            study.conclude("higher", treated=runs["high"]["level"][:, -1], control=runs["low"]["level"][:, -1])
        """
    )
    first = project.output()
    assert "4.5 [" in project.row(first, "higher")  # the mean of 1 .. 8
    calls = (project.folder / "calls").read_text()
    assert calls.count("swept\n") == 2
    assert project.row(project.output(), "higher") == project.row(first, "higher")
    assert (project.folder / "calls").read_text() == calls  # nothing was trained again
    report = (project.folder / "runs/report/index.html").read_text()
    assert "Configs: what each point changes" in report


def test_the_plugin_is_light(fresh_python):
    loaded = fresh_python("import studies.kit.plugin, sys; print(*sys.modules)").split()
    heavy = {"numpy", "scipy", "matplotlib", "jinja2", "torch", "sim", "tyro", "pydantic"}
    assert heavy.isdisjoint(loaded)
    # Nor does a session without studies load them.
    program = """
import os, sys, tempfile
from importlib.metadata import entry_points
from pathlib import Path
import pytest
os.chdir(tempfile.mkdtemp())
Path("test_x.py").write_text("def test_x(): pass")
plugin = [] if entry_points(group="pytest11", name="metastable") else ["-p", "studies.kit.plugin"]
assert pytest.main(["-q", *plugin]) == 0
print("LOADED", *sys.modules)
"""
    loaded = fresh_python(program).split("LOADED")[1].split()
    assert {"scipy", "matplotlib", "jinja2", "torch", "sim"}.isdisjoint(loaded)
    assert "studies.kit.session" in loaded
