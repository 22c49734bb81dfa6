"""An escalation: what is written down before a claim runs at the next rung, and what came out, held against it.

What is compared across rungs is scale-free: a share of seeds, an AUROC, a ratio. Where the number of the claim is one, the
rung below predicts it, with its interval; else the claim's own prediction for the rung stands, or the region alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from studies.kit.claims import Claim, Prediction
from studies.kit.estimate import Kind
from studies.kit.finding import Finding
from studies.kit.ladder import Rung
from studies.kit.regions import Region
from studies.kit.seeds import UNTIL
from studies.kit.words import interval, number

__all__ = [
    "SCALE_FREE",
    "SCHEMA",
    "Below",
    "Escalation",
    "Foreseen",
    "Made",
    "Plan",
    "Result",
    "Rule",
    "below",
    "comparison",
    "foreseen",
    "hold",
    "rule",
    "scale_free",
]

SCALE_FREE = ("rate", "rate difference", "trend", "rank")
"""Kinds whose number means the same at every rung: shares, differences of shares, AUROCs. A mean of logs is a ratio."""
SCHEMA = 1
"""Version of the files' layout."""


@dataclass(frozen=True)
class Below:
    """The evidence at the rung below."""

    rung: str
    """The rung."""
    verdict: str
    """The verdict on record there; ``not run`` where there is none."""
    n: int = 0
    """Units it rests on."""
    effect: float | None = None
    """The number."""
    low: float | None = None
    """Lower end of its interval."""
    high: float | None = None
    """Upper end."""
    held: int = 0
    """Sets of fresh seeds that gave the verdict on record."""
    sets: int = 0
    """Sets of fresh seeds in all."""
    commit: str = ""
    """Commit the record was made from."""
    fingerprint: str = ""
    """Fingerprint of the code that made it."""


@dataclass(frozen=True)
class Foreseen:
    """What is predicted at the rung above."""

    verdict: str
    """The verdict: a claim climbs because it is supported."""
    value: float | None = None
    """The number; ``None`` where only the region is predicted."""
    low: float | None = None
    """Lower end of its range."""
    high: float | None = None
    """Upper end."""
    source: str = ""
    """Where it comes from."""


@dataclass(frozen=True)
class Rule:
    """When the claim counts as supported at the rung above."""

    kind: str
    """Name of the kind."""
    measured: str
    """What is estimated and how."""
    unit: str
    """Unit of the number."""
    words: str
    """The rule in words."""
    closed: bool
    """Whether the ends belong to the region."""
    region_low: float | None = None
    """Lower end of the region; ``None`` when it has none."""
    region_high: float | None = None
    """Upper end."""

    @property
    def region(self) -> Region:
        """The region."""
        low, high = self.region_low, self.region_high
        return Region(-float("inf") if low is None else low, float("inf") if high is None else high, self.closed)


@dataclass(frozen=True)
class Plan:
    """What is to run."""

    seeds: str
    """The option that chooses the seeds, with their base."""
    n: int
    """How many, or at most how many until decided."""
    runs: int | None = None
    """Runs of all arms, at most; ``None`` where the arms are not known without running."""
    cpu_s: float | None = None
    """CPU seconds they should take, from runs of this study that are in the store; ``None`` where there are none."""
    configs: str = ""
    """Digest of the configs of all arms; empty where they are not known."""
    note: str = ""
    """Why something is not known."""


@dataclass(frozen=True)
class Made:
    """With what it was written."""

    date: str
    """When, in ISO form."""
    commit: str
    """Commit of the working tree, with ``+`` when it has changes; empty outside a repository."""
    fingerprint: str
    """Fingerprint of the code at or below the rung above."""
    study_fingerprint: str
    """Fingerprint of the study's own file."""
    place: dict[str, str]
    """Platform and versions."""


@dataclass(frozen=True)
class Result:
    """What came out, held against what was written."""

    verdict: str
    """The verdict by the registered region."""
    as_predicted: bool
    """Whether it is the verdict that was predicted."""
    n: int
    """Units."""
    seeds: str
    """The seeds, as FIRST..LAST."""
    made: Made
    """With what it was measured."""
    effect: float | None = None
    """The number."""
    low: float | None = None
    """Lower end of its interval."""
    high: float | None = None
    """Upper end."""
    agrees: bool | None = None
    """Whether the interval meets the predicted number or range; ``None`` without either."""
    how: str = ""
    """Name of the interval."""
    reason: str = ""
    """Why there is no verdict, if so."""
    changed: tuple[str, ...] = ()
    """What is not as it was registered."""


@dataclass(frozen=True)
class Escalation:
    """One attempt to carry a claim to a rung."""

    schema: int
    """Version of the layout."""
    claim: str
    """Id of the claim."""
    says: str
    """The claim as a sentence."""
    study: str
    """Name of the study."""
    attempt: int
    """1 for the first; earlier ones stay in their own files."""
    to: str
    """The rung it is to run at."""
    below: Below
    """The evidence below."""
    prediction: Foreseen
    """What is predicted."""
    rule: Rule
    """When it counts as supported."""
    plan: Plan
    """What is to run."""
    made: Made
    """With what it was written."""
    anyway: str = ""
    """Why it runs although the rung below does not hold; empty where it does."""
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Dotted leaves of the first arm's config, and by label what the others change; leaves that are None are left out."""
    result: Result | None = None
    """What came out; ``None`` until it has run."""

    @property
    def terms(self) -> dict[str, Any]:
        """What a registered escalation is held to: a claim that would now register other terms is another claim."""
        return {
            "says": self.says,
            "to": self.to,
            "prediction": self.prediction,
            "rule": self.rule,
            "seeds": (self.plan.n, self.plan.seeds.startswith(UNTIL)),
            "configs": self.plan.configs,
            "anyway": bool(self.anyway),
        }


