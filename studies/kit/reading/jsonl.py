"""Our own plain layout, for whoever writes rollouts by hand: one episode a line of JSON.

    {"step": 12, "task": "q17", "prompt": "Who ...?", "completion": "<search> ... </search> ...", "reward": 1.0}

A line must have ``step``; ``task`` (an id that the attempts of one group share) or ``prompt`` (text); and one of

``completion``  the text of the rollout with its tags, cut as `tagged` says;
``turns``       a list of objects: ``action``, ``generated``, ``observed``, ``generated_tokens``, ``observed_tokens``,
                ``context``, ``logp``, ``logp_reference``, ``entropy``, all optional; without ``action``, ``generated``
                is cut;
``ids``         tokens, the prompt's first, with ``sampled`` (which of them the policy sampled) and, as long as they,
                ``train`` (which of them the loss may touch; those sampled where it is not given), ``logp``,
                ``logp_proximal``, ``logp_reference``, ``versions`` and ``pieces`` (their texts). A run of sampled tokens
                is a turn; with ``turns`` beside them there are as many turns as runs, which then have names.

It may have ``reward``, ``outcome`` (solved, wrong, turn limit, truncated, infrastructure failure), ``truncated``,
``failed``, ``role``, ``version_oldest``, ``version_newest``, ``take_version``. Other fields are kept as they are. Nothing
that is not there is made up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.tables import Outcome
from studies.kit.episodes import NO_ACTION, Episode, Turn
from studies.kit.reading import rewards, tokens
from studies.kit.reading.lines import extras, head, records
from studies.kit.reading.steps import MOST, is_jsonl, numbered, samples, step_of
from studies.kit.reading.tagged import Cutter
from studies.kit.words import near

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["FIELDS", "LAYOUT", "detect", "files", "read"]

LAYOUT = "lines with step, task or prompt, and completion, turns or ids"
"""The layout in a line."""
FIELDS = (
    *("step", "task", "prompt", "completion", "turns", "reward", "outcome", "truncated", "failed", "role"),
    *("version_oldest", "version_newest", "take_version", "ids", "sampled", "train", "versions", "pieces"),
    *tokens.COLUMNS,
)
"""Fields of a line that have a meaning."""

_BODIES = ("completion", "turns", "ids")
_OUTCOMES = {each.words: each for each in Outcome}
_TEXTS, _COUNTS = ("action", "generated", "observed", "context"), ("generated_tokens", "observed_tokens")
_NUMBERS = ("logp", "logp_reference", "entropy")
_ABSENT = {
    "reward": "no line has a reward",
    "log-probabilities": "no line has log-probs of what was sampled (logp)",
    "KL": "no line has log-probs under the reference beside those of the policy (logp, logp_reference)",
    "entropy": "no turn has an entropy",
    "staleness": "no line has versions",
    "tokens": "no line has ids",
    "words": "no line has text",
}


def files(path: Path) -> tuple[Path, ...]:
    """Return the files of a folder, those named by a step in its order and then the others, or the file that is named."""
    if not path.is_dir():
        return (path,)
    first = numbered(path)
    return (*first, *(each for each in sorted(path.iterdir()) if is_jsonl(each) and each not in first))


def detect(path: Path) -> bool:
    """Whether a line has the fields that it must have."""
    return any((record := head(each)) is not None and not _missing(record) for each in samples(path))


def read(source: Source) -> Iterator[Episode]:
    """Yield the episodes, in the order of the lines."""
    cut, there = Cutter(source), set()
    for path in source.paths:
        for line, record, text in records(source, path):
            missing = _missing(record)
            if missing:
                close = _near(record) if len(source.problems) < 100 else ""  # told of no further
                source.damaged(path, line, f"no {' and no '.join(missing)}{close}", text)
                continue
            try:
                episode = _episode(source, cut, path, line, record)
            except (ValueError, TypeError, OverflowError) as error:
                source.damaged(path, line, str(error), text)
                continue
            there |= _there(episode)
            yield episode
    for quantity in _ABSENT.keys() - there:
        source.lacks(quantity, _ABSENT[quantity])


def _missing(record: Mapping[str, Any]) -> list[str]:
    """Return what a line lacks that it must have."""
    wanted = (("step", ("step",)), ("task or prompt", ("task", "prompt")), ("completion, turns or ids", _BODIES))
    return [words for words, names in wanted if all(record.get(name) is None for name in names)]


def _near(record: Mapping[str, Any]) -> str:
    """Say which of the fields of a line may be misspelt."""
    close = {name: near(name, FIELDS) for name in list(record)[:20] if name not in FIELDS}
    return "".join(f"; {name!r}: {words}" for name, words in close.items() if words.startswith("did"))


def _episode(source: Source, cut: Cutter, path: Path, line: int, record: dict[str, Any]) -> Episode:
    step = step_of(record)
    if step is None:
        raise ValueError(f"step is {record['step']!r}: it must be a whole number of 0 or more, below 2**63")
    prompt = record.get("prompt", "")
    task = record.get("task", prompt)
    if not isinstance(prompt, str) or isinstance(task, bool) or not isinstance(task, int | str):
        raise ValueError("task must be a number or text, and prompt text")
    failed, truncated = record.get("failed") is True, record.get("truncated") is True
    reward = None if failed else rewards.reward(source, path, line, record.get("reward"))
    turns = tuple(_turns(cut, record, prompt))
    return Episode(
        step=step,
        task=task,
        turns=turns,
        reward=reward,
        outcome=_outcome(source, record, reward, truncated=truncated, failed=failed),
        prompt=prompt,
        role=str(record.get("role", "main")),
        extras=extras(record, FIELDS),
        **_versions(record, turns),
    )


def _outcome(
    source: Source, record: Mapping[str, Any], reward: float | None, *, truncated: bool, failed: bool
) -> Outcome:
    named = record.get("outcome")
    if named is None:
        return rewards.outcome(source, reward, truncated=truncated, failed=failed)
    words = str(named).lower().replace("_", " ")
    if words not in _OUTCOMES:
        raise ValueError(f"outcome {named!r}: {near(words, _OUTCOMES)}")
    if reward is None and _OUTCOMES[words] is not Outcome.INFRASTRUCTURE_FAILURE:
        source.count("outcomes without a reward, not kept")  # a record wants both
        return Outcome.NOT_RECORDED
    return _OUTCOMES[words]


def _turns(cut: Cutter, record: Mapping[str, Any], prompt: str) -> Iterator[Turn]:
    """Yield the turns of a line, whichever way it gives them."""
    named = [turn for each in record["turns"] for turn in _turn(cut, each)] if record.get("turns") is not None else None
    if record.get("ids") is None:
        yield from cut(_text(record, "completion"), prompt) if named is None else named
        return
    if record.get("sampled") is None:
        raise ValueError("ids without sampled: say which of them the policy sampled")
    columns = {"train": record.get("train"), "version": record.get("versions")}
    columns |= {name: record.get(name) for name in tokens.COLUMNS}
    sequence = tokens.table(record["ids"], record["sampled"], columns)
    if not sequence.sampled.any():
        raise ValueError("none of the ids was sampled: there is no turn of the policy in them")
    pieces = record.get("pieces")
    if pieces is not None and (len(pieces) != len(sequence) or not all(isinstance(piece, str) for piece in pieces)):
        raise ValueError(f"pieces must be {len(sequence)} texts, one for each of the ids")
    if named is None:
        yield from tokens.turns(sequence, pieces, cut)
        return
    runs = list(tokens.turns(sequence, None, None))
    if len(runs) != len(named):
        raise ValueError(f"{len(named)} turns for {len(runs)} runs of sampled tokens")
    for turn, run in zip(named, runs, strict=True):
        yield dataclasses.replace(
            turn, tokens=run.tokens, generated_tokens=run.generated_tokens, observed_tokens=run.observed_tokens
        )


def _turn(cut: Cutter, fields: Any) -> Iterator[Turn]:
    """Yield the turn that an object says, or turns where it does not name the action."""
    if not isinstance(fields, dict):
        raise ValueError(f"a turn is an object, not {type(fields).__name__}")
    unknown = fields.keys() - {*_TEXTS, *_COUNTS, *_NUMBERS}
    if unknown:
        raise ValueError(f"a turn has no {min(unknown)!r}: {near(min(unknown), (*_TEXTS, *_COUNTS, *_NUMBERS))}")
    texts = {name: _text(fields, name) for name in _TEXTS[1:] if fields.get(name) is not None}
    counts = {name: _count(name, fields[name]) for name in _COUNTS if fields.get(name) is not None}
    numbers = {name: _number(name, fields[name]) for name in _NUMBERS if fields.get(name) is not None}
    if fields.get("action") is not None:
        name = _text(fields, "action")
        action = name if name == NO_ACTION else cut.source.action(name)
        yield Turn(action, **texts, **counts, **numbers)  # type: ignore[arg-type]
        return
    observed = texts.pop("observed", "")
    found = cut.message(texts.pop("generated", ""), replied=bool(observed), chat=False) or (Turn(NO_ACTION),)
    if len(found) > 1 and (counts or numbers):
        raise ValueError(f"a turn without an action writes {len(found)} of them: its numbers are of neither alone")
    yield from found[:-1]
    yield dataclasses.replace(found[-1], observed=observed, **texts, **counts, **numbers)  # type: ignore[arg-type]


def _text(fields: Mapping[str, Any], name: str) -> str:
    if not isinstance(fields[name], str):
        raise ValueError(f"{name} must be text, not {type(fields[name]).__name__}")
    return str(fields[name])


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise ValueError(f"{name} is {value!r}: it must be a whole number of 0 or more, below 2**63")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}: it must be a finite number")
    if (name == "entropy") == (value < 0) and value:
        raise ValueError(f"{name} is {value!r}: it must be 0 or {'more' if name == 'entropy' else 'less'}, in nats")
    return float(value)


def _versions(record: Mapping[str, Any], turns: tuple[Turn, ...]) -> dict[str, int]:
    """Return the versions of a line: those it names, else the span of its tokens'."""
    names = ("version_oldest", "version_newest", "take_version")
    found = {name: _count(name, record[name]) for name in names if record.get(name) is not None}
    of_tokens = [int(v) for turn in turns if turn.tokens is not None for v in turn.tokens.version if v >= 0]
    if of_tokens:
        found.setdefault("version_oldest", min(of_tokens))
        found.setdefault("version_newest", max(of_tokens))
    if found.keys() & set(names[:2]) and len(found.keys() & set(names[:2])) == 1:
        raise ValueError("version_oldest and version_newest come together: name both")
    order = [found[name] for name in names if name in found]
    if order != sorted(order):
        raise ValueError(f"versions {order} fall: the oldest wrote first and the learner took it last")
    return found


def _there(episode: Episode) -> set[str]:
    """Return which of the quantities that a line may lack are there."""
    turns = episode.turns
    held = [turn.tokens for turn in turns if turn.tokens is not None]
    logp = any(t.logp is not None for t in turns) or any((t.logp_behaviour <= 0).any() for t in held)
    reference = any(t.logp_reference is not None for t in turns) or any((t.logp_reference <= 0).any() for t in held)
    found = {
        "reward": episode.reward is not None,
        "log-probabilities": logp,
        "KL": logp and reference,
        "entropy": any(turn.entropy is not None for turn in turns),
        "staleness": episode.version_oldest is not None or episode.take_version is not None,
        "tokens": bool(held),
        "words": any(turn.generated for turn in turns),
    }
    return {name for name, holds in found.items() if holds}
