"""Corrections for data of another policy: an older one, or the same weights in another engine."""

from math import exp

from sim.learning.batch_weights import SecondMoment
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean, SequenceMean, TokenMean
from sim.learning.rule import Rule
from sim.learning.view import Level
from sim.learning.weights import Bounded, Product, Region, ppo_clip, truncated

__all__ = ["decoupled_ppo", "glm5", "glm5_reasoning", "icepop", "m2po", "mis", "opsm", "tis", "topr"]


def decoupled_ppo(low: float = 0.4, high: float = 0.4, cap: float | None = None) -> Rule:
    """AReaL's decoupled objective: the clip is about a recent policy, the correction about the one that sampled.

    w = pi_prox / mu (0 above cap) x pi / pi_prox, 0 where the clip binds; A = (r - mean) / std; Z = tokens of the batch.
    pi_prox is the learner when the batch began: ``Training(proximal="learner")``.

    Source: Hilton et al., arXiv 2110.00641; AReaL, arXiv 2505.24298. The older default masks ratios above 5 (cap).
    """
    correction = Bounded("proximal/behaviour", positive=Region(high=cap))
    return Rule(GroupCredit(), Product((correction, ppo_clip(low, high))), TokenMean())


def tis(cap: float = 2.0, low: float = 0.2, high: float = 0.2) -> Rule:
    """TIS: GRPO corrected for the engine by a truncated ratio.

    w = min(kappa, cap) x rho, 0 where the clip binds; A = (r - mean) / std; Z = tokens of the batch.

    Source: verl and slime (cap 2 for tokens).
    """
    correction = truncated(cap, "proximal/behaviour")
    return Rule(GroupCredit(), Product((correction, ppo_clip(low, high))), TokenMean())


def mis(low: float = 0.5, high: float = 2.0, level: Level = "token", veto: float = 1e-4) -> Rule:
    """MIS: GRPO corrected for the engine by a masked ratio; one impossible token vetoes its sequence.

    w = kappa, 0 where kappa (of the token, or of the sequence as product or geometric mean) is outside [low, high] or any
    token's kappa is below veto, x rho, 0 where the clip binds; A = (r - mean) / std; Z = tokens of the batch.

    Source: slime's helper; verl's rollout correction.
    """
    correction = Bounded("proximal/behaviour", level, Region(low=low, high=high))
    vetoed = Bounded("proximal/behaviour", "least", Region(low=veto), inside="one")
    return Rule(GroupCredit(), Product((correction, vetoed, ppo_clip())), TokenMean())


def icepop(beta: float = 2.0, low: float = 0.2, high: float = 0.2) -> Rule:
    """IcePop: tokens on which engine and learner disagree lose their gradient.

    w = kappa, 0 where kappa is outside [1 / beta, beta], x rho, 0 where the clip binds; A = (r - mean) / std;
    Z = tokens of the batch.

    Source: Ring-1T, arXiv 2510.18855; beta as in GLM-5.
    """
    return Rule(GroupCredit(), Product((_pop(beta), ppo_clip(low, high))), TokenMean())


def glm5_reasoning(beta: float = 2.0, low: float = 0.2, high: float = 0.28) -> Rule:
    """GLM-5, reasoning stage: GRPO with IcePop and no KL.

    w = kappa, 0 where kappa is outside [1 / beta, beta], x rho, 0 where the clip binds; A = (r - mean) / std;
    Z = rollouts x own length.

    Source: arXiv 2602.15763.
    """
    return Rule(GroupCredit(), Product((_pop(beta), ppo_clip(low, high))), SequenceMean())


def glm5(low: float = 0.2, high: float = 0.28) -> Rule:
    """GLM-5, agentic stage: direct double-sided importance sampling from the engine's own log-probs.

    w = rho', 0 where rho' is outside [1 - low, 1 + high] whatever the sign of A; A = r - mean; Z = tokens of the batch.

    Source: arXiv 2602.15763.
    Ours: low and high (not printed for this stage; a public cookbook's), no division by std, Z.
    """
    weight = Bounded("now/behaviour", positive=Region(low=1 - low, high=1 + high))
    return Rule(GroupCredit(std=False), weight, TokenMean())


def opsm(delta: float = 1e-4, low: float = 0.2, high: float = 0.2) -> Rule:
    """OPSM: sequences below average that the learner has already turned away from are dropped.

    w = rho, 0 where the clip binds or where A < 0 and mean_t log(pi_old / pi) > delta; A = (r - mean) / std; Z = tokens.

    Source: slime.
    """
    gate = Bounded(level="geometric", negative=Region(low=exp(-delta)), inside="one")
    return Rule(GroupCredit(), Product((gate, ppo_clip(low, high))), TokenMean())


def m2po(threshold: float = 0.04) -> Rule:
    """M2PO: of the tokens an update moves further away, the most extreme are masked until a second moment is small.

    w = rho', 0 where masked: the largest (log rho')^2 among tokens with A > 0 and rho' > 1 or A < 0 and rho' < 1, until
    the mean over the rest of these is at most threshold; A = (r - mean) / std; Z = tokens of the batch.

    Source: arXiv 2510.01161, algorithm 1; threshold as in the authors' scripts.
    """
    return Rule(GroupCredit(), SecondMoment(threshold), TokenMean())


def topr() -> Rule:
    """TOPR: what was better than average is reinforced as it is, what was worse only as far as it is still likely.

    w = 1 where A > 0, min(prod_t rho', 1) where A < 0; A = r - mean; Z = rollouts.

    Source: Le Roux et al., arXiv 2503.14286.
    Ours: the group mean as baseline; the paper has one constant for all.
    """
    taper = Region(high=1.0, outside="truncate")
    weight = Bounded("now/behaviour", "sequence", Region(low=1.0, high=1.0, outside="truncate"), taper)
    return Rule(GroupCredit(std=False), weight, BatchMean())


def _pop(beta: float) -> Bounded:
    if beta <= 1:
        raise ValueError(f"beta = {beta} must be above 1: ratios from 1 / beta to beta are kept")
    return Bounded("proximal/behaviour", positive=Region(low=1 / beta, high=beta))
