"""What a backend is given and what it returns: arrays that have been checked, rows that count and no others."""

from dataclasses import dataclass, fields, replace
from typing import Protocol, Self

from torch import Tensor

from fullscale.kernels.contract import Strip

__all__ = ["Backend", "Coefficients", "Gradients", "Head", "Kept", "Partials", "Problem", "Statistics", "Wanted"]


@dataclass(frozen=True, eq=False)
class Head:
    """A linear map from hidden states to logits: hidden @ weight.T + bias."""

    hidden: Tensor
    """[n, H]."""
    weight: Tensor
    """[V, H]; under a vocabulary split over ranks, this rank's rows of it."""
    bias: Tensor | None = None
    """[V]."""


@dataclass(frozen=True)
class Wanted:
    """Which scalars of a row are asked for beside its log-prob."""

    entropy: bool = False
    """Entropy, nats."""
    reference: bool = False
    """Log-prob of the target under the reference head."""
    kl: bool = False
    """Exact KL to the reference head, nats; takes both heads in one pass."""


@dataclass(frozen=True, eq=False)
class Problem:
    """n rows of one call, gathered and checked.

    The scaled logit of row i and column j is  z_ij = cap(hidden_i . weight_j + bias_j) / temperature_i  with
    cap(x) = softcap tanh(x / softcap), or x without a softcap.
    """

    head: Head
    """The policy's."""
    targets: Tensor
    """Columns of the whole vocabulary, [n], int64."""
    temperature: Tensor
    """[n], float32 (float64 in the reference)."""
    strips: tuple[Strip, ...]
    """What this rank holds of the vocabulary, in columns of the whole; ascending."""
    softcap: float | None = None
    """Largest |logit| before the temperature divides it."""
    reference: Head | None = None
    """Reference head, on the same rows and columns."""

    @property
    def rows(self) -> int:
        """Number of rows, n."""
        return self.targets.shape[0]

    @property
    def first(self) -> int:
        """Column of the whole vocabulary that the weight's row 0 is."""
        return self.strips[0].start if self.strips else 0

    def take(self, index: Tensor | slice) -> Self:
        """Return the problem of some of the rows, in that order."""
        kept = self.reference and replace(self.reference, hidden=self.reference.hidden[index])
        head = replace(self.head, hidden=self.head.hidden[index])
        return replace(
            self, head=head, targets=self.targets[index], temperature=self.temperature[index], reference=kept
        )


@dataclass(frozen=True, eq=False)
class Partials:
    """What the strips of a problem come to, [n, S] each, float32, in the units of the backend that made them.

    With z the scaled logits of a strip's columns and m their maximum:  mass = sum e^(z - m),
    moment = sum (z - m) e^(z - m),  cross = sum e^(z - m) ((z - m) - (r - m_r))  with r those of the reference. The
    shift by the maximum keeps the moment exact where the logits have a large common part.
    """

    top: Tensor
    """m."""
    mass: Tensor
    """s, at least 1."""
    target: Tensor
    """Scaled logit of the target where it is one of the strip's columns, else 0."""
    moment: Tensor | None = None
    """q; where the entropy is wanted."""
    reference_top: Tensor | None = None
    """m_r."""
    reference_mass: Tensor | None = None
    """s_r."""
    reference_target: Tensor | None = None
    """The reference's logit of the target."""
    cross: Tensor | None = None
    """a; where the KL is wanted."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """What a row comes to, [n] each, float32, nats."""

    top: Tensor
    """M, the largest scaled logit."""
    log_mass: Tensor
    """ln S = ln sum e^(z - M). The log-partition is kept in two parts, as (z - M) - ln S loses nothing to a large M."""
    logp: Tensor
    """Log-prob of the target."""
    entropy: Tensor | None = None
    """-sum p ln p."""
    reference_top: Tensor | None = None
    """M_r."""
    reference_log_mass: Tensor | None = None
    """ln S_r."""
    reference_logp: Tensor | None = None
    """Log-prob of the target under the reference."""
    kl: Tensor | None = None
    """sum p ln (p / p_r)."""

    @property
    def lse(self) -> Tensor:
        """Log-partition, [n]."""
        return self.top + self.log_mass

    def take(self, index: Tensor | slice) -> Self:
        """Return those of some of the rows."""
        return replace(self, **{f.name: x[index] for f in fields(self) if (x := getattr(self, f.name)) is not None})


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Derivative of the loss by each scalar of a row, [n] each, float32; None for all zero."""

    logp: Tensor | None
    """g."""
    entropy: Tensor | None = None
    """h."""
    kl: Tensor | None = None
    """k."""

    def active(self) -> Tensor | None:
        """Return the rows with any coefficient that is not 0, [n], bool; None where there is no coefficient at all."""
        found = None
        for x in (self.logp, self.entropy, self.kl):
            if x is not None:
                found = x != 0 if found is None else found | (x != 0)
        return found

    def take(self, index: Tensor | slice) -> Self:
        """Return those of some of the rows."""
        return replace(self, **{f.name: x[index] for f in fields(self) if (x := getattr(self, f.name)) is not None})


@dataclass(frozen=True, eq=False)
class Gradients:
    """Where a backend adds its gradients; None where nobody asks."""

    hidden: Tensor | None
    """[n, H], float32; added to."""
    weight: Tensor | None
    """[V, H] of this rank; added to if `accumulate`, else written, every row of it."""
    bias: Tensor | None
    """[V] of this rank, float32; added to."""
    accumulate: bool
    """Whether weight holds something already."""


class Kept(Protocol):
    """What a backend keeps from forward to backward; it knows of what."""

    def take(self, index: Tensor) -> Self:
        """Return what is kept of some of the rows, in that order."""
        ...


class Backend(Protocol):
    """One way to compute a problem. Every method leaves its inputs as they were."""

    name: str
    """How it is asked for."""

    def refusal(self, problem: Problem, *, strict: bool) -> str | None:
        """Return why this backend cannot do the problem, with the way out; None if it can."""
        ...

    def keeps(self, wanted: Wanted) -> bool:
        """Return whether it can keep anything that saves work in the backward of these scalars."""
        ...

    def partials(
        self, problem: Problem, wanted: Wanted, *, strict: bool, keep: float = 0.0
    ) -> tuple[Partials, "Kept | None"]:
        """Reduce every strip; also keep what saves the backward the recomputation of a share of them, n x V numbers at 1.

        A backend that cannot keep such a share raises ValueError.
        """
        ...

    def merge(self, partials: Partials) -> Statistics:
        """Merge strips in ascending order, whichever ranks they came from."""
        ...

    def gradients(
        self,
        problem: Problem,
        statistics: Statistics,
        coefficients: Coefficients,
        into: Gradients,
        *,
        strict: bool,
        cached: "Kept | None" = None,
    ) -> None:
        """Add the gradients of  sum_i g_i logp_i + h_i entropy_i + k_i kl_i  by hidden, weight and bias.

            dz_ij = [ g_i (j = t_i) - p_ij (g_i + h_i (ln p_ij + H_i) - k_i (ln p_ij - ln r_ij - kl_i)) ] / temperature_i

        times 1 - (capped logit / softcap)^2 where there is a softcap. `cached` is what `partials` kept, for the same rows.
        """
        ...
