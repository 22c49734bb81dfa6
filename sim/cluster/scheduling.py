"""How a cluster schedules, as configs: what may start, in which order it is taken, what is dropped.

Each is plain data; what they decide is decided by :mod:`sim.cluster.rules`.
"""

from sim.cluster.rules import GREEDY
from sim.mdp.latency import Latency
from sim.records.config import config

__all__ = [
    "Admission",
    "Aimd",
    "Arrivals",
    "Capacity",
    "FixedWidth",
    "MaxStaleness",
    "Order",
    "Rounds",
    "fifo",
    "greedy",
]


@config
class Order:
    """In which order complete groups are taken: the oldest within a window of the oldest unconsumed one.

    With a window of 1 this is first in, first out. Without one (None), groups are taken as they are completed.
    """

    window: int | None = 1
    """Groups from the head on among which a complete one may be taken; None for no window."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(f"window = {self.window} must be at least 1 group; None takes whatever is complete")

    @property
    def reach(self) -> int:
        """The window, as the rules take it."""
        return GREEDY if self.window is None else self.window


def fifo() -> Order:
    """Return first in, first out."""
    return Order(1)


def greedy() -> Order:
    """Return order of completion."""
    return Order(None)


@config
class Capacity:
    """AReaL's rule: at most (eta + version + 1) batches may be accepted or running."""

    eta: float
    """Batches that may be ahead of the learner; verl's staleness threshold is a fraction of one."""

    def __post_init__(self) -> None:
        _at_least("eta", self.eta, 0)


@config
class FixedWidth:
    """A fixed number of rollouts: running (a pool of workers), or started and not yet taken (a queue of fixed length).

    Whole groups start, so a width between multiples of the group is used up to the multiple below. Taking makes room in a
    queue at once: what then starts still has the version published before.
    """

    width: int
    """Rollouts."""
    of: str = "unconsumed"
    """``"running"`` or ``"unconsumed"``."""

    def __post_init__(self) -> None:
        _at_least("width", self.width, 1)
        _one_of("of", self.of, ("running", "unconsumed"))


@config
class Aimd:
    """A width of running rollouts that a controller raises while KV memory allows and cuts when it does not.

    Values are prime-rl's defaults, except `interval_s` and the bounds, which are ours.
    """

    start: int
    """First width, rollouts."""
    most: int
    """Largest width."""
    least: int = 1
    """Smallest width."""
    interval_s: float = 5.0
    """Time between decisions, s."""
    grow: float = 1.25
    """Factor of growth, once as many rollouts have completed as the width."""
    trim_at: float = 0.8
    """KV occupancy above which the width is trimmed."""
    trim: float = 0.9
    """Factor of a trim."""
    hard_at: float = 0.9
    """KV occupancy above which the width is cut."""
    hard: float = 0.5
    """Factor of a cut."""

    def __post_init__(self) -> None:
        _at_least("least", self.least, 1)
        if not self.least <= self.start <= self.most:
            raise ValueError(f"start = {self.start} must lie between least = {self.least} and most = {self.most}")
        if self.interval_s <= 0:
            raise ValueError(
                f"interval_s = {self.interval_s} must be above 0: the controller would never let time pass"
            )
        if self.grow < 1 or not 0 < self.trim <= 1 or not 0 < self.hard <= 1:
            raise ValueError(
                f"grow = {self.grow} must be at least 1, trim = {self.trim} and hard = {self.hard} in (0, 1]"
            )
        if not 0 < self.trim_at <= self.hard_at:
            raise ValueError(f"trim_at = {self.trim_at} must be above 0 and at most hard_at = {self.hard_at}")


@config
class Arrivals:
    """Groups arrive by themselves, whatever runs: an open system, for tests against queueing theory and replayed traces."""

    interval: Latency
    """Law of the time between arrivals of groups, s."""


@config
class Rounds:
    """Generation in rounds with a barrier: a round starts when the one before is complete.

    A round launches ceil(n (1 + over)) groups and closes when n are complete, n being those a version is trained on; with a
    `token_cap` it closes when every rollout is complete or has written so many tokens in this round. What is not complete
    then is dealt with by `late`.
    """

    ahead: int = 0
    """Rounds that may wait to be trained on while another is generated: 0 is synchronous, 1 one step off."""
    over: float = 0.0
    """Share of groups launched beyond those needed."""
    late: str = "resume"
    """What becomes of groups that are late: ``"cancel"`` (lost, another prompt takes their place), ``"requeue"`` (the prompt
    is played again with fresh luck), ``"resume"`` (held, and continued in the next round), ``"tail"`` (prompts wait until
    they fill a round of their own, which waits for all of them; RollPacker)."""
    token_cap: float | None = None
    """Tokens a rollout may write in one round; None for no cap."""

    def __post_init__(self) -> None:
        _at_least("ahead", self.ahead, 0)
        _one_of("late", self.late, ("cancel", "requeue", "resume", "tail"))
        if self.over < 0:
            raise ValueError(f"over = {self.over} must be at least 0")
        if self.token_cap is not None:
            if self.token_cap <= 0:
                raise ValueError(f"token_cap = {self.token_cap} must be above 0: nothing would ever be written")
            if self.late != "resume" or self.over > 0:
                raise ValueError("a token_cap parks what is not complete: it goes with late='resume' and over=0 only")


Admission = Capacity | FixedWidth | Aimd | Arrivals | Rounds


@config
class MaxStaleness:
    """Groups are dropped when a version of theirs is too far behind the published one."""

    bound: int
    """Versions a rollout may be behind."""
    by: str = "oldest"
    """Counted from the ``"oldest"`` version that wrote any of it, or from the ``"newest"``."""
    running: bool = True
    """Whether groups that are still running are dropped as well (only by oldest: the newest of a running one is current)."""
    then: str = "discard"
    """What becomes of the prompt: ``"discard"``, or ``"requeue"`` (played again with fresh luck)."""

    def __post_init__(self) -> None:
        _at_least("bound", self.bound, 0)
        _one_of("by", self.by, ("oldest", "newest"))
        _one_of("then", self.then, ("discard", "requeue"))


def _at_least(name: str, value: float, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} = {value} must be at least {least}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value!r} must be one of {', '.join(map(repr, allowed))}")
