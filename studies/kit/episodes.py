"""Episodes as they are read: one rollout with its words, whichever program made it.

A reader of another trainer's files yields `Episode`s, the rollout inspector shows them, and `to_rollouts` puts them into the
project's record, which has no room for words. What a file does not hold is ``None`` or empty here and NaN or -1 there:
absent, never guessed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from sim.records import nested
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome, Reason, Tokens

__all__ = ["ANSWER", "NO_ACTION", "Episode", "Turn", "from_rollouts", "to_rollouts", "workflow"]

ANSWER = "answer"
"""Name of the action that gives an answer, whatever a trainer calls it."""
NO_ACTION = "none"
"""Name for a turn in which the policy wrote no action that could be made out. Its code in the record is -1."""


@dataclass(frozen=True)
class Turn:
    """What the policy wrote up to and with one action, and what came back."""

    action: str
    """Name of the action: a tool's, `ANSWER`, or `NO_ACTION`."""
    generated: str = ""
    """Text the policy wrote."""
    observed: str = ""
    """Text that came back from the environment."""
    generated_tokens: int | None = None
    """Tokens the policy wrote."""
    observed_tokens: int | None = None
    """Tokens that came back."""
    context: str = ""
    """What the policy conditions on, where the program that made it has a name for it."""
    logp: float | None = None
    """Log-probability of the decision under the policy that took it, nats."""
    logp_reference: float | None = None
    """The same under the reference policy."""
    entropy: float | None = None
    """Mean entropy of the distributions of the turn's first tokens, nats."""
    tokens: Tokens | None = None
    """Its tokens, sampled ones and those that came back; in the first turn the prompt's before them."""
    pieces: tuple[str, ...] = ()
    """Text of each token; empty where unknown."""


@dataclass(frozen=True)
class Episode:
    """One attempt at a task, from prompt to reward."""

    step: int
    """Optimiser step whose batch it belongs to."""
    task: int | str
    """What the attempts of one group share: an id, or where there is none the prompt."""
    turns: tuple[Turn, ...]
    """In order."""
    reward: float | None
    """Final reward; None if there is none."""
    outcome: Outcome
    """How it ended; `Outcome.NOT_RECORDED` where nothing says so."""
    prompt: str = ""
    """Text of the task."""
    role: str = "main"
    """``main``, or a sub-agent's name."""
    version_oldest: int | None = None
    """Oldest policy version that wrote in it."""
    version_newest: int | None = None
    """Newest policy version that wrote in it."""
    take_version: int | None = None
    """The learner's version when it took it."""
    extras: Mapping[str, float | str] = field(default_factory=dict)
    """What else the file says of it: other rewards, its advantage, ..."""

    @property
    def solved_at(self) -> int | None:
        """Turn of the answer that solved it; None if it was not solved, or nothing says so."""
        if self.outcome is not Outcome.SOLVED:
            return None
        return max((place for place, turn in enumerate(self.turns) if turn.action == ANSWER), default=None)


def workflow(actions: Iterable[str]) -> str:
    """Name the way of working of a sequence of actions.

    An answer before anything was looked up is a *guess*. An action taken several times in a row is written once, with a
    plus.

    >>> workflow(["answer", "search", "search", "answer"]), workflow(["search", "answer"]), workflow([])
    ('guess-search+-answer', 'search-answer', 'nothing')
    """
    names, evidence = [], False
    for action in actions:
        evidence = evidence or action not in (ANSWER, NO_ACTION)
        names.append("guess" if action == ANSWER and not evidence else action)
    return "-".join(name + "+" * (len(list(run)) > 1) for name, run in groupby(names)) or "nothing"


def to_rollouts(episodes: Iterable[Episode], actions: Sequence[str]) -> Rollouts:
    """Return the record of episodes of one step; an action's code is its place in ``actions``.

    ValueError names an action that is not among them. RecordError as from `Rollouts`.
    """
    code = {NO_ACTION: -1, **{name: place for place, name in enumerate(actions)}}
    batch = list(episodes)
    unknown = {turn.action for episode in batch for turn in episode.turns} - set(code)
    if unknown:
        raise ValueError(f"action {min(unknown)!r} is not among {', '.join(actions)}: give it a code")
    return Rollouts.from_trajectories([_trajectory(episode, code) for episode in batch])


