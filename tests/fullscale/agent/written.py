"""Batches that are written down by hand, and policies that are looked up."""

from typing import Any

import numpy as np
import torch

from fullscale.agent.handed import Scorable, given
from fullscale.agent.marked import MarkedPolicy
from fullscale.agent.ranks import Ranks, ShardedScorer
from fullscale.agent.rollouts import Played
from fullscale.world.questions import Question
from minimodel.agent.learner import Forward, Minibatch, backward
from sim.learning.rule import Rule
from sim.records.tables import Outcome


def written(sampled: Any, **fields: Any) -> Played:
    """Episodes of which it is known which tokens were sampled, [Q, G, T]; the first of each is the prompt's.

    Every token's id is its place in the batch. What is not given is what one turn without anything to tell would have.
    """
    sampled = np.asarray(sampled, bool)
    Q, G, T = sampled.shape
    none, numbers = np.zeros((Q, G, 1), np.int64), np.arange(sampled.size).reshape(sampled.shape)
    made = {
        "questions": tuple(Question(f"q{q}", "?", ("!",)) for q in range(Q)),
        "ids": numbers,
        "length": np.full((Q, G), T),
        "sampled": sampled,
        "logp": np.where(sampled, -1.0, 0.0).astype(np.float32),
        "entropy": np.where(sampled, 1.0, 0.0).astype(np.float32),
        "version": np.where(sampled, 0, -1),
        "turn": np.zeros(sampled.shape, np.int64),
        "segment": np.zeros(sampled.shape, np.int64),
        "decision": np.zeros(sampled.shape, np.bool_),
        "taken": np.ones((Q, G), np.int64),
        "action": none,
        "context": none,
        "correct": none > 0,
        "hit": none > 0,
        "latency_s": none * 0.0,
        "tool_tokens": none,
        "reward": np.zeros((Q, G)),
        "outcome": np.full((Q, G), Outcome.WRONG),
        "guessed": np.zeros((Q, G), np.bool_),
        "why": np.full((Q, G, 1), "stop"),
        "reason": np.full((Q, G), ""),
    }
    return Played(**made | fields)


def lost(played: Played, *episodes: tuple[int, int]) -> dict[str, Any]:
    """Outcome and reward of a batch in which the infrastructure failed in these."""
    outcome, reward = played.outcome.copy(), played.reward.copy()
    for at in episodes:
        outcome[at], reward[at] = Outcome.INFRASTRUCTURE_FAILURE, np.nan
    return {"outcome": outcome, "reward": reward}


class Table:
    """A policy of which every token of a batch is known by its id; it adds up what each token's derivatives are."""

    def __init__(self, **values: Any) -> None:
        self.values = {
            name: torch.as_tensor(np.asarray(x).ravel()).detach().requires_grad_() for name, x in values.items()
        }

    def parameters(self) -> list[torch.nn.Parameter]:
        return []

    def scalars(self, ids: Any, wanted: Any, reference: Any = None, where: Any = None) -> Any:
        counted = 1 if where is None else where
        return {name: self.values["_".join(name) if name == ("kl", "ref") else name][ids] * counted for name in wanted}


def marked(table: Table) -> MarkedPolicy:
    return MarkedPolicy(ShardedScorer(table, Ranks()))


def cut(played: Played, rule: Rule, reward: Any = None, **more: Any) -> Minibatch:
    """A batch as one update."""
    scorable = Scorable.of(played)
    more.setdefault("arrived", np.ones(played.reward.shape, np.bool_))
    reward = played.reward if reward is None else np.asarray(reward, float)
    return Minibatch.of(rule, scorable, given(played, scorable, reward, rule, **more), slice(None))


def slopes(
    played: Played, rule: Rule, reward: Any = None, logp: Any = None, micro: int = 1, **more: Any
) -> tuple[np.ndarray, Forward]:
    """What autograd makes of an update: minus the derivative of the loss by every token's log-prob, [Q, G, T]."""
    table = Table(logp=played.logp if logp is None else np.asarray(logp, np.float32), entropy=played.entropy)
    update = cut(played, rule, reward, **more)
    seen = backward(marked(table), Scorable.of(played).layout, rule, update, None, micro)
    found = table.values["logp"].grad
    none = torch.zeros_like(table.values["logp"])
    return -(none if found is None else found).numpy().reshape(played.ids.shape), seen
