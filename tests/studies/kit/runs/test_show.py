import numpy as np

from sim.records.store import Store
from studies.kit.runs.listing import scan
from studies.kit.runs.references import Reason
from studies.kit.runs.show import shown
from tests.studies.kit.runs.stores import record, rollouts, stored


def lines(root, made, *reasons):
    (key,) = stored(root, made)
    (row,) = scan(root)
    return list(shown(row, Store(root).load(key), reasons))


def test_a_run_in_words(tmp_path):
    columns = {"step": np.arange(4), "x": np.array([np.nan, 3.0, -1.0, 2.0]), "gone": np.full(4, np.nan)}
    made = record(columns=columns, rollouts=rollouts(tokens=True), recorded_at="2026-03-04T05:06:07+00:00", wall_s=1.5)
    found = lines(tmp_path, made, Reason("record", "claim it-flips was recorded with it"))
    assert found[0] == f"{made.key}  fold, sim, seed 0, 4 steps"
    assert found[1].startswith("recorded 2026-03-04 05:06 with this code (")
    text = "\n".join(found)
    assert "world.known     .5" in text
    assert "optimiser.type  sim.learning.optimisers.Sgd" in text
    assert "wall_s       1.5" in text
    (x,) = [line.split() for line in found if line.startswith("  x ")]
    assert x == ["x", "nan", "2", "-1", "3", "█▁▆", "1", "NaN"]
    (gone,) = [line.split() for line in found if line.startswith("  gone ")]
    assert gone == ["gone", "nan", "nan", "nan", "nan", "4", "NaN"]
    assert [line.split() for line in found if "trajectories" in line or "solved" in line] == [
        ["trajectories", "3"],
        ["solved", "2"],
    ]
    assert found[-2:] == ["kept, because", "  claim it-flips was recorded with it"]


def test_a_run_that_nothing_refers_to_and_one_without_steps(tmp_path):
    found = lines(tmp_path, record(columns={"step": np.zeros(0, dtype=int)}))
    assert found[-1] == "nothing refers to it: `metastable runs prune` may remove it"
    assert "0 steps" in found[0]
