"""What a run will take, before anything is loaded: memory by part, from its config alone."""

from dataclasses import dataclass
from typing import Any

import torch

from fullscale.agent.setup import Training
from fullscale.model import memory
from fullscale.model.memory import Estimate
from fullscale.model.network import DTYPES, adapted, checkpointed, shape_of, shaped

__all__ = ["Hours", "build", "estimated", "hours"]


def build(config: Training) -> Any:
    """Return the run's network with random weights and its adapter; on the meta device, or of fakes, it takes no memory."""
    m = config.model
    network = shaped(shape_of(m.source, m.shape), DTYPES[m.dtype])
    if m.checkpointing:
        network = checkpointed(network)
    return network if m.adapter is None else adapted(network, m.adapter.rank, m.adapter.alpha, m.adapter.targets)


def estimated(config: Training, ranks: int = 1, tokens: int | None = None) -> Estimate:
    """Return what a step takes on one device.

    Parameters
    ----------
    ranks
        Devices.
    tokens
        Tokens of the longest episode; default: as many as the context may hold. An episode of several segments may have
        more.
    """
    c, s = config, config.sampler
    length = s.context_tokens if tokens is None else tokens
    largest = -(-c.prompts // (c.minibatches * c.micro)) * c.group  # episodes of a piece
    sampled = min(c.task.world.turns * s.turn_tokens, length)
    rows = -(-largest // ranks)
    training = memory.Training(
        rows=rows,
        tokens=length,
        scored=rows * sampled,
        accumulated=c.micro > 1,
        reference=c.model.adapter is None,
        keep=c.model.keep,
        autocast=None if c.model.products == c.model.dtype else torch.bfloat16,
    )
    sampling = None  # beside a server only the first rank's CPU holds a copy
    if s.server is None:
        each = -(-c.prompts // ranks) * c.group
        shared = c.live and ranks == 1
        sampling = memory.Sampling(
            rows=min(s.rows, each),
            tokens=length,
            chunk_tokens=s.chunk_tokens,
            prefix_bytes=0,
            shared=shared,
            copies=c.reach + 1,
            element_bytes=None if shared else DTYPES[c.model.products].itemsize,
        )
    return memory.estimate(lambda: build(config), training, sampling, ranks)


@dataclass(frozen=True)
class Hours:
    """GPU hours of a whole run, from counts of floating-point operations and two assumed speeds."""

    sampling: float
    """Writing episodes, those of evaluations included."""
    learning: float
    """Forward and backward of the updates, and what is scored beside them."""

    @property
    def total(self) -> float:
        """Both."""
        return self.sampling + self.learning


def hours(
    config: Training, tokens: int | None = None, *, learning_flops: float = 4e14, sampling_flops: float = 5e13
) -> Hours:
    """Return the GPU hours of a run: 2 N operations a token and forward, twice that for a backward; N parameters.

    Parameters
    ----------
    tokens
        Mean tokens of an episode; default: half of what the context may hold.
    learning_flops, sampling_flops
        Operations a second and GPU, assumed: two fifths of an H100's dense bfloat16 peak, and a twentieth of it, since
        sampling a token at a time is bounded by memory. Neither was measured here.
    """
    with torch.device("meta"):
        N = sum(p.numel() for p in build(config).parameters())
    c, length = config, config.sampler.context_tokens / 2 if tokens is None else tokens
    batch = c.prompts * c.group * length
    held_out = 0.0 if c.evaluation is None else c.evaluation.prompts * c.evaluation.group * length / c.evaluation.every
    passes = c.epochs * (4 if c.model.checkpointing else 3) + (c.proximal == "learner") + ("reference" in c.rule.reads)
    watched = 3 * c.watched / c.group  # before, reference, after
    return Hours(
        sampling=c.steps * 2 * N * (batch + held_out) / sampling_flops / 3600,
        learning=c.steps * 2 * N * batch * (passes + watched) / learning_flops / 3600,
    )
