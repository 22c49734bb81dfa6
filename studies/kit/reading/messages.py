"""Turns of a conversation that is kept as messages: an assistant's message, then what tools and users replied."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from studies.kit.episodes import ANSWER, NO_ACTION, Turn

if TYPE_CHECKING:
    from studies.kit.reading.tagged import Cutter

__all__ = ["CALLS_NOTE", "content", "message_turns"]

CALLS_NOTE = "calls and thoughts that a record keeps apart from the text are shown with their usual tags"
"""What a source whose messages have calls tells its reader."""


def message_turns(cut: Cutter, message: Mapping[str, Any], replies: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """Return the turns of an assistant's message and the messages that came back: one a call, or one without calls.

    A tool's message goes to the call that it names, any other to the last turn. Without a call the text is cut at its
    tags; if it has none, it is the answer where nothing came back, else no action.
    """
    thought, text = message.get("reasoning_content"), content(message.get("content"))
    written = (f"<think>{thought}</think>" if isinstance(thought, str) and thought else "") + text
    calls = [call for call in message.get("tool_calls") or [] if isinstance(call, dict)]
    if not calls:
        turns = list(cut.message(written, replied=bool(replies), chat=True))
        turns = turns or [Turn(NO_ACTION if replies else ANSWER)]
    else:
        cut.source.note(CALLS_NOTE)
        turns = [Turn(_name(cut, call), _written(call)) for call in calls]
        turns[0] = replace(turns[0], generated=written + turns[0].generated)
    for reply in replies:
        named = [k for k, call in enumerate(calls) if call.get("id") and call.get("id") == reply.get("tool_call_id")]
        place = named[0] if named else len(turns) - 1
        turns[place] = replace(turns[place], observed=turns[place].observed + content(reply.get("content")))
    return turns


def content(value: Any) -> str:
    """Return the text of a message: itself, or its parts that are text; what is no text is named.

    >>> content("hi"), content([{"type": "text", "text": "hi"}, {"type": "image_url"}]), content(None)
    ('hi', 'hi[image_url]', '')
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return "" if value is None else json.dumps(value, ensure_ascii=False)
    parts = [part if isinstance(part, dict) else {"type": "text", "text": str(part)} for part in value]
    return "".join(str(part["text"]) if "text" in part else f"[{part.get('type', 'part')}]" for part in parts)


def _call(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what names the call: verifiers writes it at the top, OpenAI's interface under ``function``."""
    inner = call.get("function")
    return inner if isinstance(inner, dict) else call


def _name(cut: Cutter, call: Mapping[str, Any]) -> str:
    name = _call(call).get("name")
    if isinstance(name, str) and name.strip():
        return cut.source.action(name)
    cut.source.count("tool calls without a name that can be read")
    return NO_ACTION


def _written(call: Mapping[str, Any]) -> str:
    named, arguments = _call(call), _call(call).get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>{{"name": {json.dumps(named.get("name"))}, "arguments": {text or "{}"}}}</tool_call>'
