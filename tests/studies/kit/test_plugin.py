"""A study in a session: what passes, what fails, and what is said."""

import json
import re

import pytest

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
    project.write(flips=project.flips(count, expect))
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
        flips=project.flips(8),
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
            "never: contradicted. the claim expects supported, now refuted*",
            "  It never flips.",
            "  refuted: 1 [[].631, 1[]] share of runs; the claim needs < .3, n=8",
            "  again: pytest . -k never",
            "R  never *contradicted",
            "*1 failed in*",
        ]
    )


def test_a_lost_verdict_fails_here_and_is_shown_elsewhere(project):
    project.write(flips=project.flips(8))
    assert project.run("--record").ret == 0
    project.write(flips=project.flips(4))
    result = project.run()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*it-flips: weakened. on record as supported, now undecided with the recorded seeds"])
    path = project.records / "it-flips.json"
    data = json.loads(path.read_text())
    data["rungs"]["sim"]["place"]["numpy"] = "1.0"
    path.write_text(json.dumps(data))
    result = project.run()
    assert result.ret == 0
    assert "weakened" in project.row(result.stdout.str(), "it-flips")
    assert re.search(r"\d+ more seeds", project.row(result.stdout.str(), "it-flips"))
    # A contradiction counts wherever it comes up.
    project.write(flips=project.flips(0).replace("above(.3)", "above(.5)"))
    assert project.run().ret == 1


def test_a_claim_without_expect_is_new(project):
    project.write(flips=project.flips(4, None))
    result = project.run()
    assert result.ret == 0
    assert "new" in project.row(result.stdout.str(), "it-flips")


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
    assert "the arms did not differ" in project.row(result.stdout.str(), "two")


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
    assert "the learner did not move" in project.row(output, "still")
    assert project.row(output, "moves").startswith("S")


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
    assert project.row(result.stdout.str(), "never").startswith("S")


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
        assert project.row(result.stdout.str(), "never").startswith("-")


def test_a_control_may_have_other_seeds_and_its_region_must_suit_its_kind(project):
    more = 'study.control("never", "drive on", outcomes=np.ones(12, bool))'
    project.write(never=CONTROLLED.format(control=more))
    assert project.run().ret == 0
    project.write(never=CONTROLLED.format(control=more.replace("outcomes", "region=above(2), outcomes")))
    assert "control drive on: region > 2 for kind=rate" in project.output()


def test_a_control_may_be_of_another_kind(project):
    project.write(
        never=CONTROLLED.format(
            control='study.control("never", "drive on", kind=identity(0), region=below(6), value=5)\n'
            '    study.control("never", "drive on", outcomes=np.ones(8, bool))'
        )
    )
    assert project.run().ret == 0


# Errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("pass", "ended without concluding this claim"),
        ('study.conclude("it-flip", outcomes=np.ones(8, bool))', "did you mean 'it-flips'"),
        ('study.conclude("it-flips", values=np.ones(8))', "it-flips: rate takes outcomes=, clusters=, not values="),
        ('study.conclude("it-flips")', "rate needs outcomes="),
        ('study.conclude("it-flips", outcomes=np.ones(3, bool))', "it-flips: outcomes has 3 entries"),
        ('study.conclude("it-flips", outcomes=np.ones(50, bool))', "has 50 entries for 8 seeds; pass one a seed"),
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
        assert project.row(result.stdout.str(), "it-flips").startswith("-")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda flips: flips + flips.replace("study_flips", "study_again"),
            "claim 'it-flips' stands on*study_flips*study_again*",
        ),
        (lambda flips: flips.replace("study_flips(study)", "study_flips()"), "*does not take `study`"),
        (
            lambda flips: '@pytest.mark.claim("it-flips")\ndef study_x(study): pass',
            "*write @claim(...) from studies.kit*",
        ),
    ],
)
def test_a_study_that_is_put_together_wrongly_is_refused(project, change, message):
    project.write(bad=change(project.flips(8)))
    result = project.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines([f"*{message}"])


def test_a_study_may_skip_itself(project):
    project.write(flips=project.flips(8).replace("n = len", "pytest.skip('no data'); n = len"))
    result = project.run("-rs")
    result.stdout.fnmatch_lines(["*no data*", "*1 skipped*"])
    assert result.ret == 0
