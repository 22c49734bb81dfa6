"""Rollouts as TRL's trainer holds them, as episodes with their tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.records.tables import Outcome, Tokens
from studies.kit.episodes import NO_ACTION, Episode, Turn
from studies.kit.reading import tokens, trl
from studies.kit.reading.pieces import Pieces
from studies.kit.reading.tagged import CHAT_NOTE, Cutter
from studies.kit.reading.trl_tap import Rollout

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["MADE_UP", "Maker"]

MADE_UP = "turns in which the policy wrote the tag of a reply"
"""What is counted: TRL's log, which has text alone, shows a reply there."""


class Maker:
    """Makes episodes of rollouts, for one source and one tokenizer; ``ends`` are the ids that end or pad a text."""

    def __init__(self, source: Source, words: Any, ends: Iterable[int]) -> None:
        self.source, self.pieces, self.ends = source, Pieces(words), frozenset(ends)
        self.cut = Cutter(source)
        self._made_up = re.compile(f"<(?:{'|'.join(sorted(self.cut.replies))})>", re.IGNORECASE)

    def __call__(self, rollout: Rollout, step: int) -> Episode:
        """Return the episode of a rollout whose batch optimiser step ``step`` took.

        It is what `trl.read` makes of TRL's log of it, and: turns are cut where the mask says that the policy spoke, and
        have their tokens; a rollout that was cut off is truncated, unless it was solved; versions, where they are known.
        """
        row = {**rollout.row, "step": step}
        lone = rollout.rewards if len(rollout.rewards) == 1 else ()
        made = trl.episode(self.source, row, tuple(self._turns(rollout)), rollout.reward, lone)
        if rollout.truncated and made.outcome is not Outcome.SOLVED:
            made = replace(made, outcome=Outcome.TRUNCATED)
        if rollout.version is None:
            return made
        return replace(made, version_oldest=rollout.version, version_newest=rollout.version, take_version=step - 1)

    def _turns(self, rollout: Rollout) -> Iterator[Turn]:
        """Yield the turns with their tokens."""
        chat = not isinstance(rollout.row["completion"], str)
        if chat:
            self.source.note(CHAT_NOTE)
        shown = [*self.pieces(rollout.prompt), *self.pieces(rollout.ids)]
        ids = (*rollout.prompt, *rollout.ids)
        spoken = ["" if each in self.ends else text for each, text in zip(ids, shown, strict=True)]
        texts, entropies = iter(shown), iter(compress(rollout.entropy or (), rollout.sampled))
        for turn in _joined(tokens.turns(_table(rollout), spoken, self.cut, chat)):
            assert turn.tokens is not None
            if self._made_up.search(turn.generated):
                self.source.count(MADE_UP)
            yield replace(
                turn,
                pieces=tuple(islice(texts, len(turn.tokens))),
                entropy=tokens.first_mean(list(islice(entropies, int(turn.tokens.sampled.sum())))),
            )


def _table(rollout: Rollout) -> Tokens:
    """Return the tokens of a rollout, the prompt's first. Log-probs that rounding put above 0 are 0."""
    before, sampled = len(rollout.prompt), rollout.sampled
    columns: dict[str, Sequence[Any] | None] = {
        "train": [False] * before + [a and b for a, b in zip(rollout.train, sampled, strict=True)]
    }
    if rollout.version is not None:
        columns["version"] = [rollout.version] * (before + len(sampled))
    for name, values in (
        ("logp", rollout.logp),
        ("logp_proximal", rollout.proximal),
        ("logp_reference", rollout.reference),
    ):
        if values is not None:
            columns[name] = [None] * before + [min(value, 0.0) for value in values]
    return tokens.table([*rollout.prompt, *rollout.ids], [False] * before + list(sampled), columns)


def _joined(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Yield turns; one in which nothing was written but the end of the text belongs to the one before."""
    last: Turn | None = None
    for turn in turns:
        if last is not None and turn.action == NO_ACTION and not (turn.generated + turn.observed).strip():
            last = _sum(last, turn)
            continue
        if last is not None:
            yield last
        last = turn
    if last is not None:
        yield last


def _sum(first: Turn, second: Turn) -> Turn:
    assert first.tokens is not None
    assert second.tokens is not None
    names = [each.name for each in fields(Tokens)]
    both = [np.concatenate([getattr(turn.tokens, name) for turn in (first, second)]) for name in names]
    return replace(
        first,
        generated_tokens=(first.generated_tokens or 0) + (second.generated_tokens or 0),
        observed_tokens=(first.observed_tokens or 0) + (second.observed_tokens or 0),
        tokens=Tokens(**dict(zip(names, both, strict=True))),
    )
