"""TRL: the completions that `GRPOTrainer` and its kin log with ``log_completions=True``, a parquet file a step.

    OUTPUT_DIR/completions/completions_{step:05d}.parquet

A row is a rollout: ``step``, ``prompt`` and ``completion`` (text, or the messages of a chat), a column for each reward
function, those that reward functions added (``log_extra``), and ``advantage`` (`GRPOTrainer.log`, TRL 1.16). Rows of one
step with the same prompt are a group. The files have no ids, masks or log-probs, and the text has lost its special tokens.

What to know of these files: every ``logging_steps``-th step has one, with the last batch that was generated; a batch that
serves several optimiser steps is written again at each; and an evaluation writes its completions over those of the step.
`studies.kit.trl` records what the files lack, while the trainer runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.kit.episodes import NO_ACTION, Episode, Turn
from studies.kit.reading import rewards
from studies.kit.reading.lines import extras
from studies.kit.reading.messages import content, message_turns
from studies.kit.reading.steps import step_of
from studies.kit.reading.tagged import CHAT_NOTE, Cutter
from studies.kit.reading.trl_rewards import reward_columns

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["LAYOUT", "detect", "episode", "files", "prompt_text", "read", "turns_of"]

LAYOUT = "files completions/completions_{step}.parquet whose rows have step, prompt, completion and advantage"
"""The layout in a line."""

ROWS = 256
"""Rows that are held in memory at once."""
LOOKED_AT = 16
"""Files, from the first on, that tell which columns are the reward."""

_NAMED = re.compile(r"completions_(\d{1,12})\D?.*\.parquet")
_FIELDS = ("step", "prompt", "completion")
_WITHOUT = "{} is parquet, and pyarrow, which reads it, is not installed: install metastable[parquet]"
_ABSENT = ("log-probabilities", "KL", "entropy", "importance ratios", "tokens", "staleness")
_WHY = "TRL's logs hold text and rewards, no ids, masks or log-probs: the callback of studies.kit.trl records them"


def files(path: Path) -> tuple[Path, ...]:
    """Return the files of a folder, or of the folder ``completions`` in it, in order of steps; or the file that is named."""
    if not path.is_dir():
        return (path,)
    for folder in (path / "completions", path):
        named = [(int(m[1]), each.name, each) for each in _entries(folder) if (m := _NAMED.fullmatch(each.name))]
        if named:
            return tuple(each for _, _, each in sorted(named))
    return ()


def detect(path: Path) -> bool:
    """Whether there are files that TRL names so; a file with another name is one by its columns."""
    if path.is_dir():
        return bool(files(path))
    if _NAMED.fullmatch(path.name):
        return True
    return path.suffix == ".parquet" and {*_FIELDS} <= set(_columns(path))


def read(source: Source) -> Iterator[Episode]:
    """Yield the rollouts, file by file; ReadError without pyarrow."""
    _parquet(source.paths[0])
    for quantity in _ABSENT:
        source.lacks(quantity, _WHY)
    cut, before = Cutter(source), b""
    summed = reward_columns(source, _tables(source.paths))
    for path in source.paths:
        seen = blake2b(digest_size=16)
        for line, row in _rows(source, path):
            seen.update(repr([value for name, value in row.items() if name != "step"]).encode("utf-8", "surrogatepass"))
            try:
                scored = [value for name in summed if (value := row.get(name)) is not None]
                reward = rewards.reward(source, path, line, sum(scored)) if scored else None
                yield episode(source, row, turns_of(cut, row), reward, summed if len(summed) == 1 else ())
            except ValueError as error:
                source.damaged(path, line, str(error), repr(row.get("completion")))
        if seen.digest() == before:
            source.count("steps with the rollouts of the step before")
        before = seen.digest()


def episode(
    source: Source, row: Mapping[str, Any], turns: tuple[Turn, ...], reward: float | None, lone: Sequence[str] = ()
) -> Episode:
    """Return the rollout of a row with its turns and reward; ``lone`` are columns that say no more than the reward does.

    ValueError says what a row lacks that it must have.
    """
    step, prompt = step_of(row), _chat(row.get("prompt"))
    if step is None:
        raise ValueError(f"step is {row.get('step')!r}: it must be a whole number of 0 or more")
    if not isinstance(prompt, str | list):
        raise ValueError("a row must have a prompt, a text or messages")
    if reward is None:
        source.count("episodes without a reward")
    asked = prompt_text(prompt)
    return Episode(
        step=step,
        task=asked,
        turns=turns,
        reward=reward,
        outcome=rewards.outcome(source, reward),
        prompt=asked,
        extras=extras(row, {*_FIELDS, *lone}),
    )


def turns_of(cut: Cutter, row: Mapping[str, Any]) -> tuple[Turn, ...]:
    """Return the turns of a completion: of its text, or of its messages, an assistant's with the replies to it.

    TRL samples one token at least: a completion without text is a turn without an action. ValueError where it is neither.
    """
    completion, prompt = _chat(row.get("completion")), row.get("prompt")
    if isinstance(completion, str):
        return cut(completion, prompt if isinstance(prompt, str) else "") or (Turn(NO_ACTION, completion),)
    if not isinstance(completion, list):
        raise ValueError("a row must have a completion, a text or messages")
    cut.source.note(CHAT_NOTE)
    found: list[tuple[Mapping[str, Any], list[Mapping[str, Any]]]] = []
    for message in completion:
        if message.get("role") == "assistant":
            found.append((message, []))
        elif found:
            found[-1][1].append(message)
        else:
            raise ValueError("the completion does not begin with a message of the assistant")
    turns = [turn for message, replies in found for turn in message_turns(cut, message, replies)]
    return tuple(turns) or (Turn(NO_ACTION),)


def prompt_text(prompt: str | list[Any]) -> str:
    """Return a prompt as a text: as it is, or its messages, each after its role where there are several.

    >>> prompt_text([{"role": "user", "content": "hi"}])
    'hi'
    """
    if isinstance(prompt, str):
        return prompt
    texts = [content(message.get("content")) for message in prompt]
    if len(prompt) == 1:
        return texts[0]
    return "\n".join(f"{message.get('role')}: {text}" for message, text in zip(prompt, texts, strict=True))


def _chat(value: Any) -> Any:
    """Return messages that were kept as JSON as messages, without the empty fields that a table of them has."""
    if isinstance(value, str) and value.startswith("["):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return value
        whole = (
            isinstance(parsed, list) and parsed and all(isinstance(each, dict) and "role" in each for each in parsed)
        )
        return parsed if whole else value
    return _filled(value) if isinstance(value, list) else value


def _filled(value: Any) -> Any:
    """Return a value without fields that are None: parquet gives every object of a column the fields of all."""
    if isinstance(value, dict):
        return {name: _filled(each) for name, each in value.items() if each is not None}
    return [_filled(each) for each in value] if isinstance(value, list) else value


def _rows(source: Source, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the row from 1, the row) of a file, a row group at a time; what is damaged of it is told of."""
    parquet, damage = _parquet(path), _damage()
    before, size = source.bytes_read, path.stat().st_size
    try:
        with parquet.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
            missing = [name for name in _FIELDS if name not in names]
            if missing:
                raise ValueError(f"no column {' and no column '.join(missing)}")
            first = 1
            for group in range(file.num_row_groups):
                number, rows = first, file.metadata.row_group(group).num_rows
                first += rows
                source.counts["lines"] += rows
                try:
                    for batch in file.iter_batches(ROWS, [group], names):
                        for row in batch.to_pylist():
                            yield number, row
                            number += 1
                except damage as error:
                    source.count("damaged", first - number)
                    source.problem(path, number, f"damaged from here, {first - number} rows: {_reason(error)}")
                source.bytes_read = before + size * (group + 1) // file.num_row_groups
    except damage as error:
        source.counts["damaged files"] += 1
        source.problem(path, None, f"cut off, or no completions of TRL: {_reason(error)}")
    source.bytes_read = before + size


