"""verl: one ``{step}.jsonl`` a step, a rollout a line, as ``trainer.rollout_data_dir`` has it written.

    {"input": "...", "output": "...", "gts": ..., "score": 1.0, "step": 12, ...}

``input`` and ``output`` are decoded text without special tokens, ``score`` the sum of the rewards of the tokens, and what
else the reward function returned stands beside them (`RayPPOTrainer._dump_generations`, 2026-01). Rollouts of one step with
the same ``input`` are a group. The files have no ids, masks or log-probs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.tables import Outcome
from studies.kit.episodes import Episode
from studies.kit.reading import rewards
from studies.kit.reading.lines import extras, head, records
from studies.kit.reading.steps import number, numbered, samples, step_of
from studies.kit.reading.tagged import Cutter

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["LAYOUT", "detect", "files", "read"]

LAYOUT = "files {step}.jsonl whose lines have input, output, score and step"
"""The layout in a line."""

_TEXT = ("input", "output")
_KNOWN = {"input", "output", "score", "step"}


def files(path: Path) -> tuple[Path, ...]:
    """Return the files of the steps in order, or the file that is named."""
    return numbered(path) if path.is_dir() else (path,)


def detect(path: Path) -> bool:
    """Whether a line has an input, an output and a score."""
    return any((record := head(each)) is not None and {*_TEXT, "score"} <= record.keys() for each in samples(path))


def read(source: Source) -> Iterator[Episode]:
    """Yield the rollouts, step by step."""
    for quantity in ("log-probabilities", "KL", "entropy", "importance ratios", "tokens", "staleness"):
        source.lacks(quantity, "verl's rollout files hold text and rewards, no ids, masks or log-probs")
    cut = Cutter(source)
    for path in source.paths:
        named, told = number(path), False
        for line, record, text in records(source, path):
            wrong = [name for name in _TEXT if not isinstance(record.get(name), str)]
            if wrong:
                source.damaged(path, line, f"no text under {' and '.join(wrong)}, which verl writes", text)
                continue
            step = step_of(record) if named is None else named
            if step is None:
                source.damaged(path, line, "no step, neither in the line nor as the file's name", text)
                continue
            if named is not None and not told and record.get("step", named) != named:
                told = True  # once a file: where one line disagrees, all do
                source.problem(path, line, f"the line says step {record['step']!r}: the file's name is believed")
            yield _episode(source, cut, path, line, record, step)


def _episode(source: Source, cut: Cutter, path: Path, line: int, record: dict[str, Any], step: int) -> Episode:
    reward = rewards.reward(source, path, line, record.get("score"))
    if reward is None:
        source.count("episodes without a reward")
    return Episode(
        step=step,
        task=record["input"],
        turns=cut(record["output"], record["input"]),
        reward=reward,
        outcome=_outcome(source, record, reward),
        prompt=record["input"],
        extras=extras(record, _KNOWN),
    )


def _outcome(source: Source, record: Mapping[str, Any], reward: float | None) -> Outcome:
    """Return how it ended; the accuracy that many of verl's reward functions return beside the score says so."""
    correct = record.get("acc")
    if source.solved_at is None and isinstance(correct, bool | int | float) and correct in (0, 1):
        source.note("solved is what the reward function returned as acc, not the score")
        return Outcome.SOLVED if correct else Outcome.WRONG
    return rewards.outcome(source, reward)
