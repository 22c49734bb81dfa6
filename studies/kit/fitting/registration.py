"""A forecast in writing: one TOML file, made before the steps it is about are read, and never written twice."""

import json
import os
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.records.fingerprint import code_fingerprint, tree_fingerprint
from studies.kit.fitting.data import FitError, Observed
from studies.kit.fitting.forecast import INTERVALS, LEVELS, Forecast, log_score
from studies.kit.fitting.rank import Ranked, Ranking
from studies.kit.fitting.world import CHOSEN

__all__ = ["SCHEMA", "Checked", "check", "fingerprint", "read", "register"]

F64 = NDArray[np.float64]

SCHEMA = 1
"""Version of the file's layout."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A registered forecast, held against the steps that came."""

    steps: tuple[int, ...]
    """Steps that were foreseen and have come."""
    seen: F64
    """Share of rollouts without a search at the first turn, [H]."""
    inside: Mapping[float, tuple[int, int]]
    """By nominal coverage: steps inside the interval, and steps."""
    scores: Mapping[str, float]
    """Sum of log P(count) of the forecast ("together") and of each rival, nats. Each step is foreseen from the same last
    one, so these are no one-step scores."""


@cache
def fingerprint() -> str:
    """Return the hash of the code that fits: the simulator's, and that of this package."""
    return f"{code_fingerprint('sim')[:16]}-{tree_fingerprint({'studies.kit.fitting': Path(__file__).parent})[:16]}"


def register(path: Path, ranking: Ranking, foreseen: Forecast, *, later_steps: int, group: int) -> Path:
    """Write a forecast to `path`, whole or not at all.

    Parameters
    ----------
    path
        The file.
    ranking, foreseen
        What was fitted, and what it foresees.
    later_steps
        Steps after the last used that the run held already when this was made: 0 if the future was not there to be seen.
    group
        Rollouts a question.

    Raises
    ------
    FitError
        When the file is there: a forecast is never overwritten.
    """
    content = _content(ranking, foreseen, later_steps, group)
    text = "\n".join(_toml(content)) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with writing.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(writing, path)  # fails where the name is taken, and shows the file whole
    except FileExistsError as error:
        raise FitError(
            f"{path} is there already, and a forecast is never overwritten: name another with --out"
        ) from error
    finally:
        writing.unlink(missing_ok=True)
    return path


def read(path: Path) -> dict[str, Any]:
    """Return a registered forecast. FitError for a file that is none."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FitError(f"no registered forecast {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FitError(f"{path} is no registered forecast: {error}") from error
    for name in ("schema", "run", "data", "forecast"):
        if name not in content:
            raise FitError(f"{path} is no registered forecast: it has no {name!r}")
    if content["schema"] != SCHEMA:
        raise FitError(f"{path} has schema {content['schema']!r}; this version reads {SCHEMA}")
    return content


def check(content: Mapping[str, Any], observed: Observed) -> Checked:
    """Return how a forecast fared.

    Raises
    ------
    FitError
        When the run's steps up to the last used are not those the forecast was made from, or none of the steps foreseen
        has come.
    """
    data = content["data"]
    used = observed.between(data["first_step"], data["last_step"])
    if used.digest() != data["digest"]:
        raise FitError(
            f"{observed.name}: steps {data['first_step']} to {data['last_step']} are not those that the forecast was made "
            "from; give the run as it was read then, with the same --rollouts"
        )
    foreseen = {int(row["step"]): row for row in content["forecast"]}
    came = np.flatnonzero(np.isin(observed.steps, list(foreseen)))
    if not len(came):
        raise FitError(f"{observed.name} ends at step {observed.steps[-1]}: none of the steps foreseen has come yet")
    rows = [foreseen[int(step)] for step in observed.steps[came]]
    counts, rollouts = observed.unsearched[came], observed.rollouts[came]
    seen = counts / rollouts
    inside = {}
    for coverage in INTERVALS:
        ends = np.array([row[_interval(coverage)] for row in rows])
        inside[coverage] = (int(((ends[:, 0] <= seen) & (seen <= ends[:, 1])).sum()), len(rows))
    scores = {
        name: float(log_score(np.array([row["share"][name] for row in rows]), counts, rollouts).sum())
        for name in rows[0]["share"]
    }
    return Checked(tuple(int(step) for step in observed.steps[came]), seen, inside, scores)


def _interval(coverage: float) -> str:
    return f"counted_{100 * coverage:.0f}"


def _content(ranking: Ranking, foreseen: Forecast, later_steps: int, group: int) -> dict[str, Any]:
    observed, fitted = ranking.observed, ranking.fitted
    held = fitted.best.world
    return {
        "schema": SCHEMA,
        "run": observed.name,
        "registered_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "code": fingerprint(),
        "first": ranking.rows[0].name,
        "tied": [row.name for row in ranking.tied[1:]],
        "informative": ranking.informative,
        "data": {
            "digest": observed.digest(),
            "first_step": int(observed.steps[0]),
            "last_step": int(observed.steps[-1]),
            "steps": len(observed),
            "rollouts": foreseen.rollouts,
            "group": group,
            "warm_up": ranking.warm,
            "later_steps_at_hand": later_steps,
        },
        "world": {
            "residual_points": fitted.best.max_residual_points,
            "chosen": {name: float(getattr(held, name)) for name, _ in CHOSEN},
            "fitted": {name: [best, low, high] for name, best, low, high in fitted.quantities()},
        },
        "mechanism": [_mechanism(row) for row in (*ranking.rows, *ranking.yardsticks)],
        "forecast": [_step(foreseen, h) for h in range(len(foreseen.steps))],
    }


def _mechanism(row: Ranked) -> dict[str, Any]:
    found: dict[str, Any] = {"name": row.name, "says": row.mechanism.says}
    if row.filtered is None:
        return {**found, "excluded": row.mechanism.excluded}
    found |= {"first": row.first, "later": row.later, "behind": row.behind, "weight": row.weight}
    return {**found, "setting": {name: list(ends) for name, ends in row.setting.items()}}


def _step(foreseen: Forecast, h: int) -> dict[str, Any]:
    ends = {_interval(c): foreseen.together.counted[h, i] for i, c in enumerate(INTERVALS)}
    share = {fan.name: fan.share[h] for fan in (foreseen.together, *foreseen.each)}
    return {"step": int(foreseen.steps[h]), **ends, "levels": LEVELS, "share": share}


def _toml(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterable[str]:
    """Write a table as TOML, line by line: values first, then tables, then arrays of tables."""
    nested = {k: v for k, v in table.items() if isinstance(v, Mapping)}
    arrays = {k: v for k, v in table.items() if isinstance(v, list) and v and isinstance(v[0], Mapping)}
    for key, value in table.items():
        if key not in nested and key not in arrays:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in nested.items():
        yield f"\n[{'.'.join(map(_key, (*path, key)))}]"
        yield from _toml(value, (*path, key))
    for key, rows in arrays.items():
        for row in rows:
            yield f"\n[[{'.'.join(map(_key, (*path, key)))}]]"
            yield from _toml(row, (*path, key))


def _key(name: str) -> str:
    return name if name.replace("_", "").isalnum() and name.isascii() else _quoted(name)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray | list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int | np.integer):
        return str(int(value))
    return f"{float(value):.8g}" if float(value) != int(float(value)) else f"{float(value):.1f}"
