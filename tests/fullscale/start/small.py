"""Demonstrations in the world of three passages."""

from typing import Any

import numpy as np

from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.scoring import ScoringModel
from fullscale.dialogue.prompt import Dialogue
from fullscale.environment import Environment, Task
from fullscale.start.demonstrations import Demonstrated, Demonstration, demonstrate
from fullscale.start.start import Start
from fullscale.tools.toolbox import Patience, Toolbox
from fullscale.world.passages import Passage
from fullscale.world.questions import Question
from minimodel.tasks.script import Script
from sim.mdp.worlds import World
from tests.fullscale.agent.small import PASSAGES, QUESTIONS, model, settings, tokenizer

__all__ = ["ALWAYS", "FRANCE", "SPAIN", "Shelf", "by_hand", "played", "policy", "texts"]

FRANCE, SPAIN = QUESTIONS
ALWAYS = Script(guess=0.0, verify=0.0, read=0.0)
"""Searches first, answers on evidence, and does nothing else."""
NOTHING = Passage("n", "Nothing", "There is nothing here.")


class Shelf:
    """A retriever that finds the passage on a country that is named, if the query holds one of these texts too."""

    def __init__(self, *texts: str, fails: str = "\0") -> None:
        self.texts, self.fails = texts, fails

    def search(self, query: str, k: int) -> list[Passage]:
        if self.fails in query:
            raise OSError("out of order")
        named = [p for p in PASSAGES for country in ("France", "Spain") if country in query and country in p.text]
        return (named if any(text in query for text in self.texts) else []) or [NOTHING]


def played(
    questions: tuple[Question, ...] = QUESTIONS,
    *,
    world: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    shelf: Any = None,
    seed: int = 0,
    limits: dict[str, Any] | None = None,
    **start: Any,
) -> tuple[Demonstrated, Environment, Dialogue]:
    """Return demonstrations, and in what they were played."""
    where = World(**({"turns": 3} | (world or {})))
    sizes = {"documents": 1, "chunk_words": 20} | (task or {})
    env = Environment(Task(where, **sizes), shelf or Shelf(""), Toolbox(Patience(attempts=1)))
    talk = Dialogue(tokenizer(), where)
    given = {"turn_tokens": 90} | (limits or {})
    how = Start(**({"script": ALWAYS, "demonstrations": len(questions)} | start))
    return demonstrate(env, talk, questions, how, settings(env, **given), seed), env, talk


def texts(one: Demonstration) -> list[str]:
    """Return what was written, turn by turn."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], one.written, [0]])))
    return [tokenizer().decode(one.ids[a:b]) for a, b in edges.reshape(-1, 2)]


def by_hand(marks: list[int], ids: list[int] | None = None) -> Demonstration:
    """Return a demonstration of these tokens."""
    written = np.array(marks, np.bool_)
    numbers = np.arange(3, 3 + len(marks)) if ids is None else np.array(ids)
    return Demonstration(FRANCE, numbers.astype(np.int64), written, ("answer",), solved=True)


def policy(of: Any = None, **how: Any) -> LanguagePolicy:
    return LanguagePolicy(ScoringModel(model(**how) if of is None else of))
