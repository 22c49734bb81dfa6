"""What a training run of the simulator consists of, as one strict config."""

import numpy as np
from numpy.typing import NDArray

from sim.learning.optimisers import Optimiser, Sgd
from sim.learning.rule import Rule
from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import SoftmaxPolicy, free_logits
from sim.mdp.worlds import SEED_A_HABIT, Habit, World, seed_a
from sim.records.config import config, near_misses

__all__ = ["Content", "Drive", "Evaluation", "Features", "GradientNoise", "Training"]

F64 = NDArray[np.float64]


@config
class Features:
    """Which weights move which logits.

    Every free logit has a private weight. The logits in `on` also load `shared` directions, each with 1 / sqrt(shared),
    so that together they move a logit as one private weight of strength 1 would.
    """

    on: tuple[str, ...] = ("start/answer",)
    """Free logits that load the shared directions."""
    shared: int = 0
    """Number of shared directions."""
    private: float = 1.0
    """Strength of the private weights of the logits in `on`; 0 for none. Other logits always have strength 1."""

    def __post_init__(self) -> None:
        if self.shared < 0:
            raise ValueError(f"shared = {self.shared} must be at least 0")
        if self.private < 0:
            raise ValueError(f"private = {self.private} must be at least 0")
        if self.private == 0 and self.shared == 0:
            raise ValueError(
                "private = 0 with shared = 0 leaves the logits in `on` without a weight; raise one of them"
            )


@config
class GradientNoise:
    """White Gaussian noise on the gradient of chosen directions, fresh at every update: other tokens' gradients."""

    sd: float
    """Standard deviation per weight, in units of the gradient."""
    shared: bool = True
    """Whether the shared directions receive it."""
    private: bool = False
    """Whether the private weights of the logits in `on` receive it."""

    def __post_init__(self) -> None:
        if self.sd < 0:
            raise ValueError(f"sd = {self.sd} must be at least 0")


@config
class Drive:
    """An external push on the logits in `on`, through the shared directions: it moves content tokens as well."""

    rate: float
    """Logits per step (v)."""
    start: int = 0
    """First step pushed."""
    duration: int = 40
    """Steps pushed (D)."""

    def __post_init__(self) -> None:
        if self.start < 0 or self.duration < 0:
            raise ValueError(f"start = {self.start} and duration = {self.duration} must be at least 0")


@config
class Content:
    """Content tokens as an analytic overlay: binary, log-odds sqrt(coupling) x (shift of the shared directions)."""

    tokens: int = 250
    """Content tokens a trajectory (L)."""
    coupling: float = 0.0
    """Squared coupling to what moves the start decision (c_l)."""

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.coupling < 0:
            raise ValueError(f"tokens = {self.tokens} and coupling = {self.coupling} must be at least 0")


@config
class Evaluation:
    """Rollouts on held-out questions, apart from the training rollouts, with the policy as it is before the update."""

    every: int = 1
    """Steps between evaluations."""
    prompts: int = 128
    """Held-out questions."""
    group: int = 8
    """Rollouts for each."""

    def __post_init__(self) -> None:
        if min(self.every, self.prompts, self.group) < 1:
            raise ValueError(
                f"every, prompts and group must be at least 1; got {self.every}, {self.prompts}, {self.group}"
            )


@config
class Training:
    """A complete training run; a variant is ``replace(base, {...})``."""

    world: World = seed_a()
    """The task."""
    habit: Habit = SEED_A_HABIT
    """Starting log-odds of each free logit; those not named start at 0."""
    features: Features = Features()
    """Which weights move which logits."""
    rule: Rule = Rule()
    """The objective."""
    optimiser: Optimiser = Sgd(2.4)
    """What turns gradients into steps."""
    prompts: int = 128
    """Questions a batch (Q)."""
    group: int = 8
    """Rollouts for each (G)."""
    steps: int = 400
    """Batches."""
    inner_updates: int = 1
    """Updates on each batch."""
    lag: int = 0
    """Steps by which the policy that samples is behind, in its whole state: weights and drive alike."""
    proximal: str = "sampler"
    """pi_old, what ratios are about: ``"sampler"`` (the policy that sampled, in the learner's own log-probs) or
    ``"learner"`` (the policy at the batch's first update: the recent policy of a decoupled objective)."""
    mismatch: float = 0.0
    """Standard deviation of Gaussian noise on the engine's logits, fresh at every step: train-serving mismatch."""
    noise: GradientNoise | None = None
    """Gradient noise."""
    drive: Drive | None = None
    """External drive."""
    content: Content = Content()
    """Content tokens."""
    evaluation: Evaluation | None = None
    """Held-out evaluation."""
    on_zero_signal: str = "step"
    """What an update does when every coefficient of the batch is 0: ``"step"`` (momentum and noise go on) or ``"skip"``."""
    length_unit: str = "turn"
    """What normalisers count: ``"turn"`` (every turn 1) or ``"token"`` (the tokens its action generates)."""
    keep_rollouts: int | None = None
    """A step whose training rollouts are kept with the run; None for none."""
    watch_trajectory_ratio: bool = False
    """Whether to compute the ratio of whole trajectories (costs a tenth of a step)."""
    watch_workflows: bool = False
    """Whether to count workflows and trajectories without a search (costs a fifth of a step)."""

    def __post_init__(self) -> None:
        for name, least in (("prompts", 1), ("group", 2), ("steps", 0), ("inner_updates", 1), ("lag", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if self.mismatch < 0:
            raise ValueError(f"mismatch = {self.mismatch} must be at least 0")
        if self.keep_rollouts is not None and not 0 <= self.keep_rollouts < self.steps:
            raise ValueError(f"keep_rollouts = {self.keep_rollouts} must be a step of the run, 0 to {self.steps - 1}")
        for name, allowed in (
            ("on_zero_signal", ("step", "skip")),
            ("length_unit", ("turn", "token")),
            ("proximal", ("sampler", "learner")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be one of {', '.join(map(repr, allowed))}")
        if "process_reward" in self.rule.reads:
            raise ValueError(
                "this rule reads 'process_reward', judgements of single steps, which the simulator has not"
            )
        known = self.graph().free_names
        for name in (*(n for n, _ in self.habit), *self.features.on):
            if name not in known:
                raise ValueError(f"{name!r} is no free logit of this world{near_misses(name, known)}")

    def graph(self) -> CompiledGraph:
        """Return the arrays of the task."""
        return self.world.graph().compiled()

    def policy(self) -> SoftmaxPolicy:
        """Return the policy: z0 is the habit, F = [diag(private) | shared]."""
        graph = self.graph()
        z0 = free_logits(graph, self.habit)
        loads = self.loads()
        private = np.diag(np.where(loads, self.features.private, 1.0))
        shared = np.outer(loads, np.ones(self.features.shared)) / np.sqrt(max(self.features.shared, 1))
        return SoftmaxPolicy(graph, z0, np.concatenate([private, shared], axis=1))

    def loads(self) -> F64:
        """Return 1 for the free logits in `features.on`, else 0, [D]."""
        return np.array([float(name in self.features.on) for name in self.graph().free_names])

    def noisy(self) -> F64:
        """Return the noise's standard deviation on each weight, [P]."""
        sd = self.noise or GradientNoise(0.0)
        shared = np.full(self.features.shared, float(sd.shared))
        return sd.sd * np.concatenate([self.loads() * float(sd.private), shared])
