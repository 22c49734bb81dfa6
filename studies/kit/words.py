"""How numbers, verdicts and near misses are put into words."""

import math
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["LETTERS", "VERDICTS", "CommandError", "interval", "near", "number", "probability"]

VERDICTS = ("supported", "refuted", "undecided", "no verdict")
"""Every verdict, from best settled to least."""
LETTERS = {"supported": "S", "refuted": "R", "undecided": "?", "no verdict": "-"}
"""The letter of each verdict in the terminal."""


class CommandError(Exception):
    """What was asked for on the command line cannot be done; the message says why and what can."""


_FEW = 12  # a longer list is not read


def number(value: float | None, digits: int = 3) -> str:
    """Write a number with so many significant digits and no leading zero.

    >>> number(0.0566), number(-12.34), number(64.0), number(1e-12), number(None)
    ('.0566', '-12.3', '64', '1e-12', '-')
    """
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 10**6 or size < 10**-4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    places = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:.{places}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def interval(low: float | None, high: float | None) -> str:
    """Write an interval as ``[low, high]``; an infinite end is said to lie beyond the run.

    >>> interval(0.0, 0.056), interval(120.0, float("inf"))
    ('[0, .056]', '[120, beyond the run]')
    """
    if low is None or high is None:
        return ""
    ends = ["beyond the run" if end == math.inf else number(end) for end in (low, high)]
    return f"[{ends[0]}, {ends[1]}]"


def probability(value: float | None) -> str:
    """Write a p-value or q-value.

    >>> probability(0.0312), probability(1e-9), probability(None)
    ('.031', '<.0001', '-')
    """
    if value is None:
        return "-"
    if value < 1e-4:
        return "<.0001"
    if value >= 0.9995:
        return "1"
    return number(value, 2)


def near(word: str, known: Iterable[str]) -> str:
    """Say which known words are close to one that is not known, or hold it, or list them all if they are few.

    >>> near("drve", ["drive", "noise"]), near("is", ["drive", "noise"]), near("x", ["drive", "noise"])
    ("did you mean 'drive'?", "did you mean 'noise'?", 'known: drive, noise')
    """
    names = sorted(known)
    close = get_close_matches(word, names, n=3, cutoff=0.5) or [name for name in names if word and word in name][:3]
    if close:
        return "did you mean " + " or ".join(repr(name) for name in close) + "?"
    if len(names) > _FEW:
        return f"none of the {len(names)} is close"
    return "known: " + ", ".join(names) if names else "there are none"
