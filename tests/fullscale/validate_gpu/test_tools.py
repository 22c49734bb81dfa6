"""NVIDIA's tools, by stand-ins of theirs; what unlocks; how times are taken."""

import re

import pytest
import torch

from fullscale.kernels.unlocking import read
from fullscale.validate_gpu import bench, cases, machine, profiling, providers, sitting, timing
from fullscale.validate_gpu.one_call import main as one_call
from tests.fullscale.validate_gpu import made

NCU = """==PROF== Connected
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","gather","GPU Speed Of Light Throughput","Duration","us","12.5"
"0","7","gather","Launch Statistics","Registers Per Thread","register/thread","24"
"1","7","forward","GPU Speed Of Light Throughput","Duration","ms","28.10"
"1","7","forward","Memory Workload","L2 Hit Rate","%","81.2"
"1","7","forward","Compute","sm__inst_executed_pipe_tensor_op.sum","inst","1,024"
"1","7","forward","Launch Statistics","Block Size","","256"
"2","7","merge","GPU Speed Of Light Throughput","Duration","us","40.0"
"""


def test_the_counters_of_the_two_longest_kernels_are_kept():
    found = profiling.counters(NCU.splitlines())
    assert list(found) == ["1 forward", "2 merge"]
    assert found["1 forward"] == {
        "Duration, ms": "28.10",
        "L2 Hit Rate, %": "81.2",
        "sm__inst_executed_pipe_tensor_op.sum, inst": "1,024",
    }
    assert profiling.counters(["==ERROR== The user does not have permission"]) == {}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a program of some name on the PATH, alone."""

    def put(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path))

    return put


@pytest.mark.parametrize(
    ("script", "status", "reason", "told"),
    [
        ("echo ========= ERROR SUMMARY: 0 errors", "passed", None, "0 errors"),
        (f"echo ========= Invalid __global__ read; exit {profiling.FOUND}", "failed", None, "Invalid __global__ read"),
        ("echo Device not supported; exit 1", "skipped", "absent", "does not work here: Device not supported"),
    ],
)
def test_only_a_fault_that_a_tool_finds_is_a_failure(tool, script, status, reason, told):
    tool("compute-sanitizer", script)
    memcheck = next(t for t in profiling.TOOLS if t.name == "memcheck")
    outcome = profiling.watch(memcheck, "triton")
    assert (outcome.status, outcome.reason) == (status, reason)
    assert told in outcome.note


def test_an_absent_tool_is_told_absent(tool):
    tool("other", "exit 0")
    outcome = profiling.watch(profiling.TOOLS[0], "triton")
    assert (outcome.status, outcome.reason, outcome.note) == ("skipped", "absent", "ncu is not on the PATH")


def test_a_profiler_without_counters_is_absent_too(tool):
    tool("ncu", "echo ==ERROR== LibraryNotLoaded")
    assert profiling.watch(profiling.TOOLS[0], "triton").reason == "absent"


def test_the_profiler_leaves_the_clocks_alone():
    for each in (t for t in profiling.TOOLS if t.program == "ncu"):
        assert each.options[each.options.index("--clock-control") + 1] == "none"


def test_the_watched_call_runs():
    one_call(["3", "8", "20", "chunked", "backward"])


def test_what_nvidia_smi_tells_is_kept(tool, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    tool("nvidia-smi", "echo '580.159.03, 1980 MHz, 3201 MHz, 1980 MHz, 700.00 W, 31'")
    told = machine.describe("cuda")
    assert (told["card"], told["capability"], told["driver"]) == ("NVIDIA H200", "9.0", "580.159.03")
    assert told["clocks"]["clocks.mem"] == "3201 MHz"
    assert told["git"] is None  # git is not on that PATH either
    tool("nvidia-smi", "exit 9")
    assert machine.describe("cuda")["driver"] is None


def test_the_commit_is_that_of_the_clone():
    found = machine.commit()
    assert found is None or re.fullmatch(r"[0-9a-f]{40}\+?", found)


# --- what unlocks -----------------------------------------------------------------------------------------------------


def test_a_record_that_unlocks_is_copied_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    record = made.record(tmp_path)
    unlocks = sitting.unlocks(record)
    assert unlocks == {"backend": "triton", "card": made.CARD, "source_hash": made.SOURCE, "triton": made.TRITON}
    record = made.record(tmp_path, closing={"unlocks": unlocks})
    kept = sitting.keep(record)
    assert kept.parent == tmp_path / "cache" / "metastable" / "kernels"
    assert [p.name for p in kept.parent.iterdir()] == [kept.name]
    assert read(kept).cases == record.cases


@pytest.mark.parametrize("head", [{"dry_run": True}, {"interpreted": True}, {"backend": "chunked"}])
def test_what_is_no_proof_unlocks_nothing(tmp_path, monkeypatch, head):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    record = made.record(tmp_path, **head)
    assert sitting.unlocks(record) is None
    assert sitting.keep(record) is None
    assert not (tmp_path / "cache").exists()


# --- times ------------------------------------------------------------------------------------------------------------


def test_providers_do_the_same_work():
    """The gradient that each leaves is that of the same loss, whichever way it was had."""
    point = cases.Point(16, 32, 300, 0.5, "forward+backward")
    found = {}
    for name, make in providers.providers("chunked").items():
        if name.startswith("products") or name in ("Liger", "CCE", "Liger, gathered", "CCE, gathered"):
            continue  # no loss, or no processor
        (given,) = providers.sets(point, "cpu", count=1)
        make(point)(given)
        found[name] = given.weight.grad.float()
    assert {"ours", "ours, logits kept", "ours, head_loss", "plain torch", "plain torch, gathered"} <= found.keys()
    size = found["ours"].norm()
    assert size > 1
    for name, grad in found.items():
        assert (grad - found["ours"]).norm() < 0.02 * size, name


def test_a_provider_that_breaks_is_noted_and_ours_is_an_error(monkeypatch):
    point = cases.Point(4, 8, 20, 1.0, "forward")

    def broken(point):
        raise RuntimeError("no such shape")

    whole = providers.providers("chunked")
    monkeypatch.setattr(bench, "providers", lambda backend: {**whole, "plain torch": broken})
    outcome = bench.measure(point, "chunked", "cpu")
    assert outcome.status == "passed"
    assert outcome.values["plain torch"] == {"error": "RuntimeError: no such shape"}
    monkeypatch.setattr(bench, "providers", lambda backend: {**whole, "ours": broken})
    outcome = bench.measure(point, "chunked", "cpu")
    assert outcome.status == "error"
    assert outcome.note == "ours: RuntimeError: no such shape"


def test_a_slow_peer_is_called_less_often_and_ours_never():
    assert bench._rounds("ours", 1e4, 20) == 20
    assert bench._rounds("products alone", 1e4, 20) == 20
    assert bench._rounds("Liger", 1e4, 20) == 5
    assert bench._rounds("Liger", 150.0, 20) == 10
    assert bench._rounds("Liger", 1.0, 20) == 20


def test_a_time_is_in_milliseconds():
    import time

    assert 20 <= timing.milliseconds(lambda: time.sleep(0.02), "cpu") < 2000
