"""The presets: networks that can be counted without being loaded, configs that survive being written down."""

import pytest
import torch

from fullscale.agent.estimating import build, estimated
from fullscale.agent.setup import Training
from fullscale.model import smollm2
from fullscale.presets import PRESETS, deep_research_verify, search_r1_qwen3_8b, search_r1_qwen25_7b, smollm2_cpu
from minimodel.agent.monitor import EvidenceFirst
from sim.records.config import canonical_json, from_dict, replace, to_dict

real = pytest.mark.skipif(smollm2.why_not() != "", reason=smollm2.why_not())
ON_GPUS = [name for name in PRESETS if name != "smollm2_cpu"]
CARD = 74.5 * 2**30
"""What is free on a card of 80 GB (10^9 bytes), B."""


def llama_like(V, H, inner, layers, keys, *, bias=0, norms_in_heads=0, tied=False):
    """Parameters of a decoder: q and o, k and v, three inner matrices, two norms; embedding, last norm, head."""
    layer = 2 * H * H + 2 * H * keys + 3 * H * inner + 2 * H + bias * (H + 2 * keys) + norms_in_heads
    return layers * layer + V * H * (1 if tied else 2) + H


QWEN25_7B = llama_like(152064, 3584, 18944, 28, 512, bias=1)
QWEN3_8B = llama_like(151936, 4096, 12288, 36, 1024, norms_in_heads=2 * 128)
SMOLLM2 = llama_like(49152, 576, 1536, 30, 192, tied=True)
COUNTS = {
    "smollm2_cpu": SMOLLM2,
    "search_r1_qwen25_7b": QWEN25_7B,
    "search_r1_qwen3_8b": QWEN3_8B,
    "deep_research_verify": QWEN3_8B,
}


def checkpoints(network):
    """Whether some layer keeps only its input."""
    return any(getattr(module, "gradient_checkpointing", False) for module in network.modules())


def test_the_counts_by_hand_are_those_that_are_published():
    assert (QWEN25_7B, QWEN3_8B, SMOLLM2) == (7_615_616_512, 8_190_735_360, 134_515_008)


@pytest.mark.parametrize("name", [pytest.param(n, marks=real if n == "smollm2_cpu" else ()) for n in PRESETS])
def test_a_preset_builds_on_the_meta_device(name):
    config = PRESETS[name]()
    with torch.device("meta"):
        network = build(config)
    assert {p.device.type for p in network.parameters()} == {"meta"}
    assert sum(p.numel() for p in network.parameters()) == COUNTS[name]
    assert checkpoints(network) == config.model.checkpointing


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_written_down_and_read_again(name):
    config = PRESETS[name]()
    assert from_dict(to_dict(config)) == config
    assert canonical_json(to_dict(from_dict(to_dict(config)))) == canonical_json(to_dict(config))
    other = replace(config, {"optimiser.rate": 0.125})
    assert from_dict(to_dict(other)).optimiser.rate == 0.125
    assert to_dict(other) != to_dict(config)


def test_presets_differ_and_are_called_by_their_names():
    assert len({canonical_json(to_dict(preset())) for preset in PRESETS.values()}) == len(PRESETS)
    assert {preset.__name__ for preset in PRESETS.values()} == set(PRESETS)


@pytest.mark.long
@pytest.mark.parametrize("name", ON_GPUS)
def test_eight_cards_of_80_gb_hold_a_step(name):
    config = PRESETS[name]()
    found = estimated(config, 8)
    assert found.peak < CARD
    assert found.standing["weights"] == -(-COUNTS[name] * 4 // 8)  # float32, an eighth
    assert found.standing["optimiser"] == -(-COUNTS[name] * 8 // 8)  # AdamW: two float32 a parameter
    assert found.standing["reference"] == found.standing["weights"]


@pytest.mark.long
def test_one_card_does_not():
    """A guard: the estimate can say no."""
    assert estimated(search_r1_qwen25_7b()).peak > CARD


@pytest.mark.parametrize("name", PRESETS)
def test_groups_are_played_side_by_side_only_where_something_serves_them(name):
    config = PRESETS[name]()
    workers = getattr(config.schedule, "workers", 1)
    assert workers == 1 or config.sampler.server is not None


# --- what each is said to be ------------------------------------------------------------------------------------------


def test_search_r1_is_search_r1():
    """Its script: 512 x 5, rate 1e-6, warm-up .285, two updates, 3 documents, 500 tokens a turn, KL .001, 1005 steps."""
    c = search_r1_qwen25_7b()
    assert (c.prompts, c.group, c.minibatches, c.steps) == (512, 5, 2, 1005)
    assert c.optimiser.rate == 1e-6
    assert c.optimiser.warmup == int(0.285 * c.steps * c.minibatches)  # 572 of 2010 updates
    assert c.task.documents == 3
    assert c.sampler.turn_tokens == 500
    assert c.data.layout == "search_r1"
    assert "reference" in c.rule.reads
    assert c.task.world.wrong_answer_ends


def test_the_laptops_run_is_one_of_a_laptop():
    c = smollm2_cpu()
    assert c.model.source == "smollm2"
    assert (c.data.questions, c.data.corpus) == ("geography", "wikipedia")
    assert c.start is not None
    assert c.keep_rollouts == c.steps - 1


def test_the_others_are_what_their_words_say():
    flip, verify = search_r1_qwen3_8b(), deep_research_verify()
    assert (flip.prompts, flip.group, flip.task.world.wrong_answer_ends, flip.reach) == (128, 8, False, 1)
    assert "reference" not in flip.rule.reads
    assert flip.style.thinking is False
    assert verify.task.world.turns == 12
    assert {"verify", "read"} <= set(verify.task.world.graph().actions)
    assert verify.sampler.compaction is not None
    assert verify.schedule.drop.bound == 4
    assert isinstance(verify.monitor, EvidenceFirst)
    assert all(isinstance(preset(), Training) for preset in PRESETS.values())
