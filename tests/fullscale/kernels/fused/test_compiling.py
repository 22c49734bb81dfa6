"""The kernels as a Hopper card would run them, compiled without one."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from fullscale.kernels.fused.compiling import SHARED_BYTES, Report, Variant, faults, report, variants

ROOT = Path(__file__).resolve().parents[4]
GOOD = Report("forward", "128x256x64", 216, 196_640, 0, Counter(HGMMA=4, UTMALDG=8), 0)


def compiled(program, tmp_path):
    """Run a program in which Triton compiles; what it prints, line by line."""
    env = {name: x for name, x in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, *program]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert not done.stderr, done.stderr[-2000:]
    return done.returncode, done.stdout.splitlines()


def test_the_variants_are_what_a_problem_can_ask_for():
    names = [str(v) for v in variants()]
    assert len(set(names)) == len(names) == 42
    assert {
        "forward",
        "forward bias cache entropy softcap",
        "kl_dlogits bias softcap",
        "merge entropy kl reference",
    } <= {*names}
    assert sum(v.tensor_cores for v in variants()) == 32


def test_what_is_wrong_is_named():
    assert faults(GOOD, tensor_cores=True) == []
    changed = {
        "spills: 16": _with(stack_bytes=16),
        "3 STL": _with(counts=GOOD.counts + Counter(STL=3)),
        "of 232448": _with(shared_bytes=SHARED_BYTES + 1),
        "no HGMMA": _with(counts=Counter(UTMALDG=8)),
        "no UTMALDG": _with(counts=Counter(HGMMA=4)),
        "2 HMMA": _with(counts=GOOD.counts + Counter(HMMA=2)),
        "64 FFMA": _with(loop_arithmetic=64),
    }
    for said, bad in changed.items():
        (found,) = faults(bad, tensor_cores=True)
        assert said in found
    assert faults(_with(counts=Counter(), loop_arithmetic=64), tensor_cores=False) == []


def test_a_process_that_interprets_does_not_compile():
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        report(Variant("forward"))


PROGRAM = """
import json, torch
from fullscale.kernels.contract import Tile
from fullscale.kernels.fused.compiling import Variant, faults, report
from fullscale.kernels.fused.tiling import Plan
whole = Plan(Tile(128, 256, 64), warps=8, stages=4)
for variant, how in [
    (Variant("forward", frozenset({"entropy"})), None),
    (Variant("forward", dtype=torch.float32), None),
    (Variant("kl_forward"), whole),
    (Variant("forward"), Plan(Tile(128, 256, 64), warps=8, stages=5)),
]:
    print(json.dumps(faults(report(variant, how), tensor_cores=True)))
"""


@pytest.mark.long
def test_the_gate_holds_and_can_fail(tmp_path):
    """The forward passes; float32 operands, two whole accumulators and a stage too many do not."""
    code, lines = compiled(["-c", PROGRAM], tmp_path)
    assert code == 0
    good, exact, spilled, large = map(json.loads, lines)
    assert good == []
    assert "no HGMMA" in exact
    assert any("in a main loop" in fault for fault in exact)
    assert any(fault.startswith("spills") for fault in spilled)
    assert any(f"of {SHARED_BYTES}" in fault for fault in large)


@pytest.mark.long
def test_every_variant_passes(tmp_path):
    code, lines = compiled(["-m", "fullscale.kernels.fused.compiling", "--json"], tmp_path)
    found = {line["variant"]: line for line in map(json.loads, lines)}
    assert len(found) == 42
    assert {name: line["faults"] for name, line in found.items() if line["faults"]} == {}
    assert code == 0
    assert found["forward entropy"]["counts"]["HGMMA"] > 0
    assert found["dlogits"]["counts"]["UTMASTG"] > 0


def _with(**changes):
    return Report(**{**vars(GOOD), **changes})


def test_float32_is_no_business_of_tensor_cores():
    assert not Variant("forward", dtype=torch.float32).tensor_cores
    assert Variant("forward").tensor_cores
    assert not Variant("merge").tensor_cores
