"""Each objective written down, in plain numpy, and its expected gradient by enumeration of all ways a batch can come out.

Shares no code with the package: which sum is divided by what, and what a rollout is compared with. The task is
`tiny_graph`; rewards are 1, 0 and -1.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from sim.learning.credit import GreedyBaseline, GroupCredit, LeaveOneOut, LogPartition, NoBaseline, RunningBaseline
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.step_credit import RewardToGo, StateGroups

G = 3
L = 1.5
Z = (0.0, -1.0)  # log-odds of searching at the start and with a document in hand
GUESS, FOUND, SHARES, LIMIT_REWARD = (0.05, 0.15), (0.97, 0.9), (0.4, 0.6), -1.0  # as in `tiny_graph`


# --- the definition, by enumeration -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """One way a rollout can go."""

    probability: float
    score: tuple[tuple[float, float], tuple[float, float]]  # d log pi / dz of either turn
    turns: int
    tokens: int
    reward: float


def ways(kind: int) -> list[Way]:
    """All five, for one kind of question."""
    s, d = 1 / (1 + np.exp(-np.array(Z)))
    g, f = GUESS[kind], FOUND[kind]
    return [
        Way((1 - s) * g, ((-s, 0), (0, 0)), 1, 2, 1.0),
        Way((1 - s) * (1 - g), ((-s, 0), (0, 0)), 1, 2, 0.0),
        Way(s * (1 - d) * f, ((1 - s, 0), (0, -d)), 2, 5, 1.0),
        Way(s * (1 - d) * (1 - f), ((1 - s, 0), (0, -d)), 2, 5, 0.0),
        Way(s * d, ((1 - s, 0), (0, 1 - d)), 2, 6, LIMIT_REWARD),
    ]


class Outcomes(NamedTuple):
    """All M ways a batch can come out; N = Q * G rollouts, T = 2 turns."""

    probability: np.ndarray  # [M]
    score: np.ndarray  # [M, N, T, 2]
    turns: np.ndarray  # [M, N]
    tokens: np.ndarray  # [M, N]
    reward: np.ndarray  # [M, Q, G]
    kind: np.ndarray  # [M, Q]


@cache
def outcomes(Q: int) -> Outcomes:
    parts = []
    for kinds in itertools.product(range(2), repeat=Q):
        rollouts = [ways(kind) for kind in kinds for _ in range(G)]
        picks = np.array(list(itertools.product(range(5), repeat=Q * G)))

        def of(name: str, rollouts: list[list[Way]] = rollouts, picks: np.ndarray = picks) -> np.ndarray:
            return np.stack([np.array([getattr(w, name) for w in r])[picks[:, i]] for i, r in enumerate(rollouts)], 1)

        p = of("probability").prod(1) * np.prod([SHARES[kind] for kind in kinds])
        reward = of("reward").reshape(-1, Q, G)
        parts.append((p, of("score"), of("turns"), of("tokens"), reward, np.tile(kinds, (len(p), 1))))
    return Outcomes(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def values() -> np.ndarray:
    """Expected reward of each kind."""
    return np.array([sum(w.probability * w.reward for w in ways(kind)) for kind in range(2)])


def each(x: Outcomes, of_one: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
    """A = of_one(own rewards [M], rewards of the others [M, G - 1]) of every rollout, [M, N, T]."""
    M, Q, _ = x.reward.shape
    found = np.zeros((M, Q, G))
    for q, i in itertools.product(range(Q), range(G)):
        found[:, q, i] = of_one(x.reward[:, q, i], np.delete(x.reward[:, q], i, axis=1))
    return np.repeat(found.reshape(M, Q * G, 1), 2, axis=2)


def over(value: np.ndarray, sample: np.ndarray, ddof: int, equal: float) -> np.ndarray:
    """Divide by the standard deviation of a sample; where it is constant, multiply by `equal`."""
    sd = np.sqrt(((sample - sample.mean(1, keepdims=True)) ** 2).sum(1) / (sample.shape[1] - ddof))
    same = (sample == sample[:, :1]).all(1)
    return np.where(same, equal * value, value / np.where(same, 1.0, sd))


def centred(ddof: int | None, leave_one_out: bool = False) -> Callable[[Outcomes], np.ndarray]:
    """Reward minus the mean of the group (of the others, if left out), over the group's spread unless ddof is None."""

    def of_one(own: np.ndarray, others: np.ndarray) -> np.ndarray:
        group = np.concatenate([own[:, None], others], 1)
        value = own - (others if leave_one_out else group).mean(1)
        return value if ddof is None else over(value, group, ddof, 0.0)

    return lambda x: each(x, of_one)


