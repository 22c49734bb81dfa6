"""Playing a batch: questions through an engine and an environment, and what came out as arrays, [Q, G, ...].

Ids are carried as they were sampled, so what the learner scores is what the engine wrote. The luck of every token is
named by (seed, stream, step, episode, place), whatever order episodes end in. Where a schedule says which version writes
which turn, the engine is asked for the turns of one version at a time, and each such leg begins with all that was written
before: what an engine does anyway when weights change under an episode.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullscale.agent.compaction import Compaction
from fullscale.agent.story import COLUMNS, Story
from fullscale.dialogue.prompt import Dialogue
from fullscale.dialogue.tags import opening
from fullscale.engine.local import decoder
from fullscale.engine.protocol import Between, Engine, Reply, Settings, Turn
from fullscale.environment import Environment, Episode, Step
from fullscale.world.questions import Question
from minimodel.agent.collect import Draws
from sim.records.tables import Outcome

__all__ = ["Played", "joined", "play"]

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Flags = NDArray[np.bool_]

_PADDING: dict[str, Any] = {**COLUMNS, "decision": False}


@dataclass(frozen=True, eq=False)
class Played:
    """A batch of Q questions x G episodes, padded to T tokens and K turns; 0 beyond an episode's end."""

    questions: tuple[Question, ...]
    """What is asked, Q."""
    ids: I64
    """Tokens, [Q, G, T]: the prompt, then turns as they were sampled and what was read after each."""
    length: I64
    """Tokens of each episode, [Q, G]."""
    sampled: Flags
    """Where the policy wrote, [Q, G, T]."""
    logp: F32
    """Log-prob of what was written as its engine had it, [Q, G, T]."""
    entropy: F32
    """Entropy of the distribution it was drawn from, [Q, G, T]."""
    version: I64
    """Version that wrote each token, [Q, G, T]; -1 elsewhere."""
    turn: I64
    """Turn of each token, [Q, G, T]."""
    segment: I64
    """Segment of each token, [Q, G, T]: it was sampled given the tokens before it in its segment alone."""
    decision: Flags
    """Whether a token is of the opening tag that decided its turn's action, [Q, G, T]."""
    taken: I64
    """Turns taken, [Q, G]."""
    action: I64
    """Action of each turn, an index into the environment's; -1 for an invalid one, [Q, G, K]."""
    context: I64
    """Context each turn was taken in, [Q, G, K]."""
    correct: Flags
    """Whether the turn gave the right answer, [Q, G, K]."""
    hit: Flags
    """Whether the evidence in hand after the turn named the answer, [Q, G, K]."""
    latency_s: F64
    """Time each turn's tool took, [Q, G, K], s."""
    tool_tokens: I64
    """Tokens read after each turn, [Q, G, K]."""
    reward: F64
    """Reward, [Q, G]; NaN where the infrastructure failed."""
    outcome: I64
    """How each episode ended, a ``sim.records.tables.Outcome``, [Q, G]."""
    guessed: Flags
    """Whether an answer was given before any search, [Q, G]."""
    why: NDArray[np.str_]
    """Why each turn stopped, [Q, G, K]: stop, eos, length, context; empty where there was none."""
    reason: NDArray[np.str_]
    """Why the infrastructure failed, [Q, G]; empty where it did not."""

    @property
    def running(self) -> Flags:
        """Whether a turn was taken, [Q, G, K]."""
        return np.arange(self.action.shape[-1]) < self.taken[..., None]

    @property
    def arrived(self) -> Flags:
        """Whether an episode counts in its group, [Q, G]: not where the infrastructure failed."""
        return self.outcome != Outcome.INFRASTRUCTURE_FAILURE


