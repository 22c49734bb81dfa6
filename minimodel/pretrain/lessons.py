"""What a supervised start is taught: played scripts, and facts asked closed-book.

Everything is taught as a distribution: the script knows what it draws each token from, so the student sees that and not one
draw of it.

Sizes: n rows, L tokens, V words, N questions, F thinking tokens, K turns.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from minimodel.model.vocabulary import ANSWER
from minimodel.tasks.environment import DRAWS, Environment
from minimodel.tasks.facts import Facts
from minimodel.tasks.layout import ARGUMENTS, OBSERVED, PROMPT
from minimodel.tasks.script import Script, turn_targets, write
from minimodel.tasks.task import Task
from sim.mdp.compiled import CompiledGraph
from sim.mdp.worlds import Verify, World
from sim.records.rng import uniforms

__all__ = ["Lesson", "Teacher", "demonstration_world", "forcing"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lesson:
    """Sequences and what their tokens from position `first` on are drawn from."""

    ids: I64
    """Tokens, [n, L]."""
    first: int
    """First position that is taught."""
    targets: F32
    """Distribution of the token at each position from `first` on, [n, L - first, V]."""
    weight: F32
    """What its cross-entropy counts, [n, L - first]; 0 where nothing is taught."""


def demonstration_world(world: World, hit: float | None) -> World:
    """Return the world in which scripts are played: `world`, with every retrieval at rate `hit`.

    What it keeps is what a start depends on: which questions there are, what is known, which tools there are. With `hit`
    None retrieval and verdicts are the world's own; otherwise worlds that differ in these share a start.
    """
    usual = World()
    unseen = ("document_tokens", "search_median_s", "guess_unknown", "stale")  # costs; and what tokens do by themselves
    plain = replace(world, **{name: getattr(usual, name) for name in unseen})
    if hit is None:
        return plain
    return replace(
        plain,
        hit_known=hit,
        hit_unknown=hit,
        icc=0.0,
        unknown_kinds=1,
        retry_known=1.0,
        anchoring=1.0,
        verify=world.verify and Verify(hit_after_reject=hit),
        read_more=world.read_more and replace(world.read_more, hit=hit),
    )


def forcing(script: Script, graph: CompiledGraph) -> Script:
    """Return the script of forced demonstrations: what the habit rarely does, often.

    They teach what to write when such a decision was taken and how to go on, without teaching the decision.
    """
    offered = {a for c, name in enumerate(graph.contexts) if name == "fresh" for a in _offered(graph, c)}
    tools = [a for a in ("verify", "read") if a in offered]
    often = 1 / (1 + len(tools))
    return replace(script, guess=0.5 if tools else 1.0, **{a: often if a in tools else 0.0 for a in ("verify", "read")})


def _offered(graph: CompiledGraph, c: int) -> list[str]:
    return [a for a, on in zip(graph.actions, graph.offered[c], strict=True) if on]


class _Sheet:
    """Where episodes are written down as they are played, with targets and weights."""

    def __init__(self, batch: int, length: int, words: int) -> None:
        self.ids = np.zeros((batch, length), np.int64)
        self.targets = np.zeros((batch, length, words), np.float32)
        self.weight = np.zeros((batch, length), np.float32)

    def write(self, rows: I64, at: int, ids: I64, targets: F32, weight: F32) -> None:
        """Write a turn of some rows that begins at `at`."""
        end = at + ids.shape[1]
        self.ids[rows, at:end], self.targets[rows, at:end], self.weight[rows, at:end] = ids, targets, weight

    def lesson(self, rows: I64, first: int, end: int) -> Lesson:
        """Return some rows up to `end` as a lesson from `first` on."""
        return Lesson(self.ids[rows, :end], first, self.targets[rows, first:end], self.weight[rows, first:end])


class Teacher:
    """Makes the lessons of a start; what it draws depends on the seed and the step alone.

    Parameters
    ----------
    task, facts
        What is asked and what is right.
    script
        The habit.
    hit
        Hit rate of every retrieval in the demonstrations; None for the world's own.
    thought
        What the thinking tokens of a turn count together; its decision and arguments count 1 each.
    seed
        Which draws.
    stream
        Name of the random streams: what is taught and what is measured are drawn apart.
    """

    def __init__(
        self,
        task: Task,
        facts: Facts,
        script: Script,
        hit: float | None,
        thought: float,
        seed: int,
        *,
        stream: str = "minimodel/start",
    ) -> None:
        world = demonstration_world(task.world, hit)
        self.task, self.script, self.seed, self.thought = replace(task, world=world), script, seed, thought
        self.stream = stream
        if hit is not None:  # the kinds of the demonstration world: known and unknown
            facts = replace(facts, kind=np.where(facts.known, 0, len(world.kinds()) - 1))
        self.facts, self.environment = facts, Environment(self.task, facts)
        graph = self.environment.graph
        self._forced = forcing(script, graph)
        self._changed = (script.probabilities(graph) != self._forced.probabilities(graph)).any(-1)  # [C]
        self.recalls = bool(graph.offered[graph.context[graph.initial], graph.actions.index("answer")].any())
        self._recalled = self._answers_at_start() if self.recalls else np.empty((0, 0), np.float32)

    def _answers_at_start(self) -> F32:
        """Return what an answer to each question is drawn from when nothing was searched for, [N, V]."""
        N, e = len(self.facts.answer), self.environment
        states = e.begin(np.arange(N), np.zeros((e.graph.turns, DRAWS, N), np.float32))
        action = np.full(N, e.graph.actions.index("answer"))
        return turn_targets(self.script, e, states, np.arange(N), action)[:, self.task.thinking + 1]

    def _draws(self, name: str, step: int, *shape: int) -> F32:
        return uniforms(self.seed, f"{self.stream}/{name}", step, shape)

    def _questions(self, name: str, step: int, wanted: int) -> I64:
        """Return `wanted` questions: different ones, as long as there are any."""
        order = np.argsort(self._draws(name, step, len(self.facts.answer)), kind="stable")
        return np.resize(order, wanted)

    def _thinking(self, draws: F32) -> I64:
        v = self.task.vocabulary
        return v.first_filler + (draws * v.fillers).astype(np.int64)

    def episodes(self, step: int, batch: int, *, forced: float, slips: float, pieces: int) -> list[Lesson]:
        """Return played scripts, short ones and long ones apart, so that little of a lesson is padding.

        Parameters
        ----------
        step
            Which draws.
        batch
            Episodes.
        forced
            Share of them in which rare decisions are forced (see :func:`forcing`), and those decisions not taught.
        slips
            Share of turns in which one token of decision and arguments is any word, and nothing is taught: they show what
            comes back from an invalid action, and the next turn teaches how to go on.
        pieces
            Lessons they are cut into.
        """
        layout, e = self.task.layout, self.environment
        question = self._questions("question", step, batch)
        states = e.begin(question, self._draws("world", step, layout.turns, DRAWS, batch))
        luck = self._draws("token", step, layout.turns, batch, layout.written)
        slip = self._draws("slip", step, layout.turns, 3, batch)
        sheet = _Sheet(batch, layout.length() + OBSERVED, self.task.vocabulary.size)
        sheet.ids[:, :PROMPT] = e.prompts(question)
        is_forced = np.arange(batch) < round(forced * batch)
        for k in range(layout.turns):
            rows, at = np.flatnonzero(~states.done), PROMPT + k * layout.turn
            for script, some in ((self._forced, rows[is_forced[rows]]), (self.script, rows[~is_forced[rows]])):
                sheet.write(some, at, *write(script, e, states, some, luck[k, some]), self._turn_weight)
            untaught = rows[is_forced[rows] & self._changed[e.graph.context[states.node[rows]]]]
            sheet.weight[untaught, at + layout.thinking] = 0
            self._slip(sheet, rows[slip[k, 0, rows] < slips], at, slip[k, 1:])
            end = at + layout.written
            sheet.ids[rows, end : end + OBSERVED] = e.act(states, rows, sheet.ids[rows, at:end]).observation
        sheet.weight /= sheet.weight.sum() or 1.0  # every turn of a tiny batch may have slipped
        order = np.argsort(states.turn, kind="stable")
        return [
            sheet.lesson(rows, PROMPT, layout.length(int(states.turn[rows].max())))
            for rows in np.array_split(order, min(pieces, batch))
        ]

    def _slip(self, sheet: "_Sheet", rows: I64, at: int, u: F32) -> None:
        """Put any word in any place of decision and arguments: u [2, B] says where and which."""
        layout, size = self.task.layout, self.task.vocabulary.size
        place = at + layout.thinking + (u[0, rows] * (1 + ARGUMENTS)).astype(np.int64)
        sheet.ids[rows, place] = (u[1, rows] * size).astype(np.int64)
        sheet.weight[rows, at : at + layout.written] = 0

    @cached_property
    def _turn_weight(self) -> F32:
        F = self.task.thinking
        return np.array([self.thought / max(F, 1)] * F + [1.0] * (1 + ARGUMENTS), np.float32)

    def closed_book(self, step: int, facts: int) -> Lesson:
        """Return facts asked for with the decision to answer given; the answer alone is taught.

        Three in four are known ones, as far as there are any, and each counts for as many as it stands for.
        """
        order = self._questions("closed", step, len(self.facts.answer))
        known, unknown = order[self.facts.known[order]], order[~self.facts.known[order]]
        few = min(len(known), max(facts * 3 // 4, facts - len(unknown)))
        question = np.concatenate([known[:few], unknown[: facts - few]])
        stands_for = np.where(
            self.facts.known[question], len(known) / max(few, 1), len(unknown) / max(len(question) - few, 1)
        )
        n, F = len(question), self.task.thinking
        ids = np.empty((n, PROMPT + F + 2), np.int64)
        ids[:, :PROMPT] = self.environment.prompts(question)
        ids[:, PROMPT:-2] = self._thinking(self._draws("closed/token", step, n, F))
        ids[:, -2:] = ANSWER, 0  # the last token is what is asked for
        weight = (stands_for / stands_for.sum()).astype(np.float32)
        return Lesson(ids, ids.shape[1] - 1, self._recalled[question][:, None], weight[:, None])
