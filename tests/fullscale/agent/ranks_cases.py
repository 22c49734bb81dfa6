"""Updates that one process and two must compute alike, and the process that computes them."""

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from fullscale.agent import sharding
from fullscale.agent.compaction import Compaction
from fullscale.agent.marked import MarkedPolicy
from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.ranks import Ranks, ShardedScorer
from fullscale.agent.rollouts import Played
from fullscale.agent.scoring import ScoringModel
from fullscale.model.network import adapted
from sim.learning import family
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.rule import Rule
from sim.learning.view import Scope, View
from sim.learning.weights import Bounded, Region, Weight, Weights, ppo_clip
from sim.records.config import config
from tests.fullscale.agent.small import batch, learners_logp, minibatch, moved, policy_of, taught, update

REFERENCE, LATER = 2, 1
"""Seeds by which the reference, and the learner that has moved on from the sampler, differ."""


@config
class GroupNormalised:
    """w / (mean of w over the group's sampled tokens): a weight that must see a whole group."""

    weight: Weight

    @property
    def scope(self) -> Scope:
        return "group"

    def __call__(self, view: View) -> Weights:
        w = self.weight(view)
        axes = (-2, -1)
        mean = (view.sampled * w.value).sum(axes, keepdim=True) / view.sampled.sum(axes, keepdim=True).clamp(min=1)
        return Weights(w.value / mean, w.factors, w.bounds)


@dataclass(frozen=True)
class Case:
    """One update."""

    rule: Rule
    micro: int = 1
    batch: str = "ragged"
    bucket_tokens: int = 64
    flat: tuple[int, ...] = ()
    """Questions of which all episodes earn the same."""
    failed: tuple[tuple[int, int], ...] = ()
    """Episodes that did not arrive."""
    adapter: bool = False
    """Whether an adapter is trained, instead of the weights."""


EXACT = Rule(GroupCredit(), ppo_clip(), SequenceMean(), (EntropyBonus(0.2), KlPerState(0.3)))
WIDE = Bounded(level="sequence", positive=Region(0.0, 50.0))
RULES = {
    "token": family.grpo(kl=0.3),
    "turn": family.llds(),
    "sequence": family.gspo(0.5, 0.5),
    "group": Rule(GroupCredit(), GroupNormalised(WIDE), TokenMean()),
    "batch": family.m2po(0.5),
}
CASES = {
    **{f"a rule by {scope}": Case(rule) for scope, rule in RULES.items()},
    **{f"a rule by {scope}, in 2": Case(rule, 2) for scope, rule in RULES.items()},
    "a rule by token, in 4": Case(RULES["token"], 4),
    "a rule by batch, in 4": Case(RULES["batch"], 4),
    "exact KL and entropy": Case(EXACT),
    "exact KL and entropy, in 4": Case(EXACT, 4),
    "fewer rows than ranks": Case(EXACT, bucket_tokens=1),
    "all rows at once": Case(family.grpo(kl=0.0), bucket_tokens=1000),
    "several segments": Case(EXACT, 2, batch="compacted"),
    "an empty piece": Case(family.grpo(kl=0.0), 4, flat=(0, 2)),
    "nothing to learn": Case(family.gspo(0.5, 0.5), 2, flat=(0, 1, 2, 3)),
    "some did not arrive": Case(EXACT, 2, failed=((0, 0), (1, 0), (1, 1), (1, 2))),
    "an adapter, whose reference is itself": Case(EXACT, 2, adapter=True),
}
IN_FOUR = {f"a rule by {scope}, in 4": Case(RULES[scope], 4) for scope in ("turn", "sequence", "group")}
"""Not computed by two processes."""


def made() -> dict[str, Any]:
    """Batches, and what wrote them."""
    sampler = taught()
    many = batch(sampler, group=3)
    few = batch(sampler, group=3, how={"compaction": Compaction(at_tokens=290)}, context_tokens=420)
    return {"weights": sampler.state_dict(), "ragged": vars(many), "compacted": vars(few)}


def rewards(case: Case, shape: tuple[int, int]) -> np.ndarray:
    found = np.random.default_rng(0).integers(0, 2, shape).astype(float)
    found[:, 0], found[:, 1] = 0.0, 1.0
    found[list(case.flat)] = 1.0
    return found


def updated(case: Case, given: dict[str, Any], policy: Any, reference: Any) -> tuple[torch.Tensor, Any]:
    """The gradient of one case, and what the update saw."""
    played = Played(**given[case.batch])
    arrived = np.ones(played.reward.shape, np.bool_)
    for at in case.failed:
        arrived[at] = False
    more = {"arrived": arrived, "over": "arrived"}
    if "reference" in case.rule.reads:
        more["reference"] = torch.from_numpy(learners_logp(reference, played))
    cut = minibatch(played, case.rule, rewards(case, arrived.shape), case.bucket_tokens, **more)
    return update(policy, cut, case.rule, reference, case.micro)


def policies(given: dict[str, Any], ranks: Ranks, adapter: bool) -> tuple[Any, Any]:
    """The learner and its reference."""
    sampler = taught(0)
    sampler.load_state_dict(given["weights"])
    network = moved(sampler, 0.1, LATER)
    if not adapter:
        now, there = ScoringModel(network), ScoringModel(moved(sampler, 0.1, REFERENCE)).requires_grad_(False)
        shard(now, there, ranks=ranks)
        return policy_of(network, scoring=now, ranks=ranks), policy_of(network, scoring=there, ranks=ranks)
    generator = torch.Generator().manual_seed(0)
    network = adapted(network, 4, 8, ("q_proj", "down_proj"))
    with torch.no_grad():
        for p in network.parameters():
            if p.requires_grad:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    policy = LanguagePolicy(ScoringModel(network))
    off = policy.frozen()
    shard(policy.scoring, ranks=ranks)
    return MarkedPolicy(ShardedScorer(policy, ranks)), MarkedPolicy(ShardedScorer(off, ranks))


def shard(*scoring: ScoringModel, ranks: Ranks) -> None:
    for each in scoring:
        if ranks.world > 1:
            sharding.shard(each, ranks)


def rank(number: int, world: int, folder: str) -> None:
    """Compute every case as one of several processes; the first writes the gradients down."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=number,
        world_size=world,
        timeout=dt.timedelta(seconds=60),
    )
    given = torch.load(Path(folder) / "given", weights_only=False)
    ranks = Ranks.here()
    by_kind = {adapter: policies(given, ranks, adapter) for adapter in (False, True)}
    found = {}
    for name, case in CASES.items():
        gradient, seen = updated(case, given, *by_kind[case.adapter])
        alike = ranks.gathered(torch.stack([seen.logp.sum(), *(c.abs().sum() for c in coefficients(seen))]))
        found[name] = (gradient, seen.logp, all(torch.equal(each, alike[0]) for each in alike))
    if number == 0:
        torch.save(found, Path(folder) / "found")
    dist.barrier()
    dist.destroy_process_group()


def coefficients(seen: Any) -> list[torch.Tensor]:
    return [value for each in seen.coefficients for value in each.scalars.values()]
