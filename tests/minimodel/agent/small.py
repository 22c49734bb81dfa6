"""A task small enough for tests, a transformer that half knows how to play it, and runs of both.

Two dozen questions, three turns, one thinking token, 34 words. The transformer is taught the script for a moment: it
searches, answers and guesses, errs, and ends its episodes after one, two and three turns, so every branch has rows in it.
"""

import copy
import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from minimodel.agent import run as run_module
from minimodel.agent.checkpoint import Checkpoint
from minimodel.agent.collect import Collected, Draws, collect
from minimodel.agent.engine import LocalEngine
from minimodel.agent.optimiser import AdamW
from minimodel.agent.policy import TinyPolicy
from minimodel.agent.run import Run
from minimodel.agent.setup import Training
from minimodel.model.transformer import Size, Transformer
from minimodel.model.vocabulary import Vocabulary
from minimodel.tasks.environment import DRAWS, Environment
from minimodel.tasks.facts import Facts, draw_facts
from minimodel.tasks.layout import PROMPT
from minimodel.tasks.script import Script, write
from minimodel.tasks.task import Task
from sim.learning.family import grpo
from sim.mdp.worlds import Verify, World
from sim.records.rng import uniforms

WORLD = World(
    known=0.4, hit_known=0.5, retry_known=1.0, hit_unknown=0.5, icc=0.0, unknown_kinds=1, anchoring=1.0, turns=3
)  # fmt: skip
TASK = Task(
    world=WORLD, vocabulary=Vocabulary(entities=6, relations=4, answers=6, fillers=2), thinking=1, held_out=1 / 4
)
VERIFY_TASK = Task(
    world=World(
        known=0.0, hit_unknown=0.5, icc=0.0, unknown_kinds=1, may_guess=False, wrong_answer_ends=True, turns=3,
        verify=Verify(0.9, 0.9, 0.5),
    ),
    vocabulary=TASK.vocabulary, thinking=1, held_out=1 / 4,
)  # fmt: skip
SIZE = Size(width=32, layers=1, heads=2)
PRIVATE = Size(width=32, layers=1, heads=2, decision="private")
SCRIPT = Script(guess=0.3, verify=0.3)


@lru_cache
def facts_of(task: Task) -> Facts:
    return draw_facts(task.world, task.vocabulary, task.held_out, 0)


@lru_cache
def environment_of(task: Task) -> Environment:
    return Environment(task, facts_of(task))


