"""The command line: what is refused and how, and a run from files of one's own to a record that everything opens."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from inspect import signature

import numpy as np
import pytest
import tyro

from fullscale import train as module
from fullscale.agent.train import place, train
from fullscale.presets import PRESETS, smollm2_cpu
from fullscale.train import UsageError, configured, main
from sim.records.store import Store
from studies.kit import runs_cli
from studies.kit.inspect_cli import inspect_runs
from studies.kit.inspector.own import stored
from tests.conftest import ROOT
from tests.fullscale.agent.conftest import single_threaded  # noqa: F401  tiny problems are slower on two threads
from tests.fullscale.agent.small import ANSWERS, PASSAGES, taught, tokenizer, training

ASKED = [(f"What is the capital of {place}?", answer) for place, answer in ANSWERS.items()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny model that half knows how to play, as a folder."""
    place = tmp_path_factory.mktemp("model")
    taught().save_pretrained(place)
    tokenizer().save_pretrained(place)
    return place


@pytest.fixture
def files(saved, tmp_path):
    """Questions, a corpus and a model as a user has them."""
    questions, corpus = tmp_path / "questions.jsonl", tmp_path / "corpus.jsonl"
    questions.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in ASKED))
    corpus.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    return {"data.questions": questions, "data.corpus": corpus, "model.source": saved}


@pytest.fixture
def tiny(monkeypatch):
    """A preset of the tiny model, under a name of its own."""
    monkeypatch.setitem(PRESETS, "tiny", lambda: training(prompts=2, group=4, steps=2, keep_rollouts=1))
    return "tiny"


def arguments(preset, files, tmp_path, *more, **changes):
    """The command of a run whose files are all in one folder."""
    changed = [
        word
        for key, value in (files | changes | {"data.held_out": 0.0}).items()
        for word in ("--set", f"{key}={value}")
    ]
    places = ("--folder", str(tmp_path / "runs"), "--store", str(tmp_path / "store"), "--device", "cpu")
    return [preset, *changed, *places, *more]


