"""Collecting a batch: multi-turn episodes through an engine and an environment, ragged, in one array.

Finished episodes are dropped at every turn. Draws are dense blocks named by (seed, stream, step) with a place for every
token of every episode at its full length, so two arms of a study stay aligned when their episodes end at different turns,
and what one episode draws depends on no other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minimodel.agent.protocols import F32, I64, Engine, Flags, Written
from minimodel.tasks.environment import Environment, Episodes, Played
from sim.records.rng import uniforms

__all__ = ["Collected", "Draws", "choose", "collect"]

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Draws:
    """The random numbers of one purpose of one run."""

    seed: int
    """Seed of the run."""
    study: str
    """Namespace: claims do not share their luck, arms of one study do."""
    purpose: str = "train"
    """``"train"``, ``"eval"``, ...: batches of different purposes are independent."""

    def block(self, name: str, step: int, *shape: int) -> F32:
        """Return the uniforms of this name and step."""
        return uniforms(self.seed, f"{self.study}/{self.purpose}/{name}", step, shape)


def choose(draws: Draws, step: int, questions: I64, wanted: int) -> I64:
    """Return `wanted` different questions, [wanted], in random order.

    Raises
    ------
    ValueError
        When there are fewer.
    """
    if wanted > len(questions):
        raise ValueError(
            f"{wanted} different questions of {len(questions)}; ask for fewer, or enlarge the vocabulary's entities"
        )
    return questions[np.argsort(draws.block("question", step, len(questions)), kind="stable")[:wanted]]


@dataclass(frozen=True, eq=False)
class Collected:
    """A batch of Q questions x G episodes, T tokens and K turns at most; 0 (for ids: PAD) beyond an episode's end."""

    question: I64
    """Question of each group, [Q]."""
    ids: I64
    """Tokens, [Q, G, T]: prompt, then turns of written and observed tokens."""
    sampled: Flags
    """Where the policy wrote, [Q, G, T]."""
    logp: F32
    """Log-probability of what was written as its engine had it, [Q, G, T]."""
    entropy: F32
    """Entropy of the distribution each token was drawn from, [Q, G, T]."""
    version: I64
    """Version that wrote each token, [Q, G, T]; -1 elsewhere."""
    taken: I64
    """Turns taken, [Q, G]."""
    action: I64
    """Action of each turn, an index into the graph's; -1 for an invalid one, [Q, G, K]."""
    node: I64
    """Node of the tool graph before each turn, [Q, G, K]."""
    context: I64
    """Context of that node, [Q, G, K]."""
    correct: Flags
    """Whether the turn gave the right answer, [Q, G, K]."""
    decision: F32
    """Log-probability of each decision token where the decision was made, [Q, G, K, decisions]."""
    latency_s: F64
    """Time each turn's tool took, [Q, G, K], s."""
    tool_tokens: I64
    """Tokens each turn's observation stands for, [Q, G, K]."""
    reward: F64
    """Reward as the world gives it, [Q, G]."""
    outcome: I64
    """How each episode ended, a ``sim.records.tables.Outcome``, [Q, G]."""
    guessed: Flags
    """Whether an answer was given before any search, [Q, G]."""

    @property
    def running(self) -> Flags:
        """Whether a turn was taken, [Q, G, K]."""
        return np.arange(self.action.shape[-1]) < self.taken[..., None]


def collect(
    engine: Engine,
    environment: Environment,
    question: I64,
    group: int,
    versions: I64,
    publish: Callable[[int], None],
    draws: Draws,
    step: int,
    *,
    greedy: bool = False,
) -> Collected:
    """Play `group` episodes of each question and return them.

    Parameters
    ----------
    question
        [Q].
    versions
        Version that writes each turn, [Q, G, K]; rollouts that agree in all turns are served together.
    publish
        Called with a version before it is needed: it publishes those weights to the engine.
    draws, step
        Which random numbers.
    greedy
        Take the likeliest token everywhere instead.
    """
    Q, (K, T) = len(question), (environment.task.layout.turns, environment.task.layout.length())
    rows = np.repeat(question, group)  # [B]
    written = environment.task.layout.written
    luck = _Luck(
        None if greedy else draws.block("token", step, K, written, len(rows)),
        draws.block("world", step, K, 3, len(rows)),
    )
    batch = _Arrays(len(rows), K, T, len(environment.task.decisions))
    paths, which = np.unique(versions.reshape(len(rows), K), axis=0, return_inverse=True)
    for i, path in enumerate(paths):
        _play(engine, environment, rows, np.flatnonzero(which == i), path, publish, luck, batch)
    return batch.collected(question, Q, group)


