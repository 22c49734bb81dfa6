"""Two dozen questions, three turns, and one start that was taught them, made once."""

from dataclasses import dataclass

import pytest

from minimodel.model.transformer import Size, Transformer
from minimodel.model.vocabulary import Vocabulary
from minimodel.pretrain.lessons import Teacher
from minimodel.pretrain.start import Start, supervised
from minimodel.tasks.facts import Facts, draw_facts
from minimodel.tasks.script import Script
from minimodel.tasks.task import Task
from sim.mdp.worlds import Verify, World

WORDS = Vocabulary(entities=6, relations=4, answers=6, fillers=2)
WORLD = World(
    known=0.25, hit_known=0.5, retry_known=1.0, hit_unknown=0.5, icc=0.0, unknown_kinds=1, anchoring=1.0, turns=3
)
VERIFY_WORLD = World(
    known=0.0, hit_unknown=0.5, icc=0.0, unknown_kinds=1, may_guess=False, wrong_answer_ends=True, turns=4, verify=Verify()
)  # fmt: skip
TASK = Task(world=WORLD, vocabulary=WORDS, thinking=2)
VERIFY_TASK = Task(world=VERIFY_WORLD, vocabulary=WORDS, thinking=2)
SIZE = Size(width=32, layers=1, heads=2)
START = Start(steps=150, rate=0.015)


def facts_of(task: Task) -> Facts:
    return draw_facts(task.world, task.vocabulary, task.held_out, 0)


def teacher_of(task: Task = TASK, script: Script = Script(), hit: float | None = 0.5, seed: int = 0) -> Teacher:  # noqa: B008
    return Teacher(task, facts_of(task), script, hit, 1.0, seed)


@dataclass
class Taught:
    model: Transformer
    progress: list[tuple[int, int]]


@pytest.fixture(scope="session")
def taught() -> Taught:
    progress: list[tuple[int, int]] = []
    model = supervised(TASK, SIZE, START, facts_of(TASK), 0, lambda done, total: progress.append((done, total)))
    return Taught(model, progress)