def demonstrations(task: Task, episodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of played scripts [B, T] and the distributions they were drawn from [B, T, V], 0 where nothing was."""
    environment, layout = environment_of(task), task.layout
    question = np.arange(episodes) % len(facts_of(task).answer)
    state = environment.begin(question, uniforms(0, "teach/world", 0, (layout.turns, DRAWS, episodes)))
    ids, targets = (
        np.zeros((episodes, layout.length()), np.int64),
        np.zeros((episodes, layout.length(), task.vocabulary.size), np.float32),
    )
    ids[:, :PROMPT] = environment.prompts(question)
    for k in range(layout.turns):
        rows = np.flatnonzero(~state.done)
        u = uniforms(0, "teach/token", k, (episodes, layout.written))[rows]
        at = PROMPT + k * layout.turn
        wrote, wanted = write(SCRIPT, environment, state, rows, u)
        ids[rows, at : at + layout.written], targets[rows, at : at + layout.written] = wrote, wanted
        played = environment.act(state, rows, wrote)
        if k + 1 < layout.turns:
            ids[rows, at + layout.written : at + layout.turn] = played.observation
    return torch.from_numpy(ids), torch.from_numpy(targets)


@lru_cache
def _taught(task: Task, size: Size, steps: int) -> Transformer:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    model = Transformer(
        size, task.vocabulary.size, task.layout.length(), decisions=task.layout.decisions.tolist(), generator=generator
    )
    ids, targets = demonstrations(task, 480)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.0)
    for step in range(steps):
        rows = slice(step % 10 * 48, step % 10 * 48 + 48)
        logp = torch.log_softmax(model(ids[rows, :-1]), -1)
        loss = -(targets[rows, 1:] * logp).sum() / 48
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.set_num_threads(before)
    return model


def taught(task: Task = TASK, size: Size = SIZE) -> Transformer:
    """A copy of the transformer after a moment of supervised steps; another size need not know much."""
    return copy.deepcopy(_taught(task, size, 50 if size == SIZE else 10))


def policy_of(task: Task = TASK, size: Size = SIZE, temperature: float = 1.0, bfloat16: bool = False) -> TinyPolicy:
    return TinyPolicy(taught(task, size), temperature, bfloat16=bfloat16)


def moved(policy: TinyPolicy, amount: float = 0.05, seed: int = 1) -> TinyPolicy:
    """The policy a little further on: every weight moved by a share of its matrix's spread."""
    twin = policy.frozen()
    generator = torch.Generator().manual_seed(seed)
    for p in twin.parameters():
        p.add_(amount * p.std() * torch.randn(p.shape, generator=generator))
        p.requires_grad_(True)
    return twin


def play(
    policies: TinyPolicy | Mapping[int, TinyPolicy],
    task: Task = TASK,
    *,
    questions: int | np.ndarray = 12,
    group: int = 4,
    versions: np.ndarray | None = None,
    seed: int = 0,
    step: int = 0,
    compiled: bool = True,
    **how,
) -> Collected:
    """A batch of training questions, written by one policy (version 0) or by the versions asked for."""
    engine, environment = LocalEngine(compiled=compiled), environment_of(task)
    by_version = policies if isinstance(policies, Mapping) else {0: policies}
    asked = facts_of(task).train[:questions] if isinstance(questions, int) else questions
    turns = np.zeros((len(asked), group, task.layout.turns), int) if versions is None else versions
    publish = lambda v: engine.publish(v, by_version[v])  # noqa: E731  as short as it is
    return collect(engine, environment, asked, group, turns, publish, Draws(seed, "tests"), step, **how)


def gradient(parameters: Iterable[torch.nn.Parameter]) -> torch.Tensor:
    """All gradients as one vector, 0 where there is none."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])


def clear(policy: TinyPolicy) -> TinyPolicy:
    for p in policy.parameters():
        p.grad = None
    return policy


def relative_gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Distance of two vectors, relative to the expected one."""
    return float((found - expected).norm() / expected.norm())


# Runs -----------------------------------------------------------------------------------------------------------------


def training(**changes) -> Training:
    """A short run on the small task."""
    base = {
        "task": TASK, "size": SIZE, "rule": grpo(kl=0.0), "optimiser": AdamW(1e-3), "prompts": 6, "group": 4, "steps": 3,
        "minibatches": 1, "evaluation": None,
    }  # fmt: skip
    return Training(**(base | changes))


def obtained(task: Task, size: Size, *more: object, **asked: object) -> tuple[Transformer, None, Facts]:
    """What a run begins with, instead of a supervised start: the taught transformer, the same for every seed."""
    return taught(task, size), None, facts_of(task)


def begin(config: Training, seed: int = 0, study: str = "tests", folder: Path | None = None, **how) -> Run:
    """A run that begins with the taught transformer; with a folder, one that saves there."""
    before, run_module.obtain = run_module.obtain, obtained
    try:
        checkpoint = None if folder is None else Checkpoint(folder / "run.pt", "tests")
        return Run(config, seed, study, Path("nowhere"), checkpoint, **how)
    finally:
        run_module.obtain = before


def parameters(run: Run) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in run.now.parameters()])


def same_columns(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    """Whether two runs wrote the same columns, to the bit (NaN is NaN)."""
    return list(a) == list(b) and all(a[name].tobytes() == b[name].tobytes() for name in a)


def digest(run: Run) -> str:
    """A run that has ended, as a few letters: every column, every parameter, what was kept."""
    found = hashlib.sha256(parameters(run).numpy().tobytes())
    for row in run.rows:
        found.update(np.array(list(row.values())).tobytes())
    found.update(b"" if run.kept is None else run.kept.to_bytes())
    return found.hexdigest()


def of(batches: list[tuple], purpose: str) -> list[tuple]:
    """(step, batch, policies that wrote it by version) of the collected batches of one purpose."""
    return [(step, batch, used) for p, step, batch, used in batches if p == purpose]


def learners_logp(policy, batch):
    """log pi of every token of a batch as the learner scores it, [Q, G, T]."""
    ids = torch.from_numpy(batch.ids.reshape(-1, batch.ids.shape[-1]))
    with torch.no_grad():
        return policy.scalars(ids, {"logp"})["logp"].numpy().reshape(batch.ids.shape)
