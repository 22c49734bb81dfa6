"""Which studies run, on which seeds, at which rung, and what is kept."""

import json
import re

import pytest

# Long claims, selection, family -------------------------------------------------------------------------------------


def test_a_long_claim_is_shown_as_recorded(project):
    project.write(lengthy=project.LONG, flips=project.flips(8))
    result = project.run()
    assert "long, not on record: --all" in project.row(result.stdout.str(), "lengthy")
    result.stdout.fnmatch_lines(["*1 deselected, 1 supported in*"])
    assert project.run("--all", "--record").ret == 0
    output = project.output()
    assert project.row(output, "lengthy").startswith("S  lengthy")
    assert "recorded with this code" in project.row(output, "lengthy")
    assert "5.5 [2, 9] steps" in project.row(output, "lengthy")
    project.write(lengthy=project.LONG.replace("+ 2.0", "+ 2.5"))
    assert "recorded with other code" in project.row(project.output(), "lengthy")
    assert "lengthy" not in project.output("-k", "it-flips").split("findings, rung")[1]


def test_studies_are_found_by_claim(project):
    project.write(flips=project.flips(8), lengthy=project.LONG)
    project.run("-k", "it-flips").stdout.fnmatch_lines(["*1 supported*"])
    project.run("-k", "lengthy", "--all").stdout.fnmatch_lines(["*1 deselected, 1 supported*"])


def test_a_report_of_some_claims_says_so_and_verdicts_are_counted(project):
    other = project.flips(0, "refuted").replace("it-flips", "others").replace("above(.3)", "above(.5)")
    project.write(flips=project.flips(8), others=other)
    project.run().stdout.fnmatch_lines(["2 claims: 1 supported, 1 refuted", "report: runs/report/index.html"])
    project.run("-k", "it-flips").stdout.fnmatch_lines(
        ["1 claim: 1 supported", "report: runs/report/index.html (1 of 2 claims)"]
    )


def test_a_verdict_that_is_not_recorded_yet_is_as_expected(project):
    project.write(flips=project.flips(8))
    page = project.folder / "runs/report/index.html"
    assert project.row(project.output("--record"), "it-flips").endswith("as expected")
    assert "as expected" in page.read_text()
    assert project.row(project.output(), "it-flips").endswith("on record")
    assert "as expected" not in page.read_text()


def test_q_is_over_the_registered_family_whatever_ran(project):
    more = "\n".join(
        f"""
@claim("more-{i}", says="More.", kind=rate(), region=above(.3))
def study_more_{i}(study):
    study.conclude("more-{i}", outcomes=np.arange(8) < 4 + {i})
"""
        for i in range(3)
    )
    project.write(flips=project.flips(8), more=more)
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


def test_fresh_seeds_are_printed_and_can_be_repeated(project):
    project.write(seeded=project.seeded(10**12))
    output = project.output("--seeds", "fresh", "-s")
    base = int(re.search(r"again with --seeds fresh:(\d+)", output).group(1))
    assert base >= 1_000_000
    assert f"seeds {list(range(base, base + 8))}" in output
    again = project.output("--seeds", f"fresh:{base}", "-s")
    assert f"seeds {list(range(base, base + 8))}" in again


def test_fresh_seeds_that_do_not_settle_are_shown_and_a_contradiction_fails(project):
    project.write(seeded=project.seeded(1_000_004))
    result = project.run("--seeds", "fresh:1000000")  # 4 of 8: undecided
    assert result.ret == 0
    assert "weakened" in project.row(result.stdout.str(), "seeded")
    project.write(seeded=project.seeded(10).replace("above(.3)", "above(.5)"))
    assert project.run().ret == 0  # on record: seeds 0 to 7
    result = project.run("--seeds", "fresh:1000000")
    assert result.ret == 1
    assert "contradicted" in project.row(result.stdout.str(), "seeded")


def test_what_fresh_seeds_gave_is_recorded_whatever_it_is(project):
    project.write(seeded=project.seeded(1_000_010))
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
        (("--processes", "0"), "--processes 0: it takes 1 or more"),
        (("--processes", "-2"), "1 or more"),
    ],
)
def test_options_that_cannot_be_met_are_refused(project, options, message):
    project.write(flips=project.flips(8))
    result = project.run(*options)
    assert result.ret == 4
    assert message in result.stderr.str() + result.stdout.str()


# Records ------------------------------------------------------------------------------------------------------------


