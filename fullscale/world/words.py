"""Words as a search compares them: without case and without accents."""

import unicodedata

__all__ = ["fold"]


def fold(text: str) -> str:
    """Return `text` in lower case without accents.

    >>> fold("São Tomé")
    'sao tome'
    """
    return "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c)).lower()
