"""The gradient the loop samples against the gradient written down: every credit with every normaliser.

The reference is an enumeration over all ways a batch can come out, in plain numpy, from the definition of each objective:
which sum is divided by what. It shares no code with the package. The sampled side is the loop's own pieces: ``draw``,
``rule_batch``, ``Rule.prepare``, ``Rule.coefficients`` and ``gradient``, on batches so small that micro-batches straddle
groups. The check must have teeth: the same check with one normaliser swapped for another, or with a leave-one-out
baseline, fails.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from sim.learning.credit import Advantage, GroupCredit
from sim.learning.lookup import Lookup
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.rule import Rule
from sim.learning.tabular import draw, gradient, rule_batch
from sim.mdp.policy import SoftmaxPolicy
from sim.mdp.sampling import Sampler
from sim.records.config import config
from sim.records.rng import BlockStream

G = 3
L = 1.5
BATCHES = {1: 150_000, 2: 90_000}  # enough for 1 % on the noisiest component
Z = (0.0, -1.0)  # log-odds of searching at the start and with a document in hand
GUESS, FOUND, SHARES, LIMIT_REWARD = (0.05, 0.15), (0.97, 0.9), (0.4, 0.6), -1.0  # as in `tiny_graph`


# --- the definition, by enumeration -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way a rollout can go."""

    probability: float
    score: tuple[float, float]  # d log P / dz
    turns: int
    tokens: int
    reward: float


def ways(kind: int) -> list[Way]:
    """All five, for one kind of question."""
    s, d = 1 / (1 + np.exp(-np.array(Z)))
    g, f = GUESS[kind], FOUND[kind]
    return [
        Way((1 - s) * g, (-s, 0), 1, 2, 1.0),
        Way((1 - s) * (1 - g), (-s, 0), 1, 2, 0.0),
        Way(s * (1 - d) * f, (1 - s, -d), 2, 5, 1.0),
        Way(s * (1 - d) * (1 - f), (1 - s, -d), 2, 5, 0.0),
        Way(s * d, (1 - s, 1 - d), 2, 6, LIMIT_REWARD),
    ]


@cache
def outcomes(Q: int) -> tuple[np.ndarray, ...]:
    """P [M], scores [M, Q * G, 2], turns and tokens [M, Q * G], rewards [M, Q, G] of all M ways a batch can come out."""
    parts = []
    for kinds in itertools.product(range(2), repeat=Q):
        rollouts = [ways(kind) for kind in kinds for _ in range(G)]
        picks = np.array(list(itertools.product(range(5), repeat=Q * G)))

        def of(name: str, rollouts: list[list[Way]] = rollouts, picks: np.ndarray = picks) -> np.ndarray:
            return np.stack([np.array([getattr(w, name) for w in r])[picks[:, i]] for i, r in enumerate(rollouts)], 1)

        p = of("probability").prod(1) * np.prod([SHARES[kind] for kind in kinds])
        parts.append((p, of("score"), of("turns"), of("tokens"), of("reward").reshape(-1, Q, G)))
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))


def advantages(reward: np.ndarray, std: bool, ddof: int, leave_one_out: bool = False) -> np.ndarray:
    """Reward minus the mean of the group (of the others, if left out), over the group's standard deviation if `std`."""
    M, Q, _ = reward.shape
    found = np.zeros_like(reward)
    for q, i in itertools.product(range(Q), range(G)):
        group = reward[:, q]
        others = np.delete(group, i, axis=1)
        found[:, q, i] = group[:, i] - (others if leave_one_out else group).mean(1)
        if std:
            sd = np.sqrt(((group - group.mean(1, keepdims=True)) ** 2).sum(1) / (G - ddof))
            equal = (group == group[:, :1]).all(1)
            found[:, q, i] = np.where(equal, 0.0, found[:, q, i] / np.where(equal, 1.0, sd))
    return found.reshape(M, Q * G)


# Each objective: terms [M, n, 2], one sum over the turns of a rollout, and lengths [M, n], to the batch's gradient [M, 2].


def token_mean(terms: np.ndarray, length: np.ndarray) -> np.ndarray:
    return terms.sum(1) / length.sum(1)[:, None]


def sequence_mean(terms: np.ndarray, length: np.ndarray) -> np.ndarray:
    return sum(terms[:, i] / length[:, i, None] for i in range(terms.shape[1])) / terms.shape[1]


def constant_length(terms: np.ndarray, length: np.ndarray) -> np.ndarray:
    return sum(terms[:, i] / L for i in range(terms.shape[1])) / terms.shape[1]


def batch_mean(terms: np.ndarray, length: np.ndarray) -> np.ndarray:
    return sum(terms[:, i] for i in range(terms.shape[1])) / terms.shape[1]


def microbatch_mean(size: int) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def mean_of_token_means(terms: np.ndarray, length: np.ndarray) -> np.ndarray:
        n = terms.shape[1]
        parts = [token_mean(terms[:, i : i + size], length[:, i : i + size]) for i in range(0, n, size)]
        return sum(parts) / len(parts)

    return mean_of_token_means


CREDITS = {
    "centred": GroupCredit(std=False),
    "std, ddof 1": GroupCredit(std=True, ddof=1),
    "std, ddof 0": GroupCredit(std=True, ddof=0),
}


def normalisers(Q: int) -> dict[str, tuple[object, Callable[[np.ndarray, np.ndarray], np.ndarray]]]:
    """Name to (shipped, definition)."""
    return {
        "TokenMean": (TokenMean(), token_mean),
        "SequenceMean": (SequenceMean(), sequence_mean),
        "ConstantLength": (ConstantLength(L), constant_length),
        "BatchMean": (BatchMean(), batch_mean),
        "MicrobatchMean(1)": (MicrobatchMean(1), microbatch_mean(1)),
        "MicrobatchMean(2)": (MicrobatchMean(2), microbatch_mean(2)),
        "MicrobatchMean(4)": (MicrobatchMean(4), microbatch_mean(4)),
        "MicrobatchMean(all)": (MicrobatchMean(Q * G), microbatch_mean(Q * G)),
    }


