"""The words of the tiny world: a few specials, filler words, entities, relations and answers.

Ids stand in that order, so each class of words is one range and a test of membership is two comparisons.
"""

from collections.abc import Iterable
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sim.records.config import config, near_misses

__all__ = [
    "ANSWER",
    "BOS",
    "DECISIONS",
    "DOCUMENT",
    "END",
    "INVALID",
    "NOTHING",
    "PAD",
    "PASS",
    "QUESTION",
    "READ",
    "REJECT",
    "SEARCH",
    "SPECIALS",
    "VERIFY",
    "WRONG",
    "Vocabulary",
]

PAD, BOS, QUESTION, SEARCH, ANSWER, READ, VERIFY, END, DOCUMENT, WRONG, PASS, REJECT, INVALID, NOTHING = range(14)
SPECIALS = 16
"""Ids below this one are specials; 14 and 15 are reserved."""
DECISIONS = {"search": SEARCH, "answer": ANSWER, "read": READ, "verify": VERIFY}
"""The decision token of each action."""

_NAMED = (
    *("<pad>", "<bos>", "question", "search", "answer", "read", "verify", "end"),
    *("document", "wrong", "pass", "reject", "invalid", "nothing", "<14>", "<15>"),
)
_OBSERVATIONS = frozenset((DOCUMENT, WRONG, PASS, REJECT, INVALID))  # each is followed by one more token

I64 = NDArray[np.int64]


@config
class Vocabulary:
    """How many words of each class there are; ids are specials, fillers, entities, relations, answers."""

    entities: int = 48
    """What questions are about."""
    relations: int = 8
    """What may be asked of each; entities x relations questions in all."""
    answers: int = 64
    """What may be answered."""
    fillers: int = 8
    """Words without meaning, for thinking."""

    def __post_init__(self) -> None:
        for name, least in (("entities", 1), ("relations", 1), ("answers", 2), ("fillers", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}; a vocabulary needs at least {least}")

    @property
    def first_filler(self) -> int:
        """Id of filler 0."""
        return SPECIALS

    @property
    def first_entity(self) -> int:
        """Id of entity 0."""
        return self.first_filler + self.fillers

    @property
    def first_relation(self) -> int:
        """Id of relation 0."""
        return self.first_entity + self.entities

    @property
    def first_answer(self) -> int:
        """Id of answer 0."""
        return self.first_relation + self.relations

    @property
    def size(self) -> int:
        """Number of ids.

        >>> Vocabulary().size
        144
        """
        return self.first_answer + self.answers

    @overload
    def filler(self, i: int) -> int: ...
    @overload
    def filler(self, i: I64) -> I64: ...
    def filler(self, i: int | I64) -> int | I64:
        """Return the id of filler `i`, or the ids of many."""
        return _shifted(i, self.first_filler, self.fillers, "filler")

    @overload
    def entity(self, i: int) -> int: ...
    @overload
    def entity(self, i: I64) -> I64: ...
    def entity(self, i: int | I64) -> int | I64:
        """Return the id of entity `i`, or the ids of many."""
        return _shifted(i, self.first_entity, self.entities, "entity")

    @overload
    def relation(self, i: int) -> int: ...
    @overload
    def relation(self, i: I64) -> I64: ...
    def relation(self, i: int | I64) -> int | I64:
        """Return the id of relation `i`, or the ids of many."""
        return _shifted(i, self.first_relation, self.relations, "relation")

    @overload
    def answer(self, i: int) -> int: ...
    @overload
    def answer(self, i: I64) -> I64: ...
    def answer(self, i: int | I64) -> int | I64:
        """Return the id of answer `i`, or the ids of many."""
        return _shifted(i, self.first_answer, self.answers, "answer")

    def question(self, entity: I64, relation: I64) -> I64:
        """Return the numbers of the questions that ask these entities and relations, given as ids.

        >>> int(Vocabulary().question(np.array([25]), np.array([74]))[0])
        10
        """
        return (entity - self.first_entity) * self.relations + relation - self.first_relation

    def decision(self, action: str) -> int:
        """Return the decision token of `action`.

        Raises
        ------
        ValueError
            When no token stands for it (with near misses).
        """
        if action not in DECISIONS:
            raise ValueError(f"no decision token stands for {action!r}{near_misses(action, DECISIONS)}")
        return DECISIONS[action]

    def word(self, token: int) -> str:
        """Return the word of an id: a special's name, ``~2`` (filler), ``e17``, ``r3`` or ``a9``.

        Raises
        ------
        ValueError
            When the id is outside the vocabulary.
        """
        if not 0 <= token < self.size:
            raise ValueError(f"id {token} is outside [0, {self.size}), the ids of this vocabulary")
        for first, mark in (
            (self.first_answer, "a"),
            (self.first_relation, "r"),
            (self.first_entity, "e"),
            (self.first_filler, "~"),
        ):
            if token >= first:
                return f"{mark}{token - first}"
        return _NAMED[token]

    def text(self, ids: Iterable[int]) -> str:
        """Return ids in words; observation words stand in brackets with the token that follows, unless that is NOTHING.

        >>> Vocabulary().text([1, 2, 41, 75, 18, 3, 41, 75, 8, 89])
        '<bos> question e17 r3 ~2 search e17 r3 [document a9]'
        """
        rest = iter([int(i) for i in ids])
        words = []
        for i in rest:
            word = self.word(i)
            if i in _OBSERVATIONS:
                follows = next(rest, NOTHING)
                word = f"[{word}]" if follows == NOTHING else f"[{word} {self.word(follows)}]"
            words.append(word)
        return " ".join(words)


def _shifted(i: int | I64, first: int, count: int, name: str) -> int | I64:
    """Return `first` + `i`, once `i` is known to lie in [0, count)."""
    low, high = (i, i) if isinstance(i, int) else (int(np.min(i, initial=0)), int(np.max(i, initial=0)))
    if low < 0 or high >= count:
        raise ValueError(f"{name} {low if low < 0 else high} is outside [0, {count}), the numbers of this vocabulary")
    return i + first
