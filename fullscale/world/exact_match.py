"""Exact match: whether an answer is a gold answer but for case, punctuation, articles and white space.

It is a function of the answer alone. A reward that searches a whole transcript for answers must know that the prompt may
hold an example of one; here the environment hands over what the agent wrote, and nothing else.

Source: Search-R1 (arXiv 2503.09516), which follows SQuAD. One difference: where nothing is left of a text (the band "The
The", the letter "A", "!!!"), it stands for itself, so that an empty answer is never right.
"""

import re
import string
from collections.abc import Iterable

from fullscale.world.words import fold

__all__ = ["exact_match", "holds", "normalise"]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return `text` in lower case without punctuation and articles, words one space apart.

    >>> normalise(" The  U.S.A. ")
    'usa'
    >>> normalise("The The")
    'the the'
    """
    lower = text.lower()
    left = _ARTICLES.sub(" ", lower.translate(_PUNCTUATION))
    return " ".join(left.split()) or " ".join(lower.split())


def exact_match(answer: str, golds: Iterable[str]) -> bool:
    """Return whether `answer` equals one of the gold answers, all normalised.

    >>> exact_match("the Eiffel tower!", ["Eiffel Tower"])
    True
    """
    said = normalise(answer)
    return bool(said) and any(said == normalise(gold) for gold in golds)


def holds(text: str, golds: Iterable[str]) -> bool:
    """Return whether `text` names one of the gold answers, as whole words, all normalised and without accents.

    >>> holds("Paris is the capital of France.", ["Pari"]), holds("Paris is the capital of France.", ["paris"])
    (False, True)
    """
    words = f" {normalise(fold(text))} "
    return any(f" {named} " in words for named in (normalise(fold(gold)) for gold in golds) if named)
