"""A causal language model in two halves: a body that makes hidden states, and a linear head that makes logits of them.

Learner and engine need the head apart: the learner's kernel never holds the logits, and the engine wants those of one
position in float32 whatever the weights are stored in. Both then compute the same thing, logits = hidden . W^T in float32
from the operands as they are stored; a model's own forward would round them to its dtype (in bfloat16 a logit of 20 by .06).
"""

from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Halves", "halves"]


@dataclass(frozen=True, eq=False)
class Halves:
    """A model, taken apart; both halves share its parameters."""

    body: nn.Module
    """Ids -> hidden states, ``.last_hidden_state`` [B, T, H]."""
    weight: Tensor
    """The head's matrix, [V, H]; the embedding's own where the two are tied."""
    bias: Tensor | None
    """The head's bias, [V]."""
    softcap: float | None
    """Bounds the logits: softcap tanh(x / softcap). None for no bound."""
    divisor: float
    """Divides the bounded logits, beside any temperature."""
    cache: str
    """What the body calls its cache of keys and values."""

    def widened(self) -> "Halves":
        """Return the same with a head of float32 (float64 of float64), without gradient: a copy unless it is one."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.detach().to(wide)
        return replace(self, weight=self.weight.detach().to(wide), bias=bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states [..., H] in the head's dtype, [..., V]."""
        found = nn.functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias)
        if self.softcap is not None:
            found = self.softcap * torch.tanh(found / self.softcap)
        return found if self.divisor == 1 else found / self.divisor


def halves(model: Any) -> Halves:
    """Return the two halves of a Hugging Face causal LM, or of one inside a peft adapter.

    What the head does beside its matrix is read from the config: Gemma's bound, Granite's divisor, Cohere's factor.

    Raises
    ------
    TypeError
        For a head that is no plain matrix, or layers that do not all attend to everything before a token under a mask of
        ours.
    """
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model
    name, config = type(whole).__name__, whole.config.get_text_config(decoder=True)
    head, body = whole.get_output_embeddings(), whole.get_decoder()
    if type(head) is not nn.Linear:
        raise TypeError(
            f"the head of {name} is a {type(head).__name__}; it must be a plain Linear, so leave it out of an adapter"
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    window = None if kinds else getattr(config, "sliding_window", None)
    if kinds - {"full_attention"} or window is not None:
        raise TypeError(
            f"{name} has layers that do not attend to all that went before (layer types {sorted(kinds)}, sliding window "
            f"{window}); no mask is made for such here"
        )
    if config._attn_implementation not in ("sdpa", "eager"):
        raise TypeError(
            f"{name} attends by {config._attn_implementation!r}, which takes no mask of ours; load it with "
            "attn_implementation='sdpa'"
        )
    return Halves(
        body=body,
        weight=head.weight,
        bias=head.bias,
        softcap=getattr(config, "final_logit_softcapping", None),
        divisor=(getattr(config, "logits_scaling", None) or 1.0) / (getattr(config, "logit_scale", None) or 1.0),
        cache="cache" if "cache" in signature(body.forward).parameters else "past_key_values",
    )
