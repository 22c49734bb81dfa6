"""Complete training runs of language models; a variant is ``replace(smollm2_cpu(), {...})``.

:func:`smollm2_cpu` runs on a laptop, from packages alone. The others are for GPUs; their shapes stand here, so that they
can be built, counted and estimated without a download, and docs/gpu.md says what was run on hardware and what was not.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fullscale.agent.compaction import Compaction
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Data, Model, Sampler, Training
from fullscale.dialogue.prompt import Style
from fullscale.engine.servers import AtVllm
from fullscale.environment import Task
from fullscale.start.start import Start
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import AdamW
from minimodel.agent.schedule import Lag
from minimodel.tasks.script import Script
from sim.cluster.scheduling import Capacity, MaxStaleness, Order
from sim.learning.family import dapo, grpo, search_r1
from sim.learning.setup import Evaluation
from sim.mdp.worlds import ReadMore, Verify, World

__all__ = ["PRESETS", "deep_research_verify", "search_r1_qwen3_8b", "search_r1_qwen25_7b", "smollm2_cpu"]

QWEN25_7B: Mapping[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}
QWEN3_8B: Mapping[str, Any] = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
}


def smollm2_cpu() -> Training:
    """Return GRPO on SmolLM2-135M in a world of three turns, a wrong answer to be tried again: for two cores of a laptop.

    The supervised start searches first and guesses in 3 of 100 episodes, as the second rung's does.
    """
    return Training(
        task=Task(world=World(turns=3), documents=1, chunk_words=50),
        sampler=Sampler(turn_tokens=48, context_tokens=640, rows=64),
        start=Start(script=Script(guess=0.03), demonstrations=96, batch=4, micro=4, rate=2e-4),
        rule=grpo(kl=0.001),
        optimiser=AdamW(rate=2e-5),
        prompts=4,
        group=6,
        steps=25,
        micro=4,
        evaluation=Evaluation(every=12, prompts=48, group=1),
        watched=1,
        save_every=5,
        keep_rollouts=24,
    )


def search_r1_qwen25_7b() -> Training:
    """Return Search-R1's GRPO run of Qwen2.5-7B: 512 prompts x 5, two updates a batch, the first answer final.

    Source: PeterGriffinJin/Search-R1, ``train_grpo.sh`` v0.2 (rate, warm-up of 28.5 %, clip, KL, batch, group, steps, limits
    of tokens). Questions are its parquet file, the corpus its retrieval server's. Ours: a turn for the last answer is
    counted among the turns; the split; the evaluation's size.
    """
    return Training(
        task=Task(
            world=World(turns=5, wrong_answer_ends=True),
            documents=3,
            chunk_words=160,
            any_order=True,
        ),
        model=Model(source="Qwen/Qwen2.5-7B", shape=QWEN25_7B, products="bfloat16", checkpointing=True),
        data=Data(
            questions="data/nq_search/train.parquet",
            layout="search_r1",
            corpus="http://127.0.0.1:8000/retrieve",
            held_out=0.01,
        ),
        style=Style(system_role=False),
        sampler=Sampler(turn_tokens=500, context_tokens=4096, rows=64),
        rule=search_r1(microbatch=8),
        optimiser=AdamW(rate=1e-6, b2=0.999, decay=0.01, warmup=572),
        schedule=Lag(),
        prompts=512,
        group=5,
        steps=1005,
        minibatches=2,
        micro=32,
        bucket_tokens=256,
        evaluation=Evaluation(every=50, prompts=256, group=1),
        save_every=25,
        keep_rollouts=1004,
    )


def search_r1_qwen3_8b() -> Training:
    """Return the run of the published table's kind on Qwen3-8B: 128 prompts x 8, an answer may be tried again.

    Unequal clip bounds and no KL, thinking off, as torchtitan's Search-R1 example trains it; batch, group and turns are
    those of the published flip. Its lag is bounded: a step trains on what the policy of one step ago wrote, and the clip is
    on ratios to that.
    """
    return Training(
        task=Task(world=World(turns=4), documents=3, chunk_words=160),
        model=Model(source="Qwen/Qwen3-8B", shape=QWEN3_8B, products="bfloat16", checkpointing=True),
        data=Data(
            questions="data/nq_search/train.parquet",
            layout="search_r1",
            corpus="http://127.0.0.1:8000/retrieve",
            held_out=0.01,
        ),
        style=Style(thinking=False),
        sampler=Sampler(turn_tokens=500, context_tokens=4096, rows=32),
        rule=dapo(overlong=None),
        optimiser=AdamW(rate=1e-6, b2=0.999, warmup=10),
        schedule=Lag(1),
        prompts=128,
        group=8,
        steps=400,
        micro=32,
        bucket_tokens=256,
        monitor=None,
        evaluation=Evaluation(every=20, prompts=256, group=1),
        save_every=20,
        keep_rollouts=399,
    )


def deep_research_verify() -> Training:
    """Return long episodes with reading and a check, played beside the learner: where a habit to verify may come up.

    A vLLM server samples; twelve turns, contexts that are compacted, groups taken first in, first out within a window and
    dropped beyond four versions; an answer before any evidence earns nothing (the rule monitor). Values are ours.
    """
    return Training(
        task=Task(
            world=World(
                known=0.0, hit_unknown=0.4, wrong_answer_ends=True, turns=12, verify=Verify(), read_more=ReadMore()
            ),
            documents=3,
            chunk_words=160,
            any_order=True,
        ),
        model=Model(source="Qwen/Qwen3-8B", shape=QWEN3_8B, products="bfloat16", checkpointing=True),
        data=Data(
            questions="data/questions.jsonl",
            corpus="http://127.0.0.1:8000/retrieve",
            held_out=0.05,
        ),
        sampler=Sampler(
            turn_tokens=768,
            context_tokens=12288,
            server=AtVllm("http://127.0.0.1:8001", "Qwen/Qwen3-8B"),
            compaction=Compaction(at_tokens=8192),
        ),
        rule=grpo(kl=0.0),
        optimiser=AdamW(rate=1e-6, b2=0.999, warmup=10),
        schedule=Asynchronous(admission=Capacity(eta=1.0), order=Order(8), drop=MaxStaleness(4), workers=64),
        prompts=64,
        group=8,
        steps=400,
        micro=16,
        bucket_tokens=512,
        monitor=EvidenceFirst(),
        evaluation=Evaluation(every=20, prompts=128, group=1),
        save_every=20,
        keep_rollouts=399,
    )


PRESETS: dict[str, Callable[[], Training]] = {
    "smollm2_cpu": smollm2_cpu,
    "search_r1_qwen25_7b": search_r1_qwen25_7b,
    "search_r1_qwen3_8b": search_r1_qwen3_8b,
    "deep_research_verify": deep_research_verify,
}
"""The runs the command line knows by name."""
