import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from sim.mdp.published import SEED_A
from sim.records.run import Runs
from studies.kit import above, figures


def runs(seeds=12, steps=50, level=0.0):
    x = np.linspace(0, 1, steps) + level + np.arange(seeds)[:, None] / 10
    step = np.tile(np.arange(steps), (seeds, 1))
    return Runs({}, tuple(range(seeds)), "s", "sim", "f", {"step": step, "behaviour/search_share/turn0": x})


DRAWN = {
    "bands": lambda: figures.bands(
        {"null": runs(), "drive": runs(level=1)},
        "behaviour/search_share/turn0",
        title="It rises",
        onset={"drive": 20.0},
    ),
    "dose": lambda: figures.dose(
        [0.1, 1.0], [np.zeros(8, bool), np.ones(8, bool)], predicted=([0.1, 1], [0, 1]), title="It rises", log=True
    ),
    "dots": lambda: figures.dots(
        ["a", "b"], [1, 2], [0, 1], [2, 3], region=above(1.5), predicted=[1, 2], title="It rises", unit="steps"
    ),
    "points": lambda: figures.points(
        {"a": {0.1: np.arange(8.0) + 1, 1.0: np.arange(8.0) + 5}},
        curves={"a": ([0.1, 1], [4, 8]), "other": ([0.1, 1], [1, 2])},
        title="It rises",
        log="xy",
    ),
    "stack": lambda: figures.stack(
        range(5), {"search": np.full(5, 0.4), "guess": np.full(5, 0.6)}, title="It rises", n=8
    ),
    "table_fit": lambda: figures.table_fit(SEED_A, SEED_A, title="It rises"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_one_svg_element_that_carries_its_words(name):
    text = figures.svg(DRAWN[name]())
    root = ET.fromstring(text)
    assert root.tag.endswith("svg")
    words = " ".join(root.itertext())
    assert "It rises" in words  # text stays text
    assert not re.search(r"\d{4}-\d\d-\d\dT", text)  # no date
    if name in ("bands", "dose", "points", "stack"):
        assert re.search(r"n=\d+", words)
    if name in ("bands", "dose", "dots"):
        assert re.search(r"10-90 %|95 %", words)


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_figure_gives_the_same_bytes(name):
    assert figures.svg(DRAWN[name]()) == figures.svg(DRAWN[name]())


def test_points_show_median_and_range_in_the_colour_of_their_curve():
    ax = DRAWN["points"]().axes[0]
    own, other = ax.get_lines()[:2]
    dots, _, (bars,) = ax.containers[0]
    assert dots.get_ydata() == pytest.approx([4.5, 8.5])
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[1, 8], [5, 12]]
    assert own.get_color() == dots.get_color() != other.get_color()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_bands_show_the_mean_and_the_marked_onset():
    made = DRAWN["bands"]()
    lines = made.axes[0].get_lines()
    means = [line for line in lines if line.get_label().endswith("(n=12)")]
    assert np.allclose(means[0].get_ydata(), runs()["behaviour/search_share/turn0"].mean(0))
    assert [list(line.get_xdata()) for line in lines if line.get_linestyle() == "--"] == [[20.0, 20.0]]


def test_bands_fit_a_panel_of_half_the_width():
    made, axes = figures.figure(1, 2)
    for ax in axes:
        figures.bands({"null": runs()}, "behaviour/search_share/turn0", axes=ax)
    figures.svg(made)  # lays it out
    edges = [ax.xaxis.label.get_window_extent() for ax in axes]
    legends = [ax.get_legend().get_window_extent() for ax in axes]
    assert edges[0].x1 < edges[1].x0
    assert all(ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 for ax, box in zip(axes, legends, strict=True))


def test_long_runs_are_thinned():
    short, long = (figures.svg(figures.bands({"a": runs(64, n)}, "behaviour/search_share/turn0")) for n in (400, 4000))
    assert len(long) < 1.5 * len(short)


def test_dose_draws_wilson_intervals():
    made = figures.dose([1.0], [np.zeros(64, bool)])
    (segments,) = made.axes[0].collections[0].get_segments()
    assert segments[:, 1] == pytest.approx([0.0, 0.0566], abs=1e-4)


def test_the_first_label_is_on_top():
    axes = DRAWN["dots"]().axes[0]
    heights = {label.get_text(): at for label, at in zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)}
    assert heights["a"] > heights["b"]


def test_no_global_state_is_touched():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figures.svg(DRAWN["bands"]())
    assert dict(mpl.rcParams) == before


def test_pyplot_is_not_needed(fresh_python):
    program = "from studies.kit import figures; import sys; figures.svg(figures.figure()[0]); print(*sys.modules)"
    loaded = fresh_python(program).split()
    assert "matplotlib.figure" in loaded
    assert "matplotlib.pyplot" not in loaded


def test_figure_gives_axes_in_the_style():
    made, axes = figures.figure(2, 1, title="Up", sharex=True)
    assert isinstance(made, Figure)
    assert made.get_size_inches() == pytest.approx(figures.SIZE)
    assert len(axes) == 2
    assert not axes[0].spines["top"].get_visible()
    assert axes[0].get_title(loc="left") == "Up"