def log_partition(tau: float) -> Callable[[Outcomes], np.ndarray]:
    def of_one(own: np.ndarray, others: np.ndarray) -> np.ndarray:
        group = np.concatenate([own[:, None], others], 1)
        return own - tau * np.log(np.exp(group / tau).mean(1))

    return lambda x: each(x, of_one)


def minus_the_value(x: Outcomes) -> np.ndarray:
    return each(x, lambda own, _: own - np.array(SHARES) @ values())


def minus_a_guess(x: Outcomes) -> np.ndarray:
    """Both actions are equally likely at the start, and the first of them is to answer."""
    value = x.reward - np.array(GUESS)[x.kind][..., None]
    return np.repeat(value.reshape(len(value), -1, 1), 2, axis=2)


def to_go(x: Outcomes, gamma: float) -> np.ndarray:
    """Discounted return from each turn on, [M, N, T]; 0 after the end."""
    left = x.turns[..., None] - 1 - np.arange(2)
    return np.where(left >= 0, gamma ** np.maximum(left, 0) * x.reward.reshape(*x.turns.shape, 1), 0.0)


def returns_to_go(gamma: float) -> Callable[[Outcomes], np.ndarray]:
    def credit(x: Outcomes) -> np.ndarray:
        value = to_go(x, gamma)
        group = value[..., 0].reshape(x.reward.shape).mean(-1)
        return value - np.repeat(group, G, axis=1)[..., None]

    return credit


def steps(episode: Callable[[Outcomes], np.ndarray], omega: float, gamma: float, ddof: int | None):
    """The credit of the episode, and each step among those of its group in its state: the start, or a document found."""

    def credit(x: Outcomes) -> np.ndarray:
        found, value = np.zeros_like(to_go(x, gamma)), to_go(x, gamma)
        for i, t in itertools.product(range(value.shape[1]), range(2)):
            first = i // G * G
            for there in itertools.product((False, True), repeat=G):
                rows = ((x.turns[:, first : first + G] > t) == there).all(1)
                met = first + np.flatnonzero(there)
                if rows.any() and i in met:
                    own, among = value[rows, i, t], value[rows][:, met, t]
                    surprise = own - among.mean(1)
                    spread = ddof is not None and len(met) > 1
                    found[rows, i, t] = over(surprise, among, ddof, 0.0) if spread else surprise
        return episode(x) + omega * found

    return credit


CREDITS = {
    "centred": GroupCredit(std=False),
    "std, ddof 1": GroupCredit(std=True, ddof=1),
    "std, ddof 0": GroupCredit(std=True, ddof=0),
}

DEFINITIONS = {
    "centred": (CREDITS["centred"], centred(None)),
    "std, ddof 1": (CREDITS["std, ddof 1"], centred(1)),
    "std, ddof 0": (CREDITS["std, ddof 0"], centred(0)),
    "leave one out": (LeaveOneOut(), centred(None, leave_one_out=True)),
    "leave one out, std": (
        LeaveOneOut(std=True, ddof=0),
        lambda x: each(x, lambda own, others: over(own - others.mean(1), others, 0, 1.0)),
    ),
    "no baseline": (NoBaseline(), lambda x: each(x, lambda own, _: own)),
    "running": (RunningBaseline(), minus_the_value),
    "greedy": (GreedyBaseline(), minus_a_guess),
    "log partition": (LogPartition(0.3), log_partition(0.3)),
    "to go": (RewardToGo(), returns_to_go(1.0)),
    "to go, gamma .8": (RewardToGo(0.8), returns_to_go(0.8)),
    "states": (StateGroups(GroupCredit(std=False), 0.7, 0.8, std=False), steps(centred(None), 0.7, 0.8, None)),
    "states, std": (StateGroups(GroupCredit(), 1.0, 0.9), steps(centred(1), 1.0, 0.9, 1)),
}
"""Name to (shipped, definition)."""


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


MUTATIONS = {f"{name}, left out": (credit.ddof if credit.std else None, True) for name, credit in CREDITS.items()}
"""Name to the arguments of `centred`: a baseline without the rollout itself, the spread of the whole group."""


@cache
def advantages(Q: int, credit: str) -> np.ndarray:
    definition = centred(*MUTATIONS[credit]) if credit in MUTATIONS else DEFINITIONS[credit][1]
    return definition(outcomes(Q))


@cache
def enumerated(Q: int, credit: str, normaliser: str, unit: str = "turn") -> np.ndarray:
    """The expected gradient by the definition, [2]."""
    x = outcomes(Q)
    terms = (advantages(Q, credit)[..., None] * x.score).sum(2)
    return x.probability @ normalisers(Q)[normaliser][1](terms, x.tokens if unit == "token" else x.turns)
