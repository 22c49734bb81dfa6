import csv
from dataclasses import replace

import numpy as np
import pytest

from studies.kit.guard import Failure
from studies.kit.phase.axes import Axis
from studies.kit.phase.diagram import diagram, theory, title, zeros
from studies.kit.phase.ledger import Entry
from studies.kit.phase.output import save

PLANE = {"inner.level": "-2:3:6", "spread": "0.1:10:3:log"}


def test_theory_lies_over_the_plane(sweep):
    swept = sweep("toy", PLANE)
    foreseen = theory(swept)
    (values,) = foreseen.values.values()
    assert values.shape == tuple(len(at) for at in foreseen.at)
    np.testing.assert_allclose(values, np.broadcast_to(foreseen.at[0][:, None], values.shape))
    np.testing.assert_allclose(foreseen.here["theory's boundary"], np.repeat([-2.0, -1, 0, 1, 2, 3], 3))
    assert np.diff(np.log(foreseen.at[1])) == pytest.approx(np.log(100) / (len(foreseen.at[1]) - 1))
    settled = [entry for entry in swept.entries if entry.of("is-up").verdict in ("supported", "refuted")]
    assert (
        title(swept, "is-up", foreseen)
        == f"{len(settled)} of {len(settled)} settled points lie where theory's line puts them"
    )
    assert 3 < len(settled) < 18
    wrong = replace(foreseen, here={name: -here for name, here in foreseen.here.items()})
    aside = sum(entry.point["inner.level"] == 0 for entry in settled)  # on the line, theory has it refuted either way
    refuted = sum(e.point["inner.level"] == 0 and e.of("is-up").verdict == "refuted" for e in settled)
    assert aside < len(settled) / 2
    assert title(swept, "is-up", wrong).startswith(f"{refuted} of {len(settled)} settled")  # a theory can be wrong


def test_a_map_has_a_cell_a_point_and_hatches_what_is_not_settled(sweep):
    swept = sweep("toy", PLANE)
    entries = (Entry(swept.entries[0].point, failure=Failure("E")), *swept.entries[1:])
    broken = replace(swept, entries=entries)
    made = diagram(broken, foreseen=theory(broken))
    ax = made.axes[0]
    mesh = ax.collections[0]
    values = mesh.get_array()
    assert values.shape == (6, 3)
    assert np.isnan(values.filled(np.nan)[0, 0])
    assert values[5, 0] == pytest.approx(swept.entries[15].of("is-up").effect)
    undecided = sum(entry.of("is-up") is not None and entry.of("is-up").verdict == "undecided" for entry in entries)
    hatches = [patch.get_hatch() for patch in ax.patches]
    assert hatches.count("////") == undecided > 0
    assert hatches.count("xxxx") == 1
    assert ax.get_xscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("spread", "inner.level")
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["undecided", "failed", "theory's boundary"]
    # The line: theory's zero is at level 0 whatever the spread.
    line = next(c for c in ax.collections[1:] if len(c.get_paths()) and len(c.get_paths()[0].vertices))
    np.testing.assert_allclose(line.get_paths()[0].vertices[:, 1], 0, atol=1e-12)


def test_a_curve_has_intervals(sweep):
    swept = sweep("toy", {"inner.level": (-1.0, 0.0, 2.0)})
    ax = diagram(swept, foreseen=theory(swept)).axes[0]
    line = ax.lines[0]
    np.testing.assert_allclose(line.get_xdata(), [-1, 0, 2])
    np.testing.assert_allclose(line.get_ydata(), [entry.of("is-up").effect for entry in swept.entries])
    bars = ax.containers[0].lines[2][0].get_segments()
    found = swept.entries[2].of("is-up")
    np.testing.assert_allclose(bars[2][:, 1], [found.low, found.high])
    assert "theory's boundary" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_names_are_places_and_have_no_theory(sweep):
    swept = sweep("toy", {"inner.kind": ("plain", "odd"), "inner.level": (-1.0, 1.0)})
    assert theory(swept) is None
    ax = diagram(swept).axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["plain", "odd"]
    assert ax.get_title(loc="left") == "2 supported, 2 refuted"


def test_zeros_are_found_between():
    np.testing.assert_allclose(zeros(np.array([0.0, 1, 2, 4]), np.array([3.0, -1, 1, 1])), [0.75, 1.5])
    assert zeros(np.array([0.0, 1]), np.array([np.nan, 1])) == []


def test_what_is_written_is_the_sweep(sweep):
    swept = sweep("toy", PLANE)
    paths = save(swept)
    assert [path.name for path in paths] == ["table.csv", "diagram.svg", "diagram.png"]
    with paths[0].open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 18
    found = swept.entries[4].of("is-up")
    assert float(rows[4]["inner.level"]) == swept.entries[4].point["inner.level"]
    assert (rows[4]["verdict"], float(rows[4]["effect"]), float(rows[4]["low"])) == (
        found.verdict,
        found.effect,
        found.low,
    )
    assert paths[1].read_text().startswith("<svg")
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    stamps = [path.stat().st_mtime_ns for path in paths]
    save(sweep("toy", PLANE))  # nothing is new, so nothing is drawn
    assert [path.stat().st_mtime_ns for path in paths] == stamps
    save(replace(swept, fresh=1))
    assert paths[1].stat().st_mtime_ns > stamps[1]


def test_three_keys_have_a_table_and_no_picture(sweep):
    swept = sweep("toy", {"inner.level": (1.0,), "spread": (0.1, 0.2), "inner.kind": ("plain", "bad")})
    (path,) = save(swept)
    text = path.read_text()
    assert text.splitlines()[0].startswith("inner.level,spread,inner.kind,claim,verdict")
    assert text.count("RuntimeError: no such kind") == 2
    with pytest.raises(ValueError, match="one key or two, not 3"):
        diagram(swept)


def test_an_axis_knows_whether_it_is_of_numbers():
    assert Axis("a", (1, 2.0)).numeric
    assert not Axis("a", (1, None)).numeric
    assert not Axis("a", (True, False)).numeric
