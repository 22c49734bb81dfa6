"""What is played on a cluster: a task, how many tokens each action writes, and what prompts have in common.

The task is a :class:`~sim.mdp.worlds.World`, as at every rung, or a :class:`Chain`, where nothing but time matters.
"""

from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.latency import Constant, Latency
from sim.mdp.worlds import Habit, World
from sim.records.config import config, near_misses

__all__ = ["Chain", "Workload"]


@config
class Chain:
    """A task without decisions that matter: `turns` turns, each but the last ending in a call of one of `tools`.

    With several tools the policy chooses among them, evenly until it learns otherwise.
    """

    turns: int = 1
    """Turns, the last of which is the answer."""
    tools: tuple[str, ...] = ("tool",)
    """Actions offered before the last turn."""
    solved: float = 0.5
    """P(the answer is right)."""
    generated: int = 100
    """Tokens a turn writes, at least 1, where the workload gives no law (a law may well give 0)."""
    observed: int = 0
    """Tokens a tool returns."""

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise ValueError(f"turns = {self.turns} must be at least 1")
        if self.turns > 1 and not self.tools:
            raise ValueError(f"turns = {self.turns} needs at least one tool to call in between; tools is empty")
        if not 0 <= self.solved <= 1:
            raise ValueError(f"solved = {self.solved} must lie in [0, 1]")

    def graph(self) -> ToolGraph:
        """Return the task as a graph."""
        ends = (Outcome("right", self.solved), Outcome("wrong", 1 - self.solved))
        answer = Action("answer", ends, self.generated)
        last = State(f"turn {self.turns - 1}", "last", (answer,))
        calls = [
            State(
                f"turn {t}",
                "call",
                tuple(
                    Action(tool, (Outcome(f"turn {t + 1}", 1.0, self.observed),), self.generated) for tool in self.tools
                ),
            )
            for t in range(self.turns - 1)
        ]
        return ToolGraph(
            name=f"chain of {self.turns}",
            kinds=(("any", 1.0),),
            initial=("turn 0",),
            states=(*calls, last),
            terminals=(Terminal("right", 1.0, True), Terminal("wrong", 0.0)),
            actions=(*(self.tools if self.turns > 1 else ()), "answer"),
            turn_limit=self.turns,
        )


@config
class Workload:
    """What is played.

    A prompt has luck of its own, shared by its rollouts: its length factor exp(prompt_length_sigma z - prompt_length_sigma^2
    / 2) multiplies every token count, exp(prompt_latency_sigma z' - ...) every tool latency; both have mean 1.
    """

    task: World | Chain = Chain()
    """The task."""
    habit: Habit = ()
    """Starting log-odds of each free logit; those not named are 0."""
    group: int = 8
    """Rollouts of a prompt that are trained on (G)."""
    extra: int = 0
    """Rollouts of a prompt launched beyond those: the first G to complete count, the rest are cancelled."""
    prompts: int | None = None
    """Prompts in the source; None for no end."""
    tokens: tuple[tuple[str, Latency], ...] = ()
    """Law of the tokens an action writes (a number of tokens, not seconds; need not be whole), by action; actions not named
    write what the task says."""
    prompt_tokens: float = 0.0
    """Context tokens before the first turn."""
    prompt_length_sigma: float = 0.0
    """Standard deviation of the log of a prompt's length factor."""
    prompt_latency_sigma: float = 0.0
    """Standard deviation of the log of a prompt's latency factor."""
    least_valid: float = 0.5
    """A group is dropped when at most this share of its G rollouts count (others failed for reasons of infrastructure);
    GLM-5's rule at one half."""

    def __post_init__(self) -> None:
        for name, least in (("group", 1), ("extra", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if self.prompts is not None and self.prompts < 1:
            raise ValueError(f"prompts = {self.prompts} must be at least 1; None for a source without end")
        for name in ("prompt_tokens", "prompt_length_sigma", "prompt_latency_sigma"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 0")
        if not 0 <= self.least_valid < 1:
            raise ValueError(f"least_valid = {self.least_valid} must lie in [0, 1)")
        graph = self.task.graph()
        for action, law in self.tokens:
            if action not in graph.actions:
                raise ValueError(f"tokens: {action!r} is no action of the task{near_misses(action, graph.actions)}")
            if law.problem():
                raise ValueError(f"tokens of {action!r}: {law.problem()}")
        if len(dict(self.tokens)) < len(self.tokens):
            raise ValueError("tokens names an action twice")

    @property
    def members(self) -> int:
        """Rollouts launched for a prompt."""
        return self.group + self.extra

    def law(self, action: str, written: int) -> Latency:
        """Return the law of the tokens of `action`, whose task says `written`."""
        return dict(self.tokens).get(action, Constant(float(written)))
