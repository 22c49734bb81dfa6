"""Putting a finding together from a claim, an estimate, its verdict, the controls and the record."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from studies.kit.claims import Claim
from studies.kit.estimate import Estimate, Kind
from studies.kit.finding import ControlFinding, Finding
from studies.kit.samples import DataError
from studies.kit.verdict import Judgement, Standing, standing

__all__ = ["build", "estimated", "failures"]

_NOT_CONCLUDED = "the study ended without concluding this claim"


def estimated(what: str, kind: Kind, data: Mapping[str, Any]) -> Estimate:
    """Call the kind, with an error that names the data it takes."""
    takes = inspect.signature(kind.estimate).parameters
    for name in data:
        if name not in takes:
            raise DataError(f"{what}: {kind.name} takes {', '.join(f'{key}=' for key in takes)}, not {name}=")
    for name, parameter in takes.items():
        if parameter.default is inspect.Parameter.empty and name not in data:
            raise DataError(f"{what}: {kind.name} needs {name}=")
    try:
        return kind.estimate(**data)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


def build(
    claim: Claim,
    estimate: Estimate | None,
    judged: Judgement | None,
    *,
    study: str,
    rung: str,
    seeds: range,
    here: bool,
    recorded: bool,
    controls: Sequence[ControlFinding],
    ended: bool,
    error: str,
    fingerprint: str,
    study_fingerprint: str,
    rerun: str,
) -> Finding:
    """Return the finding; every number is turned into a builtin here, at the border.

    ``ended`` says that the study is over, so that what is missing now will not come; ``error`` why it stopped early.
    """
    region, prediction, expect = claim.region_at(rung), claim.predicts_at(rung), claim.expect_at(rung)
    spoilt = _spoilt(claim, judged, controls, ended, error)
    verdict = "no verdict" if spoilt or judged is None else judged.verdict
    same_seeds = seeds.start == 0 and len(seeds) == claim.seeds_at(rung)
    stands = standing(verdict, expect, same_seeds=same_seeds, here=here, recorded=recorded)
    if spoilt:
        stands = Standing(stands.status, fails=True, reason=spoilt)
    low, high = (judged.low, judged.high) if judged else (None, None)
    agrees = None
    if prediction is not None and low is not None and high is not None:
        slack = getattr(claim.kind, "tolerance", 0.0)
        agrees = bool(prediction.agrees(low - slack, high + slack))
        if claim.kind.exact and prediction.low is None and not agrees:
            agrees = None  # a number without a range against one without an interval: show by how much they differ
    return Finding(
        claim=claim.id,
        says=claim.says,
        study=study,
        rung=rung,
        verdict=verdict,
        status=stands.status,
        fails=stands.fails,
        reason="; ".join(part for part in (judged.reason if judged else "", stands.reason) if part),
        kind=claim.kind.name,
        measured=claim.kind.sentence,
        effect=None if estimate is None else float(estimate.effect),
        low=low,
        high=high,
        how="" if estimate is None else estimate.how,
        unit=claim.unit,
        n=0 if estimate is None else int(estimate.n),
        base=seeds.start,
        seeds=len(seeds),
        p=None if judged is None or spoilt else judged.p,
        q=None,
        more_seeds=None if judged is None or spoilt else judged.more,
        region=region.words,
        region_low=_finite(region.low),
        region_high=_finite(region.high),
        predicted=None if prediction is None else float(prediction.value),
        predicted_low=None if prediction is None or prediction.low is None else float(prediction.low),
        predicted_high=None if prediction is None or prediction.high is None else float(prediction.high),
        prediction_source="" if prediction is None else prediction.source,
        agrees=agrees,
        expect=expect,
        source=claim.source,
        reverses=claim.reverses,
        rungs=claim.rungs,
        detail=() if estimate is None else tuple((key, _builtin(value)) for key, value in estimate.detail.items()),
        controls=tuple(controls),
        fingerprint=fingerprint,
        study_fingerprint=study_fingerprint,
        rerun=rerun,
    )


def failures(findings: Sequence[Finding]) -> str:
    """Say in words which findings fail the study; empty when none does."""
    lines = []
    for found in findings:
        if found.fails:
            lines.append(f"{found.claim}: {found.status}. {found.reason}")
            lines.append(f"  {found.says}")
            lines.append(f"  {found.verdict}: {found.measurement}; the claim needs {found.region}, n={found.n}")
            lines += [f"  control {control.words}" for control in found.controls]
            lines.append(f"  again: {found.rerun}")
    return "\n".join(lines)


def _spoilt(claim: Claim, judged: Judgement | None, controls: Sequence[ControlFinding], ended: bool, error: str) -> str:
    """Why there can be no verdict whatever the data say."""
    if judged is None:
        return error or _NOT_CONCLUDED
    for control in controls:
        if control.verdict != "supported":
            return f"positive control did not come out as said: {control.words}"
    reported = {control.label for control in controls}
    absent = [control.label for control in claim.controls if control.label not in reported]
    if absent and ended and not error:
        return f"positive control {absent[0]!r} was declared and not reported"
    return ""


def _finite(end: float) -> float | None:
    return end if abs(end) != float("inf") else None


def _builtin(value: object) -> str | int | float:
    if isinstance(value, bool | int | float | str) and type(value) in (int, float, str):
        return value
    return float(value) if hasattr(value, "__float__") else str(value)