def play(
    engine: Engine,
    environment: Environment,
    dialogue: Dialogue,
    questions: Sequence[Question],
    group: int,
    settings: Settings,
    draws: Draws,
    step: int,
    *,
    first: int = 0,
    greedy: bool = False,
    versions: I64 | None = None,
    publish: Callable[[int], None] | None = None,
    compaction: Compaction | None = None,
    between: Between | None = None,
) -> Played:
    """Play `group` episodes of each question and return them.

    Parameters
    ----------
    draws, step
        Which random numbers.
    first
        Place of the first of these questions in the batch they are of: it is part of their luck's name.
    greedy
        Take the likeliest token everywhere instead.
    versions
        Version that writes each turn, [Q, G, K]; rollouts that agree in all turns are served together. None for what the
        engine has.
    publish
        Called with a version before it is needed: it publishes those weights to the engine.
    compaction
        When a context is replaced by a shorter one; None for never.
    between
        Called before every step of the engine; it may publish other weights.
    """
    rows = [q for q in questions for _ in range(group)]
    K = environment.task.world.turns
    skipped, verifies = first * group, environment.task.world.verify is not None
    checks = draws.block("verify", step, skipped + len(rows), K)[skipped:] if verifies else [()] * len(rows)
    episodes = [environment.begin(question, luck) for question, luck in zip(rows, checks, strict=True)]
    prompts = {q.id: dialogue.prompt(q) for q in questions}
    stories = [Story(row, prompts[q.id]) for row, q in enumerate(rows)]
    desk = _Desk(environment, dialogue, episodes, stories, settings, compaction)
    places = K * settings.turn_tokens
    luck = None if greedy else draws.block("token", step, skipped + len(rows), places)[skipped:]
    paths = np.zeros((len(rows), K), np.int64) if versions is None else versions.reshape(len(rows), K)
    for served, begins, last in _legs(paths):
        alive = [row for row in served if not stories[row].ended]
        if not alive:
            continue
        if publish is not None:
            publish(int(paths[alive[0], begins]))
        _leg(engine, desk, alive, begins, None if last == K else last, settings, luck, between)
    for episode, story in zip(episodes, stories, strict=True):
        _close(episode, story)
    return _arrays(
        tuple(questions), group, K, episodes, desk.steps, stories, decoder(dialogue.tokenizer), environment.actions
    )


def _legs(paths: I64) -> Iterator[tuple[list[int], int, int]]:
    """Yield (rows, first turn, turn after the last) of turns that one version writes, in the order of turns."""
    different, which = np.unique(paths, axis=0, return_inverse=True)
    for i, path in enumerate(different):
        edges = [0, *(np.flatnonzero(np.diff(path)) + 1).tolist(), len(path)]
        for first, last in pairwise(edges):
            yield np.flatnonzero(which == i).tolist(), first, last


def _leg(
    engine: Engine,
    desk: "_Desk",
    rows: list[int],
    first: int,
    last: int | None,
    settings: Settings,
    luck: F32 | None,
    between: Between | None,
) -> None:
    """Let the engine go on with these rows from turn `first` on, until they are over or turn `last` is to begin."""
    pending: dict[int, Reply] = {}

    def reply(places: Sequence[int], turns: Sequence[Turn]) -> list[Reply]:
        said = desk.reply([rows[i] for i in places], turns)
        for i, each in zip(places, said, strict=True):
            if last is not None and each.ids is not None and len(desk.steps[rows[i]]) == last:
                pending[rows[i]] = each
        return [Reply(None) if rows[i] in pending else each for i, each in zip(places, said, strict=True)]

    def uniform(i: int, place: int) -> float:
        assert luck is not None
        return float(luck[rows[i], first * settings.turn_tokens + place])

    stories = [desk.stories[row] for row in rows]
    spoken = engine.play([s.context for s in stories], reply, settings, None if luck is None else uniform, between)
    for story, said in zip(stories, spoken, strict=True):
        story.add(said, pending.get(story.row), settings.context_tokens)


def _close(episode: Episode, story: Story) -> None:
    """Give an episode that the engine ended its outcome."""
    if story.ended == "failed":
        episode.stop(Outcome.INFRASTRUCTURE_FAILURE, math.nan)
    elif not episode.done:
        if story.ended != "context":
            raise RuntimeError(f"the engine let episode {episode.question.id!r} go before it was over")
        episode.stop(Outcome.TRUNCATED, 0.0)


