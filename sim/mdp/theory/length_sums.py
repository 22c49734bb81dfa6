"""What a normaliser makes of a rollout: the expectation of advantage x factor, given the rollout itself.

A factor that depends on the rollout's own length multiplies the expected advantage. One that depends on the total length
of a micro-batch does not: who succeeds is also quicker, so lengths and advantages of a group go together. There the joint
distribution of composition and total length of the group's other members in the micro-batch is a product of generating
functions in the length (discrete Fourier transforms: exact up to rounding), the members in other micro-batches bring their
composition only, and the other groups their total length only.
"""

from collections import Counter
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sim.learning.normalisers import (
    BatchMean,
    ConstantLength,
    MicrobatchMean,
    Normaliser,
    SequenceMean,
    TokenMean,
)
from sim.mdp.theory.credit_sums import Comparison, compositions, counted, multinomial
from sim.mdp.theory.ways import Ways

__all__ = ["Shares", "expected_terms", "micro_batches", "own_factor"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

Shares = tuple[int, tuple[tuple[int, int], ...]]
"""A micro-batch as one group sees it: how many of its own rollouts are in it, and (rollouts, number) of other groups."""


def expected_terms(
    part: Comparison, ways: Ways, probability: F64, normaliser: Normaliser, lengths: I64, prompts: int, group: int
) -> F64:
    """Return N x E[A_t x factor | the rollout goes this way] for every way and turn, [M, K]; N = prompts x group.

    Parameters
    ----------
    part
        One part of the advantage.
    ways, probability
        The ways and P(way | kind), [M].
    normaliser
        What the sum is divided by.
    lengths
        Length of each way, [M].
    prompts, group
        Q and G.

    Raises
    ------
    ValueError
        For a normaliser that this does not know.
    """
    if isinstance(normaliser, BatchMean | ConstantLength | SequenceMean):
        others = multinomial(compositions(group - 1, part.classes), part.class_probability(ways, probability))
        expected = np.einsum("hec,hc->he", part.value, others)
        factor = own_factor(normaliser, lengths)
        return part.at_turns(expected, ways.kind) * factor[:, None]
    total = np.zeros(part.entry.shape)
    own_length = np.unique(lengths, return_inverse=True)
    for shares, weight in micro_batches(_size(normaliser, prompts * group), prompts, group).items():
        expected = _over_total(part, ways, probability, lengths, own_length[0], group, shares)
        total += weight * part.at_turns(expected, ways.kind, own_length[1].reshape(-1))
    return total


def own_factor(normaliser: BatchMean | ConstantLength | SequenceMean, lengths: I64) -> F64:
    """Return N x the factor of a rollout of each length, [M]."""
    if isinstance(normaliser, SequenceMean):
        return 1.0 / lengths
    return np.full(len(lengths), 1 / normaliser.length if isinstance(normaliser, ConstantLength) else 1.0)


def _size(normaliser: Normaliser, rollouts: int) -> int:
    if isinstance(normaliser, TokenMean):
        return rollouts
    if isinstance(normaliser, MicrobatchMean):
        return min(normaliser.size, rollouts)
    raise ValueError(
        f"{type(normaliser).__name__}: there is no exact sum for this normaliser; it is known for BatchMean, "
        "ConstantLength, SequenceMean, TokenMean and MicrobatchMean"
    )


@lru_cache(maxsize=64)
def micro_batches(size: int, prompts: int, group: int) -> dict[Shares, float]:
    """Return how a batch falls into micro-batches of `size` rollouts: shares to (rollouts that see them) / (micro-batches).

    The last micro-batch may be smaller, and where `size` neither divides the group nor is a multiple of it micro-batches
    straddle groups.

    >>> micro_batches(4, 1, 6)  # two micro-batches, of four and of two rollouts of the one group
    {(4, ()): 2.0, (2, ()): 1.0}
    """
    rollouts = prompts * group
    starts = range(0, rollouts, size)
    found: Counter[Shares] = Counter()
    for start in starts:
        members = Counter(i // group for i in range(start, min(start + size, rollouts)))
        sizes = Counter(members.values())
        for own, number in sizes.items():
            rest = sizes - Counter([own])
            found[own, tuple(sorted(rest.items()))] += own * number
    return {shares: count / len(starts) for shares, count in found.items()}


def _over_total(
    part: Comparison, ways: Ways, probability: F64, lengths: I64, own: I64, group: int, shares: Shares
) -> F64:
    """Return E[A / total length of the micro-batch | kind, entry, own length], [H, E, number of own lengths]."""
    inside, others = shares
    X, longest = part.classes, int(lengths.max())
    chances = part.class_probability(ways, probability)
    here, away = compositions(inside - 1, X), compositions(group - inside, X)
    # E[A] over the members of the group in other micro-batches, [H, E, composition in this one]
    index = counted(here, away, compositions(group - 1, X))
    value = np.einsum("hecd,hd->hec", part.value[:, :, index], multinomial(away, chances))
    along = _joint(part, ways, probability, lengths, here)  # [H, composition, total length of the others in here]
    weight = np.einsum("hec,hcy->hey", value, along)
    beside = _other_groups(ways, probability, lengths, others)
    inverse = np.correlate(1.0 / np.arange(1, len(beside) + inside * longest), beside, "valid")  # at lengths 1, 2, ...
    return weight @ inverse[own - 1 + np.arange(weight.shape[-1])[:, None]]


def _joint(part: Comparison, ways: Ways, probability: F64, lengths: I64, counts: I64) -> F64:
    """Return P(composition and total length | kind) of the rollouts counted in `counts` [C, X], [H, C, Y]."""
    H, X, longest = len(ways.graph.share), part.classes, int(lengths.max())
    rollouts = int(counts[0].sum())
    size = rollouts * longest + 1
    place = (ways.kind * X + part.label) * (longest + 1) + lengths
    single = np.bincount(place, probability, H * X * (longest + 1)).reshape(H, X, longest + 1)
    # P(composition) is taken out and put back, so that what is transformed are distributions
    chance = single.sum(-1, keepdims=True)
    given = np.fft.rfft(single / np.where(chance > 0, chance, 1.0), max(size, longest + 1))
    product = np.ones((H, len(counts), given.shape[-1]), complex)
    for x in range(X):
        power = given[:, x, None] ** np.arange(rollouts + 1)[:, None]
        product *= power[:, counts[:, x]]
    found = np.fft.irfft(product, max(size, longest + 1))[..., :size]
    return found * multinomial(counts, chance[..., 0])[..., None]


def _other_groups(ways: Ways, probability: F64, lengths: I64, others: tuple[tuple[int, int], ...]) -> F64:
    """Return P(total length) of rollouts of other groups, [Y]; rollouts of one group share their kind."""
    longest = int(lengths.max())
    size = sum(rollouts * number for rollouts, number in others) * longest + 1
    H = len(ways.graph.share)
    single = np.bincount(ways.kind * (longest + 1) + lengths, probability, H * (longest + 1)).reshape(H, -1)
    width = size + longest + size % 2
    transform = np.fft.rfft(single, width)
    product = np.ones(transform.shape[-1], complex)
    for rollouts, number in others:
        product *= (ways.graph.share @ transform**rollouts) ** number
    return np.fft.irfft(product, width)[:size]
