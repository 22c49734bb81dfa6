"""Cut the text of a rollout into turns: what the policy wrote up to and with one action, then what came back.

Two ways of marking an action are known, and may be mixed:

    <search> who wrote it? </search> <information> ... </information> <answer> Austen </answer>          tags
    <tool_call> {"name": "search", "arguments": {...}} </tool_call> <tool_response> ... </tool_response>  chat (Hermes, Qwen)

Tags are those of `ACTIONS` and of the tools that are known, and any other whose pair is directly followed by what only an
environment writes. As in the environments that run such policies, an action is the first tag that is opened and closed,
wherever it stands, inside of a thought too. Of the tags that are never closed the last one counts, outside of a thought,
and the turn is *cut short*. What came back begins with a tag that only the environment may write
(`replies.REPLIES`) or with the marker of a user's or tool's message, which is recognised with its special tokens and
without: many dumps drop those. A text cannot tell a reply from one that the policy made up.

In chat the final message without a call is the answer. In text with tags it is no action: an answer has its tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from studies.kit.episodes import ANSWER, NO_ACTION, Turn
from studies.kit.reading.formats import ANSWERS, Source
from studies.kit.reading.replies import CALL, REPLIES, THINK, Block, Tag, blocks, finder

__all__ = ["ACTIONS", "CHAT_NOTE", "Cutter", "call_name"]

ACTIONS = ("search", "verify", "answer", "final_answer")
"""Tags that are actions in every text."""
CHAT_NOTE = "in chat, the final message without a tool call is taken as the answer"
"""What a source that has chat tells its reader."""

_SPECIAL = re.compile(r"(?:\s|<\|(?:im_end|endoftext|eot_id|end_of_text)\|>|</s>)*\Z")
_THOUGHT, _THOUGHT_ENDS = f"<{THINK}>", f"</{THINK}>"
_CLOSED = re.compile(r"</([A-Za-z_][\w.-]{0,63})>\Z")
_FUNCTION = re.compile(r"\s*<function=([^>\s]{1,200})>")
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,200})"')

_Action = tuple[str, int, bool]  # name, end, whether its tag is closed


class Cutter:
    """Cuts texts into turns, for one source: its tools are known, what is odd is counted there."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.actions = {*ACTIONS, *source.tools, CALL}
        self.replies = set(REPLIES) - set(source.tools)
        self.tags = finder(self.actions | self.replies)
        known = {*source.tools, *ANSWERS} if source.tools else set(ACTIONS)
        self.known = {name: source.action(name) for name in known}

    def __call__(self, text: str, prompt: str = "") -> tuple[Turn, ...]:
        """Return the turns of ``text``, which a policy wrote after ``prompt``; none if it holds only whitespace.

        Nothing of the text is lost: ``generated`` and ``observed`` joined in order give it back, except that where
        several calls stand in one message and each has its reply, each turn has its own.
        """
        if not text or text.isspace():
            return ()
        tags, at = self.tags(text), 0
        chat = "<|im_start|>" in text or f"<{CALL}>" in prompt or any(tag[2] == CALL for tag in tags)
        if chat:
            self.source.note(CHAT_NOTE)
        turns: list[Turn] = []
        for block in blocks(text, tags, self.replies, chat=chat):
            if block.left_open:
                self.source.count("replies cut short", block.left_open)
            first = at
            while at < len(tags) and tags[at][0] < block.end:
                at += 1
            turns += self._turns(text, tags[first:at], block, chat=chat)
            while block.replies and at < len(tags) and tags[at][0] < block.replies[-1]:
                at += 1
        return tuple(turns)

    def message(self, text: str, *, replied: bool, chat: bool) -> tuple[Turn, ...]:
        """Return the turns of what is known to be the policy's own text; ``replied`` says whether a reply follows it."""
        if not text or text.isspace():
            return ()
        block = Block(0, len(text), (len(text),) * replied, 0)
        return tuple(self._turns(text, self.tags(text), block, chat=chat))

    def _turns(self, text: str, tags: Sequence[Tag], block: Block, *, chat: bool) -> list[Turn]:
        """Return the turns of what the policy wrote between two replies; ``tags`` are those in it."""
        start, end, replies, _ = block
        actions = self._actions(text, tags, block)
        if actions and (replies or _SPECIAL.match(text, actions[-1][1], end)):
            actions[-1] = (actions[-1][0], end, actions[-1][2])
        else:  # a turn of its own
            unfinished = not replies and _thinking(text, start, end)
            final = chat and not (actions or replies or unfinished)
            actions.append((ANSWER if final else NO_ACTION, end, not unfinished))
        if not actions[-1][2]:
            self.source.count("tags left open" if replies else "cut short")
        if len(actions) == 1:
            return [Turn(actions[0][0], text[start:end], text[end : replies[-1]] if replies else "")]
        written = [text[a:b] for a, b in pairwise([start, *(action[1] for action in actions)])]
        returned = _returned(text, block, len(actions))
        return [Turn(a[0], mine, theirs) for a, mine, theirs in zip(actions, written, returned, strict=True)]

    def _actions(self, text: str, tags: Sequence[Tag], block: Block) -> list[_Action]:
        """Return the actions of a block: those that are closed, then the last that is not, if any."""
        found: list[_Action] = []
        done, left_open, never_closed = block.start, None, set()
        for place, tag in enumerate(tags):
            start, end, name, closes = tag
            if closes or start < done or name not in self.actions:
                continue
            if name in never_closed:
                left_open = tag
                continue
            for later in range(place + 1, len(tags)):
                close = tags[later]
                if close[3] and close[2] == name:
                    done, left_open = close[1], None
                    found.append((self._name(name, text[end : close[0]]), done, True))
                    break
            else:
                never_closed.add(name)
                left_open = tag
        if left_open is not None and text.find(_THOUGHT_ENDS, left_open[1], block.end) < 0:
            found.append((self._name(left_open[2], text[left_open[1] : block.end], cut=True), block.end, False))
        elif not found and block.replies and (other := _unknown(text, block)):
            found.append((self.source.action(other), block.end, True))
        return found

    def _name(self, tag: str, inside: str, *, cut: bool = False) -> str:
        if tag in self.known:
            return self.known[tag]
        if tag != CALL:
            return self.source.action(tag)
        name = call_name(inside)
        if name is None and cut and (match := _NAME.search(inside)):
            name = match[1]
        if name is None:
            self.source.count("tool calls without a name that can be read")
            return NO_ACTION
        return self.source.action(name)


