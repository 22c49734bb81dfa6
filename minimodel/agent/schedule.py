"""Schedules: which version writes what a step trains on, and which rollouts arrive for it at all.

Step u trains on a batch of Q questions x G rollouts x K turns, in as many updates as minibatches and epochs make. A version
is the weights before a step. A schedule says, before anything is sampled, which version writes each turn of each rollout;
and, once lengths are known, which rollouts are there when the step begins. That is all an asynchronous system decides about
the data, so the loop is the same for every one.
"""

from functools import lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.cluster.run import simulate
from sim.cluster.spec import Cluster
from sim.records.config import config

__all__ = ["Completion", "InFlight", "Lag", "OnCluster", "Schedule"]

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]
F32 = NDArray[np.float32]
Shape = tuple[int, int, int]


@runtime_checkable
class Schedule(Protocol):
    """Anything that decides which versions write a batch."""

    @property
    def reach(self) -> int:
        """Return the most steps a version may be behind; so many are kept."""
        ...

    def versions(self, step: int, shape: Shape) -> I64:
        """Return the version that writes each turn, [Q, G, K]: 0 .. step, within reach, never falling along turns."""
        ...

    def arrives(self, taken: I64, uniforms: F32) -> Flags:
        """Return which rollouts arrive, [Q, G], from the turns each took and a uniform each."""
        ...

    @property
    def baseline(self) -> str:
        """Return what a group's baseline is over: ``"all"`` rollouts, or those that ``"arrived"``."""
        ...


@config
class Lag:
    """Every rollout is written by the policy of `steps` steps ago; all arrive. 0 is synchronous training."""

    steps: int = 0
    """Age of the policy that samples, steps (k)."""

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 0)

    @property
    def reach(self) -> int:
        """The lag."""
        return self.steps

    @property
    def baseline(self) -> str:
        """All."""
        return "all"

    def versions(self, step: int, shape: Shape) -> I64:
        """Return max(step - k, 0) everywhere."""
        return np.full(shape, max(step - self.steps, 0))

    def arrives(self, taken: I64, uniforms: F32) -> Flags:
        """All arrive."""
        return np.ones(taken.shape, np.bool_)


@config
class InFlight:
    """Weights change while episodes run: a rollout begins `steps` steps ago and takes a newer version every turn.

    Turn t is written by version step - max(steps - t, 0), as where weights are pushed to engines at every step and a
    step takes as long as a turn.
    """

    steps: int = 3
    """Age of the policy that writes the first turn, steps."""

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 0)

    @property
    def reach(self) -> int:
        """The age of the first turn."""
        return self.steps

    @property
    def baseline(self) -> str:
        """All."""
        return "all"

    def versions(self, step: int, shape: Shape) -> I64:
        """Return step - max(steps - t, 0), at least 0."""
        age = np.maximum(self.steps - np.arange(shape[-1]), 0)
        return np.broadcast_to(np.maximum(step - age, 0), shape).copy()

    def arrives(self, taken: I64, uniforms: F32) -> Flags:
        """All arrive."""
        return np.ones(taken.shape, np.bool_)


@config
class Completion:
    """Long rollouts are lost: one of n turns arrives with probability (1 - drop)^(n - 1), and the rest are not waited for.

    The baseline may be taken over all rollouts of a group (their rewards are known, their tokens are not used) or over those
    that arrived; the two differ in force.
    """

    drop: float
    """P(lost) for each turn after the first (d)."""
    over: str = "arrived"
    """What the baseline is over: ``"arrived"`` or ``"all"``."""
    lag: int = 0
    """Age of the policy that samples, steps."""

    def __post_init__(self) -> None:
        _at_least("lag", self.lag, 0)
        if not 0 <= self.drop < 1:
            raise ValueError(f"drop = {self.drop} must lie in [0, 1): at 1 nothing longer than a turn arrives")
        if self.over not in ("arrived", "all"):
            raise ValueError(f"over = {self.over!r} must be 'arrived' or 'all'")

    @property
    def reach(self) -> int:
        """The lag."""
        return self.lag

    @property
    def baseline(self) -> str:
        """What was asked for."""
        return self.over

    def versions(self, step: int, shape: Shape) -> I64:
        """Return max(step - lag, 0) everywhere."""
        return np.full(shape, max(step - self.lag, 0))

    def arrives(self, taken: I64, uniforms: F32) -> Flags:
        """Return u < (1 - d)^(turns - 1)."""
        found: Flags = uniforms < (1 - self.drop) ** (taken - 1.0)
        return found


@config
class OnCluster:
    """What a cluster's scheduler makes of it: the cluster is simulated, and the run follows its versions turn by turn.

    The same rules of admission, order and dropping (:mod:`sim.cluster.rules`) decide as in the simulator. How long a turn
    takes is the cluster's workload's affair, whose task should be a chain of as many turns as an episode has here, so that
    every turn has a version; an episode that ends sooner leaves the rest unused. All rollouts of a step's groups arrive:
    what the scheduler drops it has replaced before.
    """

    cluster: Cluster
    """The cluster; it makes at least as many versions as the run has steps."""
    seed: int = 0
    """Names the cluster's draws: the same schedule for every seed of a run."""

    def __post_init__(self) -> None:
        _at_least("seed", self.seed, 0)
        if self.cluster.learner.whatever_is_complete:
            raise ValueError("learner.whatever_is_complete makes batches of unequal size; a run here takes equal ones")

    @property
    def reach(self) -> int:
        """The oldest version any turn was written by, in steps."""
        found = _played(self.cluster, self.seed)
        return int((np.arange(len(found))[:, None, None, None] - found).max())

    @property
    def baseline(self) -> str:
        """All."""
        return "all"

    def versions(self, step: int, shape: Shape) -> I64:
        """Return the versions of the groups that the cluster's learner took at `step`, in the order of their start.

        Raises
        ------
        ValueError
            When the cluster makes fewer versions, or batches or episodes of another shape.
        """
        played = _played(self.cluster, self.seed)
        if step >= len(played):
            raise ValueError(
                f"step {step} is beyond the {len(played)} versions of the cluster; raise cluster.steps to those of the run"
            )
        if played.shape[1:] != shape:
            raise ValueError(
                f"the cluster's batches have {played.shape[1:]} (questions, rollouts, turns) and the run's {shape}; make "
                "learner.batch, workload.group and the turns of workload.task those of the run"
            )
        found: I64 = played[step].copy()
        return found

    def arrives(self, taken: I64, uniforms: F32) -> Flags:
        """All arrive."""
        return np.ones(taken.shape, np.bool_)


@lru_cache(maxsize=8)
def _played(cluster: Cluster, seed: int) -> I64:
    """Return the version of every turn of every rollout taken, [steps, Q, G, K]."""
    books = simulate(cluster, seed, study="schedule").books
    r, g, G = books.rollouts, books.groups, cluster.workload.group
    K = r.version.shape[1]
    found = np.zeros((cluster.steps, cluster.learner.batch // G, G, K), np.int64)
    for step in range(cluster.steps):
        for q, group in enumerate(np.flatnonzero(g.taken & (g.take_version == step))):
            members = np.flatnonzero((r.group == group) & ~r.aborted)
            # a turn that was not taken would have been written by the version that wrote the last
            found[step, q] = np.maximum.accumulate(r.version[members], axis=1)
    return found


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} = {value} must be at least {least}")