def record_in(tmp_path):
    store = Store(tmp_path / "store")
    (key,) = store.keys()
    return store.load(key)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_an_unknown_preset_is_told_with_those_that_are_near(capsys):
    assert main(["smolm2_cpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fullscale.train: there is no preset 'smolm2_cpu'")
    assert "smollm2_cpu" in said.partition("'smolm2_cpu'")[2]
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("optimiser.rate", ["optimiser.rate", "KEY=VALUE"]),
        ("optimiser.rte=1e-5", ["optimiser.rte", "rate"]),
        ("optimizer.rate=1e-5", ["optimizer", "optimiser"]),
        ("optimiser.rate=fast", ["optimiser.rate", "fast"]),
        ("optimiser.rate=-1", ["rate = -1", "at least 0"]),
        ("group=1", ["group = 1", "at least 2"]),
        ("group=2.5", ["group", "2.5"]),
        ("micro=100", [f"{smollm2_cpu().prompts} questions", "100 pieces", "ask for more"]),
        ("model.backend=cuda", ["backend = 'cuda'", "'triton'"]),
        ("data.layout=parquet", ["layout = 'parquet'", "'search_r1'"]),
        ("sampler.context_tokens=0", ["context_tokens = 0", "at least 1"]),
        ("model.shape={[]: 1}", ["model.shape"]),
        ("steps=" + "(" * 300 + "1", ["steps"]),
    ],
)
def test_a_bad_change_is_one_line_with_key_value_and_way_out(change, words, capsys):
    assert main(["smollm2_cpu", "--set", change]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fullscale.train: --set ")
    for word in words:
        assert word in said
    assert "Traceback" not in said


def test_changes_are_read_as_numbers_truth_values_none_and_text():
    c = configured(
        "smollm2_cpu",
        [
            "optimiser.rate=1e-5",
            "steps=30",
            "model.checkpointing=True",
            "evaluation=None",
            "data.questions=my/file=1.jsonl",
        ],
    )
    assert (c.optimiser.rate, c.steps, c.model.checkpointing, c.evaluation) == (1e-5, 30, True, None)
    assert c.data.questions == "my/file=1.jsonl"
    assert configured("smollm2_cpu") == smollm2_cpu()


def test_changes_that_belong_together_are_made_together():
    """Each alone would be refused."""
    c = configured("smollm2_cpu", ["prompts=2", "micro=2", "steps=3", "keep_rollouts=2"])
    assert (c.prompts, c.micro, c.steps, c.keep_rollouts) == (2, 2, 3, 2)
    with pytest.raises(UsageError, match=r"keep_rollouts = \d+ must be a step of the run, 0 to 2"):
        configured("smollm2_cpu", ["steps=3"])


def test_a_gpu_that_is_not_there_is_refused(tiny, monkeypatch, capsys):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    assert main([tiny, "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "fullscale.train: --device 'cuda': PyTorch sees no GPU here; use cpu\n"


def test_a_gpu_that_is_there_is_taken_wherever_nothing_is_said(monkeypatch):
    for seen, found in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(module.torch.cuda, "is_available", lambda seen=seen: seen)
        assert place("auto") == found
        assert place("cpu") == "cpu"
    assert signature(train).parameters["device"].default == "auto"  # as a sweep calls it
    with pytest.raises(ValueError, match="'gpu': it takes auto, cpu or cuda"):
        place("gpu")


def test_a_run_that_has_no_room_does_not_begin(tiny, files, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        module, "_room", lambda wanted, device, anyway, shipped=module._room: shipped(2**60, device, anyway)
    )
    monkeypatch.setattr(module, "train", lambda *a, **k: pytest.fail("it began"))
    assert main(arguments(tiny, files, tmp_path)) == 2
    said = capsys.readouterr().err
    assert "1073741824.0 GiB" in said
    assert "--anyway" in said
    monkeypatch.setattr(module, "train", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(arguments(tiny, files, tmp_path, "--anyway"))


@pytest.mark.parametrize(
    ("name", "text"), [("data.questions", None), ("data.questions", "{}\n"), ("data.corpus", "no\n")]
)
def test_files_that_are_missing_or_bad_are_told_by_name(name, text, tiny, files, tmp_path, capsys):
    if text is None:
        files[name].unlink()
    else:
        files[name].write_text(text)
    assert main(arguments(tiny, files, tmp_path)) == 2
    said = capsys.readouterr().err
    assert str(files[name]) in said
    assert "Traceback" not in said


def test_what_the_parser_refuses_ends_with_2(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["smollm2_cpu", "--sed", "3"])
    assert ended.value.code == 2
    assert "--seed" in capsys.readouterr().err


# --- what is estimated ------------------------------------------------------------------------------------------------


def test_an_estimate_is_said_and_nothing_is_loaded(tiny, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "train", lambda *a, **k: pytest.fail("it began"))
    monkeypatch.chdir(tmp_path)
    assert main([tiny, "--estimate", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    for word in ("memory of a step on each of 1", "standing", "gradients", "keys and values", "peak:", "GPU hours"):
        assert word in said
    assert list(tmp_path.iterdir()) == []


# --- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_writes_a_record_that_everything_opens(tiny, files, tmp_path, capsys, monkeypatch):
    assert main(arguments(tiny, files, tmp_path, "--seed", "3", "--study", "mine")) == 0
    said = capsys.readouterr().out
    record = record_in(tmp_path)
    assert (record.seed, record.manifest["study"], record.manifest["rung"]) == (3, "mine", "fullscale")
    assert len(record.steps) == 2
    assert record.provenance["wall_s"] > 0
    assert record.steps["update/moved"][-1] > 0
    assert set(record.provenance["cpu_s_by_part"]) >= {"collect", "learn", "watch"}
    lines = [line.split()[0] for line in said.splitlines() if line.strip().startswith(("1/2", "2/2"))]
    assert lines == ["1/2", "2/2"]
    assert f"kept as {record.key} in {tmp_path / 'store'}" in said
    assert not list((tmp_path / "runs").rglob("*.pt"))

    commands = [line.split()[2:] for line in said.splitlines() if line.startswith("  metastable ")]
    assert [words[0] for words in commands] == ["show", record.key]
    assert tyro.cli(runs_cli.runs, args=["show", *commands[0][1:]]) == 0
    shown = capsys.readouterr().out
    assert "behaviour/search_share/turn0" in shown
    assert "mismatch/mean" in shown
    page = tmp_path / "page.html"
    assert tyro.cli(inspect_runs, args=[*commands[1], "--out", str(page)]) == 0
    assert "im_start|" in page.read_text()
    turn = stored(record).episodes[0].turns[0]
    assert len(turn.pieces) == len(turn.tokens)
    assert any(question in "".join(turn.pieces) for question, _ in ASKED)  # the tokens of the prompt, as text


def test_the_same_command_again_goes_on_and_is_the_run(tiny, files, tmp_path, capsys, monkeypatch):
    """Interrupted after its first step it says so, ends with 130 and keeps no record; again, it has the second step left."""

    def interrupting(self, row, shipped=module.Table.row):
        shipped(self, row)
        if row["step"] == 0:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as given_to:
        given_to.setattr(module.Table, "row", interrupting)
        assert main(arguments(tiny, files, tmp_path)) == 130
    assert "stopped after step 1 of 2; saved, and the same command goes on from there" in capsys.readouterr().err
    assert not Store(tmp_path / "store").keys()
    assert main(arguments(tiny, files, tmp_path)) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if "/2 " in line] == ["2/2"]
    cut = record_in(tmp_path)
    assert main(arguments(tiny, files, tmp_path / "whole")) == 0
    whole = record_in(tmp_path / "whole")
    assert whole.key == cut.key
    for name in cut.steps.names:
        if name != "train/latency_s":
            np.testing.assert_array_equal(cut.steps[name], whole.steps[name], err_msg=name)
    np.testing.assert_array_equal(cut.rollouts.tokens.id, whole.rollouts.tokens.id)


def test_the_checkpoint_goes_only_once_the_record_is_kept(tiny, files, tmp_path, monkeypatch):
    """Killed, or out of disk, between the last step and the record: the same command has nothing to compute again."""

    def full(self, record):
        raise OSError("no space left on device")

    with monkeypatch.context() as given_to:
        given_to.setattr(module.Store, "save", full)
        with suppress(OSError):
            assert main(arguments(tiny, files, tmp_path)) != 0
    monkeypatch.setattr(module.Table, "row", lambda self, row: pytest.fail("a step was made again"))
    assert main(arguments(tiny, files, tmp_path)) == 0
    assert len(record_in(tmp_path).steps) == 2


PROGRAM = """
import sys
import torch

torch.set_num_threads(1)
from fullscale import train
from fullscale.presets import PRESETS
from minimodel.agent.schedule import Lag
from tests.fullscale.agent.small import training

PRESETS["tiny"] = lambda: training(prompts=2, group=4, steps=2, keep_rollouts=1, schedule=Lag(1))
sys.exit(train.main(sys.argv[1:]))
"""


def start(words, **environment):
    given = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.long
def test_as_torchrun_starts_it(files, tmp_path):
    """Two processes with gloo: one record, one table, and the episodes of one process."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = arguments("tiny", files, tmp_path)
    there = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = [start(words, RANK=str(r), LOCAL_RANK=str(r), **there) for r in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "memory of a step on each of 2" in said[0][0]
    assert said[1][0] == ""
    two = record_in(tmp_path)
    assert two.provenance["ranks"] == 2
    alone = start(arguments("tiny", files, tmp_path / "alone"))
    assert alone.communicate(timeout=300)
    assert alone.returncode == 0
    one = record_in(tmp_path / "alone")
    assert one.manifest["config"] == two.manifest["config"]
    np.testing.assert_array_equal(one.steps["train/tokens"][:1], two.steps["train/tokens"][:1])
    for name in ("train/reward", "entropy/token", "update/moved"):
        np.testing.assert_allclose(one.steps[name], two.steps[name], rtol=1e-3, err_msg=name)
    assert (one.steps["update/moved"] > 0).all()
    for record in (one, two):
        assert (record.steps["mismatch/mean"] < 1e-4).all()
        assert record.steps["staleness/oldest"].tolist() == [0, 1]


@pytest.mark.long
def test_terminated_it_has_saved_and_dies_of_the_signal(files, tmp_path):
    process = start(arguments("tiny", files, tmp_path, steps=200, keep_rollouts=None))
    assert process.stdout is not None
    for line in process.stdout:
        if line.split()[:1] == ["2/200"]:
            break
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert "saved, and the same command goes on from there" in error
    assert len(list((tmp_path / "runs" / "checkpoints").glob("*.pt"))) == 1
