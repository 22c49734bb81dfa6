import html.parser
import math
import re
from dataclasses import replace

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit import ControlFinding, figures
from studies.kit.escalation import hold
from studies.kit.exhibits import Exhibit, dump, load
from studies.kit.gauge import gauge, ticks
from studies.kit.phase.gallery import Hung
from studies.kit.records import Fresh, Record
from studies.kit.report import Beside, Card, Cell, Climbs, Row, environment, fresh_words, navigation, render, rule
from tests.studies.kit.escalated import WRITTEN


def card(finding, *exhibits, **changes):
    plain = {"commit": "abc123", "fresh": "held on fresh seeds 3 of 3", "banner": "", "ladder": ""}
    return Card(finding, gauge(finding), rule(finding), exhibits, **{**plain, **changes})


def page(*cards, rows=()):
    return render(cards, rows, "sim")


class Tags(html.parser.HTMLParser):
    """Checks that tags are balanced and collects them."""

    VOID = frozenset({"meta", "br", "link", "img", "input", "line", "rect", "path", "circle", "use"})

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_a_card_holds_what_a_reader_needs(finding):
    control = ControlFinding("drive on", "supported", 1.0, 0.944, 1.0, 64, "> .5", "")
    text = page(
        card(
            finding(q=0.0094, controls=(control,)),
            Exhibit("never-flips", "note", "A remark."),
            Exhibit("never-flips", "table", caption="Counts.", header=("step", "share"), rows=(("1", ".25"),)),
            Exhibit("never-flips", "configs", header=("point", "setting"), rows=(("drive", "drive.rate"),)),
        ),
        rows=[Row("never-flips", "Tabular GRPO never flips.", True, (Cell("supported", 64, now=True),) * 3)],
    )
    tags = Tags(text)
    for words in (
        "Tabular GRPO never flips.", "supported", "0 [0, .056] share of runs", "seeds 0..63", ".0024 · .0094", "(T2)",
        "agrees", "Supported if the whole 95 % interval lies below .1", "Clopper-Pearson", "drive on: 1 [.944, 1]",
        "A remark.", "Counts.", "drive.rate", "pytest studies -k never-flips", "held on fresh seeds 3 of 3", "abc123",
        "seed A / H1", "f" * 16,
    ):  # fmt: skip
        assert words in text, words
    assert ("href", "#never-flips") in tags.attributes
    assert ("id", "never-flips") in tags.attributes


def test_the_file_stands_alone(finding):
    made, axes = figures.figure(title="Up")
    axes.plot([0, 1])
    text = page(card(finding(), Exhibit("never-flips", "figure", figures.svg(made), "A line.", headline=True)))
    tags = Tags(text)
    assert "script" not in tags.seen
    assert "link" not in tags.seen
    for name, value in tags.attributes:
        if name in ("src", "href", "xlink:href"):
            assert value.startswith("#"), value
    assert "default-src 'none'" in text
    assert text.count("A line.") == 2  # on top and on the card
    ids = [value for name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids))  # the figure stands twice, its ids do not


@pytest.mark.parametrize("place", ["rollouts", "note", "caption", "cell", "says", "label"])
def test_what_a_rollout_wrote_is_shown_and_not_run(finding, place):
    bad = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    exhibits = {
        "rollouts": Exhibit("never-flips", "rollouts", bad),
        "note": Exhibit("never-flips", "note", bad),
        "caption": Exhibit("never-flips", "rollouts", "", bad),
        "cell": Exhibit("never-flips", "table", header=(bad,), rows=((bad,),)),
        "says": Exhibit("never-flips", "note", ""),
        "label": Exhibit("never-flips", "note", ""),
    }
    control = ControlFinding(bad, "supported", 1.0, 0.9, 1.0, 8, "> 0", "")
    found = finding(says=bad if place == "says" else "It flips.", controls=(control,) if place == "label" else ())
    text = page(card(found, exhibits[place]))
    tags = Tags(text)
    assert {"script", "img"}.isdisjoint(tags.seen)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@given(st.text(max_size=200))
def test_any_text_leaves_the_page_whole(finding, text):
    Tags(page(card(finding(), Exhibit("never-flips", "rollouts", text))))


