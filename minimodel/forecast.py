"""What theory says of a run before it is made: the expected first push on a decision, in the world that was drawn.

The outcome of a run follows the world its facts were drawn from, so the sign of the push is enumerated there, for the habit
that the start demonstrates. Kinds of question are drawn in exact shares: worlds of different seeds differ in which facts are
known and right, and not in what is enumerated.
"""

import numpy as np

from minimodel.agent.schedule import Completion
from minimodel.agent.setup import Training
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.task import played_world
from sim.mdp.policy import PolicyTables
from sim.mdp.theory.drift import Objective, effective_gap

__all__ = ["drawn_gap"]

_NEVER = 1e-6  # what a habit's 0 stands for: log 0 has no use, and no network is as sure


def drawn_gap(config: Training, seed: int, logit: str = "start/answer") -> float:
    """Return Delta of a decision at the first update of a run, in the world drawn for its seed.

    Negative when the loss pushes towards the action; see :func:`sim.mdp.theory.drift.effective_gap` for its units. It is the
    exact expectation for a policy with one private weight a decision that cannot tell known questions from unknown ones. Of
    a network it predicts the sign, not the speed, and nothing once it tells them apart. A lag, a drive and changes are not
    in it: they come later.

    Raises
    ------
    ValueError
        For a rule without an exact sum, a decision that the world does not have, or a run whose first batch is not what the
        sums are about: rewards from a monitor, rollouts that do not arrive, another temperature than 1.
    """
    other = {
        "monitor": config.monitor is not None,
        "schedule": isinstance(config.schedule, Completion),
        "temperature": config.temperature != 1,
    }
    if any(other.values()):
        raise ValueError(
            f"no exact sum for this run's {', '.join(n for n, is_so in other.items() if is_so)}; leave it at its default"
        )
    task = config.task
    facts = draw_facts(task.world, task.vocabulary, task.held_out, seed // config.starts_shared_by)
    graph = facts.graph(played_world(task))
    p = np.where(graph.offered, np.maximum(config.start.script.probabilities(graph), _NEVER), 0.0)
    p /= p.sum(-1, keepdims=True)
    policy = PolicyTables(p, np.log(p, out=np.zeros_like(p), where=p > 0))
    prompts = config.prompts // config.minibatches  # each update has its own normaliser
    return effective_gap(graph, policy, Objective.of(config.rule, config.group, prompts), logit)
