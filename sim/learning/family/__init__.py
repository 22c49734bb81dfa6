"""The family: objectives of the field, each a function that returns the rule it is composed of.

Notation: r reward, G rollouts of a question, rho = pi / pi_old (learner now against learner when the batch began), kappa =
pi_old / mu (learner against the engine that sampled, same weights), rho' = pi / mu, A advantage, Z what the sum over tokens
is divided by. The update direction is (1/Z) sum_t w_t A_t grad log pi_t plus penalties; w is never differentiated. What an
owner has not printed is listed as ours. ``docs/family.md`` is generated from these modules: a new rule is a function in one
of them, named in its ``__all__``.
"""

from sim.learning.family import baselines, clipped, corrections, kimi
from sim.learning.family.baselines import *  # noqa: F403
from sim.learning.family.clipped import *  # noqa: F403
from sim.learning.family.corrections import *  # noqa: F403
from sim.learning.family.kimi import *  # noqa: F403

__all__ = [*baselines.__all__, *clipped.__all__, *corrections.__all__, *kimi.__all__]
