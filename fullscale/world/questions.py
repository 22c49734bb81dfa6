"""Questions with gold answers, and which of them are held out."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullscale.world.jsonl import Row, rows, unlike

__all__ = ["Question", "fraction", "read_questions", "search_r1_questions", "split"]


@dataclass(frozen=True)
class Question:
    """Something to be answered."""

    id: str
    """Name, unique in its set; what comes after the last slash names the fact that is asked for."""
    text: str
    """The question."""
    answers: tuple[str, ...]
    """Gold answers; any of them will do."""
    kind: str = ""
    """What is asked for, such as ``capital``; may be empty."""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError(f"question {self.id!r} has no text")
        if not self.answers or not all(isinstance(each, str) and each.strip() for each in self.answers):
            raise ValueError(
                f"question {self.id!r} has answers {self.answers!r}; it needs at least one, none of them blank"
            )


def read_questions(path: Path) -> list[Question]:
    """Return the questions of a JSONL file whose lines hold ``question`` and ``answer``, a text or several.

    ``id`` (default: the number of the line) and ``kind`` may be there.

    Raises
    ------
    ValueError
        For a line that holds something else, or an id that comes twice; the message names file and line.
    """
    return unlike(rows(path), _plain)


def search_r1_questions(path: Path) -> list[Question]:
    """Return the questions of a file in Search-R1's layout, parquet (needs ``pyarrow``) or JSONL.

    A row's gold answers are ``reward_model.ground_truth.target``. Its question is ``question`` where it has that, else what
    follows the last ``Question:`` in the last user message of ``prompt``: the instructions around it belong to their own
    prompt, and the tools of ours are described by :mod:`fullscale.dialogue.prompt`.

    Raises
    ------
    ValueError
        For a row that holds something else, or an id that comes twice; the message names file and row.
    ModuleNotFoundError
        For a parquet file without ``pyarrow``.
    """
    return unlike(_parquet(path) if path.suffix == ".parquet" else rows(path), _search_r1)


def split(
    questions: Iterable[Question], held_out: float = 1 / 3, *, seed: int = 0
) -> tuple[list[Question], list[Question]]:
    """Return (training, held out): each question goes where a hash of its fact says, whatever else is in the set.

    Questions about one fact (ids that end alike after the last slash: the capital of France, the country whose capital is
    Paris) stay together, so that nothing held out is taught by its inverse.

    Raises
    ------
    ValueError
        When `held_out` is not in [0, 1).
    """
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out = {held_out} must lie in [0, 1): something must be left to train on")
    sides: tuple[list[Question], list[Question]] = [], []
    for question in questions:
        sides[fraction(f"{seed}/held out/{question.id.rpartition('/')[2]}") < held_out].append(question)
    return sides


def fraction(name: str) -> float:
    """Return a number in [0, 1) that is a hash of `name`, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big") / 2**48


def _plain(row: Row) -> Question:
    return Question(row.id, row.text("question"), _answers(row, row.get("answer")), row.text("kind", ""))


def _answers(row: Row, value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(each, str) and each.strip() for each in value)
    ):
        raise row.error(f"the answer {value!r} must be a text or several, none of them blank")
    return tuple(dict.fromkeys(value))


def _search_r1(row: Row) -> Question:
    truth = row.get("reward_model")
    for name in ("ground_truth", "target"):
        if not isinstance(truth, Mapping) or name not in truth:
            raise row.error("there is no 'reward_model.ground_truth.target'; is this Search-R1's layout?")
        truth = truth[name]
    source, extra = row.text("data_source", ""), row.get("extra_info")
    number = extra.get("index") if isinstance(extra, Mapping) and "id" not in row else None
    name = row.id if number is None else str(number)
    return Question(f"{source}/{name}", _asked(row), _answers(row, truth), source)  # ids begin anew with every source


def _asked(row: Row) -> str:
    if "question" in row:
        return row.text("question").strip()
    messages = row.get("prompt")
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise row.error("there is neither 'question' nor 'prompt', a list of messages")
    said = [str(each.get("content")) for each in messages if each.get("role") == "user"]
    last = said[-1] if said else ""
    _, mark, asked = last.rpartition("Question:")
    if not mark:
        raise row.error(f"the last user message does not say 'Question:'; it ends {last[-60:]!r}")
    return asked.strip()


def _parquet(path: Path) -> Iterable[Row]:
    try:
        import pyarrow.parquet as parquet  # 176 MB; needed for such files only
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{path} is a parquet file; pip install pyarrow (the extra `parquet`)") from None
    number = 0
    for batch in parquet.ParquetFile(path).iter_batches():
        for fields in batch.to_pylist():
            number += 1
            yield Row(fields, path, number)
