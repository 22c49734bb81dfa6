"""Runs that are cut, stopped and killed, and gone on with: the same columns, the same weights, every question once."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch

from fullscale.agent.collecting import Collector
from fullscale.agent.setup import Adapter, Model
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import AdamW, Sgd
from minimodel.agent.schedule import Completion, InFlight, Lag
from sim.learning import family
from sim.learning.credit import RunningBaseline
from sim.learning.normalisers import SequenceMean
from sim.learning.rule import Rule
from sim.learning.setup import Evaluation
from sim.learning.weights import ppo_clip
from tests.fullscale.agent.small import begin, differing, parameters, taught, training

SIZES = {"prompts": 2, "group": 3, "steps": 4}
RUNNING = Rule(RunningBaseline(), ppo_clip(), SequenceMean())
CUT = {
    "synchronous": {"minibatches": 2, "evaluation": Evaluation(every=3, prompts=2, group=1), "keep_rollouts": 1},
    "a lag and a running baseline": {"schedule": Lag(2), "rule": RUNNING},
    "in flight, and penalties": {"schedule": InFlight(2), "rule": family.llds(), "keep_rollouts": 3, "micro": 2},
    "an adapter": {"model": Model(source="tiny", adapter=Adapter(rank=2, targets=("q_proj",))), "schedule": Lag(1)},
    "a greedy baseline": {"rule": family.remax(), "optimiser": Sgd(0.05), "monitor": EvidenceFirst(penalty=0.5)},
    "a version of several steps": {"schedule": Lag(2), "prompts": 9, "group": 2, "steps": 3},
    "epochs, and the learner's ratios": {
        "epochs": 2,
        "proximal": "learner",
        "schedule": Completion(0.3, lag=1),
        "optimiser": AdamW(1e-3, warmup=15),
    },
}


@pytest.fixture
def asked(monkeypatch):
    """Ids of the questions of every batch that was collected for training."""
    found, shipped = [], Collector.batch

    def batch(self, step):
        played, arrived = shipped(self, step)
        found.append([q.id for q in played.questions])
        return played, arrived

    monkeypatch.setattr(Collector, "batch", batch)
    return found


def config(name):
    return training(**(SIZES | CUT[name]))


@pytest.mark.parametrize("name", CUT)
def test_a_run_that_was_cut_is_the_run(name, tmp_path, asked):
    """From the file saved half way: every column, every weight, every question, to the bit."""
    whole, file = begin(config(name), tmp_path), tmp_path / "run.pt"
    half = whole.config.steps // 2
    columns = whole.go(lambda row: row["step"] == half and shutil.copy(file, tmp_path / "kept"))
    assert len(columns["step"]) == whole.config.steps
    assert begin(config(name), tmp_path).go(lambda row: pytest.fail("a run that ended has nothing left to do"))
    everything = asked.copy()
    asked.clear()
    (tmp_path / "kept").replace(file)
    rest = begin(config(name), tmp_path)
    assert differing(rest.go(), columns) == []
    assert torch.equal(parameters(rest), parameters(whole))
    assert asked == everything[half:]
    assert columns["update/moved"][-1] >= columns["update/moved"][0] > 0
    if whole.config.keep_rollouts is not None:
        assert torch.equal(torch.tensor(rest.kept.tokens.id), torch.tensor(whole.kept.tokens.id))
        np.testing.assert_array_equal(rest.kept.tokens.logp_proximal, whole.kept.tokens.logp_proximal)
        np.testing.assert_array_equal(rest.kept.trajectories.reward, whole.kept.trajectories.reward)


def test_resumption_takes_everything_along(tmp_path):
    """A guard: forget any part of the state, and the rest of the run differs."""
    c = training(**SIZES | {"steps": 3}, schedule=Lag(1), rule=RUNNING, optimiser=AdamW(1e-2, warmup=20))
    first = begin(c, tmp_path)
    for _ in range(2):
        first.advance()
    whole, fresh = first.state(), begin(c).state()

    def rest(**changed):
        first.checkpoint.save(whole | changed)
        return begin(c, tmp_path).go()

    columns = rest()
    assert differing(begin(c).go(), columns) == []
    initial = {name.removeprefix("model."): x for name, x in fresh["weights"].items() if name.startswith("model.")}
    fresh["versions"] = dict.fromkeys(whole["versions"], initial)
    for part, lost in fresh.items():
        if part not in ("step", "kept", "rows", "collector", "seconds"):
            assert differing(rest(**{part: lost}), columns), part


# --- stopped and killed -----------------------------------------------------------------------------------------------


def sent(number, after):
    """A report that sends this process a signal after a step."""
    return lambda row: row["step"] + 1 == after and os.kill(os.getpid(), number)


@pytest.mark.parametrize("after", [1, 4])
def test_an_interrupt_is_saved_at_the_end_of_its_step(after, tmp_path):
    c, steps = training(**SIZES, save_every=100), []
    with pytest.raises(KeyboardInterrupt) as stopped:
        begin(c, tmp_path).go(sent(signal.SIGINT, after))
    assert f"stopped after step {after} of 4; saved, and the same command goes on" in stopped.value.__notes__[0]
    columns = begin(c, tmp_path).go(lambda row: steps.append(row["step"]))
    assert steps == list(range(after, 4))
    assert differing(columns, begin(c).go()) == []


def test_a_request_to_terminate_is_passed_on(tmp_path, caplog):
    heard = []
    outside = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(SystemExit) as stopped:
            begin(training(**SIZES), tmp_path).go(sent(signal.SIGTERM, 1))
    finally:
        signal.signal(signal.SIGTERM, outside)
    assert heard == [signal.SIGTERM]
    assert stopped.value.code == 128 + signal.SIGTERM
    assert "stopped after step 1 of 4; saved" in caplog.messages[0]


PROGRAM = """
import hashlib, json, os, random, signal, sys
from pathlib import Path
import numpy as np
import torch

