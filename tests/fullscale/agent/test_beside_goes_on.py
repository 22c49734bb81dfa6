"""Runs beside which groups are played, cut and killed, and gone on with: nothing trained twice or lost."""

import io
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import fields

import numpy as np
import pytest
import torch

from fullscale.agent.beside import packed, unpacked
from fullscale.agent.rollouts import Played
from fullscale.agent.schedules import Asynchronous
from fullscale.rollout.conductor import Conductor
from sim.cluster.scheduling import Capacity, FixedWidth, Order
from tests.conftest import ROOT
from tests.fullscale.agent.small import ASKED, batch, taught
from tests.fullscale.agent.test_beside import config, go, trained, waiting_for

__all__ = ["trained"]  # the fixture


def numbers_of(books, *places):
    """Numbers of the tickets that stand in some places of saved books."""
    rows = [row for place in places for row in books[place]]
    return [row["ticket"][0] if isinstance(row, dict) else row[0] for row in rows]


@pytest.mark.parametrize(
    "schedule",
    [
        Asynchronous(admission=Capacity(eta=1.0)),
        Asynchronous(admission=Capacity(eta=2.0), order=Order(4)),
        Asynchronous(admission=FixedWidth(8), order=Order(None)),
    ],
    ids=["in order", "in a window", "first come"],
)
def test_a_run_that_was_cut_trains_the_rest(schedule, tmp_path, trained):
    """From the file saved half way: no number twice, none lost that was complete or under way."""
    c, file, made = config(schedule), tmp_path / "run.pt", []

    def report(row):
        if row["step"] == 0:
            waiting_for(made[0], complete=1)
        if row["step"] == 2:
            shutil.copy(file, tmp_path / "kept")

    _, columns = go(c, tmp_path, report, made.append)
    first = [number for step in trained[:2] for number, _ in step]
    trained.clear()
    state = torch.load(tmp_path / "kept", weights_only=True)
    books = state["collector"]["books"]
    assert state["step"] == 2
    assert sorted(numbers_of(books, "taken")) == sorted(first)
    waited = numbers_of(books, "ready", "part", "running")
    assert waited, "something was complete or under way"
    (tmp_path / "kept").replace(file)
    _, again = go(c, tmp_path)
    later = [number for step in trained for number, _ in step]
    assert len(later) == len(set(later)) == 4
    assert not set(later) & set(first)
    end = torch.load(file, weights_only=True)["collector"]["books"]
    assert sorted(numbers_of(end, "taken")) == sorted(first + later)
    everywhere = numbers_of(end, "taken", "ready", "part", "running", "again")
    assert sorted(everywhere) == list(range(end["cursor"]))
    assert set(waited) <= set(everywhere)
    if schedule.order.window == 1:
        assert sorted(first + later) == list(range(8))
    np.testing.assert_array_equal(again["step"], np.arange(4))
    for name in columns:  # the rows that were saved are those that were made
        np.testing.assert_array_equal(again[name][:2], columns[name][:2], err_msg=name)
    assert again["update/moved"][-1] > again["update/moved"][1] > 0


def test_complete_groups_in_a_checkpoint_are_the_ones_that_are_trained(tmp_path, trained, monkeypatch):
    """To the token: what waited in the file is what the run that goes on takes first."""
    made, file = [], tmp_path / "run.pt"

    def report(row):
        if row["step"] == 1:
            waiting_for(made[0], complete=2)
        if row["step"] == 2:
            shutil.copy(file, tmp_path / "kept")
            raise ZeroDivisionError

    def waiting(run):
        made.append(run)
        shipped = run._save
        run._save = lambda checkpoint: (waiting_for(run, complete=2) if run.step == 2 else None, shipped(checkpoint))

    with pytest.raises(ZeroDivisionError):
        go(config(), tmp_path, report, waiting)
    books = torch.load(tmp_path / "kept", weights_only=True)["collector"]["books"]
    known = {q.id: q for q in ASKED}
    kept = [unpacked(each["value"], known) for each in books["ready"]]
    assert len(kept) >= 2
    (tmp_path / "kept").replace(file)
    taken, take = [], Conductor.take
    monkeypatch.setattr(Conductor, "take", lambda self, *given: taken.append(take(self, *given)) or taken[-1])
    go(config(), tmp_path)
    for (_, value), expected in zip(taken[0], kept, strict=False):
        np.testing.assert_array_equal(value.ids, expected.ids)
        np.testing.assert_array_equal(value.logp, expected.logp)
        np.testing.assert_array_equal(value.version, expected.version)


def test_a_batch_is_packed_and_unpacked():
    """Through a file that holds tensors and plain data alone."""
    played = batch(taught(), questions=ASKED[:2], group=2, context_tokens=380)
    played.reward[0, 0], played.reason[0, 0] = np.nan, "the server went away"
    file = io.BytesIO()
    torch.save(packed(played), file)
    file.seek(0)
    again = unpacked(torch.load(file, weights_only=True), {q.id: q for q in ASKED})
    assert again.questions == played.questions
    for each in fields(Played):
        if each.name != "questions":
            a, b = getattr(played, each.name), getattr(again, each.name)
            np.testing.assert_array_equal(a, b, err_msg=each.name)
            assert a.dtype.kind == b.dtype.kind
    assert set(played.why.ravel()) > {"", "stop"}


def test_a_question_that_the_data_have_no_more_is_told():
    saved = packed(batch(taught(), questions=ASKED[:2], group=2))
    with pytest.raises(ValueError, match=f"question {ASKED[1].id!r}, which the data no longer have"):
        unpacked(saved, {ASKED[0].id: ASKED[0]})


# --- killed -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from pathlib import Path
import torch

torch.set_num_threads(1)
from fullscale.rollout.conductor import Conductor
from tests.fullscale.agent import small
from tests.fullscale.agent.test_beside import config

folder = Path(sys.argv[1])
network = small.model(scale=2.0)
network.load_state_dict(torch.load(folder / "taught.pt", weights_only=True))
taken, take = [], Conductor.take
Conductor.take = lambda self, *given: taken.append(take(self, *given)) or taken[-1]


def report(row):
    numbers = [ticket.number for ticket, _ in taken[-1]]
    (folder / f"step{row['step']}.json").write_text(json.dumps(numbers))
    print(row["step"], flush=True)


with small.small_world(network):
    columns = small.begin(config(steps=6), folder, network=network).go(report)
print("over", len(columns["step"]), float(columns["update/moved"][-1]), flush=True)
"""


@pytest.mark.long
def test_killed_and_gone_on_with(tmp_path):
    """By signal 9 in the middle of steps, again and again: each question of the run is trained once."""
    torch.save(taught().state_dict(), tmp_path / "taught.pt")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start():
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
        )

    for delay_s in (0.0, 0.03):
        process = start()
        steps = [next(process.stdout) for _ in range(2)]
        time.sleep(delay_s)
        process.kill()
        process.communicate()
        assert len(steps) == 2
    process = start()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    word, steps, moved = said.splitlines()[-1].split()
    assert (word, steps) == ("over", "6")
    assert float(moved) > 0
    numbers = [n for u in range(6) for n in json.loads((tmp_path / f"step{u}.json").read_text())]
    assert numbers == list(range(12))
