"""The demonstrator: what a supervised start is taught, known exactly at every token.

It thinks in random fillers, decides by a table of probabilities, and writes what the decision calls for: the question when
it searches, the document's answer on evidence, its own knowledge out of nothing. Its *targets* are the distribution it
draws each token from, so a student can be taught the distribution and not a sample of it.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from minimodel.model.vocabulary import ANSWER, END, READ, SEARCH
from minimodel.tasks.environment import Environment, Episodes
from sim.mdp.compiled import CompiledGraph
from sim.records.config import config, near_misses

__all__ = ["Script", "decide", "turn_targets", "write"]

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_OTHERWISE = {"fresh_checked": "answer", "read": "answer", "passed": "answer", "rejected": "search", "failed": "search"}
"""What the script does where it does not choose: search with nothing in hand, answer on evidence."""


@config
class Script:
    """The habit that is demonstrated: search first, answer on evidence, search again after a failure."""

    guess: float = 0.03
    """P(answer | start), where the world lets one guess."""
    verify: float = 0.01
    """P(verify | fresh evidence), where there is a verify tool."""
    read: float = 0.01
    """P(read on | fresh evidence), where there is a read tool."""

    def __post_init__(self) -> None:
        for name in ("guess", "verify", "read"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must lie in [0, 1]: it is a probability")
        if self.verify + self.read > 1:
            raise ValueError(f"verify + read = {self.verify + self.read}: nothing is left for answering on evidence")

    def probabilities(self, graph: CompiledGraph) -> F64:
        """Return P(action | context), [C, A].

        Raises
        ------
        ValueError
            For a context that the script does not know (with near misses).
        """
        return np.array([self._in(graph, c) for c in range(len(graph.contexts))])

    def _in(self, graph: CompiledGraph, c: int) -> list[float]:
        name, offered = graph.contexts[c], [a for a, on in zip(graph.actions, graph.offered[c], strict=True) if on]
        rare: dict[str, float] = {}
        if name in {"start", "start_known", "start_unknown"}:
            usual, rare = "search", {"answer": self.guess}
        elif name == "fresh":
            usual, rare = "answer", {"verify": self.verify, "read": self.read}
        elif name in _OTHERWISE:
            usual = _OTHERWISE[name]
        else:
            raise ValueError(
                f"the script does not know the context {name!r}{near_misses(name, ['start', *_OTHERWISE])}"
            )
        rare = {action: p for action, p in rare.items() if action in offered}
        chance = {usual: 1 - sum(rare.values())} | rare
        return [chance.get(action, 0.0) for action in graph.actions]


@lru_cache(maxsize=64)
def _table(script: Script, graph: CompiledGraph) -> F64:
    return script.probabilities(graph)


def decide(script: Script, environment: Environment, episodes: Episodes, rows: I64) -> F64:
    """Return P(action) in the states that the episodes `rows` are in, [R, A]."""
    graph = environment.graph
    return _table(script, graph)[graph.context[episodes.node[rows]]]


def turn_targets(
    script: Script, environment: Environment, episodes: Episodes, rows: I64, action: I64
) -> NDArray[np.float32]:
    """Return the distribution that each token of a turn is drawn from, [R, written, V].

    That of the decision does not depend on `action` [R]; those of its arguments are given that it was taken. Tokens are
    independent of each other given the action.
    """
    task, R = environment.task, len(rows)
    F, v = task.thinking, task.vocabulary
    found = np.zeros((R, task.layout.written, v.size), np.float32)
    found[:, :F, v.first_filler : v.first_entity] = 1 / v.fillers
    found[:, F, list(task.decisions)] = decide(script, environment, episodes, rows)
    decision = np.array(task.decisions)[action]
    question, row = episodes.question[rows], np.arange(R)
    answers = _answers(environment, episodes, rows, decision == ANSWER)
    names = (decision != SEARCH) & (decision != READ)  # it names an answer
    found[names, F + 1, v.first_answer :] = answers[names]
    found[row[~names], F + 1, np.where(decision == READ, END, v.entity(environment.facts.entity[question]))[~names]] = 1
    found[row, F + 2, np.where(decision == SEARCH, v.relation(environment.facts.relation[question]), END)] = 1
    return found


def _answers(environment: Environment, episodes: Episodes, rows: I64, given: NDArray[np.bool_]) -> F64:
    """Return the distribution over answers, [R, answers]: the evidence, or what is known where there is none."""
    facts, n = environment.facts, environment.task.vocabulary.answers
    question, evidence, row = episodes.question[rows], episodes.evidence[rows], np.arange(len(rows))
    first = given & (episodes.node[rows] == environment.graph.initial[facts.kind[question]])
    recalls = first & facts.known[question]
    sure = np.where(recalls, environment.task.world.guess_known, 1 / n)
    found = np.repeat((1 - sure)[:, None] / (n - 1), n, 1)
    found[row, facts.answer[question]] = sure
    held = np.flatnonzero(evidence >= 0)
    found[held] = 0
    found[held, evidence[held]] = 1
    return found


def write(
    script: Script, environment: Environment, episodes: Episodes, rows: I64, uniforms: F32
) -> tuple[I64, NDArray[np.float32]]:
    """Return a turn drawn by inverse CDF, one uniform a token [R, written], and what it was drawn from.

    Returns
    -------
    ids
        Tokens, [R, written].
    targets
        Distributions, [R, written, V]; see :func:`turn_targets`.
    """
    task, F = environment.task, environment.task.thinking
    if uniforms.shape != (len(rows), task.layout.written):
        raise ValueError(
            f"uniforms have shape {uniforms.shape}; they must be (rows, tokens of a turn) = "
            f"{(len(rows), task.layout.written)}"
        )
    action = _draw(decide(script, environment, episodes, rows), uniforms[:, F])
    targets = turn_targets(script, environment, episodes, rows, action)
    ids = np.empty(uniforms.shape, np.int64)
    fillers = task.vocabulary.fillers
    ids[:, :F] = task.vocabulary.first_filler + (uniforms[:, :F].astype(np.float64) * fillers).astype(np.int64)
    ids[:, F] = np.array(task.decisions)[action]
    ids[:, F + 1 :] = targets[:, F + 1 :].argmax(-1)
    by_chance = np.flatnonzero(targets[:, F + 1].max(-1) < 1)  # an answer out of nothing; the rest is certain
    ids[by_chance, F + 1] = _draw(targets[by_chance, F + 1], uniforms[by_chance, F + 1])
    return ids, targets


def _draw(probability: NDArray[np.floating], u: F32) -> I64:
    """Return a choice from each row of [R, n] by inverse CDF; never one of probability 0."""
    total = np.cumsum(probability, -1, dtype=np.float64)
    return (total <= u[:, None].astype(np.float64) * total[:, -1:]).sum(-1)
