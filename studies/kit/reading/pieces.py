"""The text of each token of a sequence, such that the pieces joined are the text of the sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["Pieces"]

_LAST = 12  # tokens that one character may be spread over, and more
_LOST = "\N{REPLACEMENT CHARACTER}"


class Pieces:
    """Gives the pieces of sequences of ids, for one tokenizer of `transformers`.

    Special tokens are written out. A character of which a token holds only a part is in the piece of the token that
    completes it. What a token adds mostly does not depend on those before it: that is tried first, and checked against the
    text of the whole.
    """

    def __init__(self, words: Any) -> None:
        self.words = words
        self._anchor = words.encode("a", add_special_tokens=False)[-1:]
        self._inside: dict[int, str] = {}
        self._first: dict[int, str] = {}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return a text for each of the ids."""
        if not ids:
            return []
        found = [self._begins(ids[0]), *(self._adds(each) for each in ids[1:])]
        return found if "".join(found) == self._decode(ids) else self._one_by_one(ids)

    def _begins(self, token: int) -> str:
        if token not in self._first:
            self._first[token] = self._decode([token])
        return self._first[token]

    def _adds(self, token: int) -> str:
        if token not in self._inside:
            self._inside[token] = self._decode([*self._anchor, token])[len(self._decode(self._anchor)) :]
        return self._inside[token]

    def _one_by_one(self, ids: Sequence[int]) -> list[str]:
        found, done, shown = [], 0, 0  # the text up to token `shown` was given; from `done` on it is decoded again
        for k in range(1, len(ids) + 1):
            text = self._decode(ids[done:k])
            if text.endswith(_LOST) and k - shown < _LAST and k < len(ids):
                found.append("")
            else:
                found.append(text[len(self._decode(ids[done:shown])) :])
                done, shown = shown, k
        return found

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.words.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text