def test_the_page_is_the_same_each_time(finding):
    assert page(card(finding())) == page(card(finding()))


def test_an_undefined_name_is_an_error():
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ finding.efect }}").render(finding={})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "undecided", "more_seeds": 24}, "About 24 more seeds would settle it"),
        ({"verdict": "undecided", "more_seeds": None}, "No number of seeds"),
        ({"verdict": "no verdict", "reason": "the arms did not differ"}, "the arms did not differ"),
        ({"status": "weakened"}, "weakened"),
        ({"predicted": None, "agrees": None}, "nothing"),
        ({"agrees": False}, "does not agree"),
        ({"predicted_low": 0.0, "predicted_high": 0.1}, "(0 to .1)"),
        ({"p": None}, "no test"),
        ({"p": None, "effect": 0.02, "agrees": None}, "differs by .02"),
        ({"kind": "identity"}, "Supported if the computed value, give or take its tolerance, lies below .1."),
        ({"kind": "identity", "region_low": 15.0, "region_high": 15.0}, "lies at 15"),
        ({"kind": "agreement", "region_low": 0.0, "region_high": 1e-12}, "differ by no more than 1e-12"),
        ({"region_low": 0.0, "region_high": 0.5}, "lies between 0 and .5"),
        ({"effect": math.inf, "low": 120.0, "high": math.inf}, "beyond the run [120, beyond the run]"),
        ({"effect": None, "low": None, "high": None, "reason": "stopped"}, "stopped"),
    ],
)
def test_every_sort_of_finding_can_be_shown(finding, changes, words):
    text = page(card(finding(**changes)))
    Tags(text)
    assert words in text


def test_a_recorded_finding_says_so(finding):
    assert "Recorded with other code" in page(card(finding(), banner="Recorded with other code; not run."))


def test_the_overview_tells_run_recorded_not_run_and_not_claimed_apart():
    cells = (Cell("supported", 8, now=True), Cell("refuted", 8, now=False), Cell("not run", 0, now=False))
    text = page(rows=[Row("a", "A.", False, cells), Row("b", "B.", False, (Cell("not claimed", 0, now=False),) * 3)])
    assert re.search(r'chip supported">supported</span> <span class="faint">n=8</span>', text)
    assert re.search(r'chip refuted muted">refuted</span> <span class="faint">n=8, on record</span>', text)
    assert "not run" in text
    assert 'href="#a"' not in text


def test_a_page_names_its_rung_and_links_to_those_that_are_there():
    assert "<nav>rung <b>sim</b></nav>" in page()
    assert navigation("minimodel", ["sim", "minimodel"]) == (
        '<nav>rung <a href="index.html">sim</a> · <b>minimodel</b></nav>'
    )


def test_a_card_says_how_many_clusters_the_units_are(finding):
    text = page(card(finding(n=4, seeds=8, detail=(("clusters", "8 seeds in 4"),))))
    assert "4 · seeds 0..7 (8 seeds in 4 clusters)" in text


def test_fresh_words():
    entry = Record(None, {}, "", (Fresh(1_000_000, 8, "supported", ""), Fresh(2_000_000, 8, "undecided", "")))
    assert fresh_words(entry, "supported") == "held on fresh seeds 1 of 2 (1000000: supported, 2000000: undecided)"
    assert fresh_words(None, "supported") == "not yet run on fresh seeds"


# The drawing --------------------------------------------------------------------------------------------------------


def test_gauge_by_hand(finding):
    # Points 0, .056, .1; pad .12 x .1 = .012; a share does not go below 0: the axis runs from 0 to .112.
    drawn = gauge(finding())
    assert drawn.effect == 28.0
    assert drawn.ends == (28.0, pytest.approx(28 + 584 * 0.056 / 0.112, abs=0.1))
    assert drawn.region == (28.0, pytest.approx(584 * 0.1 / 0.112, abs=0.1))
    assert drawn.predicted == 28.0
    assert not drawn.beyond
    assert [label for _, label in drawn.ticks] == ["0", ".02", ".04", ".06", ".08", ".1"]