class _Desk:
    """Answers the engine's turns: the environment plays them, the dialogue encodes what comes back."""

    def __init__(
        self,
        environment: Environment,
        dialogue: Dialogue,
        episodes: Sequence[Episode],
        stories: Sequence[Story],
        settings: Settings,
        compaction: Compaction | None,
    ) -> None:
        self.environment, self.dialogue, self.episodes = environment, dialogue, episodes
        self.stories, self.settings, self.compaction = stories, settings, compaction
        self.held = [len(story.context) for story in stories]
        """Tokens of each row's context."""
        self.steps: list[list[Step]] = [[] for _ in episodes]

    def reply(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply]:
        """Return what each row reads next; None where its episode is over."""
        found = self.environment.act([self.episodes[r] for r in rows], [t.text for t in turns])
        for r, played in zip(rows, found, strict=True):
            self.steps[r].append(played)
        return [self._encoded(*each) for each in zip(rows, turns, found, strict=True)]

    def _encoded(self, row: int, turn: Turn, played: Step) -> Reply:
        if played.done:
            return Reply(None)
        self.held[row] += len(turn.ids)
        ended = turn.ids[-1] if turn.why == "eos" else None
        ids, compacts = self.dialogue.observation(played.observation, ended), False
        if self.compaction is not None and self.held[row] + len(ids) > self.compaction.at_tokens:
            ids = self.compaction.prompt(self.dialogue, self.episodes[row].question, self.steps[row])
            compacts, self.held[row] = True, 0
        self.held[row] += len(ids)
        return Reply(tuple(ids), compacts)


def _arrays(
    questions: tuple[Question, ...],
    group: int,
    turns: int,
    episodes: Sequence[Episode],
    steps: Sequence[Sequence[Step]],
    stories: Sequence[Story],
    decode: Callable[[Sequence[int]], str],
    actions: Sequence[str],
) -> Played:
    B, T = len(stories), max(len(s.ids) for s in stories)
    flat = {
        name: np.stack([np.pad(getattr(s, name), (0, T - len(s.ids)), constant_values=fill) for s in stories])
        for name, fill in COLUMNS.items()
    }
    flat["decision"] = np.zeros((B, T), np.bool_)
    K = turns
    per_turn = {
        "action": np.full((B, K), -1),
        "context": np.zeros((B, K), np.int64),
        "correct": np.zeros((B, K), np.bool_),
        "hit": np.zeros((B, K), np.bool_),
        "latency_s": np.zeros((B, K)),
    }
    tool_tokens, why = np.zeros((B, K), np.int64), np.full((B, K), "", dtype="<U8")
    for b, (played, said) in enumerate(zip(steps, stories, strict=True)):
        for k, step in enumerate(played):
            for name, x in per_turn.items():
                x[b, k] = getattr(step, name)
            wrote = np.flatnonzero(said.sampled & (said.turn == k))
            read = np.flatnonzero(~said.sampled & (said.turn == k))
            tool_tokens[b, k] = int((read > wrote[0]).sum())  # what stands before is a prompt
            why[b, k] = said.turns[k].why
            if step.action >= 0:
                flat["decision"][b, wrote[opening(decode, said.turns[k].ids, actions[step.action])]] = True
    whole = {
        "length": np.array([len(s.ids) for s in stories]),
        "taken": np.array([len(p) for p in steps]),
        "reward": np.array([e.reward for e in episodes]),
        "outcome": np.array([int(e.outcome) for e in episodes]),
        "guessed": np.array([e.guessed for e in episodes]),
        "tool_tokens": tool_tokens,
        "why": why,
        "reason": np.array([s.reason or (p[-1].reason if p else "") for s, p in zip(stories, steps, strict=True)]),
    }
    shaped = {name: x.reshape(len(questions), group, *x.shape[1:]) for name, x in (flat | per_turn | whole).items()}
    return Played(questions=questions, **shaped)


def joined(parts: Sequence[Played]) -> Played:
    """Return batches of groups of one size as one batch, padded to the longest.

    Raises
    ------
    ValueError
        When there are none.
    """
    if not parts:
        raise ValueError("no batches to join")
    T = max(part.ids.shape[-1] for part in parts)
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(Played)):
        pieces = [getattr(part, name) for part in parts]
        if name == "questions":
            found[name] = tuple(q for piece in pieces for q in piece)
            continue
        if name in _PADDING:
            pieces = [np.pad(x, ((0, 0), (0, 0), (0, T - x.shape[-1])), constant_values=_PADDING[name]) for x in pieces]
        found[name] = np.concatenate(pieces)
    return Played(**found)
