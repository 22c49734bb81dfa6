"""Published systems, each as a function from a cluster's hardware to a complete config.

``base()`` says what is played, on what; a preset changes how it is scheduled, and ``replace(areal(), {...})`` changes the
rest. Schedules that train on the devices they generate on (*colocated*) are given all devices for both; the others give
``share`` of them to generation, and their learner is slower by as much as it has fewer. Values that an owner has not
printed are ours and say so.
"""

from collections.abc import Callable

from sim.cluster.scheduling import Aimd, Capacity, FixedWidth, MaxStaleness, Order, Rounds, greedy
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Capped, CappedPareto, LogNormal
from sim.records.config import replace

__all__ = [
    "PRESETS",
    "april",
    "areal",
    "base",
    "forge",
    "kimi_partial",
    "one_step_off",
    "per_engine_pull",
    "pipeline_rl",
    "prime_rl",
    "split",
    "synchronous",
    "verl_async",
]


def base(devices: int = 16) -> Cluster:
    """Return an agentic task on `devices`: eight turns, a search tool with a heavy tail, 32 prompts x 8 rollouts.

    Ours: tokens are log-normal (median 250 a turn, sigma .8, at most 4,000), a call takes .5 s and more with tail exponent
    1.5, at most 60 s; an engine takes 15 ms + .3 ms a sequence for a decode step; training on 256 rollouts with all devices
    takes about three fifths as long as generating them.
    """
    return Cluster(
        workload=Workload(
            task=Chain(turns=8, tools=("search",), observed=200),
            group=8,
            tokens=(
                ("search", Capped(LogNormal(250.0, 0.8), 4000.0)),
                ("answer", Capped(LogNormal(250.0, 0.8), 4000.0)),
            ),
            prompt_tokens=300.0,
            prompt_length_sigma=0.3,
        ),
        engines=Engines(count=devices, base_s=0.015, per_sequence_s=0.0003, prefill=0.02),
        tools=(ToolPool("search", ("search",), CappedPareto(0.5, 1.5, 60.0)),),
        admission=Capacity(0),
        slots=4096,
        learner=Learner(batch=256, base_s=2.0, per_token_s=1.6e-3 / devices),
        sync=Sync("interrupt", 1.0),
        steps=30,
    )


def split(cluster: Cluster, share: float = 0.5) -> Cluster:
    """Return the cluster with `share` of its devices generating and the rest training, as fast as their number allows."""
    devices = cluster.engines.count
    generate = min(max(round(devices * share), 1), devices - 1)
    if devices < 2:
        raise ValueError(f"{devices} device cannot be split between generation and training; use at least 2")
    slower = devices / (devices - generate)
    spec = cluster.learner
    return replace(
        cluster,
        {
            "engines.count": generate,
            "learner.base_s": spec.base_s * slower,
            "learner.per_rollout_s": spec.per_rollout_s * slower,
            "learner.per_token_s": spec.per_token_s * slower,
            "learner.colocated": False,
        },
    )


def synchronous(cluster: Cluster | None = None) -> Cluster:
    """Return colocated synchronous training: generate a batch, train on it, load the weights, on all devices in turn."""
    return replace(
        cluster or base(),
        {"admission": Rounds(), "order": greedy(), "learner.colocated": True, "sync.mode": "interrupt"},
    )


def one_step_off(cluster: Cluster | None = None, share: float = 0.5) -> Cluster:
    """Return one step off: the next batch is generated while this one is trained on; every rollout is one version old."""
    return replace(
        split(cluster or base(), share), {"admission": Rounds(ahead=1), "order": greedy(), "sync.mode": "blocking"}
    )


def areal(cluster: Cluster | None = None, eta: float = 4, share: float = 0.5) -> Cluster:
    """Return AReaL: the capacity rule, generation interrupted by new weights, taken as completed.

    eta 2 to 8 is its documentation's range. Source: arXiv 2505.24298, inclusionAI/AReaL ``staleness_manager.py``.
    """
    return replace(
        split(cluster or base(), share), {"admission": Capacity(eta), "order": greedy(), "sync.mode": "interrupt"}
    )


