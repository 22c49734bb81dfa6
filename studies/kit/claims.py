"""Claims: a sentence about one number, the region it must lie in, the prediction, and the verdict on record."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Required, TypedDict, TypeVar, Unpack

import pytest

from studies.kit.estimate import Kind
from studies.kit.regions import Region
from studies.kit.words import near, number

if TYPE_CHECKING:
    from studies.kit.exact import Identity

__all__ = [
    "EXPECTATIONS",
    "RUNGS",
    "Claim",
    "ClaimError",
    "Control",
    "Prediction",
    "at",
    "check_region",
    "claim",
    "outline",
]

RUNGS = ("sim", "minimodel", "fullscale")
"""The rungs of the ladder, from the bottom."""
EXPECTATIONS = ("supported", "refuted", "undecided")
"""What may be on record."""
FEWEST_SEEDS = 6  # at 5 an exact sign-flip test cannot go below p = .0625
DEFAULT_SEEDS = 8

T = TypeVar("T")


class ClaimError(ValueError):
    """A claim is not well formed."""


@dataclass(frozen=True)
class Prediction:
    """A number written down before the measurement."""

    value: float
    """The predicted number, in the claim's unit."""
    low: float | None = None
    """Lower end of the predicted range, if theory gives a range."""
    high: float | None = None
    """Upper end of the predicted range."""
    source: str = ""
    """Where the number comes from: an equation, a theorem, the rung below."""

    def __post_init__(self) -> None:
        """Refuse half a range and a value outside it."""
        if (self.low is None) != (self.high is None):
            raise ClaimError(f"a prediction has both ends of a range or neither, not low={self.low}, high={self.high}")
        if self.low is not None and self.high is not None and not self.low <= self.value <= self.high:
            raise ClaimError(f"the predicted value {self.value} lies outside its own range {self.low} to {self.high}")

    def agrees(self, low: float, high: float) -> bool:
        """Whether the predicted range (or value) meets the measured interval [low, high].

        >>> Prediction(0.0).agrees(0.0, 0.06), Prediction(3.0, 2.5, 3.5).agrees(3.6, 4.0)
        (True, False)
        """
        least = self.value if self.low is None else self.low
        most = self.value if self.high is None else self.high
        return least <= high and most >= low


@dataclass(frozen=True)
class Control:
    """A setting in which the effect must show, with the same loop and the same detector."""

    label: str
    """Name of the setting, as ``study.control`` reports it."""
    region: Region
    """Where the number must lie there."""


def at(value: T | Mapping[str, T], rung: str) -> T:
    """Return what holds at a rung, of a value that is the same at all rungs or given by rung."""
    return value[rung] if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class Claim:
    """One claim of one study."""

    id: str
    """Unique name in kebab case."""
    says: str
    """The claim as a sentence."""
    kind: Kind
    """What sort of number it is about."""
    region: Region | Mapping[str, Region]
    """Where the number must lie, the same at every rung or by rung."""
    unit: str
    """Unit of the number."""
    predicts: Prediction | Mapping[str, Prediction] | None
    """The number foreseen, by rung where it differs."""
    expect: str | Mapping[str, str] | None
    """The verdict on record; ``None`` for a new claim."""
    seeds: int | Mapping[str, int]
    """How many seeds, 0 .. seeds-1, the record is made with."""
    source: str
    """Where the hypothesis comes from."""
    reverses: str
    """The parameter at which the verdict turns round."""
    rungs: tuple[str, ...]
    """The rungs at which it is claimed."""
    long: bool | tuple[str, ...]
    """Whether it runs only with ``--all``: at every rung, or at those named."""
    controls: tuple[Control, ...]
    """Positive controls that must be reported before there is a verdict."""

    def is_long(self, rung: str) -> bool:
        """Whether the claim runs only with ``--all`` at this rung."""
        return rung in self.long if isinstance(self.long, tuple) else self.long

    def region_at(self, rung: str) -> Region:
        """The region at a rung."""
        return at(self.region, rung)

    def seeds_at(self, rung: str) -> int:
        """The number of seeds at a rung."""
        return at(self.seeds, rung)

    def expect_at(self, rung: str) -> str | None:
        """The verdict on record at a rung."""
        return None if self.expect is None else at(self.expect, rung)

    def predicts_at(self, rung: str) -> Prediction | None:
        """The prediction at a rung."""
        return None if self.predicts is None else at(self.predicts, rung)


class ClaimFields(TypedDict, total=False):
    """The keywords of ``claim``; see the fields of ``Claim``."""

    says: Required[str]
    kind: Required[Kind]
    region: Region | Mapping[str, Region] | None
    unit: str
    predicts: Prediction | Mapping[str, Prediction] | None
    expect: str | Mapping[str, str] | None
    seeds: int | Mapping[str, int] | None
    source: str
    reverses: str
    rungs: tuple[str, ...]
    long: bool | tuple[str, ...]
    controls: tuple[Control, ...]


def claim(id: str, **fields: Unpack[ClaimFields]) -> pytest.MarkDecorator:  # noqa: A002
    """State a claim on a study; several may be stacked.

    ``says`` and ``kind`` are required, and ``region`` unless the kind is exact. ``region``, ``predicts``, ``expect``
    and ``seeds`` may be given by rung, as a mapping. ClaimError for an unknown keyword (with the near misses), a
    verdict that cannot be on record, fewer than six seeds, or an id that is not in kebab case.
    """
    return pytest.mark.claim(build(id, dict(fields)))


