"""A reading as the inspector's page shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from studies.kit.inspector.data import Inspected, Mark
from studies.kit.reading.alarms import Alarms
from studies.kit.reading.fold import Reading
from studies.kit.reading.transitions import Transition, is_share, signals
from studies.kit.reading.words import label, two
from studies.kit.words import number

__all__ = ["inspected"]


def inspected(reading: Reading, found: Sequence[Transition], alarms: Alarms | None = None) -> Inspected:
    """Return the page's view of a reading: the curves that are watched, accuracy by turn, and what was found as marks."""
    by_turn = (f"behaviour/accuracy/turn{t}" for t in range(reading.turns))
    curves = (*signals(reading), *by_turn, "train/degenerate_share")
    return Inspected(
        name=reading.name,
        actions=reading.actions,
        steps=tuple(reading.step.tolist()),
        rollouts=tuple(reading.rollouts.tolist()),
        workflows=reading.workflows,
        shares=reading.shares,
        columns={name: reading.steps[name].astype(float) for name in curves if name in reading.steps},
        episodes=reading.episodes,
        marks=tuple(sorted(_marks(found, alarms), key=lambda mark: mark.step)),
        absent=reading.absent,
        notes=reading.notes,
        folded=_folded(reading),
    )


def _folded(reading: Reading) -> dict[str, tuple[str, ...]]:
    """Return the problems that were kept under a title with the number of all there were."""
    if not reading.problems:
        return {}
    total, kept = reading.counts.get("problems", 0), len(reading.problems)
    first = f", the first {kept}" if total > kept else ""
    title = f"{max(total, kept):,} problem{'' if max(total, kept) == 1 else 's'} in reading{first}"
    return {title: tuple(map(str, reading.problems))}


def _marks(found: Sequence[Transition], alarms: Alarms | None) -> Iterator[Mark]:
    for each in found:
        main = each.main
        put = two if is_share(main.signal) else number
        yield Mark(each.step, f"{label(main.signal)} {put(main.before)} -> {put(main.after)}", False, main.signal)
    for alarm in () if alarms is None else alarms.alarms:
        if alarm.step is not None:
            yield Mark(alarm.step, f"alarm: {label(alarm.signal)}", True, alarm.signal)
