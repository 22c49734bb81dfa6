"""How much memory a step will take, from a model's shape alone: nothing is loaded and nothing is allocated.

The model is built of fake tensors, which have a size and no content, and its forward and backward are run on them while
what is alive is counted. So activations are those of this very model, with its attention, its checkpointing and its adapter.
What is the same everywhere is arithmetic: the optimiser's state, the head's workspace, the engine's cache.

Not counted: the interpreter and its libraries (half a gigabyte on a CPU, a CUDA context on a GPU), what a kernel needs
inside itself, and what an allocator loses. On a CPU under glibc the last is up to a quarter: it keeps freed blocks below
32 MiB in a heap with holes. With MALLOC_MMAP_THRESHOLD_=131072 in the environment it gives them back; then the peak of a
step at the size of SmolLM2 was within 6 % of the estimate, with checkpointing and without.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fullscale.model.halves import halves
from fullscale.model.live import LiveBytes

__all__ = ["Estimate", "Sampling", "Training", "estimate"]

Parts = dict[str, int]


@dataclass(frozen=True)
class Training:
    """One micro-batch of the learner, on one device."""

    rows: int
    """Episodes in it."""
    tokens: int
    """Tokens of the longest, to which all are padded."""
    scored: int | None = None
    """Tokens that reach the head, those that were sampled; None for all."""
    accumulated: bool = False
    """Whether an update has several micro-batches: gradients then stand beside the activations of the next."""
    optimiser_bytes: int = 8
    """Bytes of the optimiser's state a trained parameter: AdamW has two float32."""
    reference: bool = False
    """Whether a frozen copy of the weights stands beside them; an adapter's reference takes no memory."""
    keep: float = 0.0
    """Share of the logits kept for the backward, as in ``linear_logprob``."""
    autocast: torch.dtype | None = None
    """Dtype in which products are made, where it is not the weights' own."""


@dataclass(frozen=True)
class Sampling:
    """The in-process engine, on one device, when all its rows are as long as they may be."""

    rows: int
    """Most rows at a time."""
    tokens: int
    """Most tokens a row."""
    chunk_tokens: int = 2048
    """Most tokens read in one forward."""
    prefix_bytes: int = 2**28
    """Most bytes of prompts kept."""
    shared: bool = True
    """Whether it samples with the learner's own weights; else, and wherever those are spread, it has a copy."""
    element_bytes: int | None = None
    """Bytes of an element of that copy; None for as many as the learner's."""
    copies: int = 1
    """Copies there are, where it has one: a schedule may ask for older versions."""


@dataclass(frozen=True)
class Estimate:
    """Bytes by part and phase. Phases follow each other, so the peak is that of the largest; parts of one stand together."""

    standing: Parts
    """What is there all the time: weights, optimiser, reference."""
    training: Parts = field(default_factory=dict)
    """What forward and backward add, at their peak."""
    sampling: Parts = field(default_factory=dict)
    """What the engine adds."""

    @property
    def peak(self) -> int:
        """Return the most bytes at any time."""
        return sum(self.standing.values()) + max(sum(self.training.values()), sum(self.sampling.values()))

    def table(self) -> str:
        """Return a table of the parts, in MiB."""
        lines = []
        for title, parts in (("standing", self.standing), ("training", self.training), ("sampling", self.sampling)):
            if parts:
                lines.append(f"{title:<44}{_mib(sum(parts.values()))}")
                lines += [f"  {name:<42}{_mib(size)}" for name, size in parts.items()]
        lines.append(f"{'peak: standing and the larger of the others':<44}{_mib(self.peak)}")
        return "\n".join(lines)


