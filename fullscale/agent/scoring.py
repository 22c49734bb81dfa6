"""A language model as a function of tokens to per-token scalars: its body, then its head without logits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fullscale.kernels import Head, linear_logprob
from fullscale.kernels.problem import Backend
from fullscale.model.halves import Halves, halves

__all__ = ["Asked", "ScoringModel"]


@dataclass(frozen=True)
class Asked:
    """Which scalars of the tokens are wanted beside the log-prob."""

    entropy: bool = False
    """Entropy of the distribution a token was drawn from."""
    kl: bool = False
    """Exact KL to the reference there."""


class ScoringModel(nn.Module):
    """Body and head of a causal LM; its forward is what is sharded, checkpointed and differentiated.

    Parameters
    ----------
    model
        A Hugging Face causal LM. Under an adapter (peft) the adapted model.
    backend
        Of the head: as in `linear_logprob`.
    keep
        Share of the logits kept for the backward, as there.
    autocast
        Dtype of the body's matrix products where it is not that of the weights; None for that of the weights. The head is
        never cast: its logits are sums in float32 of the operands as they are stored.
    """

    def __init__(
        self,
        model: nn.Module,
        backend: str | Backend = "auto",
        *,
        keep: float = 0.0,
        autocast: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.model, self.backend, self.keep, self.autocast = model, backend, keep, autocast
        self.spread = False
        """Whether the weights are spread over several devices."""
        halves(model)  # refuses here what it cannot take apart

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states, [B, T, H]; entry i is what predicts token i + 1.

        Rows are padded on the right, where a causal model cannot look from earlier tokens, so no mask is needed.
        """
        with torch.autocast(ids.device.type, self.autocast, enabled=self.autocast is not None):
            found: Tensor = halves(self.model).body(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def states(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return hidden states [B, T, H], and weight [V, H] and bias [V] of the head: what a reference is known by."""
        found: tuple[Tensor, Tensor, Tensor | None] = self(ids)
        return found

    def forward(
        self,
        ids: Tensor,
        where: Tensor | None = None,
        temperature: float = 1.0,
        asked: Asked | None = None,
        reference: tuple[Tensor, Tensor, Tensor | None] | None = None,
    ) -> Any:
        """Return "logp" and what else is asked for, [B, T] each, 0 where not in `where`; without it, :meth:`states`.

        Under sharding the parameters are whole inside a forward only, so all that reads them goes through here.

        Parameters
        ----------
        ids
            [B, T], padded on the right.
        where
            Tokens whose scalars are wanted, [B, T], bool; never the first of a row, which nothing predicts.
        reference
            (hidden states [B, T, H'], weight, bias) of the reference.
        """
        whole = halves(self.model)
        weight, bias = whole.weight, whole.bias
        if where is None:
            hidden = self.hidden(ids)
            if not self.spread:
                return hidden, weight, bias
            return hidden, weight.clone(), None if bias is None else bias.clone()  # these are gone when this returns
        return self._scalars(ids, where, temperature, Asked() if asked is None else asked, reference, whole)

    def _scalars(
        self,
        ids: Tensor,
        where: Tensor,
        temperature: float,
        asked: Asked,
        reference: tuple[Tensor, Tensor, Tensor | None] | None,
        whole: Halves,
    ) -> Mapping[str, Tensor]:
        B, T = ids.shape
        if bool(where[:, 0].any()):
            raise ValueError("the first token of a row is asked for; nothing predicts it")
        rows = where[:, 1:].reshape(-1).nonzero()[:, 0]  # of the B x (T - 1) predictions
        states = self.hidden(ids)[:, :-1].reshape(B * (T - 1), -1)
        other = None
        if reference is not None:
            there, their_weight, their_bias = reference
            other = Head(there[:, :-1].reshape(B * (T - 1), -1), their_weight, their_bias)
        out = linear_logprob(
            states.to(whole.weight.dtype),
            whole.weight,
            ids[:, 1:].reshape(-1),
            rows=rows,
            temperature=temperature * whole.divisor,
            softcap=whole.softcap,
            bias=whole.bias,
            need_entropy=asked.entropy,
            reference=other,
            need_kl=asked.kl,
            keep=self.keep,
            backend=self.backend,
        )
        found = {"logp": out.logp, "entropy": out.entropy, "kl": out.kl, "reference_logp": out.reference_logp}
        return {name: _placed(x, rows, B, T) for name, x in found.items() if x is not None}

    @torch.no_grad()
    def check(self, ids: Tensor) -> float:
        """Return the largest difference between a log-prob by this head and by the model's own logits, nats.

        Raises
        ------
        ValueError
            When it is more than rounding can explain: the model does something to its logits that is not known here.
        """
        where = torch.ones_like(ids, dtype=torch.bool)
        where[:, 0] = False
        mine = self(ids, where, 1.0, Asked())["logp"][:, 1:]
        logits: Tensor = self.model(input_ids=ids, use_cache=False).logits.float()
        theirs = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
        gap = float((mine - theirs).abs().max())
        exact = next(self.parameters()).dtype == torch.float32 and self.autocast is None
        if not gap <= (1e-3 if exact else 0.25):  # their 16-bit logits are rounded, ours are not
            raise ValueError(
                f"{type(self.model).__name__} does something to its logits that is not known here: log-probs differ by "
                f"{gap:.3g} nats; teach fullscale.model.halves what it is"
            )
        return gap


def _placed(values: Tensor, rows: Tensor, B: int, T: int) -> Tensor:
    """Return values of predictions at the tokens predicted, [B, T]; 0 elsewhere."""
    flat = values.new_zeros(B * (T - 1)).index_put((rows,), values)
    return nn.functional.pad(flat.view(B, T - 1), (1, 0))
