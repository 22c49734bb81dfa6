"""Reading a long document piece by piece."""

import re

__all__ = ["chunks"]

_LONGEST_WORD = 40
"""Characters; a longer run without white space (a script that has none, a table) counts as several words."""


def chunks(text: str, words: int) -> tuple[str, ...]:
    """Return `text` in pieces of at most `words` words each; nothing but white space between pieces is lost.

    >>> chunks("one two  three", 2)
    ('one two', 'three')

    Raises
    ------
    ValueError
        When `words` is less than 1.
    """
    if words < 1:
        raise ValueError(f"words = {words}; a piece holds at least 1")
    spans = [match.span() for match in re.finditer(rf"\S{{1,{_LONGEST_WORD}}}", text)]
    pieces = [spans[i : i + words] for i in range(0, len(spans), words)]
    return tuple(text[piece[0][0] : piece[-1][1]] for piece in pieces)
