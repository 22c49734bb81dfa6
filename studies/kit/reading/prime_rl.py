"""prime-rl: episodes of the verifiers package, and the token columns that its trainer exports.

    rollouts/step_{n}/{train,eval}/{all,effective}/traces.jsonl    its file monitor: an `Episode` of verifiers a line
    token_exports/step_{n}/rank_{r}.jsonl                          `enable_token_export`; see `prime_rl_tokens`

An episode holds the traces of its agents, each a graph of messages with rewards and, where the engine gave them, ids, masks
and log-probs; episodes that failed are kept. A trace is an episode here, its agent the role; agents that are not trained
(a judge) are counted and left out. Of several folders the one with ``train`` is read rather than ``eval``, and ``all``
rather than ``effective``, which is a part of it; a path that names a folder further down reads that one. The layout is that
of prime-rl 2026-08 and verifiers 0.4.0, trace version 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.tables import Outcome
from studies.kit.episodes import Episode
from studies.kit.reading import prime_rl_tokens, rewards, traces
from studies.kit.reading.lines import head, records
from studies.kit.reading.steps import step_of
from studies.kit.reading.tagged import CHAT_NOTE, Cutter

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["LAYOUT", "detect", "files", "read"]

LAYOUT = "rollouts/step_{n}/{kind}/{subset}/traces.jsonl, or token_exports/step_{n}/rank_{r}.jsonl"
"""The layout in a line."""

_TRACES = "traces.jsonl"
_PLACES = ("", "*/", "*/*/", "step_*/*/*/")
_STEP = re.compile(r"step_(\d{1,12})")
_KINDS, _SUBSETS = ("train", "eval"), ("all", "effective")
_LIMITS = {"max_turns": Outcome.TURN_LIMIT}
_CUT = ("max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
_KL = "no node has log-probs under a reference model beside those of the engine"
_ABSENT = {
    "log-probabilities": "no node has log-probs of what was sampled",
    "KL": _KL,
    "entropy": "no node has entropies: no forward of the trainer annotated it",
    "tokens": "no node has ids",
    "staleness": "no episode names the policy versions that wrote it",
}


def files(path: Path) -> tuple[Path, ...]:
    """Return the trace files of one kind and subset in order of steps, or the token exports, or the file that is named."""
    if not path.is_dir():
        return (path,)
    for root in (path / "rollouts", path):
        found = [(_step(each) or 0, each) for pattern in _PLACES for each in root.glob(pattern + _TRACES)]
        if found:
            return tuple(each for _, each in sorted(_one_kind(found)))
    return prime_rl_tokens.files(path)


def detect(path: Path) -> bool:
    """Whether there are trace files of verifiers, or token exports."""
    if path.is_dir():
        return bool(files(path))
    record = head(path) if path.name.endswith((".jsonl", ".jsonl.gz")) else None
    return record is not None and (_is_episode(record) or _is_trace(record) or prime_rl_tokens.is_export(record))


def read(source: Source) -> Iterator[Episode]:
    """Yield a trace an episode, step by step, or an exported sequence an episode."""
    if source.paths[0].name != _TRACES and prime_rl_tokens.is_export(head(source.paths[0]) or {}):
        yield from prime_rl_tokens.read(source)
        return
    _left_out(source)
    cut, there = Cutter(source), set()
    source.note(CHAT_NOTE)
    for path in source.paths:
        for line, record, text in records(source, path):
            if not (_is_episode(record) or _is_trace(record)):
                source.damaged(path, line, "no episode or trace of verifiers (no task with traces or nodes)", text)
                continue
            try:
                for episode in _episodes(source, cut, path, line, record):
                    there |= traces.quantities(episode)
                    yield episode
            except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
                source.damaged(path, line, f"a record of another shape than verifiers 0.4.0 writes ({error!r})", text)
    for quantity in _ABSENT.keys() - there:
        source.lacks(quantity, _ABSENT[quantity])


def _one_kind(found: list[tuple[int, Path]]) -> list[tuple[int, Path]]:
    """Return the files of the first kind that is there, and of its first subset."""
    for up, names in ((1, _KINDS), (0, _SUBSETS)):
        named = {name: [each for each in found if each[1].parents[up].name == name] for name in names}
        found = next((some for some in named.values() if some), found)
    return found


def _left_out(source: Source) -> None:
    """Tell of the folders beside those that are read."""
    read = {path.parent for path in source.paths}
    for path in {path.parent.parent.parent for path in source.paths if _STEP.fullmatch(path.parent.parent.parent.name)}:
        for each in path.glob("*/*/" + _TRACES):
            if each.parent not in read:
                source.count(f"files not read: {each.parent.parent.name}/{each.parent.name}")
    exports = next(
        (up / "token_exports" for up in source.paths[0].parents[:6] if (up / "token_exports").is_dir()), None
    )
    if exports is not None:
        source.note(f"not read: token exports, which name no rollout; read {exports} by itself for their log-probs")


def _step(path: Path) -> int | None:
    """Return the step of the folder that a file is in."""
    return next((int(m[1]) for part in reversed(path.parts) if (m := _STEP.fullmatch(part))), None)


def _is_episode(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("traces"), list) and isinstance(record.get("task"), dict)


def _is_trace(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("nodes"), list) and isinstance(record.get("task"), dict)


def _episodes(source: Source, cut: Cutter, path: Path, line: int, record: dict[str, Any]) -> Iterator[Episode]:
    """Yield the traces of a line, or what is known of it where there is none."""
    step, work = _step(path), (record.get("run") or {}).get("work") or {}
    if step is None and work.get("step") is not None:
        step = step_of(work)
        if step is None:
            raise ValueError(f"step is {work['step']!r}: it must be a whole number of 0 or more")
    if step is None:
        step = 0
        source.lacks("steps", "neither the path (step_{n}) nor the records name one: all is shown as step 0")
    policy = work.get("policy") or {}
    known = Episode(
        step=step,
        task=traces.task_id(record["task"]),
        turns=(),
        reward=None,
        outcome=Outcome.INFRASTRUCTURE_FAILURE,
        prompt=traces.task_text(record["task"]),
        version_oldest=policy.get("start"),
        version_newest=policy.get("end"),
        extras=traces.about(record, None),
    )
    held = [record] if _is_trace(record) else record["traces"]
    trained = [trace for trace in held if (trace.get("agent") or {}).get("trainable", True)]
    if not held:
        source.count("episodes that failed before a trace")
        yield known
    if len(trained) < len(held):
        source.count("traces of agents that are not trained", len(held) - len(trained))
    for trace in trained:
        failed = bool(trace.get("errors")) and not trace.get("ok", False)
        reward = None if failed else rewards.reward(source, path, line, traces.reward(trace))
        prompt, turns = traces.conversation(source, cut, trace)
        agent = (trace.get("agent") or {}).get("name") or "agent"
        yield replace(
            known,
            turns=turns,
            reward=reward,
            outcome=_outcome(source, trace, reward, failed=failed),
            prompt=prompt or known.prompt,
            role="main" if agent == "agent" else agent,
            extras=traces.about(record, trace),
        )


def _outcome(source: Source, trace: Mapping[str, Any], reward: float | None, *, failed: bool) -> Outcome:
    """Return how a trace ended; its stop condition and a last call that ran into its length say so."""
    stop = trace.get("stop_condition")
    calls = [call for call in trace.get("calls") or [] if not call.get("error")]
    cut = stop in _CUT or bool(trace.get("is_timeout")) or bool(calls and calls[-1].get("finish_reason") == "length")
    if reward is not None and not failed and stop in _LIMITS:
        return _LIMITS[stop]
    return rewards.outcome(source, reward, truncated=cut, failed=failed)