def test_a_time_beyond_the_run_ends_in_an_arrow(finding):
    drawn = gauge(finding(kind="time", effect=math.inf, low=120.0, high=math.inf, region_low=100.0, region_high=None))
    assert drawn.beyond
    assert drawn.effect is None
    assert drawn.ends[1] == 612.0


def test_nothing_measured_is_not_drawn(finding):
    empty = {"effect": None, "low": None, "high": None, "predicted": None}
    assert gauge(finding(**empty)) is None


NUMBERS = st.floats(-1e6, 1e6)


@given(NUMBERS, st.tuples(NUMBERS, NUMBERS).map(sorted), NUMBERS, st.tuples(NUMBERS, NUMBERS).map(sorted))
def test_positions_keep_the_order_of_the_numbers(finding, effect, ends, predicted, region):
    drawn = gauge(
        finding(kind="mean", effect=effect, low=ends[0], high=ends[1], predicted=predicted, region_low=region[0],
                region_high=region[1])
    )  # fmt: skip
    numbers = [effect, *ends, predicted, region[0]]
    places = [drawn.effect, *drawn.ends, drawn.predicted, drawn.region[0]]
    assert all(28 <= place <= 612 for place in places)
    for one, at in zip(numbers, places, strict=True):
        for other, there in zip(numbers, places, strict=True):
            assert not (one < other and at > there)


@given(NUMBERS, st.floats(1e-6, 1e6))
def test_ticks_are_few_and_inside(least, width):
    found = ticks(least, least + width)
    assert len(found) <= 12
    slack = 1e-6 * max(1.0, abs(least), width)
    assert all(least - slack <= at <= least + width + slack for at in found)


def test_exhibits_round_trip():
    shown = [
        Exhibit("a", "table", header=("x",), rows=(("1",), ("2",))),
        Exhibit("b", "figure", "<svg/>", headline=True),
    ]
    assert load(dump(shown)) == shown


# Escalations ----------------------------------------------------------------------------------------------------------


def test_escalations_stand_with_prediction_and_result(finding):
    measured = hold(WRITTEN, finding(rung="minimodel", n=8, base=10**6, effect=0.5, low=0.2, high=0.8), WRITTEN.made)
    done = replace(WRITTEN, attempt=2, result=measured, anyway="<b>bold</b>")
    text = render([], [], "minimodel", climbed=Climbs((WRITTEN, done), figure="<svg><g id='x'/></svg>"))
    Tags(text)
    for words in (
        "From rung to rung",
        "sim → minimodel",
        "2026-12-01, abc123; seeds fresh:1234000",
        "0 [0, .056], n=64",
        "supported, 0 [0, .056]",
        "registered, not run yet",
        "never-flips (attempt 2)",
        ".5 [.2, .8], n=8",
        "not as predicted, the intervals do not meet",
        "run although sim does not hold: &lt;b&gt;bold&lt;/b&gt;",
        "on the dotted line a rung says what the next does",
    ):
        assert words in text
    assert "From rung to rung" not in render([], [], "sim")
    assert "cannot be read" in render([], [], "sim", climbed=Climbs(problem="it cannot be read"))


def test_what_lies_beside_the_report_is_shown_and_linked():
    drawn = Hung("mine", "mine-0123", ("world.known", "group"), 12, "data:image/svg+xml;base64,PHN2Zy8+")
    text = render([], [], "sim", beside=Beside((drawn,), (("a <b>", "../read/a%20b/index.html"),)))
    assert '<img src="data:image/svg+xml;base64,PHN2Zy8+" alt="mine over world.known and group">' in text
    assert "12 points; runs/sweeps/mine-0123" in text
    assert ">a &lt;b&gt;</a>" in text
    assert "Sweeps and rollouts" not in render([], [], "sim")


def test_pages_and_diagrams_are_found_beside_the_report(project):
    page = project.folder / "runs" / "read" / "flip & flop" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text("")
    project.write(flips=project.flips(8))
    project.output()
    text = (project.folder / "runs" / "report" / "index.html").read_text(encoding="utf-8")
    assert '<a href="../read/flip%20%26%20flop/index.html">flip &amp; flop</a>' in text
