"""The phase diagram of the length-weighted loss: 104 worlds and 8 seeds, by every executor, with theory's line."""

import numpy as np
import pytest

from studies.kit.phase.bisection import bisect_rows
from studies.kit.phase.diagram import theory, title, zeros
from studies.study_length_diagram import at, boundary, push

CLAIM = "a-sequence-mean-teaches-guessing"
KNOWN, HIT = "world.known", "world.hit_known"
GRID = {KNOWN: "0.05:0.65:13", HIT: "0.2:0.9:8"}


def line(hit):
    """The share known at which the push vanishes, from theory alone."""
    known = np.linspace(0.02, 0.8, 100)
    (zero,) = zeros(known, np.array([push(at(known=float(k), hit_known=hit)) for k in known]))
    return zero


def test_theory_s_line_is_where_it_was_computed_by_hand():
    """The first-order world has a closed form; ours is another, and near it where its assumptions hold."""
    from sim.mdp.theory.length import first_order_world, flip_threshold
    from sim.records.config import replace

    for hit in (0.3, 0.5):
        base = at()
        worlds = [
            replace(base, {"world": first_order_world(hit, k)}) for k in (0.9, 1.1) * np.array(flip_threshold(hit))
        ]
        low, high = (boundary(config)["a sequence mean turns round"] for config in worlds)
        assert low < 0 < high


def test_the_boundary_of_the_sweep_is_theory_s(tmp_path):
    """Two bisections, their ends far on either side."""
    found = bisect_rows(
        "length_diagram",
        KNOWN,
        0.05,
        0.65,
        grid={HIT: (0.3, 0.6)},
        tolerance=0.02,
        seeds=8,
        store=tmp_path / "store",
        ledgers=tmp_path / "ledgers",
    )
    for row in found.rows:
        zero = line(row.fixed[HIT])
        assert row.decided_low < zero < row.decided_high
        assert row.middle == pytest.approx(zero, abs=0.05)


@pytest.mark.long
def test_the_plane_by_every_executor(tmp_path, everywhere):
    swept, stored = everywhere("length_diagram", GRID, jobs=2)
    assert len(stored) == 104 * 8

    settled = [entry for entry in swept.entries if entry.of(CLAIM).verdict in ("supported", "refuted")]
    assert len(settled) > 90
    assert title(swept, CLAIM, theory(swept)).startswith(f"{len(settled)} of {len(settled)} settled points")

    cell = 0.05
    rows = np.array([[entry.of(CLAIM).effect > 0 for entry in swept.entries[column::8]] for column in range(8)])
    known = np.array(swept.axes[0].values)
    hits = swept.axes[1].values[1:6]
    places = {"store": tmp_path / "inline" / "store", "ledgers": tmp_path / "ledgers"}
    alone = bisect_rows("length_diagram", KNOWN, 0.05, 0.65, grid={HIT: hits}, tolerance=0.02, seeds=8, **places)
    for bisected, row in zip(alone.rows, rows[1:6], strict=True):
        assert abs(bisected.middle - (known[np.argmax(row)] - cell / 2)) <= cell
