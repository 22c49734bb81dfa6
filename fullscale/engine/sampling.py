"""Drawing one token a row from logits, and noticing that a text has reached a stop string.

The temperature enters here as it does in the learner: it divides float32 logits, and no token is left out. A token is named
by its row's distribution and uniform alone (inverse CDF), so neither company nor order of service is part of its luck.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from minimodel.model.sampling import inverse_cdf

__all__ = ["Decode", "Drawn", "draw", "stop_reached"]

Decode = Callable[[Sequence[int]], str]
"""Ids -> text, special tokens as they are written, no space tidied."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """One token of each of R rows."""

    ids: Tensor
    """The tokens, [R], int64."""
    logp: Tensor
    """Their log-probs, nats, [R], float32."""
    entropy: Tensor
    """Entropy of the distributions they were drawn from, nats, [R], float32."""


def draw(logits: Tensor, temperature: float, uniforms: Tensor | None) -> Drawn:
    """Draw from softmax(logits / temperature).

    Parameters
    ----------
    logits
        [R, V], float32. A token at -inf is never drawn.
    temperature
        Above 0.
    uniforms
        In [0, 1), [R]; None for the likeliest tokens, of equals the first.

    Raises
    ------
    FloatingPointError
        Where a row has no distribution: NaN or +inf among its logits, or none above -inf.

    >>> drawn = draw(torch.tensor([[2.0, 1.0, 0.0]]), 0.6, torch.tensor([0.5]))
    >>> drawn.ids.item(), round(drawn.logp.item(), 4)
    (0, -0.2026)
    """
    logp = torch.log_softmax(logits.float() / temperature, -1)
    mass = logp.exp()
    entropy = -(mass * logp.clamp(min=torch.finfo(logp.dtype).min)).sum(-1)  # 0 where p is 0, not 0 x -inf
    if not bool(entropy.isfinite().all()):
        rows = (~entropy.isfinite()).nonzero()[:, 0].tolist()
        raise FloatingPointError(
            f"the logits of rows {rows} of a batch of {len(logits)} are no distribution: the weights, or an activation, "
            "have overflowed; look at the last update's gradient norm"
        )
    ids = logp.argmax(-1) if uniforms is None else inverse_cdf(logp, uniforms.to(logp))
    return Drawn(ids, logp.gather(-1, ids[:, None])[:, 0], entropy)


def stop_reached(decode: Decode, ids: Sequence[int], stops: Sequence[str]) -> str:
    """Return the stop string that the last token of `ids` completes, the earliest in the text; "" for none.

    Only as many of the last tokens are decoded as a stop string can span, so a turn costs time in proportion to its length.
    Characters of several bytes may be split over tokens at either end.

    >>> stop_reached(lambda ids: "".join(map(chr, ids)), [97, 60, 47, 115, 62], ["</s>", "</t>"])
    '</s>'
    """
    if not stops or not ids:
        return ""
    last = len(decode(ids[-1:]))
    span = max(map(len, stops)) + last + 3  # 3: a character cut at the front may read as three of no meaning
    size = span
    text = decode(ids[-size:])
    while len(text) < span and size < len(ids):  # characters of several tokens, and tokens without a text
        size *= 2
        text = decode(ids[-size:])
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1] if found else ""
