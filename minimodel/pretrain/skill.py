"""What a start can do, measured before it is used: a weak one turns the sign of what is studied.

Recall, habit and the reading of verdicts are exact probabilities, averaged; queries, copying and grammar are counted in
episodes that the network plays by itself, on all questions.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minimodel.model.sampling import inverse_cdf
from minimodel.model.threads import one_thread
from minimodel.model.transformer import Cache, Transformer
from minimodel.pretrain.lessons import Teacher
from minimodel.tasks.environment import DRAWS, Environment
from minimodel.tasks.script import Script
from sim.records.config import config
from sim.records.rng import uniforms

__all__ = ["Asks", "Measured", "Skill", "SkillError", "check", "measure"]

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

_STREAM = "minimodel/skill"


@config
class Measured:
    """One number and what it should be."""

    value: float
    """As measured."""
    aim: float
    """As taught."""
    n: int
    """Number of questions, turns or tokens it is the mean of."""


@config
class Skill:
    """What a start can do; None where the task has no such thing, or it never came up."""

    recall_known: Measured | None
    """P(right | answered at the start, known)."""
    recall_unknown: Measured | None
    """P(right | answered at the start, unknown)."""
    guess_share: Measured | None
    """P(answer | start)."""
    verify_share: Measured | None
    """P(verify | fresh evidence)."""
    read_share: Measured | None
    """P(read on | fresh evidence)."""
    decision_gap: Measured | None
    """Distance (total variation) of decisions from the script's, after verdicts, failures and slips as well."""
    query_right: Measured | None
    """Share of searches that ask the question."""
    copies: Measured | None
    """Share of answers on a document that give the document's answer."""
    right_after_search: Measured | None
    """Share of first answers on a document that are right; it aims at the share of those documents that are."""
    invalid_share: Measured | None
    """Share of turns that are invalid actions."""


@config
class Asks:
    """How far a start may be from what it was taught."""

    recall: float = 0.02
    """Largest error of recall, known and unknown."""
    habit: float = 1.5
    """Largest factor between a rare decision's probability and the script's."""
    decisions: float = 0.02
    """Largest mean distance of decisions from the script's."""
    queries: float = 0.02
    """Largest share of searches that ask something else."""
    copying: float = 0.04
    """Largest share of answers on a document that give another."""
    right: float = 0.02
    """Largest loss of right answers between first document and first answer."""
    invalid: float = 0.01
    """Largest share of invalid turns."""


class SkillError(RuntimeError):
    """A start is not what was asked for; the message names every number that misses, its bound, and the way out."""


def check(skill: Skill, asks: Asks = Asks()) -> None:  # noqa: B008  frozen
    """Raise :class:`SkillError` when a start is not good enough."""
    error = {
        "recall_known": asks.recall, "recall_unknown": asks.recall, "decision_gap": asks.decisions,
        "query_right": asks.queries, "copies": asks.copying, "right_after_search": asks.right, "invalid_share": asks.invalid,
    }  # fmt: skip
    misses = []
    for name in (f.name for f in fields(Skill)):
        found: Measured | None = getattr(skill, name)
        if found is None:
            continue
        low, high = found.aim - error.get(name, 0.0), found.aim + error.get(name, 0.0)
        if name not in error:  # a rare decision; one in a thousand is as good as never
            low, high = found.aim / asks.habit, max(found.aim * asks.habit, 0.001)
        if not low <= found.value <= high:
            misses.append(
                f"{name} = {found.value:.4g} (n = {found.n}) is outside [{max(low, 0):.4g}, {min(high, 1):.4g}]"
            )
    if misses:
        raise SkillError(
            f"this start falls short: {'; '.join(misses)}. Give it more Start.steps or a larger Start.batch, more of "
            "Start.closed_book where recall is weak, a lower Start.hit where late turns are, or ask for less (Asks)"
        )


def measure(model: Transformer, environment: Environment, script: Script, *, episodes: int = 2, seed: int = 0) -> Skill:
    """Measure a start.

    Parameters
    ----------
    model
        The network.
    environment
        Where it plays; hit rates are this environment's.
    script
        The habit it was taught.
    episodes
        Episodes it plays of every question; recall is averaged over as many thoughts of each.
    seed
        Of what is drawn; the stream is apart from that of training.
    """
    graph = environment.graph
    teacher = Teacher(environment.task, environment.facts, script, None, 1.0, seed, stream=_STREAM)
    with one_thread(), torch.inference_mode():
        known, unknown = _recall(model, teacher, episodes)
        turns = _play(model, environment, episodes, seed)
        gap = _decision_gap(model, teacher)
    table, context = script.probabilities(graph), np.array(graph.contexts)[turns.context]

    def habit(name: str, rows: Flags) -> Measured | None:
        """Return the mean probability of a decision in some turns, where the world offers it there."""
        if name not in graph.actions:
            return None
        a = graph.actions.index(name)
        rows = rows & graph.offered[turns.context, a]
        return _mean(turns.decision[rows, a], table[turns.context[rows], a])

    searches, first = turns.action == graph.actions.index("search"), turns.first_answer
    return Skill(
        recall_known=known,
        recall_unknown=unknown,
        guess_share=habit("answer", turns.number == 0),
        verify_share=habit("verify", context == "fresh"),
        read_share=habit("read", context == "fresh"),
        decision_gap=gap,
        query_right=_mean(turns.asks[searches], 1.0),
        copies=_mean(turns.copies[turns.on_document], 1.0),
        right_after_search=_mean(turns.correct[first], turns.holds[first]),
        invalid_share=_mean(turns.action < 0, 0.0),
    )