def _tables(paths: Sequence[Path]) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Yield prompts, advantages and columns of numbers of the first files, those that can be read."""
    import pyarrow as pa

    parquet, damage = _parquet(paths[0]), _damage()
    for path in paths[:LOOKED_AT]:
        try:
            with parquet.ParquetFile(path) as file:
                numbers = [each.name for each in file.schema_arrow if _is_number(pa.types, each.type)]
                names = [name for name in numbers if name != "step" and not name.startswith("__index_level_")]
                yield file.read(["prompt", *names]).to_pydict()
        except damage:
            continue


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _entries(folder: Path) -> list[Path]:
    return [each for each in folder.iterdir() if each.is_file()] if folder.is_dir() else []


def _columns(path: Path) -> Sequence[str]:
    """Return the columns of a parquet file; none if it is damaged."""
    parquet, damage = _parquet(path), _damage()
    try:
        names: list[str] = parquet.read_schema(path).names
    except damage:
        return ()
    return names


def _parquet(path: Path) -> Any:
    """Return pyarrow's reader; ReadError where it is not installed."""
    from studies.kit.reading.formats import ReadError

    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ReadError(_WITHOUT.format(path)) from error
    return pyarrow.parquet


def _damage() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises at files that are damaged; text that is no UTF-8 is a ValueError."""
    import pyarrow as pa

    return pa.ArrowException, ValueError, OSError


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