@dataclass(frozen=True)
class _Luck:
    token: F32 | None  # [K, written, B]
    world: F32  # [K, 3, B]


class _Arrays:
    """Where the episodes are written down, [B, ...]."""

    def __init__(self, B: int, K: int, T: int, decisions: int) -> None:
        self.ids, self.version = np.zeros((B, T), np.int64), np.full((B, T), -1)
        self.sampled = np.zeros((B, T), np.bool_)
        self.logp, self.entropy = np.zeros((2, B, T), np.float32)
        self.decision = np.zeros((B, K, decisions), np.float32)
        self.action = np.full((B, K), -1)
        self.node, self.context, self.tool_tokens = np.zeros((3, B, K), np.int64)
        self.correct, self.latency_s = np.zeros((B, K), np.bool_), np.zeros((B, K))
        self.taken, self.outcome = np.zeros((2, B), np.int64)
        self.reward, self.guessed = np.zeros(B), np.zeros(B, np.bool_)

    def turn(self, rows: I64, k: int, at: int, wrote: Written, played: Played) -> None:
        """Write down turn k of `rows`, whose first token stands at `at`."""
        n, seen = wrote.ids.shape[1], played.observation.shape[1]
        here = (rows[:, None], np.arange(at, at + n))
        self.ids[here], self.logp[here], self.entropy[here] = wrote.ids, wrote.logp, wrote.entropy
        self.sampled[here], self.version[here] = True, wrote.version
        after = np.arange(at + n, min(at + n + seen, self.ids.shape[1]))
        self.ids[rows[:, None], after] = played.observation[:, : len(after)]
        for name in ("action", "node", "context", "correct", "latency_s", "tool_tokens"):
            getattr(self, name)[rows, k] = getattr(played, name)
        self.decision[rows, k] = wrote.watched
        self.taken[rows] = k + 1

    def end(self, rows: I64, episodes: Episodes) -> None:
        self.reward[rows], self.outcome[rows], self.guessed[rows] = episodes.reward, episodes.outcome, episodes.guessed

    def collected(self, question: I64, Q: int, G: int) -> Collected:
        return Collected(question=question, **{name: x.reshape(Q, G, *x.shape[1:]) for name, x in vars(self).items()})


def _play(
    engine: Engine,
    environment: Environment,
    question: I64,
    rows: I64,
    path: I64,
    publish: Callable[[int], None],
    luck: _Luck,
    batch: _Arrays,
) -> None:
    """Play the episodes `rows` of the batch, whose turns are written by the versions in `path`."""
    task = environment.task
    watch = (task.thinking, task.decisions)
    publish(int(path[0]))
    prompts = environment.prompts(question[rows])
    talk = engine.open(prompts)
    episodes = environment.begin(question[rows], luck.world[:, :, rows])
    batch.ids[rows, : prompts.shape[1]] = prompts
    alive = np.arange(len(rows))  # places within `rows`
    for k in range(task.layout.turns):
        if k and path[k] != path[k - 1]:
            publish(int(path[k]))
        wrote = talk.write(task.layout.written, None if luck.token is None else luck.token[k][:, rows[alive]], watch)
        played = environment.act(episodes, alive, wrote.ids)
        batch.turn(rows[alive], k, prompts.shape[1] + k * task.layout.turn, wrote, played)
        if played.done.all():
            break
        talk.read(~played.done, played.observation[~played.done])
        alive = alive[~played.done]
    batch.end(rows, episodes)
