"""The log-prob part of a step at SmolLM2's size: the policy through the chunked head against logits in memory; and where a
step's time goes.

A body of SmolLM2-135M's width and vocabulary (random weights, a fifth of its layers, so that it is minutes), float32,
one thread, one episode of 1,024 tokens of which 30 % were sampled. The peer is what transformers itself does and trainers
are built on: the model's forward makes the logits of every token, a log-softmax and a gather follow, and tokens that do not
count are masked. Beside it the same peer given the sampled tokens' hidden states alone. Bodies are the same work in both, so
the head is measured by itself, forward and backward, and peak memory is that of a whole forward and backward.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

from fullscale.agent.scoring import Asked, ScoringModel
from fullscale.model.halves import halves
from minimodel.model.threads import one_thread
from tests.fullscale.kernels.peak import ENVIRONMENT, ROOT
from tests.measuring import at_least, cpu_ratio

TOKENS, SAMPLED, VOCABULARY = 1024, 0.3, 49_152
TIME, MEMORY = 0.5, 0.5
"""Largest share of the peer's: 30 % of the tokens at four thirds of the products is .4."""


def model() -> Any:
    torch.manual_seed(0)
    shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=6, head_dim=64, tie_word_embeddings=True, **shape)
    )


class Step:
    """One episode, and the coefficients of its tokens."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.model = model()
        self.scoring = ScoringModel(self.model, "chunked")
        self.ids = torch.randint(VOCABULARY, (1, TOKENS), generator=generator)
        self.where = torch.rand(1, TOKENS, generator=generator) < SAMPLED
        self.where[:, 0] = False
        self.g = torch.randn(1, TOKENS, generator=generator)

    def whole(self) -> None:
        """Forward and backward through body and chunked head."""
        self.model.zero_grad()
        logp = self.scoring(self.ids, self.where, 1.0, Asked())["logp"]
        (self.g * logp).sum().backward()

    def whole_peer(self) -> None:
        """Forward and backward through the model's own logits."""
        self.model.zero_grad()
        self._loss(self.model(input_ids=self.ids, use_cache=False).logits).backward()

    def _loss(self, logits: torch.Tensor) -> torch.Tensor:
        logp = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, self.ids[:, 1:, None])[..., 0]
        return (self.g[:, 1:] * logp * self.where[:, 1:]).sum()


class Heads(Step):
    """The same with the body's hidden states given."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.states = self.scoring.hidden(self.ids)
        self.weight = halves(self.model).weight

    def ours(self) -> tuple[torch.Tensor, torch.Tensor]:
        states, weight = self.leaves()
        scoring = ScoringModel(self.model, "chunked")
        scoring.hidden = lambda ids: states  # type: ignore[method-assign]
        found = scoring._scalars(self.ids, self.where, 1.0, Asked(), None, _with(halves(self.model), weight))
        (self.g * found["logp"]).sum().backward()
        return states.grad, weight.grad

    def peer(self) -> tuple[torch.Tensor, torch.Tensor]:
        states, weight = self.leaves()
        self._loss(states @ weight.T).backward()
        return states.grad, weight.grad

    def leaves(self) -> tuple[Any, Any]:
        return self.states.detach().requires_grad_(), self.weight.detach().requires_grad_()


def _with(whole: Any, weight: torch.Tensor) -> Any:
    from dataclasses import replace

    return replace(whole, weight=weight)


def peak(way: str) -> int:
    """Return the memory that a step takes beyond what stood before it, bytes, in a process of its own."""
    code = f"from tests.fullscale.bench_step import held; held({way!r})"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(run.stdout.splitlines()[-1]))


def held(way: str) -> None:
    """Print the bytes by which the high-water mark of this process rises in a step."""
    step = Step()

    def status(name: str) -> int:
        line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(name))
        return int(line.split()[1]) * 1024

    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    getattr(step, way)()
    sys.stdout.write(json.dumps(status("VmHWM") - before) + "\n")


def bench_log_prob_time(benchmark: Any) -> None:
    with one_thread():
        heads = Heads()
        for mine, theirs in zip(heads.ours(), heads.peer(), strict=True):
            assert (mine - theirs).abs().max() < 1e-5 * theirs.abs().max()
        ratio, seconds, peer = cpu_ratio(heads.ours, heads.peer, rounds=5)
        benchmark.extra_info |= at_least(
            1 / TIME, ratio, f"transformers {transformers.__version__} and torch {torch.__version__}, logits of all tokens",
            cpu_s=round(seconds, 3), peer_cpu_s=round(peer, 3), sampled=int(heads.where.sum()), tokens=TOKENS,
        )  # fmt: skip
        benchmark.pedantic(heads.ours, rounds=1)


def bench_log_prob_memory(benchmark: Any) -> None:
    ours, peer = peak("whole"), peak("whole_peer")
    benchmark.extra_info |= {
        "peer": f"transformers {transformers.__version__} and torch {torch.__version__}, logits of all tokens",
        "ratio": round(ours / peer, 3), "target": MEMORY, "met": ours <= MEMORY * peer,
        "mb": round(ours / 1e6, 1), "peer_mb": round(peer / 1e6, 1),
        "what": "memory beyond the weights in a forward and backward of body and head, gradients included",
    }  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


def bench_share_of_a_step(benchmark: Any, tmp_path: Path) -> None:
    """No peer: where the CPU time of a step goes, on the packaged model if it is here."""
    from fullscale.agent.run import Run
    from fullscale.model import smollm2
    from fullscale.presets import smollm2_cpu
    from sim.records.config import replace

    missing = smollm2.why_not()
    if missing:
        pytest.skip(missing)
    small = {"start": None, "prompts": 2, "group": 4, "steps": 1, "micro": 2, "evaluation": None, "keep_rollouts": None}
    with one_thread():
        run = Run(replace(smollm2_cpu(), small), 0, "bench", tmp_path)
        columns = run.go()
    total = sum(run.seconds.values())
    benchmark.extra_info |= {
        "peer": None, "ratio": None, "target": None, "met": None,
        "share": {part: round(s / total, 3) for part, s in sorted(run.seconds.items())},
        "cpu_s": round(total, 1), "episodes": 8, "tokens": float(columns["train/tokens"][0]),
    }  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)
