"""The environment: many episodes at once, played in tokens on the tool graph of the world.

Truth is in the tokens. An answer is right if its token is the right answer's; a verify tool judges the candidate it is
given; a document holds the right answer after a hit and a wrong one, drawn uniformly, after a miss; a search for another
question than the one asked misses. What an action leads to, how often a search hits and what is offered come from the
compiled graph. Anything that is not an action the present context offers, written as :mod:`minimodel.tasks.layout` says,
is *invalid*: it is told so, a turn is used, nothing else changes.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from minimodel.model.vocabulary import (
    ANSWER,
    BOS,
    DOCUMENT,
    INVALID,
    NOTHING,
    PAD,
    PASS,
    QUESTION,
    READ,
    REJECT,
    SEARCH,
    VERIFY,
    WRONG,
)
from minimodel.tasks.facts import Facts
from minimodel.tasks.layout import PROMPT
from minimodel.tasks.tables import grammar, moves
from minimodel.tasks.task import Task, played_world
from sim.mdp.compiled import CompiledGraph
from sim.mdp.latency import quantiles_s
from sim.records.tables import Outcome

__all__ = ["DRAWS", "Environment", "Episodes", "Played"]

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

DRAWS = 3
"""Uniforms of a turn: does the action work, which wrong answer a document holds, how long it takes."""

_SEEN = {
    ANSWER: (WRONG, PAD),  # PAD: a right answer ends the episode, so nobody reads what comes back
    SEARCH: (DOCUMENT, DOCUMENT),
    READ: (DOCUMENT, DOCUMENT),
    VERIFY: (REJECT, PASS),
    -1: (INVALID, INVALID),
}
"""First token that comes back from each decision, if the action fails and if it works."""


@dataclass(eq=False)
class Episodes:
    """B episodes under way; :meth:`Environment.act` changes them."""

    question: I64
    """Question asked, [B]."""
    node: I64
    """Node of the tool graph, [B]."""
    turn: I64
    """Turns taken, [B]."""
    done: Flags
    """Whether the episode is over, [B]."""
    reward: F64
    """Reward, [B]; 0 until it is over."""
    outcome: I64
    """How it ended, a ``sim.records.tables.Outcome``, [B]; -1 until it is over."""
    searched: Flags
    """Whether a search was made, [B]."""
    guessed: Flags
    """Whether an answer was given before any search, [B]."""
    evidence: I64
    """Answer in hand, a number: the last document's or the candidate last verified, [B]; -1 for none."""
    draws: F32
    """Uniforms of every turn, [K, DRAWS, B]."""


@dataclass(frozen=True, eq=False)
class Played:
    """One turn of R episodes."""

    action: I64
    """What was done, an index into the graph's actions, [R]; -1 for an invalid action."""
    node: I64
    """Node before it, [R]."""
    context: I64
    """Context of that node, [R]."""
    correct: Flags
    """Whether an answer was given and was right, [R]."""
    observation: I64
    """Tokens that come back, [R, OBSERVED]."""
    done: Flags
    """Whether the episode is over, [R]."""
    latency_s: F64
    """Time the tool took, [R], s; 0 for an invalid action."""
    tool_tokens: I64
    """What the world says the observation costs, tokens, [R]; 0 for an invalid action."""


