"""Token exports of prime-rl's trainer: the columns of each sequence that it trained on, without text.

    token_exports/step_{n}/rank_{r}.jsonl, and an empty file STABLE beside them once the step is whole

A sequence has ids, the loss mask, log-probs of the engine and of the trainer, entropies and advantages (schema 1, 2026-08).
It has no text, no reward and no group. What the loss mask leaves out counts as read rather than sampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.tables import Outcome
from studies.kit.episodes import Episode, Turn
from studies.kit.reading import tokens
from studies.kit.reading.lines import records
from studies.kit.reading.steps import is_jsonl, step_of

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["SCHEMA", "files", "is_export", "read"]

SCHEMA = 1
"""The newest schema that is read."""

_RANK = re.compile(r"rank_(\d{1,9})\.jsonl(?:\.gz)?")
_STEP = re.compile(r"step_(\d{1,12})")
_NEEDS = ("step", "token_ids", "loss_mask")
_WHY = "token exports hold ids, masks and log-probs only"


def files(path: Path) -> tuple[Path, ...]:
    """Return the files of a run's folder, of ``token_exports`` or of one step, in order of steps and ranks."""
    for root in (path / "token_exports", path):
        steps = [root] if _STEP.fullmatch(root.name) else [each for each in root.glob("step_*") if each.is_dir()]
        found = [
            (int(step[1]), int(rank[1]), each)
            for folder in steps
            if (step := _STEP.fullmatch(folder.name))
            for each in folder.iterdir()
            if (rank := _RANK.fullmatch(each.name)) and is_jsonl(each)
        ]
        if found:
            return tuple(each for _, _, each in sorted(found))
    return ()


def is_export(record: Mapping[str, Any]) -> bool:
    """Whether a record is an exported sequence."""
    return "schema_version" in record and all(name in record for name in _NEEDS)


def read(source: Source) -> Iterator[Episode]:
    """Yield the sequences of the steps that are whole. ValueError if their schema is newer than `SCHEMA`."""
    for quantity in ("words", "reward", "accuracy", "actions", "groups"):
        source.lacks(quantity, _WHY)
    source.lacks("KL", "token exports have no log-probs under a reference model")
    source.note("sampled is what the loss mask keeps, as exports have no other mask")
    for path in source.paths:
        if _STEP.fullmatch(path.parent.name) and not (path.parent / "STABLE").exists():
            source.count("files not read: not STABLE")
            source.problem(path, None, "not read, as its folder is not marked STABLE: the trainer had not finished it")
            source.bytes_read += path.stat().st_size
            continue
        for line, record, text in records(source, path):
            try:
                yield _episode(record)
            except (ValueError, TypeError) as error:
                source.damaged(path, line, str(error), text)


def _episode(record: Mapping[str, Any]) -> Episode:
    step = step_of(record)
    if record.get("schema_version") != SCHEMA:
        raise ValueError(f"schema {record.get('schema_version')!r}: this program reads schema {SCHEMA}")
    if step is None or not all(name in record for name in _NEEDS):
        raise ValueError(f"no {', '.join(name for name in _NEEDS if name not in record) or 'step'}")
    columns = {"logp": record.get("inference_logprobs"), "logp_proximal": record.get("trainer_logprobs")}
    sequence = tokens.table(record["token_ids"], record["loss_mask"], columns)
    place = f"{record.get('rank', 0)}.{record.get('export_sequence_idx', 0)}"
    found = list(tokens.turns(sequence, None, None))
    return Episode(
        step=step,
        task=f"sequence {place}",
        turns=tuple(_entropies(found, sequence, record.get("entropy"))),
        reward=None,
        outcome=Outcome.NOT_RECORDED,
        extras=_about(record),
    )


def _entropies(turns: list[Turn], sequence: Any, values: Any) -> Iterator[Turn]:
    if not isinstance(values, list) or len(values) != len(sequence):
        yield from turns
        return
    for turn, part in zip(turns, tokens.parts(sequence.sampled), strict=True):
        yield replace(turn, entropy=tokens.first_mean(values[part.wrote : part.heard]))


def _about(record: Mapping[str, Any]) -> dict[str, float | str]:
    found: dict[str, float | str] = {}
    if isinstance(record.get("env_name"), str):
        found["env"] = record["env_name"]
    mask, credit = record["loss_mask"], record.get("advantages") or []
    kept = [value for value, mine in zip(credit, mask, strict=False) if mine and value is not None]
    if kept and min(kept) == max(kept):
        found["advantage"] = float(kept[0])
    return found
