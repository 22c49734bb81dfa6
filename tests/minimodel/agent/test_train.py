import json
import signal

import numpy as np
import pytest
import torch

from minimodel.agent import run as run_module
from minimodel.agent.schedule import Lag
from minimodel.agent.train import train
from minimodel.pretrain import cache
from minimodel.pretrain.skill import Asks, SkillError
from minimodel.pretrain.start import Start, supervised
from sim.learning.penalties import EntropyBonus
from sim.learning.rule import Rule
from sim.records.config import canonical_json, replace, to_dict
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs, run_key
from tests.minimodel.agent.small import SIZE, TASK, begin, digest, obtained, taught, training

KILLED = training(schedule=Lag(1), keep_rollouts=2, steps=8)


@pytest.fixture
def from_the_taught(monkeypatch):
    """Runs begin with the taught transformer; what was asked for is noted."""
    asked = []

    def obtain(task, size, start, seed, folder, **more):
        asked.append((seed, folder))
        return obtained(task, size)

    monkeypatch.setattr(run_module, "obtain", obtain)
    return asked


# --- runs of several seeds --------------------------------------------------------------------------------------------


def test_seeds_are_rows(from_the_taught, tmp_path):
    config, heard = training(keep_rollouts=1), []
    runs = train(config, (3, 5), study="tests", progress=lambda *at: heard.append(at), folder=tmp_path)
    assert (runs.config, runs.seeds, runs.study, runs.rung) == (config, (3, 5), "tests", "minimodel")
    assert runs.fingerprint == code_fingerprint("minimodel")
    for row, seed in enumerate((3, 5)):
        alone = begin(config, seed)
        for name, column in alone.go().items():
            assert runs[name][row].tobytes() == column.tobytes()
        assert runs.rollouts[seed] == alone.kept
    assert not np.array_equal(runs["train/turns"][0], runs["train/turns"][1])
    assert heard == [(done, 6) for done in range(1, 7)]
    again = Runs.from_records(runs.records(), config)
    assert again["update/moved"].tobytes() == runs["update/moved"].tobytes()
    assert [folder for _, folder in from_the_taught] == [tmp_path / "starts"] * 2
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_neighbouring_seeds_may_share_a_start(from_the_taught, tmp_path):
    train(training(steps=1, starts_shared_by=4), (0, 3, 4, 9), study="tests", folder=tmp_path)
    assert [seed for seed, _ in from_the_taught] == [0, 0, 1, 2]


def test_a_run_goes_on_where_it_was_interrupted(from_the_taught, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "SAVE_EVERY", 2)
    config = training(steps=5)

    def stop(done, total):
        if done == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(config, (0,), study="tests", progress=stop, folder=tmp_path)
    key = run_key(to_dict(config), "tests", 0, "minimodel", code_fingerprint("minimodel"))
    file = tmp_path / "checkpoints" / f"{key}.pt"
    assert torch.load(file, weights_only=True)["step"] == 2
    heard = []
    rest = train(config, (0,), study="tests", progress=lambda done, total: heard.append(done), folder=tmp_path)
    assert heard == [3, 4, 5]
    assert rest["update/moved"][0].tobytes() == begin(config).go()["update/moved"].tobytes()
    assert not file.exists()
    # another config, study or seed has a file of its own
    with pytest.raises(InterruptedError):
        train(config, (0,), study="tests", progress=stop, folder=tmp_path)
    for other, study, seed in ((training(steps=6), "tests", 0), (config, "else", 0), (config, "tests", 1)):
        with pytest.raises(ZeroDivisionError):
            train(other, (seed,), study=study, progress=lambda done, total: 1 / (done - 1), folder=tmp_path)


def test_a_run_begins_with_its_supervised_start(tmp_path, monkeypatch):
    """Taught for a few updates, so no more may be asked of it; made once, then read."""
    taught_now = []
    monkeypatch.setattr(cache, "supervised", lambda *a: taught_now.append(a[4]) or supervised(*a))
    nothing = Asks(recall=1.0, habit=1e9, decisions=1.0, queries=1.0, copying=1.0, right=1.0, invalid=1.0)
    rule = Rule(penalties=(EntropyBonus(0.1),))  # so little is learned that rewards say nothing
    config = training(start=Start(steps=4, batch=8), asks=nothing, rule=rule, steps=2, starts_shared_by=2)
    runs = train(config, (4, 5), study="tests", folder=tmp_path)
    again = train(config, (5,), study="tests", folder=tmp_path)
    assert taught_now == [2]
    assert (runs["update/moved"] > 0).all()
    assert (runs["drift/kl_trajectory"][:, 0] == 0).all()
    for name in runs.columns:
        assert again[name][0].tobytes() == runs[name][1].tobytes()
    with pytest.raises(SkillError, match="falls short"):
        train(replace(config, {"asks": Asks()}), (4,), study="tests", folder=tmp_path)


def test_seeds_are_asked_for_one_by_one():
    with pytest.raises(TypeError, match=r"tuple\(range\(3\)\)"):
        train(training(), 3, study="tests")
    with pytest.raises(ValueError, match="no seeds"):
        train(training(), (), study="tests")


