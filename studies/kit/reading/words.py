"""A reading as text for the terminal: the table by turn, ways of working, what shifted, what is not there and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from studies.kit.intervals import wilson
from studies.kit.reading.transitions import FEWEST, Shift, Transition, is_share
from studies.kit.words import number

if TYPE_CHECKING:
    from studies.kit.reading.alarms import Alarms
    from studies.kit.reading.fold import Reading

__all__ = ["UNCALIBRATED", "chosen", "label", "printable", "report", "two"]

UNCALIBRATED = "uncalibrated: only control runs can tell how often an ordinary run shows such shifts"
"""What is said of every change point."""

_WIDTH = 110
_TURNS = 6  # turns that the table shows
_WAYS = 8  # workflows that it shows
_TRANSITIONS = 6
_SHIFTS = 8  # of one transition
_PROBLEMS = 5
_NAME = 40  # characters of a name from a file
_LONGEST = 1000  # of anything else

_LABELS = {
    "behaviour/no_search_share": "never search",
    "behaviour/solved_share": "solved",
    "behaviour/effective_workflows": "effective number of workflows",
    "train/reward": "reward",
    "train/turns": "turns",
    "train/invalid_share": "turns without an action",
    "drift/kl_decision_sampled/turn0": "sampled KL of the first decision",
    "decision/surprisal/turn0": "surprisal of the first decision",
    "entropy/recorded/turn0": "entropy at turn 0",
}


def report(reading: Reading, found: Sequence[Transition], alarms: Alarms | None = None) -> list[str]:
    """Return what a reading shows, line by line."""
    return [
        *_header(reading),
        "",
        *_table(reading, found),
        "",
        *_transitions(found, len(reading.steps)),
        *(["", *_alarms(alarms, found)] if alarms is not None else []),
        "",
        *_absent(reading.absent),
        *_notes(reading),
        *_problems(reading),
    ]


def label(signal: str) -> str:
    """Return the short words for a column.

    >>> label("behaviour/answer_share/turn0"), label("behaviour/search_share/turn2"), label("train/turns")
    ('answer first', 'search at turn 2', 'turns')
    """
    if signal in _LABELS:
        return _LABELS[signal]
    name, _, turn = signal.removeprefix("behaviour/").rpartition("_share/turn")
    if name:
        return f"{printable(name)} first" if turn == "0" else f"{printable(name)} at turn {turn}"
    return printable(signal.replace("behaviour/workflow_share/", "way "))


def printable(text: str, most: int = _NAME) -> str:
    """Return a text from a file as a terminal can show it, its first characters."""
    shown = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text[:most])
    return shown + "..." * (len(text) > most)


def chosen(reading: Reading, found: Sequence[Transition]) -> list[tuple[int, str]]:
    """Return the rows that the table shows: the first, those before and after the largest transition, the last."""
    last = len(reading.steps) - 1
    if last < 4:
        return [(row, "") for row in range(last + 1)]
    wanted = {0: "first", last: "last"}
    if found:
        main = _largest(found)
        place = {int(step): row for row, step in enumerate(reading.step)}
        wanted |= {place[main.last]: "before", place[main.first]: "after"}
    else:
        wanted[last // 2] = "middle"
    return sorted(wanted.items())


def _largest(found: Sequence[Transition]) -> Shift:
    return max((each.main for each in found), key=lambda shift: (is_share(shift.signal), abs(shift.size)))


def _header(reading: Reading) -> Iterator[str]:
    step, rollouts = reading.step, reading.rollouts
    each = f"{rollouts[0]:,} a step" if np.ptp(rollouts) == 0 else f"{rollouts.min():,} to {rollouts.max():,} a step"
    span = f"step {step[0]}" if len(step) == 1 else f"{len(step)} steps ({step[0]} to {step[-1]})"
    yield f"{printable(reading.name)}: {reading.format}, {rollouts.sum():,} rollouts in {span}, {each}"
    yield from _wrapped("actions", ", ".join(map(printable, reading.actions)) or "none is named")


def _table(reading: Reading, found: Sequence[Transition]) -> Iterator[str]:
    """Yield the table: shares of all rollouts of a step with 95 % intervals."""
    rows = chosen(reading, found)
    turns = range(min(reading.turns, _TURNS))
    tools = [name for name in reading.actions if f"behaviour/{name}_share/turn0" in reading.steps]
    looked = "search" if "search" in tools else None
    blocks: dict[str, list[tuple[str, str]]] = {
        "solved by the end of": [(f"turn {t}", f"behaviour/accuracy/turn{t}") for t in turns],
        "searching at": [(f"turn {t}", f"behaviour/{looked}_share/turn{t}") for t in turns] if looked else [],
        "first action": [(printable(name), f"behaviour/{name}_share/turn0") for name in tools],
        "way of working": _ways(reading, [row for row, _ in rows]),
    }
    if len(tools) == 2 and looked:
        del blocks["first action"]  # it says what searching at turn 0 says
    width = 2 + max(18, *(len(name) for lines in blocks.values() for name, _ in lines))
    yield "".ljust(width + 2) + "".join(f"step {reading.step[row]}".ljust(18) for row, _ in rows).rstrip()
    if any(name for _, name in rows):
        yield "".ljust(width + 2) + "".join(name.ljust(18) for _, name in rows).rstrip()
    for title, lines in blocks.items():
        there = [(name, column) for name, column in lines if column in reading.steps]
        if there:
            yield title
        for name, column in there:
            cells = [_share(float(reading.steps[column][row]), int(reading.rollouts[row])) for row, _ in rows]
            yield f"  {name.ljust(width)}" + "".join(cell.ljust(18) for cell in cells).rstrip()
    yield "rollouts".ljust(width + 2) + "".join(f"{reading.rollouts[row]:,}".ljust(18) for row, _ in rows).rstrip()
    for title, column in (("reward", "train/reward"), ("turns", "train/turns")):
        if column in reading.steps:
            cells = [number(float(reading.steps[column][row])) for row, _ in rows]
            yield title.ljust(width + 2) + "".join(cell.ljust(18) for cell in cells).rstrip()
    yield f"shares of all rollouts of a step, finished ones included, with 95 % (Wilson) intervals{_more(reading)}"


def _more(reading: Reading) -> str:
    return f"; turns {_TURNS} to {reading.turns - 1} are in the record" if reading.turns > _TURNS else ""


def _ways(reading: Reading, rows: Sequence[int]) -> list[tuple[str, str]]:
    """Return the workflows with the largest shares in the rows shown, in the order of the reading."""
    largest = reading.shares[rows].max(0)
    shown = sorted(np.argsort(-largest, kind="stable")[:_WAYS].tolist())
    names = [reading.workflows[place] for place in shown if largest[place] > 0]
    return [(printable(name), f"behaviour/workflow_share/{name}") for name in names]


def _share(share: float, rollouts: int) -> str:
    low, high = wilson(round(share * rollouts), rollouts)
    return f"{two(share)} [{two(low)}, {two(high)}]"


def two(share: float) -> str:
    """Write a share with two places.

    >>> two(0.0), two(0.346), two(0.999)
    ('.00', '.35', '1')
    """
    return f"{share:.2f}".removeprefix("0") if share < 0.995 else "1"


def _transitions(found: Sequence[Transition], steps: int) -> Iterator[str]:
    if steps < FEWEST:
        yield f"transitions are looked for in {FEWEST} steps or more"
        return
    if not found:
        yield f"no transition found, looking back over {steps} steps ({UNCALIBRATED})"
        return
    yield "transitions, looking back over the whole run, medians of up to 20 steps before and after"
    yield f"({UNCALIBRATED})"
    shown = sorted(found, key=lambda each: (is_share(each.main.signal), abs(each.main.size)), reverse=True)[
        :_TRANSITIONS
    ]
    for each in sorted(shown, key=lambda one: one.step):
        main = each.main
        gradual = f", under way from {main.last} to {main.first}" if main.first - main.last > 1 else ""
        yield f"  half-way at step {each.step}{gradual}"
        shifts = list(_different(each.shifts))
        yield from _shifts(shifts[:_SHIFTS])
        if len(shifts) > _SHIFTS:
            yield f"    and {len(shifts) - _SHIFTS} more signals"
    if len(found) > len(shown):
        yield f"  and {len(found) - len(shown)} smaller ones, marked in the page"


def _shifts(shifts: Sequence[Shift]) -> Iterator[str]:
    width = max(len(label(shift.signal)) for shift in shifts)
    for shift in shifts:
        put = two if is_share(shift.signal) else number
        yield f"    {label(shift.signal).ljust(width)}  {put(shift.before):>5} -> {put(shift.after)}"


def _different(shifts: Iterable[Shift]) -> Iterator[Shift]:
    """Yield the shifts, but of those that say one thing twice (a share and what is left of one) the first."""
    told: set[tuple[float, float]] = set()
    for shift in shifts:
        pair = round(shift.before, 9), round(shift.after, 9)
        rest = (round(1 - shift.before, 9), round(1 - shift.after, 9)) if is_share(shift.signal) else pair
        if not {pair, rest} & told:
            yield shift
        told |= {pair, rest}


def _alarms(alarms: Alarms, found: Sequence[Transition]) -> Iterator[str]:
    if alarms.refused:
        yield from _wrapped("no alarms", alarms.refused)
    else:
        span = f"steps {alarms.steps[0]} to {alarms.steps[-1]}"
        count = len(alarms.alarms)
        yield f"alarms ({alarms.detector}), thresholds from {alarms.controls} control runs, {span}"
        yield (
            f"(each by itself alarms in {number(alarms.rate)} of ordinary runs"
            + (f", one of the {count} in up to {number(min(1.0, alarms.rate * count))}" if count > 1 else "")
            + ")"
        )
        width = max(len(label(alarm.signal)) for alarm in alarms.alarms)
        for alarm in alarms.alarms:
            said = "no alarm" if alarm.step is None else f"step {alarm.step}{_lead(alarm.step, found)}"
            yield f"  {label(alarm.signal).ljust(width)}  {said}"
    for note in alarms.notes:
        yield from _wrapped("  note", note)


def _lead(step: int, found: Sequence[Transition]) -> str:
    """Say how far an alarm is from the half-way point of the next transition that it can be of."""
    near = [each for each in found if step <= each.main.first]
    if not near:
        return ""
    half = near[0].step
    away = f"{abs(half - step)} step{'' if abs(half - step) == 1 else 's'}"
    return (
        f", {away} before half-way at {half}" if step < half else f", {away} after half-way at {half}" * (step > half)
    )


def _absent(absent: Mapping[str, str]) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for quantity, why in sorted(absent.items()):
        by_reason.setdefault(why, []).append(quantity)
    if by_reason:
        yield "not there"
    for why, quantities in by_reason.items():
        yield from _wrapped(f"  {', '.join(quantities)}", why)


def _notes(reading: Reading) -> Iterator[str]:
    for note in reading.notes:
        yield from _wrapped("note", note)
    for name, count in reading.counts.items():
        if name not in ("episodes", "lines", "problems"):
            yield f"counted: {count:,} {printable(name, 80)}"


def _problems(reading: Reading) -> Iterator[str]:
    total = reading.counts.get("problems", len(reading.problems))
    if not total:
        return
    for problem in reading.problems[:_PROBLEMS]:
        yield from _wrapped("problem", str(problem))
    more = f"; the first {_PROBLEMS} are above" if total > _PROBLEMS else ""
    yield f"{total:,} problem{'' if total == 1 else 's'} in reading{more}"


def _wrapped(head: str, text: str) -> list[str]:
    return wrap(
        printable(f"{head}: {text}", _LONGEST),
        _WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
