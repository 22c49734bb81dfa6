"""What a run will take: operations by hand, bytes by hand, and what changes which."""

from dataclasses import replace

import pytest
import torch

from fullscale.agent.estimating import build, estimated, hours
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Adapter, Model, Sampler
from fullscale.engine.servers import OwnLlama
from fullscale.model.tiny import tiny_tokenizer
from minimodel.agent.schedule import Lag
from sim.learning.family import grpo
from sim.learning.setup import Evaluation
from tests.fullscale.agent.small import training

V = len(tiny_tokenizer())
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
"""q and o, k and v of two heads of 16, the inner matrices, two norms."""
N = 4 * LAYER + V * 64 + 64
"""Parameters of the tiny model; the head is the embedding."""


def tiny(**changes):
    model = changes.pop("model", {})
    return training(
        **({"model": Model(source="tiny", **model), "prompts": 6, "group": 4, "evaluation": None} | changes)
    )


def test_the_network_is_the_runs():
    with torch.device("meta"):
        plain = build(tiny())
        adapted = build(tiny(model={"adapter": Adapter(rank=2, targets=("q_proj", "v_proj"))}))
        half = build(tiny(model={"dtype": "bfloat16", "products": "bfloat16", "checkpointing": True}))
    assert sum(p.numel() for p in plain.parameters()) == N
    assert all(p.requires_grad for p in plain.parameters())
    wants = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert wants == 4 * 2 * ((64 + 64) + (64 + 32))  # layers, rank, in and out of each
    assert sum(p.numel() for p in adapted.parameters()) == N + wants
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}
    assert any(getattr(module, "gradient_checkpointing", False) for module in half.modules())


# --- hours ------------------------------------------------------------------------------------------------------------


def test_hours_by_hand():
    """10 steps of 4 x 2 episodes of 100 tokens, every fifth with 3 more; a reference, two passes, half a group watched."""
    c = tiny(
        prompts=4,
        group=2,
        steps=10,
        epochs=2,
        minibatches=2,
        rule=grpo(kl=0.001),
        watched=1,
        evaluation=Evaluation(every=5, prompts=3, group=1),
    )
    found = hours(c, 100, learning_flops=1e9, sampling_flops=1e6)
    assert found.sampling == pytest.approx(10 * 2 * N * (800 + 300 / 5) / 1e6 / 3600)
    # forward 2 N, backward 4 N, twice; the reference 2 N; watched: before, reference and after, for one of two
    assert found.learning == pytest.approx(10 * 800 * (2 * 6 * N + 2 * N + 3 * 2 * N / 2) / 1e9 / 3600)
    assert found.total == found.sampling + found.learning > 0


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"model": {"checkpointing": True}}, 1.0),
        ({"proximal": "learner"}, 1.0),
        ({"rule": grpo(kl=0.5)}, 1.0),
        ({"epochs": 2}, 3.0),
        ({"watched": 3}, 1.5),
        ({"minibatches": 2}, 0.0),
        ({"micro": 3}, 0.0),
        ({"evaluation": Evaluation(every=1, prompts=6, group=4)}, 0.0),
    ],
)
def test_what_adds_how_many_forwards(changes, more):
    """A forward of the whole batch is 2 N operations a token; learning has three of them and one and a half to watch two of
    four."""
    base = hours(tiny(watched=1), 100)
    forward = base.learning / (3 + 3 * 1 / 4)
    assert hours(tiny(**({"watched": 1} | changes)), 100).learning - base.learning == pytest.approx(more * forward)


def test_hours_go_with_steps_tokens_and_evaluations():
    base = hours(tiny(), 100)
    assert hours(tiny(steps=6), 100).total == pytest.approx(2 * base.total)
    assert hours(tiny(), 300).total == pytest.approx(3 * base.total)
    assert hours(tiny(sampler=Sampler(turn_tokens=16, context_tokens=200))).total == pytest.approx(base.total)
    looked = hours(tiny(evaluation=Evaluation(every=1, prompts=6, group=4)), 100)
    assert looked.sampling == pytest.approx(2 * base.sampling)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_what_stands_all_the_time():
    found = estimated(tiny())
    assert found.standing == {"weights": 4 * N, "optimiser": 8 * N, "reference": 4 * N}
    assert found.training["gradients"] == 4 * N
    assert found.sampling["prompts kept"] == 0
    lora = estimated(tiny(model={"adapter": Adapter(rank=2, targets=("q_proj",))})).standing
    assert lora == {"weights": 4 * (N + 4 * 2 * 128), "optimiser": 8 * 4 * 2 * 128}


def test_the_largest_piece_of_an_update_counts():
    """5 questions in two minibatches: one of 3, which is 12 episodes; in pieces of one question, 4."""
    whole = estimated(tiny(prompts=5, minibatches=2), tokens=128)
    same = estimated(tiny(prompts=3), tokens=128)
    assert whole.training == same.training
    pieces = estimated(tiny(prompts=5, micro=5), tokens=128)
    assert sum(pieces.training.values()) < 0.6 * sum(whole.training.values())


def test_keys_and_values_are_those_of_the_rows_at_a_time():
    room = Sampler(turn_tokens=16, context_tokens=640, rows=5)
    token = 2 * 2 * 16 * 4 * 4  # both, heads, width, bytes, layers
    assert estimated(tiny(sampler=room)).sampling["keys and values"] == 5 * 640 * token
    few = replace(room, rows=500)
    assert estimated(tiny(sampler=few)).sampling["keys and values"] == 24 * 640 * token  # no more than are played
    assert estimated(tiny(sampler=few), ranks=4).sampling["keys and values"] == 2 * 4 * 640 * token


def test_a_server_of_its_own_takes_no_memory_here():
    found = estimated(tiny(sampler=Sampler(server=OwnLlama())))
    assert found.sampling == {}
    assert "the engine's weights" not in found.standing


@pytest.mark.parametrize("schedule", [Lag(1), Lag(3), Asynchronous()])
def test_weights_of_earlier_versions_are_held(schedule):
    """A run keeps every version that its schedule may ask for: of each, weights in the dtype of the products."""
    held = estimated(tiny(schedule=schedule)).standing
    assert held["the engine's weights"] >= (schedule.reach + 1) * 4 * N
    assert "the engine's weights" not in estimated(tiny()).standing


def test_more_ranks_hold_shares():
    one, four = estimated(tiny(), tokens=256), estimated(tiny(), ranks=4, tokens=256)
    assert four.standing["weights"] == -(-one.standing["weights"] // 4)
    assert four.standing["optimiser"] == -(-one.standing["optimiser"] // 4)
    assert four.standing["layers while they are whole"] == 4 * (2 * LAYER + V * 64 + 64)
    assert four.standing["the engine's weights"] >= 4 * N
    assert sum(four.training.values()) < 0.6 * sum(one.training.values())


def test_longer_episodes_take_more():
    short, long = (sum(estimated(tiny(), tokens=n).training.values()) for n in (128, 512))
    assert 2 < long / short < 20
