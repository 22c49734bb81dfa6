"""Which seeds a session uses: those of the record, the first N, or fresh ones."""

import secrets
from dataclasses import dataclass

__all__ = ["FRESH_FROM", "Seeds", "parse"]

FRESH_FROM = 1_000_000
"""Fresh seeds start here or above; no record is made with them."""
_FEWEST = 6  # at 5 an exact sign-flip test cannot go below p = .0625
_BASES = 2_000_000  # bases are multiples of 1000 below 2**31, short enough to retype


@dataclass(frozen=True)
class Seeds:
    """The choice of seeds for a session."""

    base: int = 0
    """First seed."""
    n: int | None = None
    """How many; ``None`` for as many as each claim has on record."""

    @property
    def fresh(self) -> bool:
        """Whether these seeds are used for nothing on record."""
        return self.base > 0

    @property
    def option(self) -> str:
        """The command-line option that makes this choice; empty for the seeds on record."""
        if self.fresh:
            return f"--seeds fresh:{self.base}"
        return "" if self.n is None else f"--seeds {self.n}"

    def of(self, on_record: int) -> range:
        """Return the seeds for a claim that has so many on record."""
        return range(self.base, self.base + (on_record if self.n is None else self.n))


def parse(text: str | None) -> Seeds:
    """Read ``N``, ``fresh`` or ``fresh:BASE``; ``fresh`` draws a base from the operating system.

    ValueError for anything else, fewer than six seeds, or a base below a million.

    >>> parse("64").of(8), parse("fresh:1234000").of(8), parse(None).of(8)
    (range(0, 64), range(1234000, 1234008), range(0, 8))
    """
    if text is None:
        return Seeds()
    if text == "fresh":
        return Seeds(FRESH_FROM + 1000 * secrets.randbelow(_BASES))
    kind, _, base = text.partition(":")
    if kind == "fresh" and base.isdecimal():
        if int(base) < FRESH_FROM:
            raise ValueError(f"--seeds {text}: fresh seeds start at {FRESH_FROM} or above, apart from those on record")
        return Seeds(int(base))
    if text.isdecimal():
        if int(text) < _FEWEST:
            raise ValueError(f"--seeds {text}: {_FEWEST} or more; an exact test on 5 seeds cannot go below p = .0625")
        return Seeds(0, int(text))
    raise ValueError(f"--seeds {text!r}: it takes a number such as 64, 'fresh', or 'fresh:BASE' to repeat fresh ones")
