"""The memory of a step of the real model: what the operating system counts, against what was estimated beforehand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fullscale.agent.estimating import build
from fullscale.agent.setup import Model
from fullscale.model import smollm2
from fullscale.model.memory import Training, estimate
from tests.conftest import ROOT
from tests.fullscale.agent.small import training

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(smollm2.why_not() != "", reason=smollm2.why_not()),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak is read where Linux keeps it"),
]

STEP = Training(rows=4, tokens=300, scored=4 * 90)
"""Thirty percent of the tokens were sampled."""

PROGRAM = """
import json, sys
from pathlib import Path

import torch

from fullscale.agent.parts import policy_of
from fullscale.agent.setup import Model
from minimodel.agent.optimiser import AdamW

rows, tokens, scored, checkpointing = json.load(sys.stdin)
torch.set_num_threads(1)


def kib(field):
    (found,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(field + ":"))
    return int(found.split()[1])


def step(rows, tokens, scored):
    ids = torch.randint(1000, (rows, tokens), generator=torch.Generator().manual_seed(0))
    where = torch.zeros(rows, tokens, dtype=torch.bool)
    where[:, 1 : 1 + scored // rows] = True
    (-policy.scalars(ids, {"logp"}, None, where)["logp"].sum() / scored).backward()
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


before = kib("VmRSS")
policy, _ = policy_of(Model(checkpointing=checkpointing), 1.0)
optimiser = AdamW(1e-5).build(policy.parameters())
step(1, 4, 2)  # the optimiser has its state, the libraries their buffers
Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
step(rows, tokens, scored)
print(1024 * (kib("VmHWM") - before))
"""


def measured(checkpointing: bool) -> int:
    """The most bytes that a step takes beyond what the libraries do, in a process that hands back what it frees."""
    given = os.environ | {"PYTHONPATH": str(ROOT), "MALLOC_MMAP_THRESHOLD_": "131072", "OMP_NUM_THREADS": "1"}
    asked = json.dumps([STEP.rows, STEP.tokens, STEP.scored, checkpointing])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=asked, env=given, cwd=ROOT, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.splitlines()[-1])


def estimated(checkpointing: bool) -> int:
    config = training(model=Model(checkpointing=checkpointing))
    return estimate(lambda: build(config), STEP).peak


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_estimate_is_within_15_percent_of_the_measured_peak(checkpointing: bool) -> None:
    found, expected = measured(checkpointing), estimated(checkpointing)
    assert expected == pytest.approx(found, rel=0.15), f"{expected / found - 1:+.1%}"


def test_checkpointing_is_told_apart() -> None:
    """A guard: by the estimate the two differ by more than what the comparison forgives."""
    assert estimated(True) < 0.8 * estimated(False)
