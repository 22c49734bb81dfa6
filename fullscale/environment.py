"""The environment: episodes of text on real questions and a real search, built from the simulator's world.

The world says what there is (turns, which tools, whether a wrong answer ends the episode, whether the agent may guess, how
reliable the check is) and where each action is offered; its hit rates and what the model knows beforehand are predictions
here, which the retriever and the model make true or not. Contexts have the names of the world's tool graph, so what is
measured by context at one rung can be compared at another.

Anything that is not an action offered is *invalid*: the agent is told so, a turn is used, nothing else changes. A tool that
fails after its last attempt ends the episode as an infrastructure failure, which has no reward. The environment knows
nothing of tokens: what the agent's context holds, and what is compacted in it, is the business of those who call.

An action is a tag (:data:`fullscale.dialogue.tags.ARGUMENT`) and a handler: the call it makes, which runs beside those of
other episodes, and what its result does to the episode.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullscale.dialogue.tags import Written, documents, information, invalid_text, parse, stops
from fullscale.tools.checker import passes
from fullscale.tools.reading import chunks
from fullscale.tools.toolbox import Call, Reply, Toolbox
from fullscale.world.exact_match import exact_match, holds
from fullscale.world.passages import Passage
from fullscale.world.questions import Question
from fullscale.world.retriever import Retriever
from sim.mdp.worlds import World
from sim.records.config import config
from sim.records.tables import Outcome

__all__ = ["Environment", "Episode", "Step", "Task"]


@config
class Task:
    """What a language model is trained on; the world is the simulator's own."""

    world: World = World()
    """Tools, turn limit, rules."""
    documents: int = 3
    """Passages a search shows."""
    chunk_words: int = 120
    """Words of each that it shows, and that reading on adds."""
    any_order: bool = False
    """Whether every tool may be used at any time; else where the world's tool graph offers it. A check is had once."""

    def __post_init__(self) -> None:
        for name in ("documents", "chunk_words"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.world.known_visible:
            raise ValueError("known_visible = True: nobody can show a language model which questions it knows")


@dataclass(eq=False)
class Episode:
    """An attempt at a question; :meth:`Environment.act` changes it."""

    question: Question
    """What is asked."""
    luck: Sequence[float]
    """Uniforms that decide what the check says, one for each turn; empty where there is no check."""
    context: str = "start"
    """Where it stands: a context of the world's tool graph."""
    turn: int = 0
    """Turns taken."""
    done: bool = False
    """Whether it is over."""
    reward: float = 0.0
    """Reward; 0 until it is over, NaN where the infrastructure failed."""
    outcome: Outcome = Outcome.NOT_RECORDED
    """How it ended; NOT_RECORDED until it has."""
    searched: bool = False
    """Whether a search was made."""
    guessed: bool = False
    """Whether an answer was given before any search."""
    checked: bool = False
    """Whether a candidate was verified."""
    documents: tuple[Passage, ...] = ()
    """What the last search found, best first; the first is the one that is read on in."""
    pieces: int = 0
    """Pieces of it that were shown."""
    candidate: str = ""
    """Answer that was last verified or given."""
    hit: bool = False
    """Whether the evidence in hand, what was shown since the last search, names a gold answer."""

    def stop(self, outcome: Outcome, reward: float) -> None:
        """End the episode."""
        self.done, self.outcome, self.reward = True, outcome, reward


@dataclass(frozen=True)
class Step:
    """One turn of an episode."""

    action: int
    """What was done, an index into ``Environment.actions``; -1 for an invalid action."""
    observation: str
    """What the agent reads next; empty when the episode is over."""
    done: bool
    """Whether it is."""
    correct: bool
    """Whether an answer was given and was right."""
    latency_s: float
    """Time the tool took, s; 0 for an invalid action."""
    failed: bool
    """Whether the tool failed."""
    context: int
    """Where the turn was taken, an index into ``Environment.contexts``."""
    hit: bool
    """Whether the evidence in hand after it names a gold answer."""
    written: Written
    """What the agent wrote, and why it was invalid."""
    reason: str = ""
    """Why the tool failed."""


class Environment:
    """Plays episodes; see the module.

    Parameters
    ----------
    task
        World and sizes.
    retriever
        What a search asks.
    toolbox
        What runs the tools; default: one with the default patience.
    grade
        Whether a text answers a question: exact match, or a judge. Called from several threads.
    ends_on_guess
        Whether a wrong answer before any search ends the episode, whatever the world says of wrong answers.
    """

    def __init__(
        self,
        task: Task,
        retriever: Retriever,
        toolbox: Toolbox | None = None,
        *,
        grade: Callable[[Question, str], bool] = lambda question, answer: exact_match(answer, question.answers),
        ends_on_guess: bool = False,
    ) -> None:
        graph = task.world.graph()
        self.task, self.retriever, self.grade, self.ends_on_guess = task, retriever, grade, ends_on_guess
        self.toolbox = Toolbox() if toolbox is None else toolbox
        self.actions, self.contexts = graph.actions, graph.contexts
        self.stop = stops(self.actions)
        """Texts at which a turn is over."""
        self._offered = {context: graph.actions_in(context) for context in graph.contexts}
        self._ask: dict[str, Callable[[Episode, str], Callable[[], Any]]] = {
            "search": lambda _, query: partial(retriever.search, query, task.documents),
            "read": lambda e, _: partial(_piece, e.documents, e.pieces, task.chunk_words),
            "verify": lambda e, candidate: partial(grade, e.question, candidate),
            "answer": lambda e, answer: partial(grade, e.question, answer),
        }
        """The call each action makes."""
        self._hear: dict[str, Callable[[Episode, str, Any], str]] = {
            "search": self._found,
            "read": self._read,
            "verify": self._verified,
            "answer": self._answered,
        }
        """What the result of each does to the episode; returns what the agent reads."""

    def begin(self, question: Question, luck: Sequence[float] | NDArray[np.float32] = ()) -> Episode:
        """Begin an episode.

        Parameters
        ----------
        question
            What is asked.
        luck
            Uniforms for all its turns, [turns], where the world has a verify tool: see :func:`fullscale.tools.checker.luck`.

        Raises
        ------
        ValueError
            When the world verifies and there is not one uniform for each turn.
        """
        turns = self.task.world.turns
        if self.task.world.verify is not None and len(luck) != turns:
            raise ValueError(
                f"{len(luck)} uniforms for {turns} turns; this world's check needs one for each, of its own"
            )
        return Episode(question, tuple(map(float, luck)))

    def offered(self, episode: Episode) -> tuple[str, ...]:
        """Return the actions that are valid now."""
        if not self.task.any_order:
            return self._offered[episode.context]
        guess = self.task.world.may_guess or episode.searched
        closed = {"verify": episode.checked, "answer": not guess}
        return tuple(name for name in self.actions if not closed.get(name, False))

    def act(self, episodes: Sequence[Episode], texts: Sequence[str]) -> list[Step]:
        """Play one turn of every episode, which wrote these texts; their tools run at once.

        Raises
        ------
        ValueError
            When an episode is over or there twice, or there are not as many texts.
        """
        self._check(episodes, texts)
        written = [self._written(*pair) for pair in zip(episodes, texts, strict=True)]
        valid = [(i, w.name) for i, w in enumerate(written) if w.name is not None]
        calls = [Call(name, self._ask[name](episodes[i], written[i].argument)) for i, name in valid]
        replies = dict(zip((i for i, _ in valid), self.toolbox.run(calls), strict=True))
        return [self._step(e, written[i], replies.get(i)) for i, e in enumerate(episodes)]

    def _written(self, episode: Episode, text: str) -> Written:
        written, offered = parse(text, self.actions), self.offered(episode)
        if written.name is None or written.name in offered:
            return written
        return replace(written, name=None, reason=f"{written.name} is not offered here; {', '.join(offered)} are")

    def _step(self, e: Episode, written: Written, reply: Reply | None) -> Step:
        context, said, correct, name = (
            self.contexts.index(e.context),
            invalid_text(self.offered(e)),
            False,
            written.name,
        )
        wrong = guess = False
        if name is not None and reply is not None and not reply.failed:
            guess = name == "answer" and not e.searched
            said = self._hear[name](e, written.argument, reply.value)
            correct = name == "answer" and bool(reply.value)
            wrong = name == "answer" and not correct
        e.turn += 1
        if reply is not None and reply.failed:
            e.stop(Outcome.INFRASTRUCTURE_FAILURE, math.nan)
        elif correct:
            e.stop(Outcome.SOLVED, 1.0)
        elif wrong and (self.task.world.wrong_answer_ends or (guess and self.ends_on_guess)):
            e.stop(Outcome.WRONG, 0.0)
        elif e.turn == self.task.world.turns:
            e.stop(Outcome.TURN_LIMIT, 0.0)
        return Step(
            action=-1 if name is None else self.actions.index(name),
            observation="" if e.done else information(said),
            done=e.done,
            correct=correct,
            latency_s=0.0 if reply is None else reply.latency_s,
            failed=reply is not None and reply.failed,
            context=context,
            hit=e.hit,
            written=written,
            reason="" if reply is None else reply.reason,
        )

    def _found(self, e: Episode, query: str, passages: Sequence[Passage]) -> str:
        e.searched, e.context = True, "fresh_checked" if e.checked else "fresh"
        e.documents, e.pieces = tuple(passages), 1
        first = [replace(each, text=next(iter(chunks(each.text, self.task.chunk_words)), "")) for each in passages]
        said = documents(first)
        e.hit = bool(passages) and holds(said, e.question.answers)
        return said

    def _read(self, e: Episode, _: str, piece: str) -> str:
        e.context, e.pieces = "read" if e.documents else e.context, e.pieces + bool(piece)
        e.hit = e.hit or holds(piece, e.question.answers)
        return piece or "There is no more to read."

    def _verified(self, e: Episode, candidate: str, right: bool) -> str:
        assert self.task.world.verify is not None
        passed = passes(right, self.task.world.verify, e.luck[e.turn])
        e.checked, e.candidate, e.context = True, candidate, "passed" if passed else "rejected"
        return "The check passed." if passed else "The check failed."

    def _answered(self, e: Episode, answer: str, right: bool) -> str:
        e.guessed, e.candidate = e.guessed or not e.searched, answer
        if not right:
            e.hit = False
            e.context = "failed" if "failed" in self.contexts else e.context  # none where a wrong answer ends it
        return "That answer is wrong."

    def _check(self, episodes: Sequence[Episode], texts: Sequence[str]) -> None:
        if len(texts) != len(episodes):
            raise ValueError(f"{len(texts)} texts for {len(episodes)} episodes; give each what it wrote")
        over = [i for i, e in enumerate(episodes) if e.done]
        if over:
            raise ValueError(f"episodes {over} are over; act on those where `done` is False")
        if len({id(e) for e in episodes}) < len(episodes):
            raise ValueError("an episode is there twice; one turn at a time")


def _piece(found: Sequence[Passage], shown: int, words: int) -> str:
    """Return the next piece of the first document; empty where there is none."""
    return "".join(chunks(found[0].text, words)[shown : shown + 1]) if found else ""