def _mean(values: NDArray[Any], aims: NDArray[Any] | float) -> Measured | None:
    """Return means of what was found and of what should have been; None of nothing."""
    return Measured(float(np.mean(values)), float(np.mean(aims)), len(values)) if len(values) else None


def _recall(model: Transformer, teacher: Teacher, times: int) -> tuple[Measured | None, Measured | None]:
    """Return recall of known and of unknown questions, each asked `times` times closed-book."""
    if not teacher.recalls:
        return None, None
    task, facts = teacher.task, teacher.facts
    found, asked = [], []
    for step in range(times):
        lesson = teacher.closed_book(step, len(facts.answer))
        question = task.vocabulary.question(lesson.ids[:, 2], lesson.ids[:, 3])
        p = torch.softmax(model(torch.from_numpy(lesson.ids[:, :-1]))[:, -1], -1).numpy()
        found.append(p[np.arange(len(p)), task.vocabulary.answer(facts.answer[question])])
        asked.append(question)
    p, known = np.concatenate(found), facts.known[np.concatenate(asked)]
    return _mean(p[known], task.world.guess_known), _mean(p[~known], 1 / task.vocabulary.answers)


def _decision_gap(model: Transformer, teacher: Teacher) -> Measured | None:
    """Return the mean distance of decisions from the script's on scripts it plays, half of them forced."""
    gaps = []
    for lesson in teacher.episodes(0, 256, forced=0.5, slips=0.05, pieces=2):
        p = torch.softmax(model(torch.from_numpy(lesson.ids[:, :-1]))[:, lesson.first - 1 :], -1).numpy()
        at = teacher.task.layout.decisions - lesson.first
        at = at[at < p.shape[1]]
        taught = lesson.weight[:, at] > 0
        gaps.append(np.abs(p[:, at] - lesson.targets[:, at]).sum(-1)[taught] / 2)
    return _mean(np.concatenate(gaps), 0.0)


@dataclass(frozen=True, eq=False)
class _Turns:
    """Turns of all episodes, [n] each."""

    number: I64
    """Turn in its episode."""
    context: I64
    """Context of the tool graph."""
    action: I64
    """What was done; -1 for an invalid action."""
    decision: F32
    """Probability of each action's decision token, [n, A]."""
    asks: Flags
    """Whether the arguments are the entity and the relation asked for."""
    correct: Flags
    """Whether it gave the right answer."""
    on_document: Flags
    """Whether it gave an answer with a document, or a candidate that was verified, in hand."""
    copies: Flags
    """Whether it gave the one in hand."""
    first_answer: Flags
    """Whether it was the episode's first answer, and so given."""
    holds: Flags
    """Whether the evidence in hand was right."""


def _play(model: Transformer, environment: Environment, episodes: int, seed: int) -> _Turns:
    """Let the network play every question, and return its turns."""
    task, facts = environment.task, environment.facts
    layout, v, K = task.layout, task.vocabulary, task.layout.turns
    question = np.tile(np.arange(len(facts.answer)), episodes)
    B = len(question)
    states = environment.begin(question, uniforms(seed, f"{_STREAM}/world", 0, (K, DRAWS, B)))
    cache, feed, answered = model.start(B), environment.prompts(question), np.zeros(B, np.bool_)
    found: list[tuple[Any, ...]] = []
    for k in range(K):
        rows = np.flatnonzero(~states.done)
        luck = uniforms(seed, f"{_STREAM}/token", k, (layout.written, B))[:, rows]
        wrote, decision = _write(model, cache, feed, luck, layout.thinking)
        asked, evidence = question[rows], states.evidence[rows].copy()
        said = wrote[:, layout.thinking + 1 :]
        asks = (said == np.stack([v.entity(facts.entity[asked]), v.relation(facts.relation[asked])], 1)).all(-1)
        played = environment.act(states, rows, wrote)
        answers = played.action == environment.graph.actions.index("answer")
        on_document = answers & (evidence >= 0)
        first, holds = on_document & ~answered[rows], evidence == facts.answer[asked]
        answered[rows] |= answers
        found.append(
            (
                *(np.full(len(rows), k), played.context, played.action, decision[:, list(task.decisions)], asks),
                *(played.correct, on_document, said[:, 0] == v.first_answer + evidence, first, holds),
            )
        )
        if played.done.all():
            break
        cache.keep(torch.from_numpy(np.flatnonzero(~played.done)))
        feed = np.concatenate([wrote[:, -1:], played.observation], 1)[~played.done]
    return _Turns(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _write(model: Transformer, cache: Cache, feed: I64, u: F32, decision: int) -> tuple[I64, F32]:
    """Return a turn sampled by inverse CDF with u [written, R], and the distribution its decision was drawn from, [R, V]."""
    wrote, shown = [], np.empty(0, np.float32)
    for i, draw in enumerate(u):
        logp = torch.log_softmax(model.extend(torch.from_numpy(feed), cache), -1)
        feed = inverse_cdf(logp, torch.from_numpy(draw))[:, None].numpy()
        wrote.append(feed)
        if i == decision:
            shown = logp.exp().numpy()
    return np.concatenate(wrote, 1), shown
