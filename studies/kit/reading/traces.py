"""One trace of the verifiers package: a graph of messages, some of which the policy sampled, as an episode's turns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sim.records.tables import Tokens
from studies.kit.episodes import Episode, Turn
from studies.kit.reading import tokens
from studies.kit.reading.lines import extra
from studies.kit.reading.messages import content, message_turns

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source
    from studies.kit.reading.tagged import Cutter

__all__ = ["about", "conversation", "quantities", "reward", "task_id", "task_text"]

_STREAMS = {"logp": "logprobs", "logp_proximal": "trainer_logprobs", "logp_reference": "reference_logprobs"}
_PLAIN = int | float | str


def task_id(task: Mapping[str, Any]) -> str:
    """Return what the attempts at a task share: its key, its hash, or else its text."""
    return str(task.get("key") or task.get("hash") or task_text(task))


def task_text(task: Mapping[str, Any]) -> str:
    """Return the prompt of a task, or its whole row where it has none."""
    data = task.get("data") or {}
    prompt = data.get("prompt") if isinstance(data, dict) else None
    if isinstance(prompt, list):
        return "\n\n".join(content(each.get("content")) for each in prompt if isinstance(each, dict))
    return prompt if isinstance(prompt, str) else json.dumps(data, ensure_ascii=False)


def reward(trace: Mapping[str, Any]) -> float | None:
    """Return the sum of weight x score over the rewards that were computed, None if none was."""
    found = [each for each in (trace.get("rewards") or {}).values() if each is not None]
    return sum(each["score"] * each.get("weight", 1.0) for each in found) if found else None


def about(record: Mapping[str, Any], trace: Mapping[str, Any] | None) -> dict[str, float | str]:
    """Return what else a record says of a trace: each reward and metric, its environment, group, end and last error."""
    found: dict[str, Any] = {"env": (record.get("env") or {}).get("name") or (record.get("env") or {}).get("id")}
    found["group"] = (record.get("group") or {}).get("id")
    errors = list(record.get("errors") or [])
    if trace is not None:
        found |= {f"reward/{name}": each["score"] for name, each in (trace.get("rewards") or {}).items() if each}
        found |= {f"metric/{name}": value for name, value in (trace.get("metrics") or {}).items()}
        found["stop_condition"] = trace.get("stop_condition")
        credit = [value for node in trace["nodes"] for value in node.get("advantages") or []]
        if credit and min(credit) == max(credit):
            found["advantage"] = credit[0]
        errors += [error for error in trace.get("errors") or [] if error not in errors]
    if errors:
        found["error"] = f"{errors[-1].get('type')}: {errors[-1].get('message')}"
    return {name: extra(value) for name, value in found.items() if isinstance(value, _PLAIN) and value != ""}


def conversation(source: Source, cut: Cutter, trace: Mapping[str, Any]) -> tuple[str, tuple[Turn, ...]]:
    """Return the prompt of a trace, and its turns in the order in which they were sampled.

    A message that was not sampled belongs to the nearest sampled one before it on its path. Where a graph has several
    paths (compaction, sub-agents), the messages with which the later ones begin are counted, and ids are left out: they
    are no one sequence.
    """
    nodes: list[dict[str, Any]] = trace["nodes"]
    owner: list[int | None] = []
    for place, node in enumerate(nodes):
        above = node.get("parent")
        if above is not None and not 0 <= above < place:
            raise ValueError(f"node {place} has parent {above}, which does not come before it")
        owner.append(place if node.get("sampled") else None if above is None else owner[above])
    sampled = [place for place, node in enumerate(nodes) if node.get("sampled")]
    before = [place for place in range(len(nodes)) if owner[place] is None]
    opening = [place for place in before if not sampled or place < sampled[0]]
    if len(opening) < len(before):
        source.count("messages with which later branches begin, not kept", len(before) - len(opening))
    linear = all(node.get("parent") == (place - 1 if place else None) for place, node in enumerate(nodes))
    held = _tokens(source, nodes, sampled) if linear else None
    if not linear:
        source.count("traces with several branches")
    usage = {call["node"]: call.get("usage") for call in trace.get("calls") or [] if call.get("node") is not None}
    turns: list[Turn] = []
    for k, place in enumerate(sampled):
        replies = [nodes[j]["message"] for j in range(place + 1, len(nodes)) if owner[j] == place]
        found = message_turns(cut, nodes[place]["message"], replies)
        spent = (usage.get(place) or {}).get("completion_tokens")
        part = None if held is None else held[k]
        turns += _with_tokens(found, part, spent, nodes[place].get("entropies"))
    prompt = "\n\n".join(content(nodes[place]["message"].get("content")) for place in opening)
    return prompt, tuple(turns)


def quantities(episode: Episode) -> set[str]:
    """Return which of the quantities that a trace may lack are there."""
    held = [turn.tokens for turn in episode.turns if turn.tokens is not None and len(turn.tokens)]
    logp = any((each.logp_behaviour <= 0).any() for each in held)
    found = {
        "log-probabilities": logp,
        "KL": logp and any((each.logp_reference <= 0).any() for each in held),
        "entropy": any(turn.entropy is not None for turn in episode.turns),
        "tokens": bool(held),
        "staleness": episode.version_oldest is not None,
    }
    return {name for name, holds in found.items() if holds}


def _tokens(source: Source, nodes: Sequence[Mapping[str, Any]], sampled: Sequence[int]) -> list[Tokens] | None:
    """Return the tokens of each sampled message, with the prompt's and those that came back; None if not all are there."""
    ids = [each for node in nodes for each in node.get("token_ids") or []]
    mask = [each for node in nodes for each in node.get("mask") or []]
    if not ids:
        return None
    columns = {name: _spread(nodes, stream) for name, stream in _STREAMS.items()}
    sequence = tokens.table(ids, mask, columns)
    runs = tokens.parts(sequence.sampled)
    if len(runs) != len(sampled):
        source.count("traces whose runs of sampled tokens are not its messages: ids not kept")
        return None
    return [sequence.rows(run.start, run.stop) for run in runs]


def _spread(nodes: Sequence[Mapping[str, Any]], stream: str) -> list[float | None] | None:
    """Return values of the sampled tokens, a place for every token; None if no node has them."""
    if not any(node.get(stream) for node in nodes):
        return None
    found: list[float | None] = []
    for node in nodes:
        mask, values = node.get("mask") or [], node.get(stream) or []
        if values and len(values) != sum(mask):
            raise ValueError(f"{stream} has {len(values)} values for {sum(mask)} sampled tokens")
        given = iter(values)
        found += [next(given, None) if mine else None for mine in mask]
    return found


def _with_tokens(
    turns: list[Turn], part: Tokens | None, spent: int | None, entropies: Sequence[float] | None
) -> list[Turn]:
    """Give a message's tokens and entropy to the first of its turns; where it has several, nothing says which are whose."""
    entropy = tokens.first_mean(entropies) if entropies else None
    if part is None:
        counted = spent if len(turns) == 1 else None
        return [replace(turns[0], generated_tokens=counted, entropy=entropy), *turns[1:]]
    wrote = int(part.sampled.sum())
    heard = len(part) - (int(part.sampled.argmax()) + wrote if wrote else 0)
    first = replace(turns[0], tokens=part, generated_tokens=wrote, observed_tokens=heard, entropy=entropy)
    return [first, *(replace(turn, tokens=part.rows(0, 0)) for turn in turns[1:])]