def _trajectory(episode: Episode, code: Mapping[str, int]) -> nested.Trajectory:
    segment = nested.Segment(
        turns=tuple(_record(turn, index, code) for index, turn in enumerate(episode.turns)),
        version_oldest=_version(episode.version_oldest),
        version_newest=_version(episode.version_newest),
        take_version=_version(episode.take_version),
    )
    return nested.Trajectory(
        task=episode.task,
        segments=(segment,),
        reward=_nan(episode.reward),
        outcome=episode.outcome,
        role=episode.role,
    )


def _record(turn: Turn, index: int, code: Mapping[str, int]) -> nested.Turn:
    return nested.Turn(
        action=code[turn.action],
        index=index,
        generated=turn.generated_tokens or 0,
        observed=turn.observed_tokens or 0,
        logp_behaviour=_nan(turn.logp),
        logp_reference=_nan(turn.logp_reference),
        entropy=_nan(turn.entropy),
        tokens=turn.tokens,
    )


def from_rollouts(
    rollouts: Rollouts,
    step: int,
    actions: Sequence[str],
    contexts: Sequence[str] = (),
    piece: Callable[[int], str] | None = None,
) -> Iterator[Episode]:
    """Yield the episodes of a record, turns of all segments in order; ``piece`` gives the text of a token's id.

    Their words are those of the tokens, where the record has tokens and ``piece`` is given.
    """
    for row in range(len(rollouts)):
        tree = rollouts.trajectory(row)
        turns = [turn for segment in tree.segments for turn in segment.turns]
        oldest = [s.version_oldest for s in tree.segments if s.version_oldest >= 0]
        newest = [s.version_newest for s in tree.segments if s.version_newest >= 0]
        taken = [s.take_version for s in tree.segments if s.take_version >= 0]
        first = [place for place, s in enumerate(tree.segments) if s.reason is Reason.START]
        opens = {id(tree.segments[place].turns[0]) for place in first if tree.segments[place].turns}
        yield Episode(
            step=step,
            task=tree.task,
            turns=tuple(_words(turn, actions, contexts, piece, opens=id(turn) in opens) for turn in turns),
            reward=_none(tree.reward),
            outcome=tree.outcome,
            prompt=_prompt(turns, piece),
            role=tree.role,
            version_oldest=min(oldest, default=None),
            version_newest=max(newest, default=None),
            take_version=max(taken, default=None),
        )


def _words(
    turn: nested.Turn,
    actions: Sequence[str],
    contexts: Sequence[str],
    piece: Callable[[int], str] | None,
    *,
    opens: bool,
) -> Turn:
    tokens, generated, observed = turn.tokens, "", ""
    pieces: tuple[str, ...] = ()
    if tokens is not None and piece is not None:
        pieces = tuple(piece(each) for each in tokens.id.tolist())
        sampled = tokens.sampled.tolist()
        start = sampled.index(True) if opens and True in sampled else 0  # the prompt stands before
        generated = "".join(text for text, mine in zip(pieces, sampled, strict=True) if mine)
        observed = "".join(t for t, mine in zip(pieces[start:], sampled[start:], strict=True) if not mine)
    return Turn(
        action=actions[turn.action] if 0 <= turn.action < len(actions) else NO_ACTION,
        generated=generated,
        observed=observed,
        generated_tokens=turn.generated,
        observed_tokens=turn.observed,
        context=contexts[turn.context] if 0 <= turn.context < len(contexts) else "",
        logp=_none(turn.logp_behaviour),
        logp_reference=_none(turn.logp_reference),
        entropy=_none(turn.entropy),
        tokens=tokens,
        pieces=pieces,
    )


def _prompt(turns: Sequence[nested.Turn], piece: Callable[[int], str] | None) -> str:
    tokens = turns[0].tokens if turns else None
    if tokens is None or piece is None or not tokens.sampled.any():
        return ""
    return "".join(piece(each) for each in tokens.id[: int(np.argmax(tokens.sampled))].tolist())


def _version(value: int | None) -> int:
    return -1 if value is None else value


def _nan(value: float | None) -> float:
    return math.nan if value is None else value


def _none(value: float) -> float | None:
    return None if math.isnan(value) else value
