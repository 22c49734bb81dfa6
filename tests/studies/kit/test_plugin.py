"""The plugin in whole sessions: what passes, what fails, and what is said."""

import json
import re

import pytest

FLIPS = """
@claim("it-flips", says="It flips.", kind=rate(), region=above(.3), unit="share of runs", expect={expect!r},
       predicts=Prediction(1.0, source="theory"))
def study_flips(study):
    n = len(study.seeds())
    study.conclude("it-flips", outcomes=np.arange(n) < {flips})
"""


def flips(count, expect="supported"):
    return FLIPS.format(flips=count, expect=expect)


def row(output, claim):
    """The line of a claim in the findings section, joined with its continuation lines."""
    section = output[output.index("findings, rung") :].splitlines()
    start = next(i for i, line in enumerate(section) if re.match(rf".\s+{claim}\s", line))
    rest = [line for line in section[start + 1 : start + 4] if line.startswith("   ")]
    return " ".join([section[start], *rest])


# Passing and failing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "expect", "letter", "last"),
    [
        (8, "supported", "S", "1 supported"),
        (0, "refuted", "?", "1 undecided"),  # 0 of 8: upper limit .37, above .3
        (4, "undecided", "?", "1 undecided"),
    ],
)
def test_a_verdict_on_record_passes(project, count, expect, letter, last):
    project.write(flips=flips(count, expect))
    if last.endswith("undecided") and expect != "undecided":
        result = project.run("--seeds", "9")  # other seeds than on record: shown, not held against it
    else:
        result = project.run()
    result.stdout.fnmatch_lines([f"study_flips.py {letter}*", f"*{last} in*"])
    assert result.ret == 0


def test_a_refuted_claim_is_green_and_counted(project):
    project.write(
        never="""
        @claim("never", says="It never flips.", kind=rate(), region=below(.3), expect="refuted")
        def study_never(study):
            study.conclude("never", outcomes=np.ones(8, bool))
        """,
        flips=flips(8),
    )
    result = project.run("-v")
    result.stdout.fnmatch_lines(["*study_flips SUPPORTED*", "*study_never REFUTED*", "*1 supported, 1 refuted in*"])
    assert result.ret == 0


def test_a_contradiction_fails_and_says_why(project):
    project.write(
        never="""
        @claim("never", says="It never flips.", kind=rate(), region=below(.3), unit="share of runs", expect="supported")
        def study_never(study):
            study.conclude("never", outcomes=np.ones(8, bool))
        """
    )
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "never: contradicted. on record as supported, now refuted*",
            "  It never flips.",
            "  refuted: 1 [[].631, 1[]] share of runs; the claim needs < .3, n=8",
            "  again: pytest . -k never",
            "R  never *contradicted",
            "*1 failed in*",
        ]
    )


def test_a_lost_verdict_fails_here_and_is_shown_elsewhere(project):
    project.write(flips=flips(8))
    assert project.run("--record").ret == 0
    project.write(flips=flips(4))
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*it-flips: weakened. on record as supported, now undecided with the recorded seeds"])
    path = project.records / "it-flips.json"
    data = json.loads(path.read_text())
    data["rungs"]["sim"]["place"]["numpy"] = "1.0"
    path.write_text(json.dumps(data))
    result = project.run()
    assert result.ret == 0
    assert "weakened" in row(result.stdout.str(), "it-flips")
    assert re.search(r"\d+ more seeds", row(result.stdout.str(), "it-flips"))
    # A contradiction counts wherever it comes up.
    project.write(flips=flips(0).replace("above(.3)", "above(.5)"))
    assert project.run().ret == 1


def test_a_claim_without_expect_is_new(project):
    project.write(flips=flips(4, None))
    result = project.run()
    assert result.ret == 0
    assert "new" in row(result.stdout.str(), "it-flips")


def test_the_least_settled_verdict_gives_the_letter(project):
    project.write(
        two="""
        @claim("one", says="One.", kind=rate(), region=above(.3))
        @claim("two", says="Two.", kind=rate_difference(), region=above(0))
        def study_two(study):
            study.conclude("one", outcomes=np.ones(8, bool))
            study.conclude("two", treated=np.ones(8, bool), control=np.ones(8, bool))
        """
    )
    result = project.run()
    result.stdout.fnmatch_lines(["study_two.py -*", "S  one *", "-  two *", "*1 no verdict in*"])
    assert "the arms did not differ" in row(result.stdout.str(), "two")


def test_a_learner_that_did_not_move_gets_no_verdict(project):
    project.write(
        still="""
        @claim("still", says="It never flips.", kind=rate(), region=below(.5))
        @claim("moves", says="It never flips.", kind=rate(), region=below(.5))
        def study_still(study):
            study.conclude("still", outcomes=np.zeros(8, bool), moved=np.zeros(8, bool))
            found = study.conclude("moves", outcomes=np.zeros(8, bool), moved=np.arange(8) > 6)
            assert dict(found.detail)["moved"] == "1/8"
        """
    )
    output = project.output()
    assert "the learner did not move" in row(output, "still")
    assert row(output, "moves").startswith("S")