def scale_free(kind: Kind) -> bool:
    """Whether a kind's number means the same at every rung: a share, a difference of shares, an AUROC, a ratio."""
    return kind.name in SCALE_FREE or bool(getattr(kind, "log", False))


def below(rung: str, finding: Finding | None, known: Rung | None, commit: str) -> Below:
    """Return the evidence at a rung from its record."""
    if finding is None or known is None:
        return Below(rung, "not run")
    numbers = (finding.effect, finding.low, finding.high)
    return Below(rung, finding.verdict, finding.n, *numbers, known.held, known.sets, commit, finding.fingerprint)


def foreseen(claim: Claim, to: str, under: Below) -> Foreseen:
    """Return what is predicted at a rung.

    A prediction that the claim gives by rung comes first. Then the number of the rung below with its interval, where it
    is scale-free. Then the claim's one prediction for all rungs; else only the region.
    """
    own = claim.predicts_at(to)
    if own is not None and (isinstance(claim.predicts, Mapping) or not scale_free(claim.kind) or under.effect is None):
        return Foreseen("supported", own.value, own.low, own.high, own.source or "the claim")
    if scale_free(claim.kind) and under.effect is not None and under.low is not None:
        source = f"measured at {under.rung}, n = {under.n}"
        return Foreseen("supported", under.effect, under.low, under.high, source)
    return Foreseen("supported", source=f"the region; the number is not scale-free, and {under.rung} cannot predict it")


def rule(claim: Claim, to: str) -> Rule:
    """Return when the claim counts as supported at a rung."""
    region = claim.region_at(to)
    words = f"supported if the whole 95 % interval lies {region.sentence}; refuted if all of it lies outside; else undecided"
    low, high = (end if abs(end) != float("inf") else None for end in (region.low, region.high))
    return Rule(claim.kind.name, claim.kind.sentence, claim.unit, words, region.closed, low, high)


def hold(registered: Escalation, finding: Finding, made: Made) -> Result:
    """Return the result of an escalation: the finding by the registered region, against the registered prediction."""
    verdict = finding.verdict
    if verdict != "no verdict" and finding.low is not None and finding.high is not None:
        region, ends = registered.rule.region, (finding.low, finding.high)
        verdict = "supported" if region.contains(*ends) else "refuted" if region.excludes(*ends) else "undecided"
    wanted, agrees = registered.prediction, None
    if wanted.value is not None and finding.low is not None and finding.high is not None:
        agrees = Prediction(wanted.value, wanted.low, wanted.high).agrees(finding.low, finding.high)
    old, changed = registered.made, []
    changed += ["code"] * (old.fingerprint != made.fingerprint)
    changed += ["study"] * (old.study_fingerprint != made.study_fingerprint)
    changed += [name for name in sorted({*old.place, *made.place}) if old.place.get(name) != made.place.get(name)]
    return Result(
        verdict=verdict,
        as_predicted=verdict == wanted.verdict,
        n=finding.n,
        seeds=finding.span,
        made=made,
        effect=finding.effect,
        low=finding.low,
        high=finding.high,
        agrees=agrees,
        how=finding.how,
        reason=finding.reason if verdict == "no verdict" else "",
        changed=tuple(changed),
    )


def comparison(escalation: Escalation, attempts: Sequence[Escalation] = ()) -> list[str]:
    """Return the rungs side by side: effect below, prediction, effect above, and what they say.

    What earlier ones of the ``attempts`` gave is said too: the one that succeeds is not all there is.
    """
    under, wanted, found, unit = escalation.below, escalation.prediction, escalation.result, escalation.rule.unit
    width = max(len("predicted"), len(under.rung), len(escalation.to))
    ends = interval(wanted.low, wanted.high)
    value = "the region" if wanted.value is None else f"{number(wanted.value)} {ends}".rstrip()
    fresh = f"held on fresh seeds {under.held} of {under.sets}"
    lines = [
        f"{under.rung:<{width}}  {_number(under.effect, under.low, under.high)}  n={under.n}, {under.verdict}, {fresh}",
        f"{'predicted':<{width}}  {value}  {wanted.verdict} ({wanted.source})",
    ]
    if found is None:
        return [*lines, f"{escalation.to:<{width}}  not run yet"]
    lines.append(
        f"{escalation.to:<{width}}  {_number(found.effect, found.low, found.high)}  n={found.n}, {found.verdict}"
    )
    said = "as predicted" if found.as_predicted else f"NOT as predicted ({wanted.verdict})"
    meets = {True: "; its interval meets the predicted one", False: "; its interval misses the predicted one", None: ""}
    lines.append(f"{escalation.claim}: {found.verdict}, {said}{meets[found.agrees]} ({unit or escalation.rule.kind})")
    for each in attempts:
        if each.attempt < escalation.attempt and each.result is not None:
            was = each.result
            numbers = _number(was.effect, was.low, was.high)
            lines.append(f"  attempt {each.attempt} at {each.to}: {numbers}, n={was.n}, {was.verdict}")
    if found.reason:
        lines.append(f"  {found.reason}")
    if escalation.anyway:
        lines.append(f"  run although {under.rung} does not hold: {escalation.anyway}")
    if found.changed:
        lines.append(f"  changed since it was registered: {', '.join(found.changed)}")
    return lines


def _number(effect: float | None, low: float | None, high: float | None) -> str:
    return "-" if effect is None else f"{number(effect)} {interval(low, high)}".rstrip()
