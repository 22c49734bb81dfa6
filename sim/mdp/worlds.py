"""Worlds: the few quantities that matter, as one frozen record that every rung builds its task from.

The simulator builds a :class:`~sim.mdp.graph.ToolGraph`; the tiny transformer builds a synthetic fact base and a
token environment, and full scale a question set with a search tool, from the same record.

Questions come in kinds. A *known* one the model can answer without evidence; of an *unknown* one it cannot. A search
brings a document that holds the answer with a probability that belongs to the question. Among unknown questions this hit
rate varies as Beta(mean ``hit_unknown``, intra-class correlation ``icc``), which is replaced by its Gauss quadrature on
``unknown_kinds`` points: every moment up to 2 n - 1 is exact, so expectations over a group of 8 rollouts with up to two
searches each are exact at 9 points.
"""

from collections.abc import Callable
from dataclasses import replace

from sim.mdp.compiled import CompiledGraph
from sim.mdp.graph import ToolGraph
from sim.mdp.quadrature import beta_quadrature
from sim.records.config import config

__all__ = [
    "PRESETS",
    "SEED_A_HABIT",
    "Habit",
    "ReadMore",
    "Verify",
    "World",
    "beta_quadrature",
    "read_more_world",
    "seed_a",
    "verify_world",
]


@config
class Verify:
    """A tool that checks the answer in hand before it is given; one use an episode."""

    sensitivity: float = 0.95
    """P(pass | the evidence in hand holds the answer)."""
    specificity: float = 0.9
    """P(reject | it does not)."""
    hit_after_reject: float = 0.45
    """Hit rate of a search that follows a rejection."""

    def __post_init__(self) -> None:
        for name in ("sensitivity", "specificity", "hit_after_reject"):
            _probability(name, getattr(self, name))


@config
class ReadMore:
    """A tool that reads on in the document found, when the first chunk does not hold the answer."""

    hit: float = 0.4
    """P(a later chunk holds the answer | the first does not), whatever the question."""

    def __post_init__(self) -> None:
        _probability("hit", self.hit)


@config
class World:
    """Quantities of a question-answering task with tools; probabilities unless a unit is named."""

    known: float = 0.21
    """Share of questions whose answer the model knows beforehand (kappa)."""
    guess_known: float = 0.97
    """P(correct | answered at the start, known)."""
    guess_unknown: float = 0.005
    """P(correct | answered at the start, unknown)."""
    hit_known: float = 0.8
    """P(a first search finds the answer | known) (aK)."""
    retry_known: float = 0.5
    """Factor on `hit_known` once an answer has failed."""
    hit_unknown: float = 0.385
    """Mean P(a search finds the answer | unknown) (a1)."""
    icc: float = 0.5
    """Intra-class correlation of that hit rate between searches for one question."""
    unknown_kinds: int = 9
    """Quadrature points for the unknown questions; 1 where `icc` is 0."""
    anchoring: float = 0.5
    """Factor on the hit rate of unknown questions once a *guess* has failed (lambda_G)."""
    stale: float = 0.02
    """P(correct | answered again without new evidence)."""
    wrong_answer_ends: bool = False
    """Whether a wrong answer ends the episode (as in stock Search-R1) or may be retried (as in seed A's table)."""
    may_guess: bool = True
    """Whether the agent may answer at the start."""
    known_visible: bool = False
    """Whether the policy can tell known from unknown questions at the start."""
    turns: int = 4
    """Turn limit."""
    verify: Verify | None = None
    """The verify tool, if there is one."""
    read_more: ReadMore | None = None
    """The read-more tool, if there is one."""
    document_tokens: int = 500
    """Length of a search result, tokens."""
    search_median_s: float = 0.8
    """Median latency of a search, s (log-normal, sigma 0.6; ours)."""

    def __post_init__(self) -> None:
        for name in (
            "known",
            "guess_known",
            "guess_unknown",
            "hit_known",
            "retry_known",
            "hit_unknown",
            "icc",
            "stale",
        ):
            _probability(name, getattr(self, name))
        if not 0 <= self.anchoring <= 1:
            raise ValueError(f"anchoring = {self.anchoring} must lie in [0, 1]: it scales a probability")
        if self.turns < 1:
            raise ValueError(f"turns = {self.turns}; an episode needs at least 1")
        if self.unknown_kinds < 1 or (self.icc == 0 and self.unknown_kinds != 1):
            raise ValueError(
                f"unknown_kinds = {self.unknown_kinds} with icc = {self.icc}; use 1 where icc is 0, else >= 1"
            )
        if self.icc == 1:
            raise ValueError("icc = 1 leaves nothing to chance between searches; use a value below 1")

    def kinds(self) -> tuple[tuple[str, float, float], ...]:
        """Return (name, share, hit rate of a first search) of each kind of question; shares of 0 are left out."""
        rates, weights = beta_quadrature(self.hit_unknown, self.icc, self.unknown_kinds)
        unknown = [
            (f"unknown hit {rate:.3f}", (1 - self.known) * weight, rate)
            for rate, weight in zip(rates, weights, strict=True)
        ]
        every = [("known", self.known, self.hit_known), *unknown]
        return tuple(kind for kind in every if kind[1] > 0)

    def graph(self) -> ToolGraph:
        """Return the task as a tool graph."""
        from sim.mdp.building import graph_of  # it needs this module

        return graph_of(self)

    def refilled(self, like: "World") -> CompiledGraph:
        """Return this world's arrays on the structure of `like`'s: equal to ``graph().compiled()`` and much faster.

        For fits, which need thousands of worlds that differ in their probabilities only.

        Raises
        ------
        ValueError
            When the two differ in structure: number of kinds, places an episode can reach, or what can come back.
        """
        from sim.mdp.building import refill

        return refill(self, like)


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value} must lie in [0, 1]: it is a probability")


Habit = tuple[tuple[str, float], ...]
"""Log-odds of free logits by name."""

SEED_A_HABIT: Habit = (("start/answer", -4.14), ("fresh/answer", 4.85), ("failed/answer", -4.2))
"""Search at the start and after a failed answer, answer on fresh evidence: log-odds of seed A's table."""


def seed_a() -> World:
    """Return the world of seed A's table: search or answer, four turns, a wrong answer may be retried."""
    return World()


def verify_world() -> World:
    """Return a world where an answer is final and may be verified first; every question is searched for."""
    return World(
        known=0.0, hit_unknown=0.47, icc=0.0, unknown_kinds=1, wrong_answer_ends=True, may_guess=False, verify=Verify()
    )


def read_more_world() -> World:
    """Return seed A's world with documents that can be read further and a verify tool."""
    return replace(seed_a(), read_more=ReadMore(), verify=Verify(), turns=6)


PRESETS: dict[str, Callable[[], World]] = {
    "seed-a": seed_a,
    "seed-a-final": lambda: replace(seed_a(), wrong_answer_ends=True),
    "verify": verify_world,
    "read-more": read_more_world,
}
"""The worlds the command line knows by name."""
