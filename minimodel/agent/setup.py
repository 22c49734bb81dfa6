"""What a training run of the tiny transformer consists of, as one strict config."""

from dataclasses import fields

from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import AdamW, Optimiser
from minimodel.agent.schedule import Completion, Lag, Schedule
from minimodel.model.transformer import Size
from minimodel.pretrain.skill import Asks
from minimodel.pretrain.start import Start
from minimodel.tasks.task import Task
from sim.learning.rule import Rule
from sim.learning.setup import Drive, Evaluation
from sim.mdp.worlds import World
from sim.records.config import config

__all__ = ["Change", "Drive", "Evaluation", "Training"]


@config
class Change:
    """From a step on, another world or another rule: retrieval improves, say, or the loss becomes a token mean."""

    step: int
    """First step of it."""
    world: World | None = None
    """The world from then on; it differs in hit rates, reliability and factors, not in its kinds of question or tools."""
    rule: Rule | None = None
    """The rule from then on."""

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step = {self.step} must be at least 0")
        if self.world is None and self.rule is None:
            raise ValueError("a change of nothing; give a world or a rule")


@config
class Training:
    """A complete training run; a variant is ``replace(base, {...})``."""

    task: Task = Task()
    """World, tokens, thinking."""
    size: Size = Size()
    """The network."""
    start: Start = Start()
    """The supervised start."""
    asks: Asks = Asks()
    """How good the start must be; where skill is what a study varies, ask for less."""
    rule: Rule = Rule()
    """The objective."""
    optimiser: Optimiser = AdamW()
    """What turns gradients into steps."""
    schedule: Schedule = Lag()
    """Which versions write a batch, and what of it arrives."""
    prompts: int = 32
    """Questions a batch (Q)."""
    group: int = 8
    """Episodes for each (G)."""
    steps: int = 100
    """Batches."""
    minibatches: int = 2
    """Updates a batch is cut into, along questions."""
    epochs: int = 1
    """Passes over the batch."""
    micro: int = 1
    """Pieces an update is computed in; it changes memory, not the gradient."""
    temperature: float = 1.0
    """Of sampler and learner alike."""
    precision: str = "float32"
    """The learner's matrix products: ``"float32"``, or ``"bfloat16"`` beside a float32 sampler, a train-serving mismatch."""
    decode: str = "compiled"
    """The sampler's arithmetic: ``"compiled"`` code where the machine has a compiler, or ``"torch"``: slower, the same to
    1e-5."""
    proximal: str = "sampler"
    """pi_old: ``"sampler"`` (the log-probs a token was sampled with) or ``"learner"`` (recomputed when the batch begins)."""
    monitor: EvidenceFirst | None = None
    """The rule monitor, as reward shaping."""
    drive: Drive | None = None
    """External push on the decision to answer at the start, the same in sampler and learner."""
    changes: tuple[Change, ...] = ()
    """What changes on the way, in order of step."""
    evaluation: Evaluation | None = Evaluation(every=10, prompts=64, group=4)
    """Held-out evaluation."""
    watched: int = 2
    """Episodes of each group on which exact KL and ratios are computed."""
    on_zero_signal: str = "step"
    """What an update does when every coefficient is 0: ``"step"`` (momentum goes on) or ``"skip"``."""
    starts_shared_by: int = 1
    """Neighbouring seeds that share a fact base and a supervised start; 1 gives every seed its own."""
    keep_rollouts: int | None = None
    """A step whose episodes are kept with the run; None for none."""

    def __post_init__(self) -> None:
        for name, least in (
            ("prompts", 1), ("group", 2), ("steps", 0), ("minibatches", 1), ("epochs", 1), ("micro", 1), ("watched", 1),
            ("starts_shared_by", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if self.minibatches * self.micro > self.prompts:
            raise ValueError(
                f"{self.prompts} questions do not fill {self.minibatches} minibatches of {self.micro} pieces; ask for more"
            )
        if self.watched > self.group:
            raise ValueError(f"watched = {self.watched} of a group of {self.group}; at most the group")
        if self.temperature <= 0:
            raise ValueError(f"temperature = {self.temperature} must be positive")
        for name, allowed in (
            ("precision", ("float32", "bfloat16")),
            ("decode", ("compiled", "torch")),
            ("proximal", ("sampler", "learner")),
            ("on_zero_signal", ("step", "skip")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} = {getattr(self, name)!r} must be one of {', '.join(map(repr, allowed))}")
        if self.keep_rollouts is not None and not 0 <= self.keep_rollouts < self.steps:
            raise ValueError(f"keep_rollouts = {self.keep_rollouts} must be a step of the run, 0 to {self.steps - 1}")
        _check_questions(self)
        _check_rules(self)
        _check_changes(self)

    def world_at(self, step: int) -> World:
        """Return the world of a step."""
        found = [c.world for c in self.changes if c.step <= step and c.world is not None]
        return found[-1] if found else self.task.world

    def rule_at(self, step: int) -> Rule:
        """Return the rule of a step."""
        found = [c.rule for c in self.changes if c.step <= step and c.rule is not None]
        return found[-1] if found else self.rule


def _check_questions(c: Training) -> None:
    """Refuse a run that needs more questions than there are."""
    words = c.task.vocabulary
    held_out = words.entities * words.relations * c.task.held_out
    trained = words.entities * words.relations - held_out
    asked = 0 if c.evaluation is None else c.evaluation.prompts
    for name, wanted, there, way in (
        ("prompts", c.prompts, trained, "give the vocabulary more entities"),
        ("evaluation.prompts", asked, held_out, "raise task.held_out, or set evaluation=None"),
    ):
        if wanted > there:
            kind = "that are not held out" if name == "prompts" else "held out"
            raise ValueError(f"{name} = {wanted} of {there:.0f} questions {kind}; ask for fewer, or {way}")


def _check_rules(c: Training) -> None:
    """Refuse what the task, the schedule or the world does not have."""
    rules = (c.rule, *(change.rule for change in c.changes if change.rule is not None))
    if any("process_reward" in rule.reads for rule in rules):
        raise ValueError("this rule reads 'process_reward', judgements of single steps, which this task has not")
    unseen = isinstance(c.schedule, Completion) and c.schedule.over == "all"
    if unseen and any(rule.credit.per == "token" or rule.shaping for rule in rules):
        raise ValueError(
            "Completion(over='all') knows the rewards of rollouts that did not arrive but not their tokens, which this "
            "rule's credit or shaping reads; use over='arrived'"
        )
    if c.drive is not None and not c.task.world.may_guess:
        raise ValueError("a drive pushes answering at the start, which this world does not offer (may_guess)")


def _check_changes(c: Training) -> None:
    """Refuse changes out of order, after the end, or to another task."""
    steps = [change.step for change in c.changes]
    if steps != sorted(steps):
        raise ValueError(f"changes at steps {steps}; give them in order")
    if steps and steps[-1] >= c.steps > 0:
        raise ValueError(f"a change at step {steps[-1]} of a run of {c.steps} steps never comes; give an earlier step")
    for change in c.changes:
        if change.world is not None:
            _check_same_questions(c.task.world, change.world, change.step)


_MAY_CHANGE = (
    "hit_known",
    "retry_known",
    "hit_unknown",
    "anchoring",
    "verify",
    "read_more",
    "search_median_s",
    "document_tokens",
)


def _check_same_questions(before: World, after: World, step: int) -> None:
    """Refuse a change that would need other questions, other tools or another number of turns."""
    differ = [f.name for f in fields(World) if getattr(before, f.name) != getattr(after, f.name)]
    bad = [name for name in differ if name not in _MAY_CHANGE]
    bad += [
        name for name in ("verify", "read_more") if (getattr(before, name) is None) != (getattr(after, name) is None)
    ]
    if bad:
        raise ValueError(
            f"the change at step {step} alters {', '.join(bad)}; a run keeps its questions, tools and turns, and may change "
            f"{', '.join(_MAY_CHANGE)}"
        )