class Environment:
    """The environment of a task over a fact base.

    Parameters
    ----------
    task
        World, words, layout.
    facts
        What is asked; drawn for the kinds of the task's world.
    ends_on_guess
        Whether a wrong answer before any search ends the episode, whatever the world says of wrong answers. Then a guess
        takes one turn whether it is right or not.
    """

    def __init__(self, task: Task, facts: Facts, *, ends_on_guess: bool = False) -> None:
        world, v = played_world(task), task.vocabulary
        if len(facts.answer) != v.entities * v.relations or facts.answer.max() >= v.answers:
            raise ValueError(
                f"{len(facts.answer)} facts with answers up to {facts.answer.max()} do not fit {v.entities} entities x "
                f"{v.relations} relations and {v.answers} answers; draw them with this vocabulary"
            )
        graph = facts.graph(world)
        self.task, self.facts, self.ends_on_guess = task, facts, ends_on_guess
        self.graph: CompiledGraph = replace(graph, generated=np.where(graph.generated > 0, task.layout.written, 0))
        """The graph the episodes are played on: what `node`, `context` and `action` count."""
        self._grammar, self._moves = grammar(graph, v), moves(graph, world)
        self._entity, self._relation = v.entity(facts.entity), v.relation(facts.relation)
        self._seen = np.array([_SEEN[int(token)] for token in self._grammar.decision])

    def prompts(self, question: I64) -> I64:
        """Return the tokens that ask each question, [B, PROMPT]."""
        self._check_questions(question)
        prompt = np.empty((len(question), PROMPT), np.int64)
        prompt[:, 0], prompt[:, 1] = BOS, QUESTION
        prompt[:, 2], prompt[:, 3] = self._entity[question], self._relation[question]
        return prompt

    def begin(self, question: I64, draws: F32) -> Episodes:
        """Begin an episode on each question [B], with uniforms for all their turns, [K, DRAWS, B]."""
        self._check_questions(question)
        B, expected = len(question), (self.graph.turns, DRAWS, len(question))
        if draws.shape != expected:
            raise ValueError(
                f"draws have shape {draws.shape}; they must be (turns, draws a turn, episodes) = {expected}"
            )
        return Episodes(
            question=question.copy(),
            node=self.graph.initial[self.facts.kind[question]],
            turn=np.zeros(B, np.int64),
            done=np.zeros(B, np.bool_),
            reward=np.zeros(B),
            outcome=np.full(B, -1),
            searched=np.zeros(B, np.bool_),
            guessed=np.zeros(B, np.bool_),
            evidence=np.full(B, -1),
            draws=draws,
        )

    def act(self, episodes: Episodes, rows: I64, written: I64) -> Played:
        """Play one turn of the episodes `rows` [R], which wrote `written` [R, written]; the episodes move on.

        Raises
        ------
        ValueError
            When an episode is over or named twice, or the tokens are not those of a turn.
        """
        e, m = episodes, self._moves
        self._check_turn(e, rows, written)
        question, before = e.question[rows], e.node[rows]
        kind, right_answer = self.facts.kind[question], self.facts.answer[question]
        context, luck = self.graph.context[before], e.draws[e.turn[rows], :, rows]  # [R], [R, DRAWS]
        said = written[:, self.task.thinking :]  # decision, arguments
        action = self._grammar.actions(context, said)
        decision = self._grammar.decision[action]
        answers, searches, verifies = decision == ANSWER, decision == SEARCH, decision == VERIFY
        candidate = said[:, 1] - self.task.vocabulary.first_answer  # where one is named
        right = candidate == right_answer

        here = np.where(verifies, m.twin[before, right.astype(int)], before)
        asked = (said[:, 1] == self._entity[question]) & (said[:, 2] == self._relation[question])
        works = (luck[:, 0] < m.works[kind, here, action]) & (asked | ~searches)
        works = np.where(answers, right, works).astype(int)
        after = m.after[here, action, works]

        observation = np.full((len(rows), 2), NOTHING)
        observation[:, 0] = self._seen[action, works]
        shows = searches | (decision == READ)
        document = np.where(works == 1, right_answer, self._other(right_answer, luck[:, 1]))
        observation[shows, 1] = self.task.vocabulary.first_answer + document[shows]
        observation[answers & right, 1] = PAD
        holds = np.where(verifies, candidate, np.where(answers, -1, e.evidence[rows]))
        e.evidence[rows] = np.where(shows, document, holds)

        guesses = answers & ~e.searched[rows]
        e.guessed[rows] |= guesses
        e.searched[rows] |= searches
        done = self._end(e, rows, after, guesses & ~right)
        law = m.law[here, action]
        return Played(
            action=action,
            node=before,
            context=context,
            correct=answers & right,
            observation=observation,
            done=done,
            latency_s=self._latency_s(law, luck[:, 2]),
            tool_tokens=m.observed[here, action],
        )

    def _end(self, e: Episodes, rows: I64, after: I64, missed: Flags) -> Flags:
        """Move on to `after`; end what is over. `missed`: a guess that was wrong."""
        e.node[rows] = after
        e.turn[rows] += 1
        ended = (after >= self.graph.states) | (missed & self.ends_on_guess)
        done: Flags = ended | (e.turn[rows] == self.graph.turns)
        how = np.where(self.graph.solved[after], Outcome.SOLVED, np.where(ended, Outcome.WRONG, Outcome.TURN_LIMIT))
        e.done[rows] = done
        e.outcome[rows] = np.where(done, how, -1)
        e.reward[rows] = np.where(done, self.graph.reward[after], 0.0)
        return done

    def _other(self, right_answer: I64, u: F32) -> I64:
        """Return a wrong answer, uniform over all of them."""
        answers = self.task.vocabulary.answers
        step = 1 + np.minimum((u.astype(np.float64) * (answers - 1)).astype(np.int64), answers - 2)
        return (right_answer + step) % answers

    def _latency_s(self, law: I64, u: F32) -> F64:
        time = np.zeros(len(law))
        for i, each in enumerate(self._moves.laws[1:], 1):
            under = np.flatnonzero(law == i)
            if len(under):
                time[under] = quantiles_s(each, u[under])
        return time

    def _check_questions(self, question: I64) -> None:
        N = len(self.facts.answer)
        if question.size and not (question.min() >= 0 and question.max() < N):
            raise ValueError(f"questions run from {question.min()} to {question.max()}; there are 0 to {N - 1}")

    def _check_turn(self, e: Episodes, rows: I64, written: I64) -> None:
        expected = (len(rows), self.task.layout.written)
        if written.shape != expected:
            raise ValueError(f"written has shape {written.shape}; a turn is (rows, tokens sampled) = {expected}")
        if e.done[rows].any():
            over = rows[e.done[rows]].tolist()
            raise ValueError(f"episodes {over} are over; act on those where `episodes.done` is False")
        if np.bincount(rows, minlength=1).max() > 1:
            twice = np.flatnonzero(np.bincount(rows) > 1).tolist()
            raise ValueError(f"episodes {twice} are named twice; one turn at a time")
        size = self.task.vocabulary.size
        if written.size and not (written.min() >= 0 and written.max() < size):
            raise ValueError(
                f"tokens run from {written.min()} to {written.max()}; ids of the vocabulary are 0 to {size - 1}"
            )