# Controls -----------------------------------------------------------------------------------------------------------

CONTROLLED = """
@claim("never", says="It never flips.", kind=rate(), region=below(.4), expect="supported",
       controls=[Control("drive on", above(.5))])
def study_never(study):
    found = study.conclude("never", outcomes=np.zeros(8, bool))
    assert found.verdict == "supported" and not found.fails
    {control}
"""


def test_a_control_that_comes_out_as_said(project):
    project.write(never=CONTROLLED.format(control='study.control("never", "drive on", outcomes=np.ones(8, bool))'))
    result = project.run()
    assert result.ret == 0
    assert row(result.stdout.str(), "never").startswith("S")


@pytest.mark.parametrize(
    ("control", "why"),
    [
        ('study.control("never", "drive on", outcomes=np.zeros(8, bool))', "did not come out as said"),
        ('study.control("never", "drive on", outcomes=np.arange(8) < 5)', "NOT as said (undecided)"),
        ("pass", "'drive on' was declared and not reported"),
        ('study.control("never", "drive up", outcomes=np.ones(8, bool))', "has no region="),
    ],
)
def test_without_its_control_a_claim_has_no_verdict_and_the_study_fails(project, control, why):
    project.write(never=CONTROLLED.format(control=control))
    result = project.run()
    assert result.ret == 1
    assert why in result.stdout.str()
    if "region" not in why:
        assert row(result.stdout.str(), "never").startswith("-")


def test_a_control_may_be_of_another_kind(project):
    project.write(
        never=CONTROLLED.format(
            control='study.control("never", "drive on", kind=identity(0), region=below(6), value=5)\n'
            '    study.control("never", "drive on", outcomes=np.ones(8, bool))'
        )
    )
    assert project.run().ret == 0


# Long claims, selection, family -------------------------------------------------------------------------------------

LONG = """
@claim("lengthy", says="It takes long.", kind=median(), region=above(1), unit="steps", expect="supported", long=True)
def study_lengthy(study):
    study.conclude("lengthy", values=np.arange(8) + 2.0)
"""


def test_a_long_claim_is_shown_as_recorded(project):
    project.write(lengthy=LONG, flips=flips(8))
    result = project.run()
    assert "long, not on record: --all" in row(result.stdout.str(), "lengthy")
    result.stdout.fnmatch_lines(["*1 deselected, 1 supported in*"])
    assert project.run("--all", "--record").ret == 0
    output = project.output()
    assert row(output, "lengthy").startswith("S  lengthy")
    assert "recorded with this code" in row(output, "lengthy")
    assert "5.5 [2, 9] steps" in row(output, "lengthy")
    project.write(lengthy=LONG.replace("+ 2.0", "+ 2.5"))
    assert "recorded with other code" in row(project.output(), "lengthy")
    assert "lengthy" not in project.output("-k", "it-flips").split("findings, rung")[1]


def test_studies_are_found_by_claim(project):
    project.write(flips=flips(8), lengthy=LONG)
    project.run("-k", "it-flips").stdout.fnmatch_lines(["*1 supported*"])
    project.run("-k", "lengthy", "--all").stdout.fnmatch_lines(["*1 deselected, 1 supported*"])


def q_of(output, claim):
    columns = row(output, claim).split()
    return next(value for value, before in zip(columns[1:], columns, strict=False) if before == "8")


def test_q_is_over_the_registered_family_whatever_ran(project):
    more = "\n".join(
        f"""
@claim("more-{i}", says="More.", kind=rate(), region=above(.3))
def study_more_{i}(study):
    study.conclude("more-{i}", outcomes=np.arange(8) < 4 + {i})
"""
        for i in range(3)
    )
    project.write(flips=flips(8), more=more)
    findings = {}
    for selection in ((), ("-k", "it-flips"), ("study_flips.py",)):
        project.pytester.makeconftest(
            "import json\ndef pytest_studies_finding(finding):\n"
            "    open('q.jsonl', 'a').write(json.dumps([finding.claim, finding.p, finding.q]) + '\\n')\n"
        )
        path = project.folder / "q.jsonl"
        path.unlink(missing_ok=True)
        project.run(*selection)
        findings[selection] = {claim: (p, q) for claim, p, q in map(json.loads, path.read_text().splitlines())}
    everything = findings[()]
    assert len(everything) == 4
    p = sorted(value[0] for value in everything.values())
    assert everything["it-flips"] == pytest.approx((2 * 0.3**8, min(4 * p[0], 4 * p[1] / 2)))
    # Alone, the others enter with p = 1 (they are not on record): q = 4 p, not p.
    assert findings[("-k", "it-flips")]["it-flips"][1] == pytest.approx(4 * 2 * 0.3**8)
    assert findings[("study_flips.py",)]["it-flips"][1] == pytest.approx(4 * 2 * 0.3**8)


