"""What a cluster must satisfy before its run starts; each refusal names the value, the bound and the way out.

The last section looks for capacity that can never be met: somebody would wait for ever, and is named.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sim.cluster.scheduling import Aimd, Arrivals, FixedWidth, Rounds
from sim.mdp.graph import ToolGraph
from sim.mdp.latency import Capped, CappedPareto, Constant, Empirical, Latency, Mixture
from sim.records.config import near_misses

if TYPE_CHECKING:
    from sim.cluster.spec import Cluster

__all__ = ["check", "largest_context"]


def check(cluster: Cluster) -> None:
    """Raise ValueError for a cluster that could not be run or whose numbers contradict each other."""
    if cluster.steps < 1:
        raise ValueError(f"steps = {cluster.steps} must be at least 1")
    if cluster.horizon_s is not None and not cluster.horizon_s > 0:
        raise ValueError(f"horizon_s = {cluster.horizon_s} must be above 0; None for no limit")
    graph = cluster.workload.task.graph()
    _batches(cluster)
    _pools(cluster, graph)
    _modes(cluster)
    _waits(cluster, graph)


def _batches(cluster: Cluster) -> None:
    group, batch, parts = cluster.workload.group, cluster.learner.batch, cluster.learner.minibatches
    if batch % group:
        below = batch // group * group
        choose = f"{below} or {below + group}" if below else f"{group}"
        raise ValueError(
            f"batch = {batch} is no multiple of the group of {group}: a group is trained on whole; choose {choose}"
        )
    if batch // group % parts:
        raise ValueError(
            f"minibatches = {parts} does not divide the {batch // group} groups of a batch; choose a divisor of it"
        )


def _pools(cluster: Cluster, graph: ToolGraph) -> None:
    served: dict[str, str] = {}
    for pool in cluster.tools:
        for action in pool.actions:
            if action not in graph.actions:
                raise ValueError(
                    f"tool pool {pool.name!r} serves {action!r}, which is no action of the task"
                    f"{near_misses(action, graph.actions)}"
                )
            if action in served:
                raise ValueError(f"action {action!r} is served by two pools, {served[action]!r} and {pool.name!r}")
            served[action] = pool.name
    names = [pool.name for pool in cluster.tools]
    if len(set(names)) < len(names):
        raise ValueError(f"two tool pools share a name among {', '.join(names)}")
    rounds_of_retries = max((pool.retries for pool in cluster.tools), default=0)
    if rounds_of_retries > 63:
        raise ValueError(f"retries = {rounds_of_retries} must be at most 63")


def _modes(cluster: Cluster) -> None:
    learner, admission = cluster.learner, cluster.admission
    if learner.colocated and learner.minibatches > 1:
        raise ValueError(
            f"minibatches = {learner.minibatches} with a colocated learner: engines would stop for each; use 1"
        )
    if learner.colocated and cluster.sync.mode in ("in_place", "pull"):
        raise ValueError(f"a colocated learner stops the engines; sync mode {cluster.sync.mode!r} needs them running")
    if learner.whatever_is_complete and (not isinstance(admission, Rounds) or learner.minibatches > 1):
        raise ValueError(
            "whatever_is_complete goes with admission=Rounds(...) and minibatches=1: it trains when a round ends"
        )
    if isinstance(admission, Rounds) and admission.token_cap is not None and not learner.whatever_is_complete:
        raise ValueError("a token_cap parks rollouts, so a round may end with few: set learner.whatever_is_complete")
    if isinstance(admission, Arrivals):
        if admission.interval.problem():
            raise ValueError(f"admission.interval: {admission.interval.problem()}")
        if admission.interval.mean_s() <= 0:
            raise ValueError("admission.interval has mean 0: groups would arrive without end at one instant")
    order = cluster.order
    holds = isinstance(admission, Rounds) and (admission.over > 0 or admission.token_cap is not None)
    if isinstance(admission, Rounds) and holds and admission.late == "resume" and order.window is not None:
        raise ValueError(
            f"deadlock: with late='resume' the learner would wait, in order (window = {order.window}), for a group that "
            "is held until the learner is done; take groups as they are completed: order=greedy()"
        )
    if order.window is not None and isinstance(admission, FixedWidth) and admission.of == "unconsumed":
        queue = admission.width // cluster.workload.group
        if order.window > max(queue, 1):
            raise ValueError(
                f"window = {order.window} groups is above the queue of {queue} groups that width = {admission.width} holds; "
                f"choose at most {queue}, or None for no window"
            )


def _waits(cluster: Cluster, graph: ToolGraph) -> None:
    """Look for somebody who would wait for ever."""
    work, admission = cluster.workload, cluster.admission
    least = min([cluster.slots, *_widths(cluster)])
    if least < work.members:
        raise ValueError(
            f"deadlock: the scheduler would wait for ever to start a group of {work.members} rollouts, "
            f"as at most {least} may run (slots, width); allow at least {work.members}"
        )
    if work.prompts is not None and not isinstance(admission, Arrivals):
        needed = cluster.steps * cluster.groups_needed
        if work.prompts < needed and not cluster.learner.whatever_is_complete:
            raise ValueError(
                f"deadlock: the learner would wait for ever for {needed} groups ({cluster.steps} versions of "
                f"{cluster.groups_needed}), as the source holds {work.prompts} prompts; give it at least {needed}"
            )
    if cluster.engines.kv_tokens is not None:
        most = largest_context(cluster, graph)
        if most > cluster.engines.kv_tokens:
            raise ValueError(
                f"deadlock: a rollout may grow to {most:g} tokens and an engine's KV memory holds "
                f"{cluster.engines.kv_tokens:g}: it would wait for ever to fit; raise kv_tokens, or cap the laws of tokens"
            )
    unbounded = isinstance(admission, Aimd) or (isinstance(admission, FixedWidth) and admission.of == "running")
    starving = [pool.name for pool in cluster.tools if pool.discipline == "lifo" and pool.servers is not None]
    if unbounded and cluster.order.window is not None and starving:
        raise ValueError(
            f"tool pool {starving[0]!r} serves the last call first, so a call may wait for ever while new rollouts are "
            f"started, and the learner waits for the group it belongs to (window = {cluster.order.window}): use "
            "discipline='fifo', order=greedy(), or an admission that bounds what is unconsumed"
        )
    if unbounded and not _takes_time(cluster, graph):
        raise ValueError(
            "no rollout takes any time (every law of tokens and of tool latency has mean 0), so rollouts would complete "
            "without end at one instant: give tokens or tools a duration, or bound what is unconsumed"
        )
    if isinstance(admission, Aimd) and cluster.engines.kv_tokens is None:
        raise ValueError("an Aimd controller watches KV memory, and kv_tokens is None: give engines.kv_tokens")


def _widths(cluster: Cluster) -> list[int]:
    a = cluster.admission
    if isinstance(a, FixedWidth):
        return [a.width]
    return [a.least] if isinstance(a, Aimd) else []


def _takes_time(cluster: Cluster, graph: ToolGraph) -> bool:
    laws = [pool.latency for pool in cluster.tools]
    laws += [cluster.workload.law(a.name, a.generated_tokens) for state in graph.states for a in state.actions]
    return any(law.mean_s() > 0 for law in laws)


def largest_context(cluster: Cluster, graph: ToolGraph) -> float:
    """Return the most tokens a rollout can grow to; infinite where a law of tokens, or a prompt's factor, has no bound."""
    work = cluster.workload
    most = 0.0
    for state in graph.states:
        for action in state.actions:
            written = _largest(work.law(action.name, action.generated_tokens), work.prompt_length_sigma > 0)
            most = max(most, written + max(o.observed_tokens for o in action.outcomes))
    return work.prompt_tokens + graph.turn_limit * most


def _largest(law: Latency, has_factor: bool) -> float:
    """Return the longest draw of a law; a prompt's factor multiplies it before its cap applies."""
    if isinstance(law, Capped | CappedPareto):
        return law.cap if isinstance(law, Capped) else law.top
    if has_factor:
        return math.inf
    if isinstance(law, Mixture):
        return max(_largest(part, False) for weight, part in law.parts if weight > 0)
    return law.mean_s() if isinstance(law, Constant) else max(law.values) if isinstance(law, Empirical) else math.inf