def build(id: str, fields: Mapping[str, Any]) -> Claim:  # noqa: A002
    """Check the keywords of a claim and return it."""
    _check_id(id)
    for name in fields:
        if name not in ClaimFields.__annotations__:
            raise ClaimError(f"claim {id!r}: no keyword {name!r}; {near(name, ClaimFields.__annotations__)}")
    for name in ("says", "kind"):
        if not fields.get(name):
            raise ClaimError(f"claim {id!r} needs {name}=")
    rungs = _rungs(id, fields.get("rungs", ("sim",)))
    predicts = fields.get("predicts")
    kind, region = _target(id, fields["kind"], fields.get("region"), predicts)
    seeds = fields.get("seeds")
    if seeds is None:
        seeds = 1 if kind.exact else DEFAULT_SEEDS
    made = Claim(
        id=id,
        says=fields["says"],
        kind=kind,
        region=region,
        unit=fields.get("unit", ""),
        predicts=predicts,
        expect=fields.get("expect"),
        seeds=seeds,
        source=fields.get("source", ""),
        reverses=fields.get("reverses", ""),
        rungs=rungs,
        long=fields.get("long", False),
        controls=tuple(fields.get("controls", ())),
    )
    for rung in rungs:
        _check_at(made, rung)
    return made


def outline(id: str, rungs: tuple[str, ...] = ("sim",), long: bool | tuple[str, ...] = False) -> Claim:  # noqa: A002
    """Return a claim of which only this is known, to be listed and selected but not concluded."""
    _check_id(id)
    unknown: Any = None
    return Claim(id, "", unknown, unknown, "", None, None, DEFAULT_SEEDS, "", "", _rungs(id, rungs), long, ())


def _check_id(id: str) -> None:  # noqa: A002
    if not isinstance(id, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", id):
        raise ClaimError(f"claim id {id!r}: it is kebab case, lower-case words and digits joined by '-'")


def _rungs(id: str, rungs: Any) -> tuple[str, ...]:  # noqa: A002
    if isinstance(rungs, str) or not rungs:
        raise ClaimError(f"claim {id!r}: rungs={rungs!r} must be a tuple such as ('sim',)")
    for rung in rungs:
        if rung not in RUNGS:
            raise ClaimError(f"claim {id!r}: no rung {rung!r}; {near(str(rung), RUNGS)}")
    return tuple(rung for rung in RUNGS if rung in rungs)


def _target(id: str, kind: Any, region: Any, predicts: Any) -> tuple[Kind, Any]:  # noqa: A002
    """Fill in what an exact kind implies: the target of an identity, the region of either."""
    if not hasattr(kind, "estimate"):
        raise ClaimError(f"claim {id!r}: kind={kind!r} is not a kind; call it, as in kind=rate()")
    if region is not None:
        return kind, region
    if kind.name == "agreement":
        return kind, Region(0.0, kind.tolerance, closed=True)
    if kind.name == "identity":
        exact: Identity = kind
        target = exact.target if exact.target is not None else getattr(predicts, "value", None)
        if target is None:
            raise ClaimError(f"claim {id!r}: an identity needs a target=, a predicted value or a region=")
        return replace(exact, target=float(target)), Region(
            target - exact.tolerance, target + exact.tolerance, closed=True
        )
    raise ClaimError(f"claim {id!r} needs region=, such as above(0) or within(-1, 1)")


def check_region(what: str, kind: Kind, region: Region) -> None:
    """Refuse a region with an end that the kind's number cannot reach, or one that holds none of its values."""
    least, most = kind.bounds
    for end in region.boundaries:
        none_left = (end == least and region.high == end) or (end == most and region.low == end)
        if not least <= end <= most or (none_left and not region.closed):
            span = f"from {number(least)} to {number(most)}" if most < float("inf") else f"{number(least)} or more"
            raise ClaimError(
                f"{what}: region {region.words} for kind={kind.name}, whose values run {span}: put the end inside that "
                "range, or use the kind that the number is of, such as mean() or median()"
            )


def _check_at(made: Claim, rung: str) -> None:
    for name in ("region", "seeds", "expect", "predicts"):
        value = getattr(made, name)
        if isinstance(value, Mapping) and rung not in value:
            raise ClaimError(f"claim {made.id!r}: {name}= is given by rung but says nothing about {rung!r}")
    if not isinstance(made.region_at(rung), Region):
        raise ClaimError(f"claim {made.id!r}: region={made.region!r} is not a region; use above, below or within")
    check_region(f"claim {made.id!r}", made.kind, made.region_at(rung))
    expect = made.expect_at(rung)
    if expect is not None and expect not in EXPECTATIONS:
        raise ClaimError(f"claim {made.id!r}: expect={expect!r} cannot be on record; {near(str(expect), EXPECTATIONS)}")
    seeds = made.seeds_at(rung)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < (1 if made.kind.exact else FEWEST_SEEDS):
        raise ClaimError(
            f"claim {made.id!r}: seeds={seeds!r}; it takes {FEWEST_SEEDS} or more (an exact test on 5 cannot go below "
            "p = .0625)"
        )
    prediction = made.predicts_at(rung)
    if prediction is not None and not isinstance(prediction, Prediction):
        raise ClaimError(f"claim {made.id!r}: predicts={prediction!r} must be a Prediction(value, ..., source=...)")
