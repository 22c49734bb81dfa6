"""A task: a world, the words it is told in, and how long the agent thinks before it decides."""

from dataclasses import replace

from minimodel.model.vocabulary import Vocabulary
from minimodel.tasks.layout import Layout
from sim.mdp.graph import ToolGraph
from sim.mdp.worlds import World
from sim.records.config import config

__all__ = ["Task", "played_world"]


@config
class Task:
    """What a tiny transformer is trained on; the world is the simulator's own."""

    world: World = World()
    """Kinds of question, hit rates, tools, turn limit."""
    vocabulary: Vocabulary = Vocabulary()
    """Entities and relations (the questions), answers, fillers."""
    thinking: int = 3
    """Filler tokens before each decision."""
    held_out: float = 1 / 3
    """Share of the questions that reinforcement learning never sees; all facts are pretrained alike."""

    def __post_init__(self) -> None:
        if self.thinking < 0:
            raise ValueError(f"thinking = {self.thinking}; it is a number of tokens, at least 0")
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out = {self.held_out} must lie in [0, 1): something must be left to train on")

    @property
    def layout(self) -> Layout:
        """Where things stand in the tokens of an episode."""
        return Layout(self.thinking, self.world.turns)

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions, in the order that numbers them."""
        return self.world.graph().actions

    @property
    def decisions(self) -> tuple[int, ...]:
        """Decision token of each action, in that order."""
        return tuple(self.vocabulary.decision(name) for name in self.actions)

    def graph(self) -> ToolGraph:
        """Return the tool graph of the world as the tokens play it, with the tokens that a turn writes.

        Observations keep the world's own lengths (500 tokens a document, say): they are what costs are counted in.
        """
        graph, written = played_world(self).graph(), self.layout.written
        return replace(
            graph,
            states=tuple(
                replace(s, actions=tuple(replace(a, generated_tokens=written) for a in s.actions)) for s in graph.states
            ),
        )


def played_world(task: Task) -> World:
    """Return the world as its tokens play it.

    An answer out of nothing, to an unknown question or once more after a failure, is uniform over the answers: it is right
    with 1 / answers, whatever the world says. Everything else is the world's own.
    """
    by_chance = 1 / task.vocabulary.answers
    return replace(task.world, guess_unknown=by_chance, stale=by_chance)
