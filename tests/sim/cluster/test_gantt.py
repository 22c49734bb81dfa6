"""What the picture holds: bars, marks and lines, counted; not its pixels."""

import io

import numpy as np
import pytest

from sim.cluster import gantt as module
from sim.cluster.events import EventLog, Kind
from sim.cluster.gantt import gantt
from sim.cluster.spans import Names
from tests.sim.cluster.legal_logs import STORY, story, walked

NAMES = Names(engines=("left",), pools=("search",))


def part(figure, gid):
    """The artists of this name."""
    return [artist for ax in figure.axes for artist in ax.get_children() if artist.get_gid() == gid]


def bars(figure, gid):
    """Left edge, right edge and middle of each bar."""
    (one,) = part(figure, gid)
    corners = [path.vertices for path in one.get_paths()]
    return [(float(c[:, 0].min()), float(c[:, 0].max()), float((c[:, 1].min() + c[:, 1].max()) / 2)) for c in corners]


def lines(figure, gid):
    """Start, end and height of each line."""
    (one,) = part(figure, gid)
    return [(s[0][0], s[1][0], s[0][1]) for s in one.get_segments()]


def points(figure, gid):
    (one,) = part(figure, gid)
    return [tuple(map(float, xy)) for xy in zip(*one.get_data(), strict=True)]


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_chunks_are_bars_in_the_colour_of_their_version_and_changes_are_marked():
    """Rows 0 and 1 are group 0's, the two of group 1 follow with a gap."""
    figure = gantt(story(), names=NAMES)
    third, fourth = 2 + module._GAP, 3 + module._GAP
    assert bars(figure, "chunks") == [
        (0.0, 2.0, 0.0),
        (0.0, 3.0, 1.0),
        (6.0, 7.0, 0.0),
        (6.0, 7.5, pytest.approx(third)),
        (8.0, 9.0, pytest.approx(third)),
        (9.0, 10.0, pytest.approx(fourth)),
    ]
    assert part(figure, "chunks")[0].get_array().tolist() == [0, 0, 0, 0, 1, 1]
    assert points(figure, "changes") == [(8.0, pytest.approx(third))]
    assert [line[:2] for line in lines(figure, "lives")] == [(0.0, 7.0), (0.0, 5.0), (6.0, 9.0), (8.75, 10.0)]
    assert lines(figure, "attempts") == [(2.0, 4.0, 0.0), (4.0, 5.0, 1.0), (5.0, 6.0, 0.0)]


def test_a_group_waits_from_completion_to_being_taken():
    figure = gantt(story())
    assert lines(figure, "waits") == [(7.0, 8.5, 0.5)]
    assert points(figure, "takes") == [(8.5, 0.5)]


def test_the_learner_trains_and_waits_for_the_rest():
    figure = gantt(story())
    assert [bar[:2] for bar in bars(figure, "training")] == [(8.5, 9.5)]
    assert [bar[:2] for bar in bars(figure, "waiting")] == [(0.0, 8.5), (9.5, 10.0)]


def test_engines_are_shaded_by_the_mean_number_of_sequences_and_hatched_while_loading():
    figure = gantt(story())
    (shade,) = part(figure, "active")
    active = np.asarray(shade.get_array()).ravel()
    assert len(active) == module._BINS
    middle = (np.arange(module._BINS) + 0.5) * 10 / module._BINS
    for start, end, number in ((0, 2, 2), (2, 3, 1), (3, 6, 0), (6, 7, 2), (7, 7.5, 1), (7.5, 8, 0), (8, 10, 1)):
        assert active[(middle > start) & (middle < end)] == pytest.approx(number)
    assert active.sum() * 10 / module._BINS == pytest.approx(2 * 2 + 1 + 2 + 0.5 + 2)
    assert bars(figure, "loads") == [(7.5, 8.0, 0.0)]
    assert part(figure, "loads")[0].get_hatch()


def test_a_load_of_all_engines_and_a_failure_are_drawn_on_their_rows():
    rows = [
        (0.0, Kind.ENGINE_FAIL, 2, -1, -1, -1, 0.0),
        (1.0, Kind.SYNC_START, -1, -1, -1, 1, 0.0),
        (3.0, Kind.SYNC_END, -1, -1, -1, 1, 0.0),
        (4.0, Kind.ENGINE_UP, 2, -1, -1, 1, 0.0),
    ]
    figure = gantt(EventLog.of(rows))
    assert bars(figure, "loads") == [(1.0, 3.0, 0.0), (1.0, 3.0, 1.0), (1.0, 3.0, 2.0)]
    assert bars(figure, "down") == [(0.0, 4.0, 2.0)]


def test_calls_in_service_and_waiting_are_lines():
    figure = gantt(story(), start_s=2.5, end_s=4.75)
    assert points(figure, "busy") == [(2.5, 1), (4.0, 0), (4.0, 1), (4.75, 1)]
    assert points(figure, "waiting_calls") == [(2.5, 0), (3.0, 1), (4.0, 0), (4.5, 1), (4.75, 1)]


def test_axes_have_units_and_names():
    figure = gantt(story(), names=NAMES, title="The learner waits")
    labels = [ax.get_xlabel() for ax in figure.axes] + [ax.get_ylabel() for ax in figure.axes]
    assert {"time, s", "tool calls", "trajectories (by group)", "active\nsequences"} <= set(labels)
    assert figure.axes[0].get_title(loc="left") == "The learner waits"
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["left"]
    told = {text.get_text() for ax in figure.axes if ax.get_legend() for text in ax.get_legend().get_texts()}
    assert told == {"search", "waiting", "training"}


def test_of_too_many_trajectories_every_second_group_is_drawn(monkeypatch):
    monkeypatch.setattr(module, "_MOST_ROWS", 3)
    figure = gantt(story())
    assert len(lines(figure, "lives")) == 2
    assert "trajectories (1 group in 2)" in [ax.get_ylabel() for ax in figure.axes]


def test_the_wait_of_groups_is_left_out_where_there_are_many(monkeypatch):
    monkeypatch.setattr(module, "_MOST_GROUPS", 1)
    assert part(gantt(story()), "waits") == []


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="window from 5 s to 5 s is empty"):
        gantt(story(), start_s=5, end_s=5)


# --- it can be drawn --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "log",
    [
        EventLog.of([(0.0, Kind.CONTROL, -1, -1, -1, 0, 1.0), (1.0, Kind.STOP, -1, -1, -1, -1, 0.0)]),
        EventLog.of(STORY[:21]),
        walked(np.random.default_rng(3).integers(0, 10_000, 150).tolist()),
    ],
    ids=["nothing happens", "still running", "a walk"],
)
@pytest.mark.parametrize("size", [(4.0, 4.0), (12.0, 8.0)])
def test_any_log_can_be_drawn_in_any_size_without_a_warning(log, size):
    figure = gantt(log, size=size)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=100)
    width, height = (int.from_bytes(out.getvalue()[i : i + 4], "big") for i in (16, 20))
    assert (width, height) == (round(100 * size[0]), round(100 * size[1]))
