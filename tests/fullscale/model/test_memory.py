"""Estimates without a tensor, against tensors that are counted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fullscale.engine.local import LocalEngine
from fullscale.engine.protocol import Reply, Settings
from fullscale.kernels.linear_logprob import linear_logprob
from fullscale.model.halves import halves
from fullscale.model.live import LiveBytes
from fullscale.model.memory import Sampling, Training, estimate
from fullscale.model.network import checkpointed, shaped
from fullscale.model.tiny import tiny_config

CONFIG = tiny_config(vocabulary=3000, layers=3, width=128, tied=False)
STEP = Training(rows=4, tokens=96, scored=100)


def from_config(config: Any, dtype: torch.dtype = torch.float32, *, checkpointing: bool = False) -> Any:
    """What builds a network of this shape."""

    def build() -> Any:
        model = shaped(config, dtype)
        return checkpointed(model) if checkpointing else model.train()

    return build


def parameters() -> int:
    return sum(p.numel() for p in from_config(CONFIG)().parameters())


def measured(step: Training, **more: Any) -> int:
    """The most bytes that tensors of a forward and a backward hold, gradients included, beside weights."""
    model = from_config(CONFIG, **more)()
    parts = halves(model)
    scored = step.rows * step.tokens if step.scored is None else step.scored
    with LiveBytes() as live:
        for _ in range(2 if step.accumulated else 1):
            hidden = parts.body(
                input_ids=torch.ones(step.rows, step.tokens, dtype=torch.int64), use_cache=False
            ).last_hidden_state.flatten(0, 1)
            rows = torch.arange(scored)
            found = linear_logprob(hidden, parts.weight, torch.ones(len(hidden), dtype=torch.int64), rows=rows)
            found.logp.sum().backward()
            del hidden, found
    return live.peak


@pytest.mark.parametrize("step", [STEP, replace(STEP, accumulated=True), replace(STEP, rows=16, scored=None)])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_is_estimated_within_15_percent_of_what_tensors_hold(step: Training, checkpointing: bool) -> None:
    found = estimate(from_config(CONFIG, checkpointing=checkpointing), step)
    assert sum(found.training.values()) == pytest.approx(measured(step, checkpointing=checkpointing), rel=0.15)


def test_checkpointing_keeps_less_and_more_tokens_keep_more() -> None:
    def activations(rows: int, **more: Any) -> int:
        return sum(estimate(from_config(CONFIG, **more), replace(STEP, rows=rows)).training.values())

    assert activations(16, checkpointing=True) < 0.6 * activations(16)
    assert 1.7 < (activations(32) - activations(16)) / (activations(16) - activations(8)) < 2.3


def test_what_stands_all_the_time_is_arithmetic() -> None:
    n = parameters()
    found = estimate(from_config(CONFIG), replace(STEP, reference=True, optimiser_bytes=12)).standing
    assert found == {"weights": 4 * n, "optimiser": 12 * n, "reference": 4 * n}
    half = estimate(from_config(CONFIG, torch.bfloat16), STEP)
    assert half.standing == {"weights": 2 * n, "optimiser": 8 * n}
    assert half.training["gradients"] == 2 * n

    def adapted() -> torch.nn.Module:
        model = from_config(CONFIG)()
        for p in model.parameters():
            p.requires_grad_(p.ndim == 1)
        return model

    few = sum(p.numel() for p in adapted().parameters() if p.requires_grad)
    assert estimate(adapted, STEP).standing["optimiser"] == 8 * few
    assert estimate(adapted, STEP).training["gradients"] == 4 * few


def test_the_engine_is_estimated_within_15_percent_of_what_tensors_hold() -> None:
    model = from_config(CONFIG)().eval()
    engine = LocalEngine(lambda ids: "", [], rows=8, chunk_tokens=256, prefix_bytes=0)
    engine.publish(0, model)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(5, 3000, 250).tolist() for _ in range(12)]
    with LiveBytes() as live:
        engine.play(
            prompts, lambda rows, turns: [Reply(None)] * len(rows), Settings(1.0, 6, 256), lambda row, place: 0.4
        )
    assert live.peak > 4e6
    found = estimate(from_config(CONFIG), None, Sampling(rows=8, tokens=256, chunk_tokens=256, prefix_bytes=0))
    assert (
        found.sampling["keys and values"] == 8 * 256 * 2 * 4 * 16 * 3 * 4
    )  # rows, places, two, heads, D, layers, bytes
    assert sum(found.sampling.values()) == pytest.approx(live.peak, rel=0.15)
    other = estimate(from_config(CONFIG, torch.bfloat16), None, Sampling(rows=8, tokens=256, shared=False))
    assert other.sampling["head in float32"] == 3000 * 128 * 4
    assert other.standing["the engine's weights"] == 2 * parameters()


def test_the_peak_is_what_stands_and_the_larger_phase_and_the_table_says_so() -> None:
    found = estimate(from_config(CONFIG), STEP, Sampling(rows=8, tokens=64))
    train, sample = sum(found.training.values()), sum(found.sampling.values())
    assert found.peak == sum(found.standing.values()) + max(train, sample)
    lines = found.table().splitlines()
    assert lines[-1].split()[-2] == f"{found.peak / 2**20:,.0f}"
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "standing",
        "training",
        "sampling",
        "peak:",
    ]


def test_a_model_of_seven_billion_parameters_is_estimated_without_memory() -> None:
    from transformers import Qwen2Config

    config = Qwen2Config(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=2, num_attention_heads=28,
        num_key_value_heads=4, tie_word_embeddings=False,
    )  # fmt: skip
    found = estimate(from_config(config, torch.bfloat16, checkpointing=True), Training(2, 4096), Sampling(64, 4096))
    layer = 2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944 + 3584 + 2 * 512 + 2 * 3584
    assert found.standing["weights"] == 2 * (2 * layer + 2 * 152064 * 3584 + 3584)
