"""What the rollouts of a question are compared with, and nothing else."""

from sim.learning.credit import GreedyBaseline, LeaveOneOut, NoBaseline, RunningBaseline
from sim.learning.normalisers import BatchMean, SequenceMean
from sim.learning.rule import Rule
from sim.learning.weights import Unweighted, ppo_clip

__all__ = ["reinforce", "reinforce_running", "remax", "rloo", "ungrouped"]


def reinforce() -> Rule:
    """REINFORCE without a baseline.

    w = 1, A = r, Z = rollouts.

    Source: Williams 1992, Machine Learning 8.
    """
    return Rule(NoBaseline(), Unweighted(), BatchMean())


def reinforce_running(decay: float = 0.9) -> Rule:
    """REINFORCE with a running mean of the reward as its baseline.

    w = 1, A = r - b, b <- decay b + (1 - decay) mean(r), Z = rollouts.

    Source: Williams 1992, Machine Learning 8.
    Ours: decay.
    """
    return Rule(RunningBaseline(decay), Unweighted(), BatchMean())


def rloo() -> Rule:
    """RLOO: each rollout against the others of its group.

    w = 1, A = r - mean of the others = G / (G - 1) (r - mean), Z = rollouts.

    Source: arXiv 2402.14740.
    """
    return Rule(LeaveOneOut(), Unweighted(), BatchMean())


def remax() -> Rule:
    """ReMax: each rollout against one greedy rollout of its question.

    w = 1, A = r - r(greedy), Z = rollouts.

    Source: arXiv 2310.10505.
    """
    return Rule(GreedyBaseline(), Unweighted(), BatchMean())


def ungrouped(low: float = 0.2, high: float = 0.2) -> Rule:
    """GRPO with every rollout as its own group, the fault of an early Search-R1: no baseline is left.

    w = rho, 0 where the clip binds; A = r; Z = rollouts x own length.

    Source: Search-R1 issue 88.
    """
    return Rule(NoBaseline(), ppo_clip(low, high), SequenceMean())
