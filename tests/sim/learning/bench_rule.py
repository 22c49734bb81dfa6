"""What the coefficients of a batch cost: 1,024 rollouts x 4,096 tokens in torch, after every forward of the network.

The peer is the least any trainer computes at that place, the forward of the plain PPO loss of the same size (clipped
surrogate, masked, summed, divided by the tokens), without gradients. What is fixed for the batch is part of neither:
advantages, normalisers, and the correction for the engine, which the first forward computes (``first`` has that one's
ratio). The target is for rules that see a token at a time; others are measured as well.

One thread, since threads that wait for a busy core count as work; and an allocator that keeps its memory, as GPUs have:
with glibc's own settings page faults make the peer four times slower, and how often they come is luck.
"""

import ctypes
import platform
from dataclasses import replace

import pytest

from sim.learning import family
from sim.learning.batch import Batch
from tests.measuring import cpu_ratio

torch = pytest.importorskip("torch")

Q, G, T = 128, 8, 4096
PEER = f"torch {torch.__version__}, forward of the plain PPO loss"
TARGET = 1.5


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        assert mallopt(-3, 1 << 30), "M_MMAP_THRESHOLD"
        assert mallopt(-1, 2**31 - 1), "M_TRIM_THRESHOLD"
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def batch():
    make = torch.Generator().manual_seed(0)
    mask = torch.arange(T) < torch.randint(200, T, (Q, G, 1), generator=make)
    behaviour = -torch.rand(Q, G, T, generator=make)
    near = [behaviour + 0.05 * torch.randn(Q, G, T, generator=make) for _ in range(3)]
    reward = (torch.rand(Q, G, generator=make) < 0.4).float()
    made = Batch(
        reward, mask, behaviour, proximal=near[0], reference=near[1], turn=torch.arange(T).expand(Q, G, T) // 1024,
        state=torch.zeros(Q, G, T, dtype=torch.int64), greedy_reward=reward[:, 0], duration_s=torch.ones(Q, G),
        process_reward=torch.zeros(Q, G, T),
    )  # fmt: skip
    return made, near[2]


@pytest.mark.parametrize("name", [n for n in family.__all__ if n not in ("gigpo", "minimax_forge")])
def bench_coefficients(benchmark, batch, name):
    b, logp = batch
    rule = getattr(family, name)()
    prepared = rule.prepare(b)
    sampled = b.mask.float()  # multiplying by a mask of bools would cost the peer five times as much
    tokens = sampled.sum()
    A = ((b.reward - b.reward.mean(1, keepdim=True)) / (b.reward.std(1, keepdim=True) + 1e-6))[..., None]

    @torch.no_grad()
    def ppo():
        ratio = torch.exp(logp - b.proximal)
        loss = -torch.minimum(ratio * A, torch.clamp(ratio, 0.8, 1.2) * A)
        return (loss * sampled).sum() / tokens

    @torch.no_grad()
    def ppo_with_kl():
        d = b.reference - logp
        kl = torch.exp(d) - 1 - d
        return ppo() + 0.001 * (kl * sampled).sum() / tokens

    @torch.no_grad()
    def ours():
        return rule.coefficients(prepared, logp).scalars

    @torch.no_grad()
    def first():
        return rule.coefficients(replace(prepared, fixed={}), logp).scalars

    ratio, cpu, peer = cpu_ratio(ours, ppo)
    held = rule.scope == "token"
    benchmark.extra_info |= {
        "peer": PEER, "ratio": round(ratio, 2), "target": TARGET if held else None, "scope": rule.scope,
        "met": ratio <= TARGET if held else None, "cpu_s": round(cpu, 3), "peer_cpu_s": round(peer, 3),
        "first": round(cpu_ratio(first, ppo)[0], 2),
    }  # fmt: skip
    if "reference" in rule.reads:
        benchmark.extra_info["against_a_loss_with_kl"] = round(cpu_ratio(ours, ppo_with_kl)[0], 2)
    benchmark.pedantic(ours, rounds=1)
