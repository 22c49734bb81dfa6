"""Search-R1: text with tags, from the log that its scripts keep, or from lines of JSON.

Its trainer (an old verl, 2025-10) writes no rollout files. What it leaves is the log that its scripts ``tee``: the reward
function prints about one rollout in 64, drawn at random, and the loop the step it begins:

    epoch 0, step 12
    --------------------------------
    Golden answers: ['Austen']
    Extracted answer: Austen
    Solution string: Answer the given question. ... Question: Who wrote Emma?
    <think> ... </think> <search> ... </search> ...

(`qa_em.compute_score_em`, `RayPPOTrainer.fit`). Ray may put the process in front of each line. The score is not printed,
and is not worked out again here. Rollouts of a validation are counted and left out.

Whoever writes the rollouts of its reward function to a file has lines of JSON with the names used there:

    {"step": 12, "sequences_str": "... Question: ...", "score": 1.0, "ground_truth": {"target": ["Austen"]}}

or with ``prompt`` and ``response`` in place of ``sequences_str``. That one holds the prompt, whose own tags are no
actions: it ends with the marker of the assistant's message, or with the line of the question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.tables import Outcome
from studies.kit.episodes import Episode
from studies.kit.reading import rewards
from studies.kit.reading.lines import extras, head, records, texts
from studies.kit.reading.steps import is_jsonl, number, numbered, samples, step_of
from studies.kit.reading.tagged import Cutter

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["LAYOUT", "detect", "files", "parted", "read"]

LAYOUT = "the log of its trainer, or lines with step, sequences_str and score"
"""The layout in a line."""

_LOGS = (".log", ".out", ".txt")
_HEAD = 4 * 2**20  # bytes of a log in which a rollout is looked for
_ASSISTANT = "<|im_start|>assistant\n"
_QUESTION = re.compile(r"Question: [^\n]*\n")
_RAY = re.compile(r"(?:\x1b\[\d+m)?\([\w.:]{1,80} pid=\d+[^)\n]{0,80}\)(?:\x1b\[0m)? ")
_RULE = "-" * 32
_GOLD, _FOUND, _TEXT = "Golden answers: ", "Extracted answer: ", "Solution string: "
_BEGINS = re.compile(r"epoch \d+, step (\d+)$")
_ENDS = re.compile(r"step:\d+ - |ACTIVE_TRAJ_NUM:|Initial validation metrics|Final validation metrics")
_VALIDATION = "validation generation end"
_END = re.compile(r"(?:<\|endoftext\|>|<\|im_end\|>)\s*\Z")
_KNOWN = {"step", "sequences_str", "prompt", "response", "score"}


def files(path: Path) -> tuple[Path, ...]:
    """Return the files of lines of a folder, those of a step in order of steps, else its logs; or the file that is named."""
    if not path.is_dir():
        return (path,)
    first = numbered(path)
    lines = (*first, *(each for each in sorted(path.iterdir()) if is_jsonl(each) and each not in first))
    return lines or tuple(each for each in sorted(path.iterdir()) if each.suffix in _LOGS and each.is_file())


def detect(path: Path) -> bool:
    """Whether a line has ``sequences_str``, or a response with a score, or a log prints a rollout."""
    heads = [head(each) for each in samples(path)]
    if any(record is not None and _has_text(record) for record in heads):
        return True
    return not any(heads) and any(_is_log(each) for each in files(path) if each.suffix in _LOGS)


def read(source: Source) -> Iterator[Episode]:
    """Yield the rollouts, in the order of the lines."""
    for quantity in ("log-probabilities", "KL", "entropy", "importance ratios", "tokens", "staleness"):
        source.lacks(quantity, "Search-R1 leaves text only, no ids, masks or log-probs")
    cut = Cutter(source)
    for path in source.paths:
        yield from _printed(source, cut, path) if path.suffix in _LOGS else _lines(source, cut, path)


def parted(text: str) -> tuple[str, str] | None:
    r"""Return prompt and response of a sequence, or None where nothing says where the prompt ends.

    >>> parted("... Question: who?" + chr(10) + "<think>")
    ('... Question: who?\n', '<think>')
    """
    place = text.find(_ASSISTANT)
    if place >= 0:
        place += len(_ASSISTANT)
    elif match := _QUESTION.search(text):
        place = match.end()
    return None if place < 0 else (text[:place], text[place:])


def _has_text(record: Mapping[str, Any]) -> bool:
    return "sequences_str" in record or {"prompt", "response", "score"} <= record.keys()


def _is_log(path: Path) -> bool:
    with path.open("rb") as stream:
        start = stream.read(_HEAD)
    return _GOLD.encode() in start and _TEXT.encode() in start


def _lines(source: Source, cut: Cutter, path: Path) -> Iterator[Episode]:
    named = number(path)
    for line, record, text in records(source, path):
        step = step_of(record) if named is None else named
        whole = record.get("sequences_str")
        parts = parted(whole) if isinstance(whole, str) else (record.get("prompt"), record.get("response"))
        if step is None:
            source.damaged(path, line, "no step, neither in the line nor as the file's name", text)
        elif parts is None:
            source.damaged(
                path, line, "no marker of the assistant and no line 'Question: ': where does it begin?", text
            )
        elif not (isinstance(parts[0], str) and isinstance(parts[1], str)):
            source.damaged(path, line, "no text under sequences_str, nor under prompt and response", text)
        else:
            reward = rewards.reward(source, path, line, record.get("score"))
            yield Episode(
                step=step,
                task=parts[0],
                turns=cut(parts[1], parts[0]),
                reward=reward,
                outcome=rewards.outcome(source, reward),
                prompt=parts[0],
                extras=extras(record, _KNOWN),
            )


@dataclass
class _Sample:
    """A rollout that a log is printing."""

    line: int
    process: str
    said: dict[str, str] = field(default_factory=dict)
    words: list[str] | None = None


def _printed(source: Source, cut: Cutter, path: Path) -> Iterator[Episode]:
    """Yield the rollouts that a log prints. A line here is a line of the log; most belong to no rollout."""
    source.lacks("reward", "the log prints no score")
    source.lacks("accuracy", "the log prints the golden and the extracted answer, not the score")
    source.note("the log prints about one rollout in 64: groups are not whole")
    step: int | None = None
    validates, sample = False, None
    for line, raw, _ in texts(source, path):
        ray = _RAY.match(raw)
        process, words = (ray[0], raw[ray.end() :]) if ray else ("", raw)
        words = words.rstrip("\r\n")
        begins = _BEGINS.match(words)
        if sample is not None and process != sample.process and not begins:
            continue  # another process speaks between; where it begins a step the run was started again
        if sample is not None and (begins or words in (_RULE, _VALIDATION) or _ENDS.match(words)):
            yield from _episode(source, cut, path, sample, None if validates else step)
            sample = None
        if begins:
            step, validates = int(begins[1]), False
        elif words == _VALIDATION:
            validates = True
        elif words.startswith(_GOLD) and (sample is None or sample.words is None):
            sample = _Sample(line, process, {"golden_answers": words[len(_GOLD) :]})
        elif sample is not None and sample.words is None and words.startswith(_FOUND):
            sample.said["extracted_answer"] = words[len(_FOUND) :]
        elif sample is not None and sample.words is None and words.startswith(_TEXT):
            sample.words = [words[len(_TEXT) :]]
        elif sample is not None and sample.words is not None:
            sample.words.append(words)
    if sample is not None:
        yield from _episode(source, cut, path, sample, None if validates else step)


def _episode(source: Source, cut: Cutter, path: Path, sample: _Sample, step: int | None) -> Iterator[Episode]:
    """Yield the episode of a sample, if it is one of training and whole."""
    source.counts["lines"] += 1
    if step is None:
        source.count("rollouts of validation, left out")
        return
    text = "\n".join(sample.words or [])
    parts = parted(text)
    if parts is None:
        source.damaged(path, sample.line, "a rollout of which nothing says where its prompt ends", text)
        return
    if end := _END.search(parts[1]):
        parts = (parts[0], parts[1][: end.start()])
    yield Episode(
        step=step,
        task=parts[0],
        turns=cut(parts[1], parts[0]),
        reward=None,
        outcome=Outcome.NOT_RECORDED,
        prompt=parts[0],
        extras=sample.said,
    )
