"""The tiny transformer against two limits of the same machine, measured in the same run.

Training stands against matrix products: forward and backward of 256 episodes of four turns, against float32 products of
1024 x 1024 matrices for the same number of operations. Counted are, for L layers of width D, V words and n tokens read,

    forward = n (24 L D^2 + 2 D V) + 4 L D pairs,     forward and backward = 3 x forward:

two operations a weight (4 D^2 in attention's four matrices, 8 D^2 in the feedforward's two, D V in the head) and two each
for queries on keys and weights on values, of the pairs of positions that see each other. Norms, GELU, softmax, the
log-softmax over the words and embeddings are work that does not count.

Sampling stands against itself without a cache: every token from a forward over all that was read before.
"""

import numpy as np
import pytest
import torch

from minimodel.agent.engine import LocalEngine
from minimodel.agent.policy import TinyPolicy, log_probs
from minimodel.model.compiled import why_not
from minimodel.model.sampling import inverse_cdf
from minimodel.model.transformer import SIZES, Transformer
from minimodel.tasks.layout import OBSERVED, PROMPT
from minimodel.tasks.task import Task
from sim.records.rng import uniforms
from tests.measuring import at_least, cpu_ratio

EPISODES, TASK = 256, Task()
V, LAYOUT = TASK.vocabulary.size, TASK.layout


def network(size: str) -> Transformer:
    return Transformer(SIZES[size], V, LAYOUT.length(), generator=torch.Generator().manual_seed(0))


def operations(model: Transformer, rows: int, read: int) -> float:
    """Floating-point operations of forward and backward over rows of `read` tokens; see the module."""
    L, D, n, pairs = model.size.layers, model.size.width, rows * read, rows * read * (read + 1) / 2
    assert model.size.feedforward == 4
    return 3 * (n * (24 * L * D**2 + 2 * D * V) + 4 * L * D * pairs)


@pytest.mark.parametrize(("size", "share"), [("119k", 0.4), ("435k", 0.6)], ids=["width64", "width128"])
def bench_training(benchmark, size, share):
    """At least this share of the rate of matrix products."""
    policy = TinyPolicy(network(size))
    ids = torch.from_numpy((uniforms(0, "bench/ids", 0, (EPISODES, LAYOUT.length())) * V).astype(np.int64))
    coefficient = torch.from_numpy(uniforms(0, "bench/coefficient", 0, ids.shape))
    a, b = (torch.from_numpy(uniforms(0, f"bench/{name}", 0, (1024, 1024))) for name in "ab")

    def ours():
        for p in policy.parameters():
            p.grad = None
        (coefficient * policy.scalars(ids, {"logp"})["logp"]).sum().backward()

    ratio, seconds, peer = cpu_ratio(ours, lambda: [a @ b for _ in range(3)], rounds=15 if size == "435k" else 40)
    flops, product = (
        operations(policy.model, EPISODES, LAYOUT.length() - 1),
        3 * 2 * 1024.0**3,
    )  # the last predicts nothing
    benchmark.extra_info |= at_least(
        share, ratio * product / flops, f"torch {torch.__version__}, float32 products of 1024 x 1024, as many operations",
        share_of_products=round(flops / product / ratio, 3), target_share=share, cpu_ms=round(1e3 * seconds, 1),
        gflop=round(flops / 1e9, 2), gflop_per_s=round(flops / seconds / 1e9, 1),
        products_gflop_per_s=round(product / peer / 1e9, 1),
    )  # fmt: skip
    benchmark.pedantic(ours, rounds=1)


def play(compiled: bool, policy: TinyPolicy, prompts: np.ndarray, luck: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Tokens written in every turn, [turns, B, written]."""
    engine = LocalEngine(compiled=compiled)
    engine.publish(0, policy)
    talk, wrote = engine.open(prompts), []
    for k in range(LAYOUT.turns):
        wrote.append(talk.write(LAYOUT.written, luck[k], (TASK.thinking, TASK.decisions)).ids)
        talk.read(np.ones(len(prompts), np.bool_), seen[k])
    return np.stack(wrote)


@torch.inference_mode()
def recompute(policy: TinyPolicy, prompts: np.ndarray, luck: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The same, all positions anew for every token (the head at the last one alone), with what an engine notes of it."""
    model, ids, wrote = policy.model, torch.from_numpy(prompts), []
    for k in range(LAYOUT.turns):
        for i in range(LAYOUT.written):
            logp = log_probs(model.trunk.read(model.trunk.stream(ids)[:, -1]), policy.temperature)
            drawn = inverse_cdf(logp, torch.from_numpy(luck[k, i]))
            _ = logp.gather(-1, drawn[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
            ids = torch.cat([ids, drawn[:, None]], 1)
        wrote.append(ids[:, -LAYOUT.written :].numpy())
        ids = torch.cat([ids, torch.from_numpy(seen[k])], 1)
    return np.stack(wrote)


@pytest.mark.parametrize("compiled", [False, True], ids=["torch", "compiled"])
def bench_sampling(benchmark, compiled):
    """Four turns of 256 episodes, all of which go on to the end: 24 sampled tokens and 8 observed ones each."""
    if compiled and why_not():
        pytest.skip(why_not())
    policy = TinyPolicy(network("119k"))
    given = (uniforms(0, "bench/given", 0, (EPISODES, PROMPT + LAYOUT.turns * OBSERVED)) * V).astype(np.int64)
    prompts, seen = given[:, :PROMPT], given[:, PROMPT:].reshape(EPISODES, LAYOUT.turns, OBSERVED).swapaxes(0, 1)
    luck = uniforms(0, "bench/luck", 0, (LAYOUT.turns, LAYOUT.written, EPISODES))

    def ours():
        return play(compiled, policy, prompts, luck, seen)

    def peer():
        return recompute(policy, prompts, luck, seen)

    same = (ours() == peer()).all((0, 2)).mean()  # a sum in another order may turn a draw, and all that follows it
    assert same > 0.98
    ratio, seconds, _ = cpu_ratio(ours, peer)
    tokens = EPISODES * LAYOUT.turns * LAYOUT.written
    benchmark.extra_info |= at_least(
        5.0, ratio, f"torch {torch.__version__}, the same tokens without a cache", same_episodes=round(float(same), 4),
        cpu_ms=round(1e3 * seconds, 1), tokens_per_cpu_s=round(tokens / seconds, -2),
    )  # fmt: skip
    benchmark.pedantic(ours, rounds=1)
