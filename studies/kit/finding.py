"""Findings: the verdict on one claim at one rung, as builtins that survive JSON and a pipe between processes."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.kit.words import interval, near, number

__all__ = ["SCHEMA", "ControlFinding", "Finding"]

SCHEMA = 1
"""Version of the JSON form; a reader refuses another."""


@dataclass(frozen=True)
class ControlFinding:
    """How a positive control came out."""

    label: str
    """Name of the setting."""
    verdict: str
    """``supported`` when it came out as said."""
    effect: float | None
    """The number measured."""
    low: float | None
    """Lower end of its interval."""
    high: float | None
    """Upper end of its interval."""
    n: int
    """Units."""
    region: str
    """Where the number had to lie, as printed."""
    reason: str
    """Why it allows no verdict, if so."""

    @property
    def words(self) -> str:
        """The control in a line."""
        outcome = "as said" if self.verdict == "supported" else f"NOT as said ({self.reason or self.verdict})"
        computed = self.n == 1  # no sampled kind has a single unit
        ends = "" if computed and self.low == self.high else f" {interval(self.low, self.high)}"
        units = "" if computed else f", n={self.n}"
        return f"{self.label}: {number(self.effect)}{ends.rstrip()}, must be {self.region}{units}: {outcome}"


@dataclass(frozen=True)
class Finding:
    """The verdict on one claim at one rung. Every field is a builtin."""

    claim: str
    """Id of the claim."""
    says: str
    """The claim as a sentence."""
    study: str
    """Name of the study."""
    rung: str
    """``sim``, ``minimodel`` or ``fullscale``."""
    verdict: str
    """``supported``, ``refuted``, ``undecided`` or ``no verdict``."""
    status: str
    """Against the record: ``on record``, ``as expected`` (there is none yet), ``contradicted``, ``weakened``,
    ``strengthened``, ``new``."""
    fails: bool
    """Whether the study fails because of the status."""
    reason: str
    """Why there is no verdict, or what the status means; may be empty."""
    kind: str
    """Name of the kind."""
    measured: str
    """What was estimated and how, in a line."""
    effect: float | None
    """The number."""
    low: float | None
    """Lower end of the 95 % interval; ``None`` where there is none."""
    high: float | None
    """Upper end; ``inf`` when it lies beyond the run."""
    how: str
    """Name of the interval."""
    unit: str
    """Unit of the number."""
    n: int
    """Independent units."""
    base: int
    """First seed; the others follow."""
    seeds: int
    """Number of seeds."""
    p: float | None
    """Smallest alpha at which the verdict would stand; ``None`` for an exact kind."""
    q: float | None
    """Benjamini-Hochberg q over the registered family; filled in at the end of the session."""
    more_seeds: int | None
    """Seeds still needed when undecided; ``None`` when decided or when no number would do."""
    region: str
    """The region as printed."""
    region_low: float | None
    """Its lower end; ``None`` when it has none."""
    region_high: float | None
    """Its upper end; ``None`` when it has none."""
    predicted: float | None
    """The number foreseen."""
    predicted_low: float | None
    """Lower end of the range foreseen."""
    predicted_high: float | None
    """Upper end of the range foreseen."""
    prediction_source: str
    """Where the prediction comes from."""
    agrees: bool | None
    """Whether prediction and interval meet; ``None`` without a prediction."""
    expect: str | None
    """The verdict on record."""
    source: str
    """Where the hypothesis comes from."""
    reverses: str
    """The parameter at which the verdict turns round."""
    rungs: tuple[str, ...]
    """The rungs at which it is claimed."""
    detail: tuple[tuple[str, str | int | float], ...]
    """Counts and side results."""
    controls: tuple[ControlFinding, ...]
    """Positive controls."""
    fingerprint: str
    """Fingerprint of the code at or below the rung."""
    study_fingerprint: str
    """Fingerprint of the study's own file."""
    rerun: str
    """The command that makes this finding again."""

    def __post_init__(self) -> None:
        """Refuse anything but builtins: a numpy scalar breaks the pipe to the controlling process."""
        for field in dataclasses.fields(self):
            _builtin(f"Finding.{field.name}", getattr(self, field.name))

    @property
    def span(self) -> str:
        """The seeds, as ``0..63``."""
        return f"{self.base}..{self.base + self.seeds - 1}"

    @property
    def fresh(self) -> bool:
        """Whether the seeds are fresh ones."""
        return self.base > 0

    @property
    def number(self) -> str:
        """The effect with its interval; ``-`` where nothing was measured."""
        if self.effect is None:
            return "-"
        effect = "beyond the run" if math.isinf(self.effect) else number(self.effect)
        exact = self.kind in ("identity", "agreement")  # computed: an interval only where a tolerance gives it width
        ends = "" if exact and self.low == self.high else interval(self.low, self.high)
        return f"{effect} {ends}".rstrip()

    @property
    def measurement(self) -> str:
        """The effect with its interval and unit, or why there is none."""
        if self.effect is None:
            return self.reason or "not measured"
        return f"{self.number} {self.unit}".rstrip()

    def to_json(self) -> str:
        """The finding as strict JSON; an infinity becomes a string."""
        return json.dumps(self.to_dict(), sort_keys=True, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON data with its schema version."""
        return {"schema": SCHEMA, **_encode(dataclasses.asdict(self))}

    @classmethod
    def from_json(cls, text: str) -> "Finding":
        """Read what ``to_json`` wrote. ValueError for another schema or other fields."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Finding":
        """Read what ``to_dict`` wrote. ValueError for another schema or other fields."""
        schema = data.get("schema")
        if schema != SCHEMA:
            raise ValueError(f"a finding of schema {schema!r}; this version reads {SCHEMA}: record it again")
        given = {name: _decode(value) for name, value in data.items() if name != "schema"}
        known = {field.name for field in dataclasses.fields(cls)}
        for name in [*given.keys() - known, *known - given.keys()]:
            have = "has an unknown" if name in given else "lacks the"
            raise ValueError(f"a finding {have} field {name!r}; {near(name, known)}")
        given["rungs"] = tuple(given["rungs"])
        given["detail"] = tuple((key, value) for key, value in given["detail"])
        given["controls"] = tuple(ControlFinding(**control) for control in given["controls"])
        return cls(**given)


def _builtin(where: str, value: Any) -> None:
    if isinstance(value, ControlFinding):
        for field in dataclasses.fields(value):
            _builtin(f"{where}.{field.name}", getattr(value, field.name))
    elif type(value) is tuple:
        for item in value:
            _builtin(where, item)
    elif type(value) not in (str, int, float, bool, type(None)):
        raise TypeError(f"{where} is a {type(value).__module__}.{type(value).__name__}: convert it to a builtin")
    elif type(value) is float and math.isnan(value):
        raise ValueError(f"{where} is NaN: a finding holds numbers or None")


def _encode(value: Any) -> Any:
    """Write infinities as strings, which strict JSON can hold."""
    if isinstance(value, dict):
        return {key: _encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _decode(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode(item) for item in value]
    return {"inf": math.inf, "-inf": -math.inf}.get(value, value) if isinstance(value, str) else value
