"""Demonstrations: real episodes, played by a demonstrator that acts by a script and writes what the action calls for.

It answers what the evidence in hand names and searches again, in other words, where it names nothing; in its last turn it
answers whatever it has. Tokens are made turn by turn and never again: the environment reads what the ids say, as it does of
a policy. What is drawn is named by (seed, demonstration, turn), so the first n demonstrations are the same however many
follow.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fullscale.dialogue.prompt import Dialogue
from fullscale.dialogue.tags import INFORMATION
from fullscale.engine.local import decoder
from fullscale.engine.protocol import Settings
from fullscale.environment import Environment, Episode, Step
from fullscale.start.start import Start
from fullscale.start.wording import THOUGHTS, queries, turn_text
from fullscale.tools.checker import luck
from fullscale.world.exact_match import exact_match, holds
from fullscale.world.questions import Question
from sim.records.rng import uniforms
from sim.records.tables import Outcome

__all__ = ["Demonstrated", "Demonstration", "demonstrate"]

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

_STREAM = "fullscale/start"
_DRAWS = 5  # of a turn: its action, its sentence, the wording of a query, whether a guess is right, which other answer


@dataclass(frozen=True, eq=False)
class Demonstration:
    """An episode of T tokens."""

    question: Question
    """What was asked."""
    ids: I64
    """The prompt, then turns and what was read after each, [T]."""
    written: Flags
    """Whether the demonstrator wrote the token, [T]: these are taught, prompt and observations never."""
    actions: tuple[str, ...]
    """Action of each turn."""
    solved: bool
    """Whether the last of them was the right answer."""


@dataclass(frozen=True, eq=False)
class Demonstrated:
    """Demonstrations that are taught, and what became of the others."""

    kept: tuple[Demonstration, ...]
    """Those that are taught, in the order in which they were drawn."""
    played: int
    """Episodes played."""
    unsolved: int
    """Left out because they were not solved."""
    too_long: int
    """Left out because they, or a turn of theirs, have more tokens than may be."""
    failed: int
    """Left out because a tool failed."""

    def counts(self) -> dict[str, int]:
        """Return how many were played, and how many of them were left out and why."""
        return {name: getattr(self, name) for name in ("played", "unsolved", "too_long", "failed")}

    def digest(self) -> str:
        """Return a hash of everything that is taught, 16 hexadecimal digits."""
        whole = hashlib.sha256()
        for each in self.kept:
            whole.update(f"{len(each.ids)}\n".encode())
            whole.update(each.ids.astype("<i8").tobytes() + each.written.tobytes())
        return whole.hexdigest()[:16]


@dataclass(eq=False)
class _Play:
    """A demonstration while it is played."""

    episode: Episode
    luck: NDArray[np.float32]  # [turns, _DRAWS]
    ids: list[int]
    written: list[bool]
    actions: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # queries
    seen: str = ""  # since the last search
    longest: int = 0  # turn, tokens


def demonstrate(
    environment: Environment,
    dialogue: Dialogue,
    questions: Sequence[Question],
    start: Start,
    settings: Settings,
    seed: int,
) -> Demonstrated:
    """Play ``start.demonstrations`` episodes, every question once before any comes again, and return those to be taught.

    Parameters
    ----------
    questions
        Those that may be trained on.
    settings
        Most tokens a turn and an episode.
    seed
        Of everything drawn.

    Raises
    ------
    ValueError
        Where no demonstration is left, or there is no other answer for a wrong guess.
    RuntimeError
        Where the environment reads another action than was written: an action of the script that is not offered there.
    """
    player = _Demonstrator(environment, dialogue, questions, start)
    plays = [
        player.begin(n, question, seed) for n, question in enumerate(_drawn(questions, start.demonstrations, seed))
    ]
    while live := [play for play in plays if not play.episode.done]:
        texts = [player.write(play) for play in live]
        steps = environment.act([play.episode for play in live], texts)
        for play, text, step in zip(live, texts, steps, strict=True):
            player.read(play, text, step)
    return _sorted_out(plays, start, settings)


def _drawn(questions: Sequence[Question], wanted: int, seed: int) -> list[Question]:
    """Return `wanted` questions: in every pass over them another order."""
    if not questions:
        raise ValueError("there are no questions to demonstrate on; give at least one")
    N, found = len(questions), []
    for again in range(-(-wanted // N)):
        order = np.argsort(uniforms(seed, f"{_STREAM}/question", again, (N,)), kind="stable")
        found += [questions[i] for i in order]
    return found[:wanted]


def _sorted_out(plays: Sequence[_Play], start: Start, settings: Settings) -> Demonstrated:
    kept, unsolved, too_long, failed = [], 0, 0, 0
    for play in plays:
        outcome = play.episode.outcome
        if outcome == Outcome.INFRASTRUCTURE_FAILURE:
            failed += 1
        elif outcome != Outcome.SOLVED and not start.unsolved:
            unsolved += 1
        elif len(play.ids) > settings.context_tokens or play.longest > settings.turn_tokens:
            too_long += 1
        else:
            kept.append(
                Demonstration(
                    question=play.episode.question,
                    ids=np.array(play.ids, np.int64),
                    written=np.array(play.written, np.bool_),
                    actions=tuple(play.actions),
                    solved=outcome == Outcome.SOLVED,
                )
            )
    if not kept:
        raise ValueError(
            f"none of {len(plays)} demonstrations is left: {unsolved} were not solved, {too_long} are longer than "
            f"{settings.context_tokens} tokens or have a turn of more than {settings.turn_tokens}, in {failed} a tool failed"
        )
    return Demonstrated(tuple(kept), len(plays), unsolved, too_long, failed)


class _Demonstrator:
    """Decides by the script and puts it into words."""

    def __init__(
        self, environment: Environment, dialogue: Dialogue, questions: Sequence[Question], start: Start
    ) -> None:
        self.environment, self.dialogue, self.start = environment, dialogue, start
        self.tokenizer, self.decode = dialogue.tokenizer, decoder(dialogue.tokenizer)
        self.turns = environment.task.world.turns
        table = start.script.probabilities(environment.task.world.graph().compiled())
        self.chance = dict(zip(environment.contexts, table, strict=True))
        self.answers: dict[str, list[str]] = defaultdict(list)  # to questions of each kind
        for question in questions:
            self.answers[question.kind].append(question.answers[0])

    def begin(self, n: int, question: Question, seed: int) -> _Play:
        checks = () if self.environment.task.world.verify is None else luck(seed, _STREAM, n, self.turns)
        prompt = self.dialogue.prompt(question)
        drawn = uniforms(seed, f"{_STREAM}/turn", n, (self.turns, _DRAWS))
        return _Play(self.environment.begin(question, checks), drawn, list(prompt), [False] * len(prompt))

    def write(self, play: _Play) -> str:
        """Write a turn; return its text, as its tokens say it."""
        _, thought, *argument = play.luck[play.episode.turn]
        action = self._action(play)
        said = _pick(THOUGHTS[action], thought) if self.start.think else ""
        text = turn_text(action, self._argument(play, action, argument), said)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        play.ids += ids
        play.written += [True] * len(ids)
        play.longest = max(play.longest, len(ids))
        play.actions.append(action)
        return self.decode(ids)

    def read(self, play: _Play, text: str, step: Step) -> None:
        """Read what came back."""
        intended = play.actions[-1]
        if step.written.name != intended or step.written.end != len(text):
            raise RuntimeError(
                f"the demonstration of question {play.episode.question.id!r} was to {intended}, but {text!r} was read as "
                f"{step.written.name}: {step.written.reason or 'only a part of it was used'}"
            )
        if step.done:
            return
        observation = self.dialogue.observation(step.observation)
        play.ids += observation
        play.written += [False] * len(observation)
        shown = step.observation.strip().removeprefix(f"<{INFORMATION}>").removesuffix(f"</{INFORMATION}>")
        play.seen = shown if intended == "search" else f"{play.seen}\n{shown}"

    def _action(self, play: _Play) -> str:
        e, offered = play.episode, self.environment.offered(play.episode)
        left = self.turns - e.turn
        if left == 1 and "answer" in offered:
            return "answer"
        action = _drawn_from(self.environment.actions, self.chance[e.context], play.luck[e.turn, 0])
        in_hand = e.hit or e.context in {"start", "passed"}  # at the start an answer is a guess, and meant as one
        return "search" if action == "answer" and not in_hand and "search" in offered else action

    def _argument(self, play: _Play, action: str, draws: Sequence[np.float32]) -> str:
        e, (wording, known, other) = play.episode, draws
        if action == "search":
            ways = queries(e.question.text)
            play.asked.append(_pick([way for way in ways if way not in play.asked] or ways, wording))
            return play.asked[-1]
        if action == "read":
            return ""
        if e.context == "passed" and action == "answer":
            return e.candidate
        if e.hit:
            return _named(play.seen, e.question.answers)
        return e.question.answers[0] if known < self.start.known else _pick(self._others(e.question), other)

    def _others(self, question: Question) -> list[str]:
        """Return answers to other questions that do not answer this one: of its kind, where there are any."""
        every = [each for kind in self.answers.values() for each in kind]
        for answers in (self.answers[question.kind], every):
            wrong = [each for each in dict.fromkeys(answers) if not exact_match(each, question.answers)]
            if wrong:
                return wrong
        raise ValueError(
            f"a guess at question {question.id!r} was to be wrong, and every question has the same answer; set known = 1"
        )


def _named(seen: str, answers: Sequence[str]) -> str:
    """Return the gold answer that stands in what was seen: letter by letter if one does, else but for case and accents."""
    there = [each for each in answers if holds(seen, [each])] or answers[:1]
    return next((each for each in there if each in seen), there[0])


def _pick(choices: Sequence[str], u: np.float32) -> str:
    return choices[int(float(u) * len(choices))]


def _drawn_from(names: Sequence[str], chance: NDArray[np.float64], u: np.float32) -> str:
    total = np.cumsum(chance)
    return names[int(np.searchsorted(total, float(u) * total[-1], side="right"))]
