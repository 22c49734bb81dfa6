"""Kimi: squared log-ratios to the policy that an iteration began with."""

from math import exp

from sim.learning.credit import GroupCredit, LogPartition
from sim.learning.normalisers import BatchMean, TokenMean
from sim.learning.penalties import SquaredLogRatio
from sim.learning.rule import Rule
from sim.learning.weights import Bounded, Region, Unweighted

__all__ = ["kimi_k2", "kimi_k15", "kimi_k15_tilt", "kimi_k25"]


def kimi_k15(tau: float = 0.1) -> Rule:
    """Kimi K1.5: policy gradient with a squared log-ratio of the sequence; the mean stands in for the log-partition.

    w = 1; A = r - mean; - (tau / 2) (sum_t log rho_t)^2; Z = rollouts.

    Source: arXiv 2501.12599, section 2.3.2.
    Ours: tau, not printed.
    """
    return Rule(GroupCredit(std=False), Unweighted(), BatchMean(), (SquaredLogRatio(tau / 2),))


def kimi_k15_tilt(tau: float = 0.1) -> Rule:
    """Kimi K1.5 as derived: the log-partition as baseline makes the exact tilt pi_old exp(r / tau) / Z its optimum.

    w = 1; A = r - tau log mean exp(r / tau); - (tau / 2) (sum_t log rho_t)^2; Z = rollouts. The optimum is the tilt for
    large groups and rewards that the actions fix; chance in the rewards moves it.

    Source: arXiv 2501.12599, section 2.3.2.
    Ours: tau, not printed.
    """
    return Rule(LogPartition(tau), Unweighted(), BatchMean(), (SquaredLogRatio(tau / 2),))


def kimi_k2(tau: float = 0.1) -> Rule:
    """Kimi K2: K1.5's objective; what K2 adds (budgets, an auxiliary loss, temperature decay) is outside the rule.

    w = 1; A = r - mean; - (tau / 2) (sum_t log rho_t)^2; Z = rollouts.

    Source: arXiv 2507.20534.
    Ours: tau, not printed.
    """
    return kimi_k15(tau)


def kimi_k25(low: float = -0.5, high: float = 0.5, tau: float = 0.01) -> Rule:
    """Kimi K2.5: tokens whose log-ratio leaves an interval lose their gradient, whatever the sign of A.

    w = rho, 0 where log rho is outside [low, high]; A = r - mean; - tau sum_t (log rho_t)^2; Z = tokens of the batch.

    Source: arXiv 2602.02276; the formula clips the ratio, the prose the log-ratio: the prose is followed.
    Ours: low, high and tau, not printed; the square is not masked.
    """
    if not low < 0 < high:
        raise ValueError(f"low = {low} and high = {high} are bounds on log rho and must enclose 0")
    weight = Bounded(positive=Region(low=exp(low), high=exp(high)))
    return Rule(GroupCredit(std=False), weight, TokenMean(), (SquaredLogRatio(tau, level="token"),))
