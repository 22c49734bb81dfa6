"""Where in the text of a rollout the environment speaks: blocks of what the policy wrote, each with the replies to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

__all__ = ["CALL", "REPLIES", "SAID", "THINK", "Block", "Tag", "blocks", "finder"]

REPLIES = ("information", "tool_response", "observation", "result")
"""Tags that only the environment may write."""
SAID = ("\nMy previous action is invalid. ", "Let me try again.\n")
"""How the one message of Search-R1's environment that has no tags begins and ends."""
CALL, THINK = "tool_call", "think"

_USER = re.compile(r"(?:\A|\n)(?:user|tool)\n|<\|im_start\|>(?:user|tool)\n")
_ASSISTANT = re.compile(r"(?:<\|im_end\|>\n?)?(?:<\|im_start\|>assistant(?:\n|\Z)|(?:(?<=\n)|\n)assistant(?:\n|\Z))")
_SAID = re.compile(re.escape(SAID[0]))
_BLANK = re.compile(r"\s*")


Tag = tuple[int, int, str, bool]
"""A tag of a text: its start, its end, its name, whether it closes."""


class Block(NamedTuple):
    """What the policy wrote from ``start`` to ``end``, and where the replies that follow end."""

    start: int
    end: int
    replies: tuple[int, ...]
    left_open: int
    """Replies whose tag is never closed."""


_Reply = tuple[int, tuple[int, ...], int]  # start, ends, left open


def finder(names: Collection[str]) -> Callable[[str], list[Tag]]:
    """Return a function that finds the tags of those names in a text, in upper case too."""
    search = re.compile(f"</?(?:{'|'.join(sorted(map(re.escape, names)))})>", re.IGNORECASE | re.ASCII).finditer
    known = {f"<{slash}{name}>": (name, slash != "") for name in names for slash in ("", "/")}

    def find(text: str) -> list[Tag]:
        return [match.span() + known[match[0].lower()] for match in search(text)]

    return find


def blocks(text: str, tags: Sequence[Tag], names: Collection[str], *, chat: bool) -> Iterator[Block]:
    """Yield the blocks of ``text``, which follow each other without a gap; ``tags`` are those that matter, in order.

    A reply is tagged with one of ``names``, or is the message of a user or tool (in ``chat``, or where the marker of an
    assistant's message shows that there are any), or `SAID`. Its tag is closed by the next one of its name; if that opens
    another, or there is none, what came back was cut and goes up to the next tag with which the policy begins: a
    thought's or an action's. Replies with nothing between them belong to one block.
    """
    begin, end, left_open = 0, -1, 0
    replies: list[int] = []
    for start, ends, missing in _replies(text, tags, names, chat):
        if replies and _blank(text, replies[-1], start):
            replies[-1] = start  # what lies between belongs to the first
            replies += ends
            left_open += missing
            continue
        if replies:
            yield Block(begin, end, tuple(replies), left_open)
            begin = replies[-1]
        end, replies, left_open = start, list(ends), missing
    if replies and _blank(text, replies[-1], len(text)):
        yield Block(begin, end, (*replies[:-1], len(text)), left_open)
        return
    if replies:
        yield Block(begin, end, tuple(replies), left_open)
        begin = replies[-1]
    yield Block(begin, len(text), (), 0)


def _replies(text: str, tags: Sequence[Tag], names: Collection[str], chat: bool) -> Iterator[_Reply]:
    """Yield what the environment wrote, in order."""
    opened = {start: place for place, (start, _, name, closes) in enumerate(tags) if not closes and name in names}
    starts = [(start, start) for start in opened]
    if chat or "\nassistant" in text:
        starts += [match.span() for match in _USER.finditer(text)]
    if SAID[0] in text:
        starts += [match.span() for match in _SAID.finditer(text)]
    if len(starts) > len(opened):
        starts.sort()
    done, answered = 0, True  # answered: a marker of the policy's next message may still come
    for start, inside in starts:
        if start < done:
            continue
        if inside == start:
            reply = _tagged(text, tags, opened, opened[start])
        elif text.startswith(SAID[0], start):
            close = text.find(SAID[1], inside)
            reply = (start, (close + len(SAID[1]) if close >= 0 else len(text),), int(close < 0))
        else:
            first = _skip(text, inside)
            if first in opened:
                reply = (start, *_tagged(text, tags, opened, opened[first])[1:])
            elif answered and (match := _ASSISTANT.search(text, inside - 1)):
                reply = (start, (match.end(),), 0)
            elif text.startswith("<", start):
                reply = (start, (len(text),), 0)
            else:  # a line of one word
                answered = False
                continue
        done = reply[1][-1]
        yield reply


def _tagged(text: str, tags: Sequence[Tag], opened: Mapping[int, int], place: int) -> _Reply:
    """Return the tagged reply that begins with tag ``place``, those right after it, and the marker that ends them."""
    start, ends, left_open = tags[place][0], [], 0
    while True:
        end, closed = _close(text, tags, opened, place)
        left_open += not closed
        after = _skip(text, end)
        if not closed or after not in opened:
            break
        ends.append(after)
        place = opened[after]
    match = _ASSISTANT.match(text, end) or (after > end and _ASSISTANT.match(text, after))
    return start, (*ends, match.end() if match else end), left_open


def _close(text: str, tags: Sequence[Tag], opened: Mapping[int, int], place: int) -> tuple[int, bool]:
    """Return where the reply that tag ``place`` opens ends, and whether its tag is closed."""
    _, inside, name, _ = tags[place]
    stop = len(text)
    for later in range(place + 1, len(tags)):
        start, end, other, closes = tags[later]
        if other == name:
            if closes:
                return end, True
            stop = min(stop, start)
            break
        if stop == len(text) and not closes and start not in opened:
            stop = start
    thought = text.find(f"<{THINK}>", inside, stop)
    return (stop if thought < 0 else thought), False


def _skip(text: str, start: int) -> int:
    """Return the first place from ``start`` that is not white."""
    if start < len(text) and not text[start].isspace():
        return start
    match = _BLANK.match(text, start)
    return match.end() if match else start


def _blank(text: str, start: int, end: int) -> bool:
    return start == end or text[start:end].isspace()
