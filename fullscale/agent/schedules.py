"""How rollouts and learner keep step in real time: the cluster simulator's own rules, asked while things happen."""

from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Order
from sim.records.config import config

__all__ = ["Asynchronous"]


@config
class Asynchronous:
    """Groups are played beside the learner, admitted, ordered and dropped by the simulator's rules.

    Weights reach the engine as soon as they are there, in episodes under way as well (partial rollout). What is taken then
    depends on what took how long, so two runs of one seed differ; a run that must not is given one of the schedules that are
    laid down beforehand (:mod:`minimodel.agent.schedule`), the simulated cluster's among them.
    """

    admission: Capacity | FixedWidth = Capacity(eta=1.0)
    """What may start. Counts are in rollouts, as in the simulator."""
    order: Order = Order(1)
    """In which order complete groups are taken."""
    drop: MaxStaleness | None = None
    """What is too old."""
    workers: int = 1
    """Groups that are played at a time; more than one asks for an inference server."""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers = {self.workers} must be at least 1")

    @property
    def reach(self) -> int:
        """Steps a version is kept for: the engine has the newest, and the one before is what a probe compares with."""
        return 1