def estimate(
    build: Callable[[], torch.nn.Module],
    training: Training | None = None,
    sampling: Sampling | None = None,
    ranks: int = 1,
) -> Estimate:
    """Return what a step of this model takes on one device.

    Parameters
    ----------
    build
        Makes the model as the learner has it, adapter and checkpointing included; called on the meta device.
        Parameters that want no gradient are not trained.
    training, sampling
        What the step consists of; a part left out is not counted.
    ranks
        Devices over which the learner's weights, gradients and optimiser are spread, layer by layer. What one of them holds
        of them at a time is then a share, and two layers, embedding and head whole.
    """
    with torch.device("meta"):
        model = build()
    with FakeTensorMode(allow_non_fake_inputs=True):
        _renewed(model)
        parameters = list(model.parameters())
        weights = sum(p.nbytes for p in parameters)
        standing = {"weights": -(-weights // ranks)}
        if ranks > 1:
            standing["layers while they are whole"] = _gathered(model, weights)
        trained: Parts = {}
        sampled: Parts = {}
        if training is not None:
            count = sum(p.numel() for p in parameters if p.requires_grad)
            standing["optimiser"] = -(-count * training.optimiser_bytes // ranks)
            if training.reference:
                standing["reference"] = -(-weights // ranks)
            gradients = sum(p.nbytes for p in parameters if p.requires_grad)
            if ranks > 1 and training.autocast is not None:  # layers are gathered in that dtype, and not cast again
                _renewed(halves(model).body, training.autocast)
                training = replace(training, autocast=None)
            trained = _training(model, training)
            trained["gradients"] = -(-gradients // ranks)
        if sampling is not None:
            if not sampling.shared or ranks > 1:
                size = parameters[0].element_size()
                one = weights // size * (sampling.element_bytes or size)
                standing["the engine's weights"] = sampling.copies * one
            sampled = _sampling(model, sampling)
    return Estimate(standing, trained, sampled)


def _renewed(whole: torch.nn.Module, dtype: torch.dtype | None = None) -> None:
    """Give a module new parameters and buffers of the same shapes, on a CPU; fake tensors cannot be moved in place.

    Parameters that were shared still are.
    """
    made: dict[Tensor, torch.nn.Parameter] = {}
    for module in whole.modules():
        for name, p in module._parameters.items():
            if p is not None:
                if p not in made:
                    like = torch.empty(p.shape, dtype=dtype or p.dtype, device="cpu")
                    made[p] = torch.nn.Parameter(like, requires_grad=p.requires_grad)
                module._parameters[name] = made[p]
        for name, b in module._buffers.items():
            if b is not None:
                module._buffers[name] = torch.empty(b.shape, dtype=b.dtype, device="cpu")


def _gathered(model: Any, weights: int) -> int:
    """Return the bytes of two layers and of all that is in none."""
    layers = max((list(m) for m in model.modules() if isinstance(m, torch.nn.ModuleList)), key=len)
    sizes = [sum(p.nbytes for p in layer.parameters()) for layer in layers]
    return 2 * max(sizes) + weights - sum(sizes)


def _training(model: Any, step: Training) -> Parts:
    """Run a forward and a backward and return what they add at their peak."""
    parts, wanted = halves(model), [p for p in model.parameters() if p.requires_grad]
    gradients = sum(p.nbytes for p in wanted)
    with LiveBytes() as live:
        if step.accumulated:
            for p in wanted:
                p.grad = torch.zeros_like(p)
        before = live.now
        ids = torch.zeros(step.rows, step.tokens, dtype=torch.int64)
        with torch.autocast("cpu", step.autocast or torch.bfloat16, enabled=step.autocast is not None):
            hidden = parts.body(input_ids=ids, use_cache=False).last_hidden_state
        scored = step.rows * step.tokens if step.scored is None else step.scored
        loss = _Head.apply(hidden.flatten(0, 1), parts.weight, scored, step.keep)
        kept = live.now - before
        loss.backward()
        peak = live.peak
    made = min(gradients, peak)
    return {
        "gradients": made,
        "activations and kept logits, beside gradients": min(kept, peak - made),
        "backward's workspace": max(0, peak - made - kept),
    }


class _Head(torch.autograd.Function):
    """Allocates what the chunked log-prob does, but for its buffers of a few megabytes."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, scored: int, keep: float) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.scored, ctx.logits = scored, hidden.new_zeros(int(scored * len(weight) * keep), dtype=torch.float32)
        rows = hidden[:scored].clone()
        return rows.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor | None, None, None]:  # noqa: ARG004
        hidden, weight = ctx.saved_tensors
        rows = hidden[: ctx.scored].clone()
        gradient = torch.zeros_like(rows, dtype=torch.float32)
        for_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        return torch.zeros_like(hidden).copy_(gradient.new_zeros(hidden.shape)), for_weight, None, None


def _sampling(model: Any, engine: Sampling) -> Parts:
    """Return what the engine adds: arithmetic, but for the forward of a chunk."""
    parts, config = halves(model), model.config.get_text_config(decoder=True)
    size, V = engine.element_bytes or parts.weight.element_size(), len(parts.weight)
    heads = config.num_key_value_heads or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    token = 2 * heads * width * size  # keys and values of a layer
    places = -(-engine.tokens // 64) * 64
    chunk = min(engine.chunk_tokens, engine.rows * engine.tokens)
    with LiveBytes() as live, torch.no_grad():
        parts.body(input_ids=torch.zeros(1, chunk, dtype=torch.int64), use_cache=False)
    reading = live.peak + places * (chunk * size + token)  # the mask, and a layer's keys and values gathered
    drawing = 5 * engine.rows * V * 4  # logits, log-probs, probabilities, their sums, and one on the way
    found = {
        "keys and values": engine.rows * places * token * config.num_hidden_layers,
        "prompts kept": engine.prefix_bytes,
        "reading a chunk, or drawing": max(reading, drawing),
    }
    if size < 4:
        found["head in float32"] = V * parts.weight.shape[1] * 4
    return found


def _mib(size: int) -> str:
    return f"{size / 2**20:>12,.0f} MiB"
