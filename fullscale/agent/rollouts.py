"""Playing a batch: questions through an engine and an environment, and what came out as arrays, [Q, G, ...].

Ids are carried as they were sampled, so what the learner scores is what the engine wrote. The luck of every token is
named by (seed, stream, step, episode, place), whatever order episodes end in.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fullscale.dialogue.prompt import Dialogue
from fullscale.engine.protocol import Between, Engine, Reply, Settings, Spoken, Turn
from fullscale.environment import Environment, Episode, Step
from fullscale.world.questions import Question
from minimodel.agent.collect import Draws
from sim.records.tables import Outcome

__all__ = ["Played", "play"]

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Flags = NDArray[np.bool_]


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
    greedy: bool = False,
    between: Between | None = None,
) -> Played:
    """Play `group` episodes of each question and return them.

    Parameters
    ----------
    draws, step
        Which random numbers.
    greedy
        Take the likeliest token everywhere instead.
    between
        Called before every step of the engine; it may publish other weights.
    """
    rows = [q for q in questions for _ in range(group)]
    turns = environment.task.world.turns
    checks = draws.block("verify", step, len(rows), turns) if environment.task.world.verify else [()] * len(rows)
    episodes = [environment.begin(question, luck) for question, luck in zip(rows, checks, strict=True)]
    desk = _Desk(environment, dialogue, episodes, settings)
    luck = draws.block("token", step, len(rows), turns * settings.turn_tokens)
    prompts = {q.id: dialogue.prompt(q) for q in questions}
    spoken = engine.play(
        [prompts[q.id] for q in rows],
        desk.reply,
        settings,
        None if greedy else lambda row, place: float(luck[row, place]),
        between,
    )
    for episode, said in zip(episodes, spoken, strict=True):
        if not episode.done:
            if said.ended != "context":
                raise RuntimeError(f"the engine let episode {episode.question.id!r} go before it was over")
            episode.stop(Outcome.TRUNCATED, 0.0)
    return _arrays(tuple(questions), group, turns, episodes, desk.steps, spoken)


class _Desk:
    """Answers the engine's turns: the environment plays them, the dialogue encodes what comes back."""

    def __init__(
        self, environment: Environment, dialogue: Dialogue, episodes: Sequence[Episode], settings: Settings
    ) -> None:
        self.environment, self.dialogue, self.episodes, self.settings = environment, dialogue, episodes, settings
        self.steps: list[list[Step]] = [[] for _ in episodes]

    def reply(self, rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply]:
        """Return what each row reads next; None where its episode is over."""
        found = self.environment.act([self.episodes[r] for r in rows], [t.text for t in turns])
        for r, played in zip(rows, found, strict=True):
            self.steps[r].append(played)
        return [self._encoded(turn, played) for turn, played in zip(turns, found, strict=True)]

    def _encoded(self, turn: Turn, played: Step) -> Reply:
        if played.done:
            return Reply(None)
        ended = turn.ids[-1] if turn.why == "eos" else None
        return Reply(tuple(self.dialogue.observation(played.observation, ended)))


def _arrays(
    questions: tuple[Question, ...],
    group: int,
    turns: int,
    episodes: Sequence[Episode],
    steps: Sequence[Sequence[Step]],
    spoken: Sequence[Spoken],
) -> Played:
    B, T = len(spoken), max(len(s.ids) for s in spoken)
    tokens = {"ids": 0, "sampled": False, "logp": 0.0, "entropy": 0.0, "version": -1, "turn": 0}
    flat = {
        name: np.stack([np.pad(getattr(s, name), (0, T - len(s.ids)), constant_values=fill) for s in spoken])
        for name, fill in tokens.items()
    }
    K = turns
    per_turn = {
        "action": np.full((B, K), -1),
        "context": np.zeros((B, K), np.int64),
        "correct": np.zeros((B, K), np.bool_),
        "hit": np.zeros((B, K), np.bool_),
        "latency_s": np.zeros((B, K)),
    }
    tool_tokens, why = np.zeros((B, K), np.int64), np.full((B, K), "", dtype="<U8")
    for b, (played, said) in enumerate(zip(steps, spoken, strict=True)):
        for k, step in enumerate(played):
            for name, x in per_turn.items():
                x[b, k] = getattr(step, name)
            read = ~said.sampled & (said.turn == k)
            # the prompt belongs to the first turn and is not read after it
            tool_tokens[b, k] = int(read.sum()) - (int(np.argmax(said.sampled)) if k == 0 else 0)
            why[b, k] = said.turns[k].why
    whole = {
        "length": np.array([len(s.ids) for s in spoken]),
        "taken": np.array([len(p) for p in steps]),
        "reward": np.array([e.reward for e in episodes]),
        "outcome": np.array([int(e.outcome) for e in episodes]),
        "guessed": np.array([e.guessed for e in episodes]),
        "tool_tokens": tool_tokens,
        "why": why,
    }
    shaped = {name: x.reshape(len(questions), group, *x.shape[1:]) for name, x in (flat | per_turn | whole).items()}
    return Played(questions=questions, **shaped)
