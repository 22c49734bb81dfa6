"""The command from end to end at tiny sizes: what it writes, how it ends, how it is gone on with."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fullscale.kernels.unlocking import HEADER, decide, read
from fullscale.validate_gpu import bench, cases, checks, sitting
from fullscale.validate_gpu.__main__ import main
from fullscale.validate_gpu.sitting import Plan
from tests.fullscale.validate_gpu import made

ROOT = Path(__file__).resolve().parents[3]
CHUNKED = ["--dry-run", "--backend", "chunked"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def only(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """A whole dry run of the chunked backend."""
    folder = tmp_path_factory.mktemp("dry")
    assert main([*CHUNKED, "--out", str(folder)]) == 0
    return read(only(folder))


# --- what is written --------------------------------------------------------------------------------------------------


def test_the_record_has_every_case_once_and_adds_up(dry):
    head = dry.header
    assert HEADER.keys() <= head.keys()
    assert (head["backend"], head["dry_run"], head["interpreted"], head["card"]) == ("chunked", True, False, None)
    assert head["versions"]["torch"] == torch.__version__
    assert head["ceilings"]["product_tflop_s"] > 0
    assert head["planned"].keys() == {"correct", "bench", "profile"}
    for phase, names in head["planned"].items():
        assert [c["case"] for c in dry.cases if c["phase"] == phase] == names
    assert dry.closing["passed"]
    assert dry.closing["unlocks"] is None
    assert sum(dry.closing["counts"].values()) == len(dry.cases)


def test_every_correctness_case_has_what_was_found_and_its_bounds(dry):
    for case in (c for c in dry.cases if c["phase"] == "correct"):
        assert case["bounds"]
        assert case["bounds"].keys() <= case["values"].keys()
        assert all(case["values"][k] <= bound for k, bound in case["bounds"].items())
        assert case["seconds"] >= 0


def test_every_point_has_a_time_or_a_reason_for_every_provider(dry):
    points = [c for c in dry.cases if c["phase"] == "bench"]
    assert len(points) == len(cases.grid(dry=True))
    for point in points:
        for name, told in point["values"].items():
            assert ("ms" in told) + ("absent" in told) + ("error" in told) == 1, (point["case"], name)
        ours = point["values"]["ours"]
        assert len(ours["ms"]) == 2  # twice, for the spread
        assert min(ours["ms"]) > 0
        assert "ms" in point["values"]["plain torch"]
    some = next(c for c in points if "forward+backward" in c["case"] and "0.3" in c["case"])["values"]
    assert {"plain torch, gathered", "products alone, logits twice", "ours, head_loss"} <= some.keys()


def test_tools_that_watch_a_card_are_told_absent(dry):
    found = [c for c in dry.cases if c["phase"] == "profile"]
    assert len(found) == 4
    assert {(c["status"], c["reason"]) for c in found} == {("skipped", "absent")}


def test_a_dry_run_unlocks_nothing_whatever_it_says_of_the_card(dry, tmp_path):
    forged = made.write(tmp_path / "x.jsonl", made.lines({**dry.header, "card": made.CARD}, list(dry.cases)))
    decision = decide("chunked", made.CARD, dry.header["versions"]["triton"], dry.header["source_hash"], [read(forged)])
    assert not decision.unlocked
    assert "dry run" in decision.reason
    assert sitting.keep(dry) is None


def test_the_table_is_last_and_short(tmp_path, capsys):
    assert main([*CHUNKED, "--phase", "smoke", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert len(out) <= 25
    assert "smoke    chunked  3 passed" in out
    assert out[-1].startswith("nothing is unlocked: the record has no correctness case")


def test_a_failure_is_in_the_table_and_the_exit_status(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(checks.CAPS, "logp", -1.0)
    assert main([*CHUNKED, "--phase", "smoke", "--out", str(tmp_path)]) == 1
    out = capsys.readouterr()
    assert "FAILED chunked: tails everywhere: logp" in out.out
    assert "tails everywhere: failed" in out.err
    assert next(c for c in read(only(tmp_path)).cases if "tails" in c["case"])["status"] == "failed"


# --- what breaks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def plan():
    return Plan("chunked", "cpu", ("correct",), dry_run=True, interpreted=False, budget_s=60.0)


def sit(plan, folder):
    journal = sitting.Journal.create(folder, sitting.header(plan, probe=False))
    return sitting.run(plan, journal, lambda line: None)


def test_a_case_that_breaks_is_written_down_and_the_others_run(plan, tmp_path, monkeypatch):
    def broken(case, backend, device, **more):
        if case.name == "bias":
            raise ZeroDivisionError("of nothing")
        return sitting.Outcome("passed")

    monkeypatch.setattr(checks, "answer", broken)
    record = sit(plan, tmp_path)
    bad = [c for c in record.cases if c["status"] == "error"]
    assert [c["case"] for c in bad] == ["chunked: bias"]
    assert "ZeroDivisionError at test_command_line.py" in bad[0]["note"]
    assert record.closing["counts"]["passed"] == len(record.cases) - 1
    assert not record.closing["passed"]


def test_once_the_device_is_lost_the_rest_waits_for_another_process(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "answer", lambda *a, **k: sitting.Outcome("passed"))
    answers = iter([True, True, False])
    monkeypatch.setattr(sitting, "_alive", lambda device: next(answers))
    record = sit(plan, tmp_path)
    assert [c["status"] for c in record.cases[:4]] == ["passed"] * 3 + ["skipped"]
    assert {c["reason"] for c in record.cases[3:]} == {"device lost"}
    assert not record.closing["passed"]
    assert len(record.cases) == len(record.header["planned"]["correct"])


def test_what_the_budget_leaves_out_is_in_the_exit_status(tmp_path, capsys):
    words = [*CHUNKED, "--phase", "smoke", "--budget-s", "1e-9"]
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert f"3 cases were left out; run them with: --resume {only(tmp_path)}" in capsys.readouterr().err
    assert main(["--resume", str(only(tmp_path))]) == 0


def test_when_the_budget_ends_what_is_left_is_named(plan, tmp_path):
    record = sit(sitting.Plan(**{**vars(plan), "budget_s": 1e-9}), tmp_path)
    assert {(c["status"], c["reason"]) for c in record.cases} == {("skipped", "budget")}
    assert not record.closing["passed"]


def test_a_fused_record_also_tries_the_fallback(plan):
    fused = sitting.planned(sitting.Plan(**{**vars(plan), "backend": "triton"}))["correct"]
    assert {name.split(":")[0] for name in fused} == {"triton", "chunked"}
    assert len(fused) == 2 * len(sitting.planned(plan)["correct"])


# --- going on ---------------------------------------------------------------------------------------------------------


def test_interrupted_and_gone_on_with_it_has_the_same_cases(dry, tmp_path, capsys, monkeypatch):
    ran = []
    answer, measure = checks.answer, bench.measure

    def stop_at(count):
        def counted(case, *rest, **more):
            ran.append(case.name)
            if len(ran) == count:
                raise KeyboardInterrupt
            return answer(case, *rest, **more)

        return counted

    monkeypatch.setattr(checks, "answer", stop_at(7))
    with pytest.raises(SystemExit) as caught:
        main([*CHUNKED, "--out", str(tmp_path)])
    assert caught.value.code == 130
    path = only(tmp_path)
    assert f"--resume {path}" in capsys.readouterr().err
    with path.open("a") as file:
        file.write('{"kind": "case", "phase": "corr')  # a line that a kill tore
    monkeypatch.setattr(checks, "answer", stop_at(0))
    monkeypatch.setattr(
        bench, "measure", lambda *a: measure(*a) if "forward, " in a[0].name else bench.skipped("memory")
    )
    assert main(["--resume", str(path)]) == 0
    assert len(ran) == len(set(ran)) + 1  # only the one that was interrupted ran twice
    record = read(path)
    assert [(c["phase"], c["case"]) for c in record.cases] == [(c["phase"], c["case"]) for c in dry.cases]


@pytest.mark.long
def test_killed_and_gone_on_with_it_has_the_same_cases(dry, tmp_path):
    def command(*words):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "fullscale.validate_gpu", *words]
        return subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)

    first = command(*CHUNKED)
    folder = tmp_path / "runs" / "validate_gpu"
    deadline = time.monotonic() + 100
    while not (found := list(folder.glob("*.jsonl"))) or found[0].read_bytes().count(b"\n") < 12:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    path = only(folder)
    assert read(path, finished=False).closing is None
    second = command("--resume", str(path))
    _, told = second.communicate(timeout=100)
    assert second.returncode == 0, told
    record = read(path)
    assert [(c["phase"], c["case"]) for c in record.cases] == [(c["phase"], c["case"]) for c in dry.cases]


def test_options_that_contradict_the_record_are_refused(dry, capsys):
    for words, told in (
        (["--phase", "bench"], "leave --phase out"),
        (["--backend", "triton"], "backend = chunked, not triton"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(["--resume", str(dry.path), *words])
        assert caught.value.code == 2
        assert told in capsys.readouterr().err


def test_a_record_of_other_code_is_refused(dry, tmp_path, capsys):
    other = made.write(tmp_path / "x.jsonl", [{**dry.header, "source_hash": "0" * 64}, *dry.cases])
    with pytest.raises(SystemExit) as caught:
        main(["--resume", str(other)])
    assert caught.value.code == 2
    assert "another source_hash (000" in capsys.readouterr().err


# --- errors at the border ---------------------------------------------------------------------------------------------


def refused(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        main(list(words))
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_without_a_gpu_it_names_the_way_out(capsys, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for words in ([], ["--dry-run"], ["--backend", "chunked"]):
        told = refused(capsys, *words)
        assert "no CUDA device" in told
        assert "--dry-run --backend interpret" in told


def test_other_mistakes_are_told(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "add --dry-run" in refused(capsys, "--backend", "interpret")
    assert "TRITON_INTERPRET is set" in refused(capsys)
    assert "--budget-s = -1 must be positive" in refused(capsys, "--budget-s", "-1")
    assert "No such file" in refused(capsys, "--resume", str(tmp_path / "none.jsonl"))
    (tmp_path / "empty.jsonl").write_text("")
    assert "does not begin with the header" in refused(capsys, "--resume", str(tmp_path / "empty.jsonl"))


def test_help_says_what_it_does_and_how_it_ends(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    told = capsys.readouterr().out
    for word in ("--resume", "--dry-run", "--budget-s", "examples:", "exit status:", "cache folder"):
        assert word in told


# --- a bare machine, and the interpreter ------------------------------------------------------------------------------


def test_it_needs_torch_and_numpy_alone(fresh_python, tmp_path):
    program = f"""
