"""GRPO and what was made of it: other bounds, other means, other levels, credit by step."""

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, LikelihoodFloor, SampledKl
from sim.learning.rule import Rule
from sim.learning.shaping import Efficiency, Overlong, Process
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.learning.weights import Bounded, Region, ppo_clip, truncated

__all__ = ["cispo", "dapo", "dr_grpo", "gigpo", "grpo", "gspo", "llds", "minimax_forge", "search_r1"]

OVERLONG = Overlong()
"""DAPO's own: 20,480 tokens, the last 4,096 penalised."""


def grpo(low: float = 0.2, high: float = 0.2, kl: float = 0.001) -> Rule:
    """GRPO: PPO's clip with the group as baseline and yardstick.

    w = rho, 0 where the clip binds; A = (r - mean) / std; Z = rollouts x own length; - kl x k3 to the reference.

    Source: arXiv 2402.03300, equation 3; kl 0.001 as verl and Search-R1 set it (0.04 in the paper).
    """
    return Rule(GroupCredit(), ppo_clip(low, high), SequenceMean(), _kl(kl))


def dr_grpo(low: float = 0.2, high: float = 0.2, length: float = 1.0) -> Rule:
    """Dr. GRPO: GRPO without its two divisions.

    w = rho, 0 where the clip binds; A = r - mean; Z = rollouts x one length for all.

    Source: arXiv 2503.20783.
    Ours: length 1, which leaves the sum over a rollout as it is; set it to the token budget.
    """
    return Rule(GroupCredit(std=False), ppo_clip(low, high), ConstantLength(length))


def dapo(low: float = 0.2, high: float = 0.28, overlong: Overlong | None = OVERLONG) -> Rule:
    """DAPO: unequal bounds, every token counts the same, overlong rollouts are penalised.

    w = rho, 0 where the clip binds; A = (r - mean) / std; Z = tokens of the batch. Its dynamic sampling is
    :func:`sim.learning.budgets.dynamic_filter`.

    Source: arXiv 2503.14476, equations 8 and 13.
    """
    return Rule(GroupCredit(), ppo_clip(low, high), TokenMean(), shaping=() if overlong is None else (overlong,))


def gspo(low: float = 3e-4, high: float = 4e-4) -> Rule:
    """GSPO: one ratio for a sequence, the geometric mean of its tokens', clipped as one.

    w = s = exp(mean_t log rho_t), 0 where the clip binds; A = (r - mean) / std; Z = rollouts x own length.

    Source: arXiv 2507.18071, equations 5 to 7.
    """
    weight = Bounded(level="geometric", positive=Region(high=1 + high), negative=Region(low=1 - low))
    return Rule(GroupCredit(), weight, SequenceMean())


def cispo(high: float = 4.0) -> Rule:
    """CISPO: the ratio is truncated, so that no token loses its gradient.

    w = min(rho, 1 + high); A = (r - mean) / std; Z = tokens of the batch.

    Source: MiniMax M1, arXiv 2506.13585, equations 4 and 5.
    Ours: high, not printed.
    """
    return Rule(GroupCredit(), truncated(1 + high), TokenMean())


def minimax_forge(high: float = 4.0, gamma: float = 1.0, process: float = 0.1, efficiency: float = 0.1) -> Rule:
    """MiniMax Forge: CISPO on rewards to go, with rewards for good steps and for quick episodes.

    w = min(rho, 1 + high); A_t = sum of rewards from t on - mean; r_t = process + efficiency + outcome; Z = tokens.

    Source: arXiv 2605.26494.
    Ours: high, gamma, the two weights, the shape of the efficiency term, the group mean as baseline.
    """
    return Rule(RewardToGo(gamma), truncated(1 + high), TokenMean(), shaping=(Process(process), Efficiency(efficiency)))


def gigpo(omega: float = 1.0, gamma: float = 0.95, kl: float = 0.01) -> Rule:
    """GiGPO: GRPO with a second comparison among turns that began in the same state.

    w = rho, 0 where the clip binds; A = A_episode + omega A_step; Z = rollouts x own length; - kl x k3 to the reference.

    Source: arXiv 2505.10978.
    """
    return Rule(StateGroups(omega=omega, gamma=gamma), ppo_clip(), SequenceMean(), _kl(kl))


def search_r1(microbatch: int = 8, kl: float = 0.001, entropy: float = 0.001) -> Rule:
    """Search-R1 as its scripts run it: GRPO averaged over micro-batches.

    w = rho, 0 where the clip binds; A = (r - mean) / std; Z = micro-batches x own tokens; - kl x k3 + entropy x H.

    Source: arXiv 2503.09516 and its code (stock verl).
    Ours: rollouts in a micro-batch.
    """
    return Rule(GroupCredit(), ppo_clip(), MicrobatchMean(microbatch), (*_kl(kl), EntropyBonus(entropy)))


def llds(strength: float = 0.2, kl: float = 0.001, entropy: float = 0.001) -> Rule:
    """LLDS: Search-R1's GRPO with a floor under the likelihood of what was not worse than average.

    w = rho, 0 where the clip binds; A = (r - mean) / std; - strength x 1[A >= 0, turn fell] max(0, -log rho) - kl x k3 to
    the reference + entropy x H; Z = tokens of the batch.

    Source: arXiv 2512.04220; kl and entropy as in its script.
    Ours: Z over the batch, where its code averages over micro-batches.
    """
    return Rule(GroupCredit(), ppo_clip(), TokenMean(), (LikelihoodFloor(strength), *_kl(kl), EntropyBonus(entropy)))


def _kl(strength: float) -> tuple[SampledKl, ...]:
    return (SampledKl(strength),) if strength else ()