torch.set_num_threads(1)
from fullscale.agent.collecting import Collector
from tests.fullscale.agent import small
from tests.fullscale.agent.test_run_goes_on import SIZES, CUT

folder, kills = Path(os.environ["FOLDER"]), int(os.environ["KILLS"])
network = small.model(scale=2.0)
network.load_state_dict(torch.load(folder / "taught.pt", weights_only=True))
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # what every child needs, once; nothing trains before it forks


def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die(at, number):
    "Be sent a signal at this Python call from now on."
    left = [at]

    def count(frame, event, argument):
        left[0] -= event == "call"
        if left[0] == 0:
            os.kill(os.getpid(), number)

    sys.setprofile(count)


def run(where, at=0, number=signal.SIGKILL):
    trained, shipped = [], small.Run.advance
    Collector.batch, batch = (lambda self, step: noted(batch(self, step))), Collector.batch

    def noted(found):
        trained.append([q.id for q in found[0].questions])
        return found

    made = small.begin(small.training(**SIZES, **{**CUT["in flight, and penalties"], "keep_rollouts": 0}),
                       folder / where, network=network)
    if at:
        die(at, number)
    columns = made.go(lambda row: (folder / where / f"{row['step']}.json").write_text(json.dumps(trained[-1])))
    sys.setprofile(None)
    digest = hashlib.sha256(small.parameters(made).numpy().tobytes())
    for name in sorted(set(columns) - set(small.MEASURED)):
        digest.update(columns[name].tobytes())
    digest.update(made.kept.tokens.id.tobytes())
    steps = [json.loads((folder / where / f"{u}.json").read_text()) for u in range(made.config.steps)]
    (folder / f"{where}.json").write_text(json.dumps([digest.hexdigest(), steps]))


def killed_while_saving(where):
    os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
    run(where)


luck, codes, ends = random.Random(kills), [], []
for where in ("whole", "killed"):
    (folder / where).mkdir()
assert child(lambda: run("whole")) == 0
codes.append(child(lambda: killed_while_saving("killed")))
while len(codes) < kills:
    number = luck.choice([signal.SIGKILL, signal.SIGTERM])
    codes.append(child(lambda: run("killed", luck.randrange(1, 60_000), number)))
assert child(lambda: run("killed")) == 0
found = {where: json.loads((folder / f"{where}.json").read_text()) for where in ("whole", "killed")}
print(json.dumps(found | {"codes": codes}))
"""


@pytest.mark.long
def test_killed_again_and_again(tmp_path):
    """By signal 9 while it saves and at random places, and by SIGTERM: the end is that of a run left alone."""
    torch.save(taught().state_dict(), tmp_path / "taught.pt")
    kills = 8
    environment = os.environ | {"FOLDER": str(tmp_path), "KILLS": str(kills), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["killed"] == found["whole"]
    assert found["codes"][0] == -signal.SIGKILL
    ended = Counter(found["codes"])
    assert {-signal.SIGTERM, -signal.SIGKILL} <= ended.keys() <= {0, -signal.SIGTERM, -signal.SIGKILL}, ended
    assert ended[0] <= kills // 2
