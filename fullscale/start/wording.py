"""What a demonstrator says: several ways to look for a question's answer, a sentence before each action, and the tags."""

import re

from fullscale.dialogue.tags import ARGUMENT, neutral

__all__ = ["THOUGHTS", "queries", "turn_text"]

THOUGHTS: dict[str, tuple[str, ...]] = {
    "search": ("I should look this up.", "Let me search for it.", "I need a source for this.", "I will look for it."),
    "read": ("There may be more further on.", "Let me read on.", "The text goes on."),
    "verify": ("I should check this first.", "Let me make sure.", "This wants a check."),
    "answer": ("That is enough to answer.", "I can answer this now.", "I have an answer."),
}
"""Sentences that may stand before each action."""

_EMPTY = frozenset({
    "a", "an", "and", "are", "as", "at", "be", "belong", "belongs", "by", "did", "do", "does", "for", "from", "had", "has",
    "have", "how", "in", "is", "it", "its", "lie", "lies", "name", "of", "on", "or", "that", "the", "to", "was", "were",
    "what", "when", "where", "which", "who", "whom", "whose", "why", "with",
})  # fmt: skip
_WORD = re.compile(r"\w[\w'’.-]*")


def queries(question: str) -> tuple[str, ...]:
    """Return ways to search for the answer to a question, all different: its content words, itself, the names in it.

    >>> queries("What is the capital of Peru?")
    ('capital Peru', 'What is the capital of Peru', 'Peru')
    """
    whole = question.strip().rstrip("?.! ")
    words = [word.rstrip(".-'’") for word in _WORD.findall(whole)]
    content = [word for word in words if word.lower() not in _EMPTY]
    ways = (" ".join(content), whole, " ".join(word for word in content if word[:1].isupper()))
    return tuple(dict.fromkeys(way for way in map(neutral, ways) if way)) or (neutral(question.strip()),)


def turn_text(action: str, argument: str = "", thought: str = "") -> str:
    """Return what is written in a turn; text from outside can close no tag in it.

    >>> turn_text("search", "capital Peru", "Let me look.")
    '<think>Let me look.</think><search>capital Peru</search>'
    """
    before = f"<think>{thought}</think>" if thought else ""
    inside = neutral(argument).strip() if ARGUMENT[action] else ""
    return f"{before}<{action}>{inside}</{action}>"
