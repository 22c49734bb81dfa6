"""Which seeds a session uses: those of the record, the first N, fresh ones, or fresh ones until the claims are decided."""

import secrets
from dataclasses import dataclass

__all__ = ["CAPS", "FRESH_FROM", "UNTIL", "Seeds", "parse"]

FRESH_FROM = 1_000_000
"""Fresh seeds start here or above; no record is made with them."""
UNTIL = "until-decided"
"""The choice that adds seeds until the claims are decided."""
CAPS = {"sim": 256, "minimodel": 32, "fullscale": 16}
"""The most seeds that are added until a claim is decided, by rung, unless a number is given."""
_FEWEST = 6  # at 5 an exact sign-flip test cannot go below p = .0625
_FEWEST_UNTIL = 8  # that all of 7 seeds lie on one side does not settle a median at every look at once
_BASES = 2_000_000  # bases are multiples of 1000 below 2**31, short enough to retype
_STEP = 1000  # more seeds than that from one base would run into those of the next


@dataclass(frozen=True)
class Seeds:
    """The choice of seeds for a session."""

    base: int = 0
    """First seed."""
    n: int | None = None
    """How many; ``None`` for as many as each claim has on record."""
    cap: int | None = None
    """The most that are added until the claims are decided; ``None`` where their number is fixed."""

    @property
    def fresh(self) -> bool:
        """Whether these seeds are used for nothing on record."""
        return self.base > 0

    @property
    def option(self) -> str:
        """The command-line option that makes this choice; empty for the seeds on record."""
        if self.cap is not None:
            return f"--seeds {UNTIL}:{self.cap}:{self.base}"
        if self.fresh:
            return f"--seeds fresh:{self.base}" + ("" if self.n is None else f":{self.n}")
        return "" if self.n is None else f"--seeds {self.n}"

    def of(self, on_record: int) -> range:
        """Return the seeds for a claim that has so many on record."""
        return range(self.base, self.base + (on_record if self.n is None else self.n))


def parse(text: str | None, rung: str = "sim") -> Seeds:
    """Read ``N``, ``fresh``, ``fresh:BASE``, ``fresh:BASE:N``, ``until-decided``, or that with ``:CAP`` or ``:CAP:BASE``.

    Where no base is given it is drawn from the operating system. ValueError for anything else, fewer than six seeds
    (eight until decided), or a base below a million.

    >>> parse("64").of(8), parse("fresh:1234000").of(8), parse(None).of(8)
    (range(0, 64), range(1234000, 1234008), range(0, 8))
    >>> parse("until-decided:64:1234000").option
    '--seeds until-decided:64:1234000'
    """
    if text is None:
        return Seeds()
    kind, *rest = text.split(":")
    if kind == UNTIL and len(rest) <= 2 and all(part.isdecimal() for part in rest):
        return Seeds(_base(text, rest[1:]), cap=_cap(text, int(rest[0]) if rest else CAPS[rung]))
    if kind == "fresh" and len(rest) <= 2 and all(part.isdecimal() for part in rest):
        return Seeds(_base(text, rest), _number(text, rest[1]) if len(rest) == 2 else None)
    if text.isdecimal():
        return Seeds(0, _number(text, text))
    raise ValueError(
        f"--seeds {text!r}: it takes a number such as 64, 'fresh', 'fresh:BASE' to repeat fresh ones, or '{UNTIL}:CAP'"
    )


def _number(text: str, given: str) -> int:
    if int(given) < _FEWEST:
        raise ValueError(f"--seeds {text}: {_FEWEST} or more; an exact test on 5 seeds cannot go below p = .0625")
    return int(given)


def _base(text: str, given: list[str]) -> int:
    if not given:
        return FRESH_FROM + _STEP * secrets.randbelow(_BASES)
    if int(given[0]) < FRESH_FROM:
        raise ValueError(f"--seeds {text}: fresh seeds start at {FRESH_FROM} or above, apart from those on record")
    return int(given[0])


def _cap(text: str, cap: int) -> int:
    if not _FEWEST_UNTIL <= cap <= _STEP:
        raise ValueError(
            f"--seeds {text}: a cap of {_FEWEST_UNTIL} to {_STEP}; fewer seeds cannot settle a median at every look, more "
            "would run into those of the next base"
        )
    return cap
