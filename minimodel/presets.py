"""Complete training runs of the tiny transformer; a variant is ``replace(retry(), {...})``.

One line changes the world (``{"task.world.hit_unknown": 0.5}``), the loss (``{"rule": cispo()}``), the lag
(``{"schedule": Lag(4)}``) or the length of thinking (``{"task.thinking": 12}``).
"""

from minimodel.agent.optimiser import AdamW
from minimodel.agent.setup import Training
from minimodel.pretrain.start import Start
from minimodel.tasks.script import Script
from minimodel.tasks.task import Task
from sim.learning.family import grpo
from sim.mdp.worlds import Verify, World

__all__ = ["retry", "verify"]


def retry(known: float = 0.25, hit: float = 0.35) -> Training:
    """Return plain GRPO in a world where a wrong answer may be tried again.

    Every search hits with probability `hit`, whatever the question and whatever was tried before. The start searches first
    and guesses in 3 of 100 episodes.
    """
    world = World(
        known=known,
        hit_known=hit,
        retry_known=1.0,
        hit_unknown=hit,
        icc=0.0,
        unknown_kinds=1,
        anchoring=1.0,
    )
    return Training(
        task=Task(world=world),
        start=Start(script=Script(guess=0.03)),
        rule=grpo(kl=0.0),
        optimiser=AdamW(rate=2e-4),
        steps=100,
    )


def verify(p0: float = 0.01, hit: float = 0.5) -> Training:
    """Return plain GRPO in a world where an answer is final and may be verified first, which the start does with `p0`.

    Nothing is known beforehand, every question is searched for, and the verifier is right nineteen times in twenty.
    """
    world = World(
        known=0.0,
        hit_unknown=hit,
        icc=0.0,
        unknown_kinds=1,
        wrong_answer_ends=True,
        may_guess=False,
        verify=Verify(sensitivity=0.95, specificity=0.95, hit_after_reject=hit),
    )
    return Training(
        task=Task(world=world),
        start=Start(script=Script(verify=p0)),
        rule=grpo(kl=0.0),
        optimiser=AdamW(rate=2e-4),
        steps=60,
    )
