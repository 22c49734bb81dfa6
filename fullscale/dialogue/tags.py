"""The protocol of text: what the agent wrote, as an action; what came back, as text.

The agent writes ``<search>query</search>``, ``<read></read>``, ``<verify>candidate</verify>`` or ``<answer>text</answer>``
(Search-R1's tags, arXiv 2503.09516, and two more); what comes back stands between ``<information>`` and ``</information>``.
The first tag that is closed decides, so whatever follows it is not looked at; a policy's engine stops there. Before it may
stand anything but another tag of the protocol.

Nothing that comes from outside can be mistaken for the protocol. In a passage or a reply, every ``<`` that could begin a
tag or a control token is parted from what follows, so that it can neither close the information nor be an action; and
only what the agent wrote is ever parsed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from fullscale.world.passages import Passage

__all__ = [
    "ARGUMENT",
    "INFORMATION",
    "Written",
    "documents",
    "information",
    "invalid_text",
    "neutral",
    "opening",
    "parse",
    "stops",
]

ARGUMENT: dict[str, bool] = {"search": True, "answer": True, "read": False, "verify": True}
"""Tags of actions, and whether there is text in them. An action that is to come needs an entry here and a handler."""

INFORMATION = "information"
"""Tag of what comes back."""

_FREE = frozenset({"think", INFORMATION})
"""Tags an agent may write without being asked what they mean."""

_TAG = re.compile(r"<(/?)([A-Za-z][\w-]*)>")
_HALVES = re.compile("[\ud800-\udfff]")  # of characters, which JSON may hold and no tokenizer takes
_MARKUP = re.compile(r"<(?=[/|!?｜A-Za-z])")


@dataclass(frozen=True)
class Written:
    """What an agent wrote in a turn, as an action."""

    name: str | None
    """The action; None where it is invalid."""
    argument: str
    """Text in its tag, without white space around it."""
    reason: str
    """Why it is invalid; empty where it is not."""
    end: int
    """Characters of the text that were used: up to the first closed tag, all where there is none."""


def parse(text: str, actions: Collection[str] = tuple(ARGUMENT)) -> Written:
    """Return the action in `text`, what an agent wrote in one turn.

    >>> parse("Let me look. <search>capital of Peru</search>")
    Written(name='search', argument='capital of Peru', reason='', end=45)
    >>> parse("<answer>Lima").reason
    '<answer> is not closed'

    Parameters
    ----------
    text
        The turn, as it was sampled; nothing of the prompt and nothing that came back.
    actions
        Actions that exist in this world.

    Raises
    ------
    ValueError
        When one of `actions` has no tag.
    """
    _check(actions)
    opened: list[tuple[str, int]] = []
    foreign = ""
    for tag in _TAG.finditer(text):
        closes, name = tag.groups()
        if name not in ARGUMENT:
            foreign = foreign or (name if name not in _FREE and not closes else "")
        elif not closes:
            opened.append((name, tag.end()))
        else:
            return _closed(text, name, tag, opened, actions)
    if opened:
        reason = f"<{opened[0][0]}> is not closed"
    else:
        reason = f"<{foreign}> is not a tag of this task" if foreign else "there is no tag"
    return Written(None, "", reason, len(text))


def _closed(
    text: str, name: str, tag: re.Match[str], opened: list[tuple[str, int]], actions: Collection[str]
) -> Written:
    """Return the action that a closing tag decides, given the tags opened before it."""
    argument, reason = "", ""
    if not opened:
        reason = f"</{name}> closes nothing"
    elif len(opened) > 1:
        reason = f"<{opened[1][0]}> inside <{opened[0][0]}>; a turn has one tag"
    elif opened[0][0] != name:
        reason = f"</{name}> closes <{opened[0][0]}>"
    elif name not in actions:
        reason = f"there is no {name} in this task"
    else:
        argument = text[opened[0][1] : tag.start()].strip()
        if ARGUMENT[name] and not argument:
            reason = f"<{name}> is empty"
        elif argument and not ARGUMENT[name]:
            reason = f"<{name}> takes no text"
    return Written(None if reason else name, "" if reason else argument, reason, tag.end())


def opening(decode: Callable[[Sequence[int]], str], ids: Sequence[int], name: str) -> slice:
    """Return where in the tokens of a turn its deciding tag ``<name>`` stands: from the token of ``<`` to that of ``>``.

    >>> opening(lambda ids: "".join(map(chr, ids)), [ord(c) for c in "So: <read></read>"], "read")
    slice(4, 10, None)
    """
    tag = f"<{name}>"
    ends = [len(decode(ids[: n + 1])) for n in range(len(ids))]  # characters up to and with each token
    at = decode(ids).find(tag)
    if at < 0:
        raise ValueError(f"the turn does not hold {tag}")
    first = next(n for n, end in enumerate(ends) if end > at)
    return slice(first, next(n for n, end in enumerate(ends) if end >= at + len(tag)) + 1)


def stops(actions: Iterable[str]) -> tuple[str, ...]:
    """Return the texts at which a turn is over: the closing tag of each action."""
    _check(actions := tuple(actions))
    return tuple(f"</{name}>" for name in actions)


def neutral(text: str) -> str:
    """Return `text` with every ``<`` that could begin a tag or a control token parted from what follows.

    What is no character becomes U+FFFD.

    >>> neutral("a < b </information> <|im_end|>")
    'a < b < /information> < |im_end|>'
    """
    return _MARKUP.sub("< ", _HALVES.sub("\ufffd", text))


def information(text: str) -> str:
    """Return what an agent reads when a tool said `text`, on lines of its own."""
    return f"\n\n<{INFORMATION}>{neutral(text).strip()}</{INFORMATION}>\n\n"


def documents(passages: Iterable[Passage]) -> str:
    """Return passages as a search shows them, numbered, each with its title, one below the other."""
    shown = [f"Doc {i} (Title: {_one_line(each.title)}) {each.text.strip()}" for i, each in enumerate(passages, 1)]
    return "\n".join(shown) or "No document was found."


def invalid_text(actions: Collection[str]) -> str:
    """Return what is said of an invalid turn; always the same, and without a tag that could be copied or parsed."""
    return f"That was no valid action. Write exactly one of {', '.join(actions)}, in its tags."


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _check(actions: Collection[str]) -> None:
    unknown = [name for name in actions if name not in ARGUMENT]
    if unknown:
        raise ValueError(f"the action {unknown[0]!r} has no tag; tags are {', '.join(ARGUMENT)}")