import sys
absent = "pydantic tyro rich simpy scipy array_api_compat matplotlib hypothesis pytest liger_kernel".split()
sys.modules |= dict.fromkeys(absent)  # None stands for a module that is not there
from fullscale.validate_gpu.__main__ import main
print(main(["--dry-run", "--backend", "chunked", "--phase", "smoke", "--out", {str(tmp_path)!r}]))
"""
    assert "smoke    chunked  3 passed" in fresh_python(program)
    assert len(read(only(tmp_path)).cases) == 3


def interpreter():
    try:
        importlib.import_module("fullscale.kernels.fused.backend")
    except ImportError as error:
        return f"no fused backend here: {error}"
    return None


@pytest.mark.skipif(interpreter() is not None, reason=str(interpreter()))
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # of NumPy, for what a card computes in silence
@pytest.mark.parametrize("phase", ["smoke", pytest.param("all", marks=pytest.mark.long)])
def test_the_fused_kernels_pass_in_the_interpreter(tmp_path, phase, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    main(["--dry-run", "--backend", "interpret", "--phase", phase, "--out", str(tmp_path), "--budget-s", "2000"])
    record = read(only(tmp_path))
    assert record.header["interpreted"]
    assert record.closing["unlocks"] is None
    assert [json.dumps(c) for c in record.cases if c["status"] not in ("passed", "skipped")] == []
    assert record.closing["passed"] == (phase == "all")