def pipeline_rl(cluster: Cluster | None = None, width: int = 512, share: float = 0.5) -> Cluster:
    """Return PipelineRL: a fixed number of rollouts in flight, weights swapped under them without a stop.

    The width is ours. Source: arXiv 2509.19128.
    """
    return replace(
        split(cluster or base(), share),
        {"admission": FixedWidth(width, "unconsumed"), "order": greedy(), "sync.mode": "in_place"},
    )


def kimi_partial(cluster: Cluster | None = None, token_cap: float = 2000.0) -> Cluster:
    """Return Kimi K1.5's partial rollout: a token budget a rollout and round; what is not done goes on in the next.

    The budget was not printed; 2,000 is ours. Source: arXiv 2501.12599, section 2.6.2.
    """
    return replace(
        cluster or base(),
        {
            "admission": Rounds(token_cap=token_cap),
            "order": greedy(),
            "learner.colocated": True,
            "learner.whatever_is_complete": True,
            "sync.mode": "interrupt",
        },
    )


def april(cluster: Cluster | None = None, over: float = 0.5) -> Cluster:
    """Return APRIL: launch more than needed, stop when enough are complete, resume the rest in the next round.

    The share launched beyond is ours. Source: arXiv 2509.18521.
    """
    return replace(
        cluster or base(),
        {
            "admission": Rounds(over=over, late="resume"),
            "order": greedy(),
            "learner.colocated": True,
            "sync.mode": "interrupt",
        },
    )


def forge(cluster: Cluster | None = None, width: int = 512, window: float = 0.3, share: float = 0.5) -> Cluster:
    """Return MiniMax's Forge: windowed first in, first out over a queue of `width` rollouts, the window `window` of it.

    Source: arXiv 2605.26494 (window .3 N); width and sync mode are ours.
    """
    made = split(cluster or base(), share)
    groups = max(round(window * width / made.workload.group), 1)
    return replace(
        made, {"admission": FixedWidth(width, "unconsumed"), "order": Order(groups), "sync.mode": "interrupt"}
    )


def prime_rl(cluster: Cluster | None = None, bound: int = 8, width: int = 512, share: float = 0.5) -> Cluster:
    """Return prime-rl: groups older than `bound`, counted from their oldest version, are dropped, running or complete.

    The width is controlled by KV occupancy; the memory of an engine (200,000 tokens) and the largest width are ours.
    Source: PrimeIntellect prime-rl, ``configs/orchestrator.py`` (max_off_policy_steps 8), ``orchestrator/concurrency.py``.
    """
    made = split(cluster or base(), share)
    law = tuple((action, Capped(LogNormal(250.0, 0.8), 4000.0)) for action in ("search", "answer"))
    changes = {
        "workload.tokens": made.workload.tokens or law,
        "engines.kv_tokens": 200_000.0,
        "admission": Aimd(start=width // 2, least=64, most=width),
        "order": greedy(),
        "drop": MaxStaleness(bound, "oldest", running=True),
        "sync.mode": "in_place",
    }
    return replace(made, changes)


def per_engine_pull(cluster: Cluster | None = None, width: int = 512, share: float = 0.5) -> Cluster:
    """Return per-engine pull (Laminar): each engine loads new weights by itself when it has written what it was writing.

    Source: arXiv 2510.12633; the width is ours.
    """
    return replace(
        split(cluster or base(), share),
        {"admission": FixedWidth(width, "unconsumed"), "order": greedy(), "sync.mode": "pull"},
    )


def verl_async(
    cluster: Cluster | None = None, staleness: float = 0.5, minibatches: int = 4, share: float = 0.5
) -> Cluster:
    """Return verl's fully asynchronous trainer: (1 + staleness) batches a version, taken in `minibatches` parts.

    Source: volcengine/verl ``docs/advance/fully_async.md`` (thresholds 0 to .5, four parts a version).
    """
    return replace(
        split(cluster or base(), share),
        {
            "admission": Capacity(staleness),
            "order": greedy(),
            "learner.minibatches": minibatches,
            "sync.mode": "interrupt",
        },
    )


PRESETS: dict[str, Callable[[], Cluster]] = {
    "synchronous": synchronous,
    "one-step-off": one_step_off,
    "areal": areal,
    "pipeline-rl": pipeline_rl,
    "kimi-partial": kimi_partial,
    "april": april,
    "forge": forge,
    "prime-rl": prime_rl,
    "per-engine-pull": per_engine_pull,
    "verl-async": verl_async,
}
"""The presets by name."""
