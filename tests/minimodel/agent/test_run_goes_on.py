"""Runs that are cut, interrupted and gone on with; killed ones are in ``test_train.py``."""

import os
import shutil
import signal
from dataclasses import replace as with_fields

import pytest
import torch

from minimodel.agent import run as run_module
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import AdamW, Sgd
from minimodel.agent.schedule import Completion, InFlight, Lag
from minimodel.agent.setup import Change, Drive, Evaluation
from sim.learning import family
from sim.learning.credit import RunningBaseline
from sim.learning.normalisers import SequenceMean
from sim.learning.rule import Rule
from sim.learning.weights import ppo_clip
from tests.minimodel.agent.small import (
    PRIVATE,
    WORLD,
    begin,
    of,
    parameters,
    same_columns,
    training,
)

EVALUATED = Evaluation(every=4, prompts=6, group=2)
BETTER = with_fields(WORLD, hit_known=1.0, hit_unknown=1.0)

DRIVEN = {"drive": Drive(0.2, start=2, duration=6), "schedule": Lag(1)}
CHANGED = {"changes": (Change(4, world=BETTER), Change(7, rule=family.cispo())), "keep_rollouts": 2}
RUNNING = {"rule": Rule(RunningBaseline(), ppo_clip(), SequenceMean())}
CUT = {
    "on policy": {"minibatches": 2, "evaluation": EVALUATED},
    "in flight": {"schedule": InFlight(2), "keep_rollouts": 7},
    "a lag and a running baseline": {"schedule": Lag(2), **RUNNING},
    "a drive and changes": {**DRIVEN, **CHANGED},
}
PIECES = {
    "lag": {"schedule": Lag(2)},
    "lost": {"schedule": Completion(0.3, lag=1), "proximal": "learner"},
    "drive": DRIVEN,
    "changes": CHANGED,
    "running baseline": {"minibatches": 2, **RUNNING},
    "greedy baseline": {"rule": family.remax(), "optimiser": Sgd(0.05), "monitor": EvidenceFirst(penalty=0.5)},
    "epochs": {"epochs": 2, "micro": 2, "optimiser": AdamW(1e-3, warmup=15), "rule": family.grpo(kl=0.01)},
    "bfloat16": {"precision": "bfloat16"},
    "private": {"size": PRIVATE},
}


@pytest.mark.parametrize("name", [*CUT, *(pytest.param(name, marks=pytest.mark.long) for name in PIECES)])
def test_ten_steps_are_five_and_five(name, tmp_path, monkeypatch, batches):
    """From the file saved after step 5: every column, every parameter, every question, to the bit."""
    monkeypatch.setattr(run_module, "SAVE_EVERY", 5)
    config = training(steps=10, **(CUT | PIECES)[name])
    whole, file = begin(config, folder=tmp_path), tmp_path / "run.pt"
    columns = whole.go(lambda step: step == 6 and shutil.copy(file, tmp_path / "kept"))
    assert begin(config, folder=tmp_path).go(lambda step: pytest.fail("a run that ended has nothing left to do"))
    file.unlink()
    asked = [batch.question.tolist() for _, batch, _ in of(batches, "train")]
    batches.clear()
    (tmp_path / "kept").rename(file)
    rest = begin(config, folder=tmp_path)
    assert same_columns(rest.go(), columns)
    assert torch.equal(parameters(rest), parameters(whole))
    assert [step for step, *_ in of(batches, "train")] == [5, 6, 7, 8, 9]
    assert [batch.question.tolist() for _, batch, _ in of(batches, "train")] == asked[5:]
    assert rest.kept == whole.kept
    assert (rest.kept is None) == (config.keep_rollouts is None)
    assert columns["update/moved"][4] > 0


def test_resumption_takes_everything_along(tmp_path):
    """A guard: forget any part of the state, and the rest of the run differs."""
    rule = Rule(RunningBaseline(), ppo_clip(), SequenceMean())
    config = training(schedule=Lag(1), rule=rule, steps=4, optimiser=AdamW(1e-2, warmup=20))
    first = begin(config, folder=tmp_path)
    for _ in range(2):
        first.advance()
    whole, fresh = first.state(), begin(config).state()

    def rest(**changed):
        first.checkpoint.save(whole | changed)
        return begin(config, folder=tmp_path).go()

    columns = rest()
    assert same_columns(begin(config).go(), columns)
    other = dict.fromkeys(whole["versions"], fresh["model"])
    for part, lost in (*fresh.items(), ("versions", other)):
        if part not in ("step", "kept", "rows") and not (part == "versions" and lost == {}):
            assert not same_columns(rest(**{part: lost}), columns), part


def sent(number, at):
    """A report that sends this process a signal after step `at`."""
    return lambda step: step == at and os.kill(os.getpid(), number)


def test_an_interrupt_is_saved_at_the_end_of_its_step(tmp_path):
    config = training(steps=3)
    with pytest.raises(KeyboardInterrupt) as stopped:
        begin(config, folder=tmp_path).go(sent(signal.SIGINT, 1))
    assert stopped.value.__notes__ == [
        "tests, seed 0: stopped after step 1 of 3; saved, and the same command goes on from there"
    ]
    steps = []
    columns = begin(config, folder=tmp_path).go(steps.append)
    assert steps == [2, 3]
    assert same_columns(columns, begin(config).go())


def test_an_interrupt_at_the_last_step_loses_nothing(tmp_path):
    config, steps = training(steps=2), []
    with pytest.raises(KeyboardInterrupt):
        begin(config, folder=tmp_path).go(sent(signal.SIGINT, 2))
    assert same_columns(begin(config, folder=tmp_path).go(steps.append), begin(config).go())
    assert steps == []


def test_a_request_to_terminate_is_passed_on(tmp_path, caplog):
    """To a handler of the caller's here; without one it ends the process."""
    heard = []
    outside = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(SystemExit) as stopped:
            begin(training(), folder=tmp_path).go(sent(signal.SIGTERM, 1))
    finally:
        signal.signal(signal.SIGTERM, outside)
    assert heard == [signal.SIGTERM]
    assert stopped.value.code == 128 + signal.SIGTERM
    assert caplog.messages == stopped.value.__notes__
    assert "stopped after step 1 of 3; saved, and the same command" in caplog.messages[0]
    assert (tmp_path / "run.pt").exists()


def test_what_is_not_saved_is_not_said_to_be():
    with pytest.raises(KeyboardInterrupt) as stopped:
        begin(training()).go(sent(signal.SIGINT, 1))
    assert stopped.value.__notes__ == ["tests, seed 0: stopped after step 1 of 3"]