def test_record_writes_what_came_out_as_expected_and_nothing_else(project):
    project.write(flips=project.flips(8), seeded=project.seeded(4))  # the second is undecided
    result = project.run("--record")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["recorded it-flips", "NOT recorded: seeded: undecided, but*"])
    assert [path.name for path in project.records.glob("*")] == ["it-flips.json"]
    entry = json.loads((project.records / "it-flips.json").read_text())["rungs"]["sim"]
    assert entry["finding"]["rerun"] == "pytest . -k it-flips"
    assert len(entry["finding"]["fingerprint"]) == 64


def test_a_new_claim_is_not_recorded_and_the_exit_status_says_so(project):
    project.write(flips=project.flips(8, None))
    result = project.run("--record")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["NOT recorded: it-flips:*no expect=*"])
    assert not project.records.exists()


# Rungs --------------------------------------------------------------------------------------------------------------


AT_BOTH = """
@claim("both", says="It flips.", kind=rate(), region=above(.3), rungs=("sim", "minimodel"), expect="supported")
def study_both(study):
    study.conclude("both", outcomes=np.ones(8, bool))
"""


@pytest.fixture
def _torch():
    """Loaded here, as it cannot be imported twice and an inner session forgets what it imported."""
    pytest.importorskip("torch")


@pytest.mark.usefixtures("_torch")
def test_studies_of_another_rung_are_left_out_quietly(project):
    project.write(flips=project.flips(8), seeded=project.seeded(9), both=AT_BOTH)
    result = project.run("--rung", "minimodel", "-q")
    result.stdout.fnmatch_lines(["S *100%*", "S  both*", "2 deselected, 1 supported in*"])
    assert result.ret == 0
    assert "claimed at" not in result.stdout.str()
    said = [line for line in project.output("--rung", "minimodel", "-rs").splitlines() if "claimed at" in line]
    assert sorted(said) == [
        "study_flips.py::study_flips: claimed at sim, not at minimodel: --rung sim",
        "study_seeded.py::study_seeded: claimed at sim, not at minimodel: --rung sim",
    ]


@pytest.mark.usefixtures("_torch")
def test_a_folder_without_a_claim_at_the_rung_says_so_in_a_line(project):
    project.write(flips=project.flips(8), seeded=project.seeded(9))
    result = project.run("--rung", "minimodel", "-q")
    result.stdout.fnmatch_lines(["nothing to run at minimodel: the 2 claims here are made at sim (--rung sim)"])
    assert result.ret == 0
    assert not (project.folder / "runs/report").exists()
    result = project.run("--rung", "minimodel", "-q", "-k", "it-flips")
    result.stdout.fnmatch_lines(["nothing to run at minimodel: the only claim here is made at sim (--rung sim)"])
    assert project.run("-q", "-k", "no-such-claim").ret == 5  # that nothing has this name is another matter
    project.write(both=AT_BOTH)
    assert "nothing to run" not in project.output("--rung", "minimodel", "--collect-only")
    assert "nothing to run" not in project.output("--rung", "minimodel")


@pytest.mark.usefixtures("_torch")
def test_each_rung_has_a_report_and_they_are_linked(project):
    project.write(flips=project.flips(8), both=AT_BOTH)
    folder = project.folder / "runs/report"
    project.run("--rung", "minimodel").stdout.fnmatch_lines(["report: runs/report/minimodel.html"])
    assert "<nav>rung <b>minimodel</b></nav>" in (folder / "minimodel.html").read_text()
    project.run().stdout.fnmatch_lines(["report: runs/report/index.html"])
    first, second = ((folder / name).read_text() for name in ("index.html", "minimodel.html"))
    assert '<nav>rung <b>sim</b> · <a href="minimodel.html">minimodel</a></nav>' in first
    assert '<nav>rung <a href="index.html">sim</a> · <b>minimodel</b></nav>' in second
    assert "it-flips" in first
    assert "it-flips" not in second  # the table holds what is claimed at the page's rung


def test_a_rung_that_is_not_installed_says_what_to_install(project, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    project.write(flips=project.flips(8))
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
    project.write(flips=project.flips(8).replace("kind=", "rungs=('sim', 'minimodel'), kind="))
    ladder = "ladder: it-flips  sim S (8) -> minimodel not run; "
    project.run("--record").stdout.fnmatch_lines([ladder + "waits at sim: fresh seeds first: pytest . -k it-flips*"])
    project.run("--record", "--seeds", "fresh")
    project.run().stdout.fnmatch_lines([ladder + "supported at sim: metastable escalate it-flips --folder ."])
