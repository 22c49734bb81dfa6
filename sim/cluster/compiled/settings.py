"""What the world holds of a cluster's config, by name."""

from __future__ import annotations

import math

from sim.cluster.compiled.reasons import Late, Rule, SyncMode
from sim.cluster.plan import Plan
from sim.cluster.scheduling import Aimd, Arrivals, Capacity, FixedWidth, Rounds
from sim.cluster.spec import Cluster

__all__ = ["settings"]

Settings = dict[str, float]


def settings(plan: Plan) -> Settings:
    """Return the world's settings, and what its counters begin with where that is not 0."""
    c = plan.cluster
    return {
        **_engines(c),
        **_workload(plan),
        **_scheduling(c),
        **_admission(c),
        **_learner(c),
        "room": 64 + 8 * c.engines.count + 8 * c.workload.members,
        **dict.fromkeys(("held_first", "held_last", "block", "again_prompt", "again_play"), -1),
    }


def _engines(c: Cluster) -> Settings:
    spec = c.engines
    kv = math.inf if spec.kv_tokens is None else spec.kv_tokens
    return {
        "base_s": spec.base_s,
        "each_s": spec.per_sequence_s,
        "most": 2**62 if spec.max_sequences is None else spec.max_sequences,
        "kv": kv,
        "kv_limited": spec.kv_tokens is not None,
        "admit_below": spec.watermark * kv,
        "prefill": spec.prefill,
        "cache": spec.prefix_cache,
        "engine_n": spec.count,
        "has_failures": spec.failures is not None,
    }


def _workload(plan: Plan) -> Settings:
    g, work = plan.graph, plan.cluster.workload
    lengths, tools = len(plan.tokens.shapes), len(plan.tool.shapes)
    latency = 2 + lengths
    failure = latency + plan.attempts * tools
    fails = any(spec.failure > 0 for spec in plan.cluster.tools)
    return {
        "states": g.states,
        "turn_limit": g.turns,
        "nodes": len(g.context),
        "actions": len(g.actions),
        "contexts": len(plan.initial),
        "outcomes": plan.outcome.shape[-1],
        "prompt_tokens": work.prompt_tokens,
        "least_valid": work.least_valid * work.group,
        "members": work.members,
        "group": work.group,
        "prompts": -1 if work.prompts is None else work.prompts,
        "draw_latency": latency,
        "draw_failure": failure,
        "draw_width": failure + (plan.attempts if fails else 0),
        "tool_shapes": tools,
    }


def _scheduling(c: Cluster) -> Settings:
    drop = c.drop
    found: Settings = {
        "slots": c.slots,
        "needed": c.groups_needed,
        "window": c.order.reach,
        "by_completion": c.order.window is None,
        "batch_size": c.learner.batch,
        "has_horizon": c.horizon_s is not None,
        "horizon_s": 0.0 if c.horizon_s is None else c.horizon_s,
    }
    if drop is not None:
        found |= {
            "drop": 1,
            "bound": drop.bound,
            "by_newest": drop.by == "newest",
            "drop_running": drop.running and drop.by == "oldest",
            "requeue": drop.then == "requeue",
        }
    return found


def _admission(c: Cluster) -> Settings:
    a = c.admission
    if isinstance(a, Capacity):
        return {"rule": Rule.CAPACITY, "eta": a.eta}
    if isinstance(a, FixedWidth):
        return {"rule": Rule.RUNNING if a.of == "running" else Rule.UNCONSUMED, "width": a.width}
    if isinstance(a, Aimd):
        names = ("interval_s", "grow", "trim_at", "trim", "hard_at", "hard", "least")
        more = {name: getattr(a, name) for name in names}
        return {"rule": Rule.AIMD, "width": a.start, "most_width": a.most, "has_controller": 1, **more}
    if isinstance(a, Arrivals):
        return {"rule": Rule.ARRIVALS, "has_arrivals": 1}
    return _rounds(a)


def _rounds(a: Rounds) -> Settings:
    return {
        "rule": Rule.ROUNDS,
        "rounds": 1,
        "ahead": a.ahead,
        "over": a.over,
        "late": Late[a.late.upper()],
        "capped": a.token_cap is not None,
        "chunk_cap": math.inf if a.token_cap is None else a.token_cap,
    }


def _learner(c: Cluster) -> Settings:
    spec = c.learner
    return {
        "step_n": c.steps,
        "minibatches": spec.minibatches,
        "train_s": spec.base_s,
        "rollout_s": spec.per_rollout_s,
        "token_s": spec.per_token_s,
        "colocated": spec.colocated,
        "whatever": spec.whatever_is_complete,
        "sync_mode": SyncMode[c.sync.mode.upper()],
        "sync_s": c.sync.seconds,
    }
