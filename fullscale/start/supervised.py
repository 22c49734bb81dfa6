"""Teaching demonstrations: the mean cross-entropy of what the demonstrator wrote.

    loss of an update = - sum of log p(token) over what was written in it / number of those tokens

The sum is cut into micro-batches of similar length, each padded on the right, and always divided by the tokens of the whole
update, so that how it is cut changes memory and time but not the gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fullscale.agent.policy import LanguagePolicy
from fullscale.start.demonstrations import Demonstration
from fullscale.start.start import Start
from sim.records.rng import stream_key, uniforms

__all__ = ["Taught", "backward", "padded", "supervised"]

_STREAM = "fullscale/start"
_CLIP = 1.0  # largest norm of a gradient


@dataclass(frozen=True)
class Taught:
    """How a start went, update by update."""

    losses: tuple[float, ...]
    """Mean -log p of the tokens taught, before the update, nats a token."""
    norms: tuple[float, ...]
    """Norm of the gradient, before it was clipped to 1."""
    tokens: int
    """Tokens taught, every epoch counted."""
    read: int
    """Tokens that went through the model: those, prompts and observations; without padding."""


def supervised(
    policy: LanguagePolicy,
    demonstrations: Sequence[Demonstration],
    start: Start,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> Taught:
    """Teach `policy` the demonstrations, in place, and return how it went.

    Only parameters that want a gradient move: those of an adapter, where there is one.

    Parameters
    ----------
    seed
        Of the order, and of dropout where the model has any.
    progress
        Called as ``progress(done, total)`` after every update.

    Raises
    ------
    ValueError
        When there is nothing to teach, or nothing that can be taught.
    FloatingPointError
        When loss or gradient are not finite; the update is not made.
    """
    parameters = list(policy.parameters())
    _check(parameters, demonstrations)
    device, updates = parameters[0].device, list(_updates(demonstrations, start, seed))
    adam = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    losses, norms = [], []
    with _training(policy, seed, device):
        for update, batch in enumerate(updates):
            adam.param_groups[0]["lr"] = start.rate_at(update, len(updates))
            adam.zero_grad(set_to_none=True)
            loss = backward(policy, batch, start.micro)
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, _CLIP))
            if not np.isfinite([loss, norm]).all():
                raise FloatingPointError(
                    f"update {update} of {len(updates)}: the loss is {loss}, the norm of its gradient {norm}; lower the "
                    f"rate ({start.rate:g}), or look for demonstrations the model gives no probability"
                )
            adam.step()
            losses.append(loss)
            norms.append(norm)
            if progress is not None:
                progress(update + 1, len(updates))
    adam.zero_grad(set_to_none=True)
    taught, read = (start.epochs * sum(map(count, demonstrations)) for count in (_written, _length))
    return Taught(tuple(losses), tuple(norms), taught, read)


def backward(policy: LanguagePolicy, batch: Sequence[Demonstration], micro: int) -> float:
    """Add the gradient of the loss of one update to the parameters and return the loss, nats a token."""
    total, loss = sum(map(_written, batch)), 0.0
    by_length = sorted(batch, key=_length)
    for i in range(0, len(batch), micro):
        ids, written = padded(by_length[i : i + micro])
        part = -policy.scalars(ids, {"logp"}, where=written)["logp"].sum() / total
        part.backward()
        loss += float(part.detach())
    return loss


def padded(batch: Sequence[Demonstration]) -> tuple[Tensor, Tensor]:
    """Return ids [B, T] and whether each was written [B, T]; 0 and False beyond a demonstration's end."""
    T = max(map(_length, batch))
    ids, written = (
        np.stack([np.pad(getattr(each, name), (0, T - _length(each))) for each in batch]) for name in ("ids", "written")
    )
    return torch.from_numpy(ids), torch.from_numpy(written)


def _updates(demonstrations: Sequence[Demonstration], start: Start, seed: int) -> Iterator[list[Demonstration]]:
    """Yield the demonstrations of each update: in every epoch all of them, in another order."""
    for epoch in range(start.epochs):
        order = np.argsort(uniforms(seed, f"{_STREAM}/order", epoch, (len(demonstrations),)), kind="stable")
        for i in range(0, len(order), start.batch):
            yield [demonstrations[d] for d in order[i : i + start.batch]]


@contextmanager
def _training(policy: LanguagePolicy, seed: int, device: torch.device) -> Iterator[None]:
    """Run the model as it trains, with dropout and checkpointing where it has them, and leave it as it was."""
    before = [(module, module.training) for module in policy.scoring.modules()]
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed((stream_key(f"{_STREAM}/dropout") ^ seed) % 2**63)
        policy.scoring.train()
        try:
            yield
        finally:
            for module, mode in before:
                module.training = mode


def _check(parameters: Sequence[torch.nn.Parameter], demonstrations: Sequence[Demonstration]) -> None:
    if not parameters:
        raise ValueError("no parameter wants a gradient; call requires_grad_() on those that are to be taught")
    if not demonstrations:
        raise ValueError("there are no demonstrations to teach; give at least one")
    for each in demonstrations:
        if not each.written.any():
            raise ValueError(f"the demonstration of question {each.question.id!r} has no token that was written")


def _written(demonstration: Demonstration) -> int:
    return int(demonstration.written.sum())


def _length(demonstration: Demonstration) -> int:
    return len(demonstration.ids)