# Seeds --------------------------------------------------------------------------------------------------------------

SEEDED = """
@claim("seeded", says="It depends.", kind=rate(), region=above(.3), expect="supported")
def study_seeded(study):
    print("seeds", list(study.seeds()))
    study.conclude("seeded", outcomes=np.array([seed < {limit} for seed in study.seeds()]))
"""


def test_fresh_seeds_are_printed_and_can_be_repeated(project):
    project.write(seeded=SEEDED.format(limit=10**12))
    output = project.output("--seeds", "fresh", "-s")
    base = int(re.search(r"again with --seeds fresh:(\d+)", output).group(1))
    assert base >= 1_000_000
    assert f"seeds {list(range(base, base + 8))}" in output
    again = project.output("--seeds", f"fresh:{base}", "-s")
    assert f"seeds {list(range(base, base + 8))}" in again


def test_fresh_seeds_that_do_not_settle_are_shown_and_a_contradiction_fails(project):
    project.write(seeded=SEEDED.format(limit=1_000_004))
    result = project.run("--seeds", "fresh:1000000")  # 4 of 8: undecided
    assert result.ret == 0
    assert "weakened" in row(result.stdout.str(), "seeded")
    project.write(seeded=SEEDED.format(limit=10).replace("above(.3)", "above(.5)"))
    assert project.run().ret == 0  # on record: seeds 0 to 7
    result = project.run("--seeds", "fresh:1000000")
    assert result.ret == 1
    assert "contradicted" in row(result.stdout.str(), "seeded")


def test_what_fresh_seeds_gave_is_recorded_whatever_it_is(project):
    project.write(seeded=SEEDED.format(limit=1_000_010))
    assert project.run("--record").ret == 0
    assert project.run("--record", "--seeds", "fresh:1000000").ret == 0
    assert project.run("--record", "--seeds", "fresh:1000006").ret == 1  # overlaps: refused
    assert project.run("--record", "--seeds", "fresh:1000008").ret == 0  # 2 of 8: undecided, and kept
    entry = json.loads((project.records / "seeded.json").read_text())["rungs"]["sim"]
    assert [(item["base"], item["verdict"]) for item in entry["fresh"]] == [
        (1_000_000, "supported"),
        (1_000_008, "undecided"),
    ]
    project.run()
    report = (project.folder / "runs/report/index.html").read_text()
    assert "held on fresh seeds 1 of 2" in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--seeds", "5"), "6 or more"),
        (("--seeds", "fresh:7"), "1000000 or above"),
        (("--seeds", "many"), "takes a number"),
        (("--seeds", "16", "--record"), "leave out --seeds N"),
        (("--rung", "moon"), "invalid choice"),
    ],
)
def test_options_that_cannot_be_met_are_refused(project, options, message):
    project.write(flips=flips(8))
    result = project.run(*options)
    assert result.ret == 4
    assert message in result.stderr.str() + result.stdout.str()


# Records ------------------------------------------------------------------------------------------------------------


def test_record_writes_what_came_out_as_expected_and_nothing_else(project):
    project.write(flips=flips(8), seeded=SEEDED.format(limit=4))  # the second is undecided
    result = project.run("--record")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["recorded it-flips", "NOT recorded: seeded: undecided, but*"])
    assert [path.name for path in project.records.glob("*")] == ["it-flips.json"]
    entry = json.loads((project.records / "it-flips.json").read_text())["rungs"]["sim"]
    assert entry["finding"]["rerun"] == "pytest . -k it-flips"
    assert len(entry["finding"]["fingerprint"]) == 64


def test_a_new_claim_is_not_recorded_and_the_exit_status_says_so(project):
    project.write(flips=flips(8, None))
    result = project.run("--record")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["NOT recorded: it-flips:*no expect=*"])
    assert not project.records.exists()


# Rungs --------------------------------------------------------------------------------------------------------------