def call_name(inside: str) -> str | None:
    """Return the tool that a call names, or None if the call cannot be read.

    >>> call_name('{"name": "search", "arguments": {"query": "x"}}'), call_name("<function=search>"), call_name("{'name'")
    ('search', 'search', None)
    """
    if match := _FUNCTION.match(inside):
        return match[1]
    try:
        call = json.loads(inside)
    except (ValueError, RecursionError):
        return None
    name = call.get("name") if isinstance(call, dict) else None
    return name if isinstance(name, str) and name.strip() else None


def _thinking(text: str, start: int, end: int) -> bool:
    """Whether the last thought that begins there does not end there."""
    return text.rfind(_THOUGHT, start, end) > text.rfind(_THOUGHT_ENDS, start, end)


def _unknown(text: str, block: Block) -> str | None:
    """Return the name of a pair of tags that ends the block, if a tagged reply follows it at once."""
    if not text.startswith("<", block.end):
        return None
    written = text[block.start : block.end].rstrip()
    last = _CLOSED.match(written, written.rfind("</"))
    return last[1] if last and last[1].lower() != THINK and f"<{last[1]}>" in written else None


def _returned(text: str, block: Block, actions: int) -> list[str]:
    """Return what came back after each action: one reply each if there are as many, else all after the last."""
    replies = [text[a:b] for a, b in pairwise([block.end, *block.replies])]
    if len(replies) == actions:
        return replies
    return [""] * (actions - 1) + ["".join(replies)]
