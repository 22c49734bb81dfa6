"""A run on two processes: what one process does, checkpoints that go on, and what does not divide among them."""

import datetime as dt

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from fullscale.agent.setup import Adapter, Model
from minimodel.agent.optimiser import AdamW, Sgd
from minimodel.agent.schedule import Lag
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.rule import Rule
from sim.learning.setup import Evaluation
from sim.learning.weights import ppo_clip
from tests.fullscale.agent.small import MEASURED, begin, differing, model, parameters, taught, training

pytestmark = pytest.mark.long

RULE = Rule(GroupCredit(), ppo_clip(), TokenMean(), (EntropyBonus(0.05), KlPerState(0.1)))
"""Smooth where the ratio is 1: there rounding, which ranks do not share, would decide about a gate."""
SIZES = {"prompts": 3, "group": 3, "steps": 3, "rule": RULE, "optimiser": AdamW(1e-3)}
CONFIGS = {
    "synchronous": {"evaluation": Evaluation(every=2, prompts=1, group=1), "keep_rollouts": 2},
    "a lag": {"schedule": Lag(1), "micro": 2, "optimiser": Sgd(0.3)},
    "an adapter": {
        "optimiser": Sgd(0.3),
        "model": Model(source="tiny", adapter=Adapter(rank=2, targets=("q_proj", "up_proj"))),
    },
}


def config(name, **changes):
    return training(**SIZES | CONFIGS[name] | changes)


def run(number, world, folder, name, steps, place):
    """One process of a run; the first writes down its columns and weights."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/meet-{place}",
            rank=number,
            world_size=world,
            timeout=dt.timedelta(seconds=60),
        )
    network = model(scale=2.0)
    network.load_state_dict(torch.load(folder / "taught", weights_only=True))
    made = begin(config(name), folder / place, network=network)
    stop = made.config.steps if steps is None else steps

    def stopping(row):
        if row["step"] == stop:
            raise StopIteration

    try:
        columns = made.go(stopping)
    except StopIteration:
        columns = {}
    found = parameters(made) if columns else None
    if number == 0:
        torch.save({"columns": columns, "weights": found}, folder / f"{place}.pt")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def on(world, folder, name, place, steps=None):
    """Columns and weights of a run that goes on at `place`; with `steps`, one that is given up in the step after them."""
    (folder / place).mkdir(exist_ok=True)
    if not (folder / "taught").exists():
        torch.save(taught().state_dict(), folder / "taught")
    if world == 1:
        run(0, 1, folder, name, steps, place)
    else:
        mp.spawn(run, (world, folder, name, steps, place), nprocs=world)
        (folder / f"meet-{place}").unlink()
    return torch.load(folder / f"{place}.pt", weights_only=False)


@pytest.mark.parametrize("name", ["synchronous", "a lag"])
def test_two_processes_go_on_as_if_nothing_had_been(name, tmp_path):
    """To the bit."""
    whole = on(2, tmp_path, name, "whole")
    on(2, tmp_path, name, "cut", steps=1)
    rest = on(2, tmp_path, name, "cut")
    assert differing(rest["columns"], whole["columns"]) == []
    assert torch.equal(rest["weights"], whole["weights"])


@pytest.mark.parametrize("name", ["a lag", "an adapter"])
def test_one_process_and_two_agree(name, tmp_path):
    """But for the order of sums."""
    one, two = on(1, tmp_path, name, "one"), on(2, tmp_path, name, "two")
    start = parameters(begin(config(name), network=taught()))
    moved = (one["weights"] - start).norm()
    assert moved > 1e-2
    assert (two["weights"] - one["weights"]).norm() < 1e-4 * moved
    for column, values in one["columns"].items():
        if column.startswith(("behaviour/", "train/", "staleness/")) and column not in MEASURED:
            np.testing.assert_allclose(two["columns"][column], values, rtol=1e-4, err_msg=column)


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_another_number_of_processes(before, after, tmp_path):
    """No update is undone, none made twice: the optimiser's state and the weights are those that were saved."""
    name = "a lag"
    on(before, tmp_path, name, "cut", steps=1)
    rest, whole = on(after, tmp_path, name, "cut"), on(1, tmp_path, name, "whole")
    start = parameters(begin(config(name), network=taught()))
    assert rest["columns"]["step"].tolist() == [0, 1, 2]
    assert (rest["weights"] - whole["weights"]).norm() < 1e-4 * (whole["weights"] - start).norm()
