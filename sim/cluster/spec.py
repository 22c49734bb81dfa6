"""A cluster as one strict frozen config: engines, tool pools, scheduling, learner, weight sync, workload.

Times are seconds, lengths tokens, counts rollouts unless a field says groups or prompts.
"""

from sim.cluster.checks import check
from sim.cluster.scheduling import Admission, Capacity, MaxStaleness, Order, Rounds
from sim.cluster.workload import Workload
from sim.mdp.latency import Constant, Latency
from sim.records.config import config

__all__ = ["Cluster", "Engines", "Failures", "Learner", "Sync", "ToolPool"]


@config
class Failures:
    """An engine works for a time, fails, and is back after a time."""

    up: Latency
    """Law of the time until it fails, s."""
    down: Latency
    """Law of the time until it is back, s."""

    def __post_init__(self) -> None:
        for name, law in (("up", self.up), ("down", self.down)):
            if law.problem():
                raise ValueError(f"{name}: {law.problem()}")
            if law.mean_s() <= 0:
                raise ValueError(
                    f"{name}: a mean of {law.mean_s()} s would fail without end at one instant; give more than 0"
                )


@config
class Engines:
    """Equal generation engines with continuous batching: a decode step of n sequences takes base_s + per_sequence_s n.

    So each of n active sequences decodes at 1 / (a + b n) tokens/s: processor sharing whose speed depends on load.
    """

    count: int = 1
    """Engines (E)."""
    base_s: float = 0.01
    """Time of a decode step however few sequences, s (a)."""
    per_sequence_s: float = 0.0
    """What each active sequence adds to it, s (b)."""
    max_sequences: int | None = None
    """Sequences active at once on one engine; None for no limit."""
    kv_tokens: float | None = None
    """KV memory of one engine, tokens; None for no limit. When it is full the newest sequence is preempted."""
    watermark: float = 0.95
    """Share of KV memory up to which new sequences are admitted beside others."""
    prefill: float = 0.0
    """Work of prefilling a token, in tokens decoded."""
    prefix_cache: bool = True
    """Whether a turn prefills only what is new since the last one on the same engine and version; else all its context."""
    failures: Failures | None = None
    """Failures of each engine. What was written of a turn is lost, and the turn begins again on another engine."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"count = {self.count}: a cluster needs at least 1 engine")
        for name in ("base_s", "per_sequence_s", "prefill"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 0")
        if self.base_s + self.per_sequence_s <= 0:
            raise ValueError("base_s + per_sequence_s = 0: tokens would take no time; give one of them more than 0")
        if self.max_sequences is not None and self.max_sequences < 1:
            raise ValueError(f"max_sequences = {self.max_sequences} must be at least 1; None for no limit")
        if self.kv_tokens is not None and self.kv_tokens <= 0:
            raise ValueError(f"kv_tokens = {self.kv_tokens} must be above 0; None for no limit")
        if not 0 < self.watermark <= 1:
            raise ValueError(f"watermark = {self.watermark} must lie in (0, 1]")
        if self.prefill > 1:
            raise ValueError(
                f"prefill = {self.prefill} must be at most 1: prefilling a token costs no more than decoding one"
            )


@config
class ToolPool:
    """A pool of servers for some actions. An attempt fails, times out or ends; what did not end is retried."""

    name: str
    """Name."""
    actions: tuple[str, ...]
    """Actions it serves."""
    latency: Latency
    """Law of the time of an attempt, s."""
    servers: int | None = None
    """Calls served at once; None for no limit."""
    discipline: str = "fifo"
    """Who is served next: ``"fifo"``, ``"lifo"``, or ``"oldest"`` (of the oldest group)."""
    timeout_s: float | None = None
    """An attempt that would take longer ends here, unanswered, s; waiting for a server does not count."""
    retries: int = 0
    """Attempts after the first. When all are used up the rollout ends as a failure of infrastructure."""
    backoff_s: float = 0.0
    """Time before the first retry, s."""
    backoff_factor: float = 2.0
    """Factor by which it grows with each retry."""
    failure: float = 0.0
    """P(an attempt that is in time fails)."""
    cold_start_s: float = 0.0
    """What is added on a server that has not served for `keep_warm_s`, or never, s."""
    keep_warm_s: float | None = None
    """Time a server stays warm, s; None for ever."""

    def __post_init__(self) -> None:
        if not self.actions:
            raise ValueError(f"tool pool {self.name!r} serves no action")
        if self.latency.problem():
            raise ValueError(f"tool pool {self.name!r}: {self.latency.problem()}")
        if self.servers is not None and self.servers < 1:
            raise ValueError(f"tool pool {self.name!r}: servers = {self.servers} must be at least 1; None for no limit")
        if self.discipline not in ("fifo", "lifo", "oldest"):
            raise ValueError(
                f"tool pool {self.name!r}: discipline = {self.discipline!r} must be 'fifo', 'lifo' or 'oldest'"
            )
        for name in ("retries", "backoff_s", "cold_start_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"tool pool {self.name!r}: {name} = {getattr(self, name)} must be at least 0")
        for name in ("timeout_s", "keep_warm_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"tool pool {self.name!r}: {name} = {value} must be above 0; None for no limit")
        if self.backoff_factor < 1:
            raise ValueError(f"tool pool {self.name!r}: backoff_factor = {self.backoff_factor} must be at least 1")
        if not 0 <= self.failure <= 1:
            raise ValueError(f"tool pool {self.name!r}: failure = {self.failure} must lie in [0, 1]")


@config
class Sync:
    """How new weights reach the engines."""

    mode: str = "interrupt"
    """``"blocking"``: engines finish the turns they are writing and start none; when all are idle the weights are loaded.
    ``"interrupt"``: engines stop at once, load, and prefill again what they were writing (AReaL).
    ``"in_place"``: the weights are swapped under running sequences after `seconds`; nothing stops, KV memory is kept
    (PipelineRL). ``"pull"``: as blocking, but each engine by itself, and the learner goes on at once (Laminar)."""
    seconds: float = 0.0
    """Time to load the weights, s."""

    def __post_init__(self) -> None:
        if self.mode not in ("blocking", "interrupt", "in_place", "pull"):
            raise ValueError(f"mode = {self.mode!r} must be 'blocking', 'interrupt', 'in_place' or 'pull'")
        if self.seconds < 0:
            raise ValueError(f"seconds = {self.seconds} must be at least 0")


@config
class Learner:
    """Takes complete groups, trains, publishes a version after `minibatches` of them.

    A mini-batch of n rollouts with T generated tokens takes jitter x (base_s + per_rollout_s n + per_token_s T).
    """

    batch: int = 64
    """Rollouts per version (B)."""
    minibatches: int = 1
    """Parts in which they are collected and trained on."""
    base_s: float = 0.0
    """Time of a mini-batch however small, s."""
    per_rollout_s: float = 0.0
    """What each rollout adds, s."""
    per_token_s: float = 0.0
    """What each generated token adds, s."""
    jitter: Latency = Constant(1.0)
    """Law of a factor on that time (a number, not seconds), fresh for every mini-batch."""
    colocated: bool = False
    """Whether it runs on the engines' devices: generation stops while it trains."""
    whatever_is_complete: bool = False
    """Whether it trains, when a round ends, on all groups that are complete, however many (Kimi's partial rollout)."""

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("minibatches", 1), ("base_s", 0), ("per_rollout_s", 0), ("per_token_s", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if self.jitter.problem():
            raise ValueError(f"jitter: {self.jitter.problem()}")


@config
class Cluster:
    """A whole cluster and what it plays; a variant is ``replace(base, {...})``."""

    workload: Workload = Workload()
    """What is played."""
    engines: Engines = Engines()
    """Who generates."""
    tools: tuple[ToolPool, ...] = ()
    """Who serves actions; those that no pool serves take no time."""
    admission: Admission = Capacity(0)
    """What may start."""
    slots: int = 256
    """Rollouts that may run at once, whatever the admission rule says."""
    order: Order = Order(1)
    """In which order complete groups are taken."""
    drop: MaxStaleness | None = None
    """What is dropped for being too old; None for nothing."""
    learner: Learner = Learner()
    """Who trains."""
    sync: Sync = Sync()
    """How weights reach the engines."""
    steps: int = 30
    """Versions to make; the run then stops."""
    horizon_s: float | None = None
    """Time at which the run stops if it has not, s; None for no limit."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def groups_needed(self) -> int:
        """Groups per version."""
        return self.learner.batch // self.workload.group

    @property
    def rounds(self) -> Rounds | None:
        """The admission rule where generation is in rounds, else None."""
        return self.admission if isinstance(self.admission, Rounds) else None
