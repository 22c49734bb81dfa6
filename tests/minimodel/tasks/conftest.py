"""A small vocabulary, and a way to play what is written by hand."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from minimodel.model.vocabulary import END, Vocabulary
from minimodel.tasks.environment import DRAWS, Environment, Episodes, Played
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.task import Task

SMALL = Vocabulary(entities=16, relations=8, answers=16, fillers=2)


@dataclass
class Table:
    """One environment with one episode of each of its first questions, and the words to play it with."""

    environment: Environment
    episodes: Episodes

    @property
    def gold(self) -> np.ndarray:
        return self.environment.facts.answer[self.episodes.question]

    def search(self, row: int = 0) -> list[int]:
        """The words that search for this episode's question."""
        v, f, q = self.environment.task.vocabulary, self.environment.facts, self.episodes.question[row]
        return [v.decision("search"), v.entity(int(f.entity[q])), v.relation(int(f.relation[q]))]

    def name(self, action: str, answer: int) -> list[int]:
        """The words of an action that names an answer."""
        v = self.environment.task.vocabulary
        return [v.decision(action), v.answer(int(answer)), END]

    def play(self, *turns: list[int], rows: list[int] | None = None) -> Played:
        """Play (decision, argument, argument) of each row; thinking is filler 1."""
        F = self.environment.task.thinking
        said = np.array(turns)
        thought = np.full((len(said), F), self.environment.task.vocabulary.filler(1))
        at = np.arange(len(said)) if rows is None else np.array(rows)
        return self.environment.act(self.episodes, at, np.concatenate([thought, said], 1))


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """128 questions, 16 answers, 2 fillers."""
    return SMALL


@pytest.fixture(scope="session")
def seat() -> Callable[..., Table]:
    """Begin an episode of every question of `kind`; `u` has the uniforms of every turn: outcome, answer, latency."""

    def begin(world, kind=0, u=(0.0, 0.0, 0.5), thinking=3, **how) -> Table:
        task = Task(world=world, vocabulary=SMALL, thinking=thinking, held_out=0.25)
        facts = draw_facts(task.world, task.vocabulary, task.held_out, 0)
        environment = Environment(task, facts, **how)
        question = np.flatnonzero(facts.kind == kind)
        draws = np.empty((world.turns, DRAWS, len(question)), np.float32)
        draws[:] = np.array(u, np.float32)[:, None]
        return Table(environment, environment.begin(question, draws))

    return begin