@cache
def enumerated(Q: int, credit: str, normaliser: str, unit: str = "turn", leave_one_out: bool = False) -> np.ndarray:
    """The expected gradient by the definition, [2]."""
    p, score, turns, tokens, reward = outcomes(Q)
    shipped = CREDITS[credit]
    A = advantages(reward, shipped.std, shipped.ddof, leave_one_out)
    per_batch = normalisers(Q)[normaliser][1](A[..., None] * score, tokens if unit == "token" else turns)
    return p @ per_batch


# --- the sampled side, by the loop's pieces ---------------------------------------------------------------------------


@config
class LeaveOneOut:
    """The mutation: a baseline without the rollout itself, G / (G - 1) times the shipped advantage."""

    inner: GroupCredit
    per: ClassVar[str] = "rollout"

    def __call__(self, batch):
        shipped = self.inner(batch)
        return Advantage(shipped.value * G / (G - 1), shipped.degenerate)


@pytest.fixture(scope="module")
def sampled(tiny):
    """(Q, credit, normaliser, unit) -> the gradient of each of many batches, [batches, 2]."""
    graph = tiny.compiled()
    policy = SoftmaxPolicy(graph, np.array(Z), np.eye(2))

    @cache
    def batch(Q, unit):
        seeds = tuple(range(BATCHES[Q]))
        streams = BlockStream(seeds, f"enumeration {Q}/question"), BlockStream(seeds, f"enumeration {Q}/turn")
        now = policy.tables(np.zeros((len(seeds), 2)))
        sampler = Sampler(graph)
        sample = draw(sampler, now, streams, step=0, prompts=Q, group=G)
        lookup = Lookup.of(sample, sampler.decisions)
        return now, lookup, rule_batch(sampler, sample, lookup, now, unit)

    @cache
    def gradients(Q, credit, normaliser, unit="turn"):
        now, lookup, b = batch(Q, unit)
        rule = Rule(credit=CREDITS.get(credit, credit), normaliser=normalisers(Q)[normaliser][0])
        return gradient(policy, now, now, lookup, rule.coefficients(rule.prepare(b), b.behaviour))

    return gradients


def p_value(samples: np.ndarray, exact: np.ndarray) -> float:
    """Chi-square of the sample mean against `exact` over the components."""
    off = samples.mean(0) - exact
    return float(stats.chi2.sf(off @ np.linalg.solve(np.cov(samples.T) / len(samples), off), len(exact)))


CASES = [(Q, credit, name) for Q in BATCHES for credit in CREDITS for name in normalisers(Q)]


def test_the_enumeration_is_complete():
    for Q in BATCHES:
        p, *_ = outcomes(Q)
        assert len(p) == 2**Q * 5 ** (Q * G)
        assert p.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("Q", "credit", "normaliser"), CASES)
def test_sampled_gradient_is_that_of_the_definition(sampled, Q, credit, normaliser):
    samples, exact = sampled(Q, credit, normaliser), enumerated(Q, credit, normaliser)
    assert np.abs(exact).min() > 0.02  # every component is there to be got wrong
    standard_error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert np.all(standard_error <= 0.01 * np.abs(exact))
    assert p_value(samples, exact) > 1e-3


@pytest.mark.parametrize("normaliser", normalisers(2))
def test_lengths_in_tokens(sampled, normaliser):
    samples = sampled(2, "std, ddof 1", normaliser, "token")
    assert p_value(samples, enumerated(2, "std, ddof 1", normaliser, "token")) > 1e-3
    if normaliser not in {"BatchMean", "ConstantLength"}:  # which do not look at lengths
        assert p_value(samples, enumerated(2, "std, ddof 1", normaliser, "turn")) < 1e-3


def same_objective(Q: int, one: str, other: str) -> bool:
    """Whether two names mean one objective at this batch size."""
    size = {"SequenceMean": 1, "MicrobatchMean(1)": 1, "MicrobatchMean(2)": 2, "MicrobatchMean(4)": min(4, Q * G)}
    size |= {"TokenMean": Q * G, "MicrobatchMean(all)": Q * G}
    return one == other or (one in size and size[one] == size.get(other))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("Q", BATCHES)
def test_the_check_fails_with_another_normaliser(sampled, Q, credit):
    names = list(normalisers(Q))
    swaps = [(a, b) for a, b in itertools.permutations(names, 2) if not same_objective(Q, a, b)]
    assert len(swaps) >= 44
    passed = [(a, b) for a, b in swaps if p_value(sampled(Q, credit, a), enumerated(Q, credit, b)) > 1e-3]
    assert passed == []


@pytest.mark.parametrize("Q", BATCHES)
def test_the_check_fails_with_another_credit(sampled, Q):
    for a, b in itertools.permutations(CREDITS, 2):
        assert p_value(sampled(Q, a, "TokenMean"), enumerated(Q, b, "TokenMean")) < 1e-3


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("Q", BATCHES)
def test_the_check_fails_with_a_leave_one_out_baseline(sampled, Q, credit):
    mutated = sampled(Q, LeaveOneOut(CREDITS[credit]), "BatchMean")
    assert p_value(mutated, enumerated(Q, credit, "BatchMean")) < 1e-3
    # ... and the mutation is what it says it is: against its own definition it passes.
    assert p_value(mutated, enumerated(Q, credit, "BatchMean", leave_one_out=True)) > 1e-3