# --- killed, interrupted, terminated ----------------------------------------------------------------------------------

PROGRAM = """
import json, os, random, signal, sys
from pathlib import Path
import torch
from minimodel.agent import run as run_module
from minimodel.agent.checkpoint import Checkpoint
from minimodel.agent.train import train
from sim.records.config import from_dict
from sim.records.fingerprint import code_fingerprint
from tests.minimodel.agent import small

torch.set_num_threads(1)
run_module.SAVE_EVERY = 2
folder, kills = Path(os.environ["FOLDER"]), int(os.environ["KILLS"])
model = small.Transformer(small.SIZE, small.TASK.vocabulary.size, small.TASK.layout.length(),
                          generator=torch.Generator().manual_seed(0))
model.load_state_dict(torch.load(folder / "taught.pt", weights_only=True))
small.taught = lambda task, size: small.copy.deepcopy(model)
run_module.obtain = small.obtained
# What every child needs, once; nothing trains before it forks, which autograd would not survive.
torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
code_fingerprint("minimodel")


def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die(at):
    "Be killed at this Python call from now on."
    left = [at]

    def count(frame, event, argument):
        left[0] -= event == "call"
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def run(where, at=0):
    if at:
        die(at)
    done = small.begin(config, folder=folder / where)
    done.go()
    sys.setprofile(None)
    (folder / f"{where}.json").write_text(json.dumps(small.digest(done)))


def killed_while_saving(where):
    os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
    run(where)


config, found, luck = from_dict(json.loads(os.environ["CONFIG"])), {"codes": [], "ends": []}, random.Random(kills)
assert child(lambda: run("whole")) == 0
found["whole"] = json.loads((folder / "whole.json").read_text())
found["codes"].append(child(lambda: killed_while_saving("killed")))
while True:
    at = luck.randrange(1, 40_000) if len(found["codes"]) < kills else 0  # a whole run makes twice as many calls
    code = child(lambda: run("killed", at))
    if code:
        found["codes"].append(code)
        continue
    found["ends"].append(json.loads((folder / "killed.json").read_text()))
    if not at:
        break
Checkpoint(folder / "killed" / "run.pt", "").remove()  # as train does when all its seeds have ended
found["left"] = [p.name for p in (folder / "killed").iterdir()]


def stopped(number):
    "Train for long in a child that is sent a signal after its third step; the child ends as any program would."
    where, (hear, tell) = folder / f"signal{number}", os.pipe()
    where.mkdir()
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(where / "stderr", os.O_WRONLY | os.O_CREAT), 2)
        train(small.training(steps=10_000), (7,), study="a study", folder=where, progress=lambda *at: os.write(tell, b"."))
        sys.exit(0)
    got = b""
    while len(got) < 3:
        got += os.read(hear, 1)
    os.kill(pid, number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(hear), os.close(tell)
    saved = list((where / "checkpoints").iterdir())
    return {"code": code, "said": (where / "stderr").read_text(), "saved": [torch.load(p)["step"] for p in saved]}


found["signals"] = {n: stopped(n) for n in (signal.SIGINT, signal.SIGTERM)}
print(json.dumps(found))
"""


def forked(fresh_python, folder, kills):
    torch.save(taught(TASK, SIZE).state_dict(), folder / "taught.pt")
    config = canonical_json(to_dict(KILLED))
    return json.loads(fresh_python(PROGRAM, FOLDER=str(folder), KILLS=str(kills), CONFIG=config))


@pytest.fixture(scope="module")
def outcome(fresh_python, tmp_path_factory):
    """What the program found: it runs once for the tests below."""
    return forked(fresh_python, tmp_path_factory.mktemp("forked"), kills=3)


def check_kills(found, kills):
    """Runs that ended in spite of their kills ended alike; where one did, the next began anew."""
    assert found["codes"] == [-signal.SIGKILL] * kills
    assert set(found["ends"]) == {found["whole"]}
    assert found["left"] == []


def test_a_run_that_is_killed_goes_on_as_if_it_had_not_been(outcome):
    """Once while it saves and twice at a random call; all columns, parameters and kept rollouts to the bit."""
    check_kills(outcome, 3)


def test_another_process_gives_the_same_bits(outcome):
    run = begin(KILLED)
    run.go()
    assert digest(run) == outcome["whole"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(outcome, number):
    found = outcome["signals"][str(int(number))]
    assert found["code"] == -number  # as any program that is interrupted or terminated
    (step,) = found["saved"]
    assert step >= 3
    assert f"a study, seed 7: stopped after step {step} of 10000; saved, and the same command goes on" in found["said"]
    assert ("KeyboardInterrupt" in found["said"]) == (number == signal.SIGINT)


@pytest.mark.long
@pytest.mark.parametrize("kills", [20, 21])
def test_twenty_kills(fresh_python, tmp_path, kills):
    check_kills(forked(fresh_python, tmp_path, kills), kills)
