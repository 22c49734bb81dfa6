"""What the smoke run must show: each condition fails alone when its column is bad; and that it is the run it says."""

import sys

import numpy as np
import pytest

from fullscale import smoke as module
from fullscale.smoke import MEAN_MISMATCH, MOST_MISMATCH, checked, smoke
from minimodel.agent.monitor import EvidenceFirst
from sim.records.config import from_dict, to_dict

GOOD = {
    "behaviour/tool_share": [0.5, 0.2, 0.1],
    "train/degenerate_share": [1.0, 0.75, 1.0],
    "update/moved": [0.0, 0.0, 1e-6],
    "mismatch/mean": [1e-4, 2e-6, 2e-6],
    "mismatch/max": [2e-5, 1e-3, 2e-5],
    "judge/unclear_share": [0.0, 0.0, 0.0],
    "train/failed_share": [0.0, 0.0, 0.0],
}
NAN = float("nan")
BAD = [
    ("tool", "behaviour/tool_share", [0.4375, 1.0, 1.0]),
    ("tool", "behaviour/tool_share", [NAN, 1.0, 1.0]),
    ("advantage", "train/degenerate_share", [1.0, 1.0, 1.0]),
    ("advantage", "train/degenerate_share", [NAN, NAN, NAN]),
    ("moved", "update/moved", [1e-3, 1e-3, 0.0]),
    ("moved", "update/moved", [0.0, 0.0, NAN]),
    ("in the mean", "mismatch/mean", [2e-6, 2e-6, 1.1e-4]),
    ("in the mean", "mismatch/mean", [2e-6, NAN, 2e-6]),
    ("anywhere", "mismatch/max", [1.1e-3, 1e-5, 1e-5]),
    ("anywhere", "mismatch/max", [1e-5, 1e-5, NAN]),
    ("anywhere", "mismatch/max", [1e-5, float("inf"), 1e-5]),
    ("judge", "judge/unclear_share", [0.0, 0.0625, 0.0]),
    ("judge", "judge/unclear_share", [NAN, 0.0, 0.0]),
    ("failed", "train/failed_share", [0.0, 0.0, 0.0625]),
]


def columns(**changed):
    return {name: np.array(values) for name, values in (GOOD | changed).items()}


def test_all_hold_at_their_bounds():
    assert all(checked(columns()).values())
    assert len(checked(columns())) == len(GOOD)
    assert (MEAN_MISMATCH, MOST_MISMATCH) == (1e-4, 1e-3)


@pytest.mark.parametrize(("word", "name", "values"), BAD)
def test_each_fails_alone(word, name, values):
    failed = [what for what, holds in checked(columns(**{name: values})).items() if not holds]
    assert len(failed) == 1
    assert word in failed[0]


def test_every_column_is_looked_at():
    assert {name for _, name, _ in BAD} == set(GOOD)
    for name in GOOD:
        with pytest.raises(KeyError):
            checked({other: values for other, values in columns().items() if other != name})


def test_one_signal_in_any_step_is_enough():
    assert checked(columns(**{"train/degenerate_share": [1.0, 1.0, 0.75]}))[
        "at least one group has an advantage that is not 0"
    ]


def test_the_run_is_small_and_has_everything_switched_on():
    c = smoke("http://127.0.0.1:9")
    assert c.model.source == "smollm2"
    assert c.start is not None
    assert isinstance(c.monitor, EvidenceFirst)
    assert c.judge.address == "http://127.0.0.1:9"
    assert c.judge.weight == 0.0
    assert c.prompts * c.group * c.steps <= 48
    assert c.keep_rollouts == c.steps - 1
    assert c.model.dtype == c.model.products == "float32"
    assert from_dict(to_dict(c)) == c


@pytest.mark.parametrize("missing", ["no_model", "no_server"])
def test_without_a_package_it_says_which_and_ends_with_2(missing, monkeypatch, capsys, tmp_path):
    for name in ("no_model", "no_server"):
        monkeypatch.setattr(module, name, lambda name=name: "it needs x: pip install x" if name == missing else "")
    monkeypatch.setattr(module, "train", None)
    monkeypatch.setattr(sys, "argv", ["fullscale.smoke", "--folder", str(tmp_path)])
    assert module.main() == 2
    assert capsys.readouterr().err == "fullscale.smoke: it needs x: pip install x\n"
