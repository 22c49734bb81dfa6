"""A language model as a function of tokens to per-token scalars: its body, then its head without logits."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fullscale.kernels import Head, linear_logprob
from fullscale.kernels.problem import Backend
from fullscale.model.halves import halves

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
    """

    def __init__(self, model: nn.Module, backend: str | Backend = "auto") -> None:
        super().__init__()
        self.model, self.backend = model, backend
        halves(model)  # refuses here what it cannot take apart

    def hidden(self, ids: Tensor) -> Tensor:
        """Return the last hidden states, [B, T, H]; entry i is what predicts token i + 1.

        Rows are padded on the right, where a causal model cannot look from earlier tokens, so no mask is needed.
        """
        found: Tensor = halves(self.model).body(input_ids=ids, use_cache=False).last_hidden_state
        return found

    def head(self) -> tuple[Tensor, Tensor | None]:
        """Return weight [V, H] and bias [V] of the head."""
        whole = halves(self.model)
        return whole.weight, whole.bias

    def forward(
        self,
        ids: Tensor,
        where: Tensor,
        temperature: float,
        asked: Asked,
        reference: tuple[Tensor, Tensor, Tensor | None] | None = None,
    ) -> Mapping[str, Tensor]:
        """Return "logp" and what else is asked for, [B, T] each, 0 where not in `where`.

        Parameters
        ----------
        ids
            [B, T], padded on the right.
        where
            Tokens whose scalars are wanted, [B, T], bool; never the first of a row, which nothing predicts.
        reference
            (hidden states [B, T, H'], weight, bias) of the reference.
        """
        B, T = ids.shape
        if bool(where[:, 0].any()):
            raise ValueError("the first token of a row is asked for; nothing predicts it")
        whole = halves(self.model)
        weight, bias = whole.weight, whole.bias
        rows = where[:, 1:].reshape(-1).nonzero()[:, 0]  # of the B x (T - 1) predictions
        states = self.hidden(ids)[:, :-1].reshape(B * (T - 1), -1)
        other = None
        if reference is not None:
            there, their_weight, their_bias = reference
            other = Head(there[:, :-1].reshape(B * (T - 1), -1), their_weight, their_bias)
        out = linear_logprob(
            states.to(weight.dtype),
            weight,
            ids[:, 1:].reshape(-1),
            rows=rows,
            temperature=temperature * whole.divisor,
            softcap=whole.softcap,
            bias=bias,
            need_entropy=asked.entropy,
            reference=other,
            need_kl=asked.kl,
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
        exact = next(self.parameters()).dtype == torch.float32
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
