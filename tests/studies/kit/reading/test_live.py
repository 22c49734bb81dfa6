import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome
from studies.kit.episodes import Episode, Turn
from studies.kit.reading import keeping
from studies.kit.reading.fold import fold
from studies.kit.reading.formats import Source
from studies.kit.reading.keeping import KeepingError
from studies.kit.reading.live import Live
from studies.kit.reading.tokens import table


def episode(step, *actions, reward=1.0, task="q"):
    tokens = table([7, 8], [False, True], {"logp": [None, -0.5]})
    turns = tuple(Turn(name, f"<{name}>", "found", 1, 0, tokens=tokens, pieces=("q", name)) for name in actions)
    outcome = Outcome.SOLVED if reward else Outcome.WRONG
    return Episode(step, task, turns, reward, outcome, prompt=task)


def batch(step):
    more = [episode(step, "verify", "answer")] if step > 2 else []
    return [episode(step, "search", "answer"), episode(step, "answer", reward=0.0), *more]


def live(folder, keep=10, **settings):
    return Live(folder, Source("trl", (), ("search",)), keep, settings, {"trainer": "TRL"})


class Batches:
    """A format whose files are lists of episodes."""

    LAYOUT = "episodes"

    def __init__(self, *batches):
        self.batches = batches

    def read(self, source):
        for each in self.batches:
            yield from each


def folded(steps):
    return fold(Source("trl", (), ("search",), module=Batches(*(batch(step) for step in steps))))


def test_after_every_step_the_folder_holds_the_record_so_far(tmp_path):
    record = live(tmp_path / "run")
    for step in (1, 2, 3):
        record.step(step, batch(step))
        read, whole = keeping.load(tmp_path / "run"), folded(range(1, step + 1))
        assert read.steps.equals(whole.steps)
        assert read.workflows == whole.workflows
        assert len(read.episodes) == int(whole.rollouts.sum())
    assert read.steps["behaviour/search_share/turn0"].tolist() == [0.5, 0.5, 1 / 3]


def test_what_was_logged_is_in_the_table_and_the_end_leaves_files_and_a_page(tmp_path):
    record = live(tmp_path / "run", rate=0.1)
    record.step(1, batch(1))
    record.log(1, {"loss": 0.25})
    record.step(2, batch(2))
    record.log(2, {"loss": 0.5})
    record.close()
    there = sorted(each.name for each in (tmp_path / "run").iterdir())
    assert there == [
        "episodes.jsonl.gz", "index.html", "manifest.json", "provenance.json", "reading.json", "report.txt", "rollouts",
        "steps.npz", "training.json",
    ]  # fmt: skip
    assert not any(each.is_symlink() for each in (tmp_path / "run").iterdir())
    read = keeping.load(tmp_path / "run")
    assert read.steps["logged/loss"].tolist() == [0.25, 0.5]
    assert "search-answer" in (tmp_path / "run" / "report.txt").read_text()
    assert json.loads((tmp_path / "run" / "training.json").read_text()) == {"rate": 0.1}
    assert json.loads((tmp_path / "run" / "provenance.json").read_text())["trainer"] == "TRL"


def test_the_code_of_an_action_never_changes(tmp_path):
    """`verify` appears at step 3, and comes before `answer` in no record."""
    record = live(tmp_path / "run")
    for step in (1, 2, 3):
        record.step(step, batch(step))
    codes = json.loads((tmp_path / "run" / "reading.json").read_text())["codes"]
    assert codes == ["search", "answer", "verify"]
    for step in (1, 3):
        rollouts = Rollouts.load(tmp_path / "run" / "rollouts" / f"step_{step}.npz")
        shown = [
            [codes[turn.action] for s in rollouts.trajectory(k).segments for turn in s.turns]
            for k in range(2 + step // 3)
        ]
        assert sorted(shown) == sorted([turn.action for turn in each.turns] for each in batch(step))
        assert set(rollouts.tokens.logp_behaviour[rollouts.tokens.sampled]) == {-0.5}


def test_all_are_counted_of_which_a_few_are_kept(tmp_path):
    record = live(tmp_path / "run", keep=2)
    record.step(1, [episode(1, "search", "answer", task=f"q{k}") for k in range(30)] + [episode(1, "answer")])
    read = keeping.load(tmp_path / "run")
    assert read.rollouts.tolist() == [31]
    assert read.steps["behaviour/no_search_share"].tolist() == [1 / 31]
    assert [len(each.turns) for each in read.episodes] == [1, 2]
    assert read.notes == ("of a step 2 rollouts are kept at the most; all are counted",)


def test_a_run_stopped_at_any_moment_leaves_the_steps_that_were_done(tmp_path, monkeypatch):
    """The folder as it is before every change to it, copied and read."""
    folder, moments, done = tmp_path / "run", [], 0

    def before(owner, name):
        real = getattr(owner, name)

        def change(*args, **kwargs):
            if folder.exists() and done:
                into = tmp_path / f"moment{len(moments)}"
                copy(folder, into, symlinks=True)
                moments.append((into, done))
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, name, change)

    copy = shutil.copytree
    for owner, names in (
        (Path, ("replace", "rename", "symlink_to", "unlink", "write_bytes", "write_text", "mkdir", "open")),
        (shutil, ("rmtree",)),
    ):
        for name in names:
            before(owner, name)
    record = live(folder)
    for step in (1, 2, 3):
        record.step(step, batch(step))
        done = step
    record.close()
    monkeypatch.undo()
    assert len(moments) > 30
    seen = set()
    for into, least in moments:
        read = keeping.load(into)
        steps = len(read.steps)
        assert steps in (least, least + 1)
        whole = folded(range(1, steps + 1)).steps
        assert read.steps.equals(whole)
        assert set(range(1, least + 1)) <= {each.step for each in read.episodes} <= set(read.step.tolist())
        seen.add((least, steps))
    assert {(1, 1), (1, 2), (2, 2), (2, 3), (3, 3)} == seen


def test_a_folder_in_use_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("mine")
    with pytest.raises(KeepingError, match="is not empty, and a record is not written over another"):
        live(tmp_path)
    with pytest.raises(KeepingError, match="is not empty"):
        live(tmp_path / "a.txt")
    (tmp_path / "empty").mkdir()
    live(tmp_path / "empty").step(1, batch(1))
    assert np.array_equal(keeping.load(tmp_path / "empty").step, [1])


def test_rollouts_that_the_record_refuses_are_told_of(tmp_path):
    record = live(tmp_path / "run")
    broken = episode(1, "answer")
    record.step(1, [broken, Episode(1, 7, broken.turns, 1.0, Outcome.SOLVED)])  # some tasks are numbers, others texts
    read = keeping.load(tmp_path / "run")
    assert "some tasks are integers and others texts" in read.absent["record of the rollouts of step 1"]
    assert read.rollouts.tolist() == [2]