def test_a_study_of_another_rung_is_skipped_with_the_reason(project, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    project.write(flips=flips(8))
    result = project.run("--rung", "minimodel", "-rs")
    result.stdout.fnmatch_lines(["*claimed at sim, not at minimodel: --rung sim*", "*1 skipped*"])
    assert result.ret == 0


def test_a_rung_that_is_not_installed_says_what_to_install(project, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    project.write(flips=flips(8))
    result = project.run("--rung", "minimodel")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*needs torch*pip install 'metastable[[]minimodel[]]'*"])


def test_a_claim_at_another_rung_is_left_alone_by_its_study(project):
    project.write(
        two="""
        @claim("here", says="Here.", kind=rate(), region=above(.3))
        @claim("there", says="There.", kind=rate(), region=above(.3), rungs=("minimodel",))
        def study_two(study):
            study.conclude("here", outcomes=np.ones(8, bool))
            assert study.conclude("there", outcomes=np.ones(8, bool)) is None
            study.note("there", "Nothing.")
        """
    )
    result = project.run()
    assert result.ret == 0
    assert "there" not in result.stdout.str().split("findings, rung")[1].split("report:")[0]


def test_the_ladder_says_what_comes_next(project):
    project.write(flips=flips(8).replace("kind=", "rungs=('sim', 'minimodel'), kind="))
    ladder = "ladder: it-flips  sim S (8) -> minimodel not run; "
    project.run("--record").stdout.fnmatch_lines([ladder + "waits at sim: fresh seeds first: pytest . -k it-flips*"])
    project.run("--record", "--seeds", "fresh")
    project.run().stdout.fnmatch_lines([ladder + "supported at sim: pytest . -k it-flips --rung minimodel"])


# Errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "ended without concluding this claim"),
        ('study.conclude("it-flip", outcomes=np.ones(8, bool))', "did you mean 'it-flips'"),
        ('study.conclude("it-flips", values=np.ones(8))', "it-flips: rate takes outcomes=, not values="),
        ('study.conclude("it-flips")', "rate needs outcomes="),
        ('study.conclude("it-flips", outcomes=np.ones(3, bool))', "it-flips: outcomes has 3 entries"),
        ('[study.conclude("it-flips", outcomes=np.ones(8, bool)) for _ in range(2)]', "concluded twice"),
        ('study.conclude("it-flips", outcomes=np.ones(8, bool), moved=3)', "moved has type"),
        ('study.table("it-flips", ["a"], [[1, 2]])', "1 columns and a row of 2"),
        ("raise RuntimeError('boom')", "boom"),
    ],
)
def test_an_error_in_a_study_fails_it_and_leaves_no_verdict(project, body, message):
    project.write(
        bad=f"""
        @claim("it-flips", says="It flips.", kind=rate(), region=above(.3), expect="supported")
        def study_bad(study):
            {body}
        """
    )
    result = project.run()
    assert result.ret == 1
    assert message in result.stdout.str()
    if "twice" not in message and "moved" not in message:
        assert row(result.stdout.str(), "it-flips").startswith("-")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            flips(8) + flips(8).replace("study_flips", "study_again"),
            "claim 'it-flips' stands on*study_flips*study_again*",
        ),
        (flips(8).replace("study_flips(study)", "study_flips()"), "*does not take `study`"),
        ('@pytest.mark.claim("it-flips")\ndef study_x(study): pass', "*write @claim(...) from studies.kit*"),
    ],
)
def test_a_study_that_is_put_together_wrongly_is_refused(project, source, message):
    project.write(bad=source)
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{message}"])


def test_a_study_may_skip_itself(project):
    project.write(flips=flips(8).replace("n = len", "pytest.skip('no data'); n = len"))
    result = project.run("-rs")
    result.stdout.fnmatch_lines(["*no data*", "*1 skipped*"])
    assert result.ret == 0


# Company ------------------------------------------------------------------------------------------------------------


def test_a_session_without_studies_is_left_alone(project):
    project.pytester.makepyfile(test_plain="def test_plain(): pass\n")
    result = project.run()
    result.stdout.fnmatch_lines(["*1 passed in*"])
    assert "findings" not in result.stdout.str()
    assert not (project.folder / "runs").exists()


def test_the_command_on_a_finding_makes_it_again(project):
    project.write(seeded=SEEDED.format(limit=10**12), lengthy=LONG)
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
    project.write(shown=EXHIBITS, flips=flips(8), lengthy=LONG)
    serial = project.run()
    report = (project.folder / "runs/report/index.html").read_text()
    parallel = project.run("-n", "2", "--benchmark-disable")
    assert parallel.ret == serial.ret == 0
    parallel.stdout.fnmatch_lines(["*2 supported in*"])
    for claim in ("shown", "it-flips", "lengthy"):
        assert row(parallel.stdout.str(), claim) == row(serial.stdout.str(), claim)
    assert (project.folder / "runs/report/index.html").read_text() == report
    assert "Everything flips" in report
    assert "<script" not in report


def test_workers_share_one_base_of_fresh_seeds(project):
    pytest.importorskip("xdist")
    project.write(seeded=SEEDED.format(limit=10**12), flips=flips(8))
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
    assert "4.5 [" in row(first, "higher")  # the mean of 1 .. 8
    calls = (project.folder / "calls").read_text()
    assert calls.count("swept\n") == 2
    assert row(project.output(), "higher") == row(first, "higher")
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
