"""The losses of the field as their papers print them, continued: other policies' data, and Kimi's squares."""

import math
import statistics

import torch

from tests.sim.learning.published_losses import clipped, each, kappa, ratio, rollout_mean, token_mean

# --- corrections ------------------------------------------------------------------------------------------------------


def decoupled_ppo(groups, case, cap=math.inf):
    """arXiv 2110.00641, equation 7, as in AReaL (2505.24298): behaviour, proximal and current policy."""

    def weight(o):
        return torch.where(kappa(o) <= cap, kappa(o), 0.0)

    return token_mean(weight(o).detach() * clipped(ratio(o), A, 0.4, 0.4) for o, A in each(groups))


def tis(groups, case):
    return token_mean(torch.clamp(kappa(o), max=2.0).detach() * clipped(ratio(o), A) for o, A in each(groups))


def mis(groups, case, level="token", veto=1e-4):
    """slime's helper: mask outside [.5, 2] at a level, and the veto of one impossible token."""

    def weight(o):
        log = o.old - o.mu
        if level != "token":
            log = (log.sum() if level == "sequence" else log.mean()).expand(len(o))
        w = torch.exp(log)
        kept = (w >= 0.5) & (w <= 2.0) & (kappa(o).min() >= veto)
        return torch.where(kept, w, 0.0)

    return token_mean(weight(o).detach() * clipped(ratio(o), A) for o, A in each(groups))


def popped(o, beta=2.0):
    """IcePop's weight: kappa in [1 / beta, beta], else 0."""
    return torch.where((kappa(o) >= 1 / beta) & (kappa(o) <= beta), kappa(o), 0.0).detach()


def icepop(groups, case):
    """Ring-1T, arXiv 2510.18855."""
    return token_mean(popped(o) * clipped(ratio(o), A) for o, A in each(groups))


def glm5_reasoning(groups, case):
    """arXiv 2602.15763, reasoning stage: GRPO's mean of means, bounds .2 and .28, no KL."""
    return rollout_mean((popped(o) * clipped(ratio(o), A, 0.2, 0.28)).mean() for o, A in each(groups))


def glm5(groups, case):
    """arXiv 2602.15763, agentic stage: pi / mu inside (1 - .2, 1 + .28), else nothing; the weight is not differentiated."""

    def weight(o):
        r = torch.exp(o.now - o.mu)
        return torch.where((r > 0.8) & (r < 1.28), r, 0.0).detach()

    return token_mean(weight(o) * A * o.now for o, A in each(groups, std=False))


def opsm(groups, case, delta=1e-4):
    """slime: sequences with A < 0 whose mean log(pi_old / pi) exceeds delta are dropped."""

    def keep(o, A):
        return 0.0 if A < 0 and float((o.old - o.now).detach().mean()) > delta else 1.0

    return token_mean(keep(o, A) * clipped(ratio(o), A) for o, A in each(groups))


def second_moment_mask(tokens, threshold):
    """M2PO's algorithm 1: drop the largest (log r)^2 among trust-region tokens while their mean is too large.

    `tokens` are (A, log r); the mask that comes back is in their order. Equal ones go together, where the paper's argmax
    takes them in any order: with a table of logits many tokens are equal.
    """
    region = {i: lr * lr for i, (A, lr) in enumerate(tokens) if (A > 0 and lr > 0) or (A < 0 and lr < 0)}
    keep = [True] * len(tokens)
    while region and sum(region.values()) / len(region) > threshold:
        worst = max(region.values())
        for i in [i for i, square in region.items() if square == worst]:
            keep[i] = False
            del region[i]
    return keep


def m2po(groups, case, threshold=0.04):
    """arXiv 2510.01161: pi / mu is differentiated, the mask is not."""
    scored = list(each(groups))
    keep = iter(second_moment_mask([(A, x) for o, A in scored for x in (o.now - o.mu).tolist()], threshold))
    masks = [torch.tensor([float(next(keep)) for _ in range(len(o))], dtype=o.now.dtype) for o, _ in scored]
    return token_mean(m * torch.exp(o.now - o.mu) * A for m, (o, A) in zip(masks, scored, strict=True))


def topr(groups, case):
    """arXiv 2503.14286, its canonical form: positives as they are, negatives by the sequence's ratio, at most 1."""

    def weight(o, A):
        return torch.tensor(1.0, dtype=o.now.dtype) if A > 0 else torch.exp((o.now - o.mu).sum()).clamp(max=1.0)

    return rollout_mean(weight(o, A).detach() * A * o.now.sum() for o, A in each(groups, std=False))


# --- Kimi -------------------------------------------------------------------------------------------------------------


def squared(groups, tau, baseline):
    """Kimi K1.5 (arXiv 2501.12599): (r - b - tau log(pi / pi_old))^2 of whole sequences, over 2 tau, averaged."""
    terms = []
    for group in groups:
        b = baseline([o.reward for o in group])
        terms += [(o.reward - b - tau * (o.now - o.old).sum()) ** 2 / (2 * tau) for o in group]
    return sum(terms) / len(terms)


def kimi_k15(groups, case, tau=0.1):
    return squared(groups, tau, statistics.fmean)


def kimi_k15_tilt(groups, case, tau=0.1):
    return squared(groups, tau, lambda r: tau * math.log(statistics.fmean(math.exp(x / tau) for x in r)))


kimi_k2 = kimi_k15


def kimi_k25(groups, case, low=-0.5, high=0.5, tau=0.01):
    """arXiv 2602.02276: Clip(rho) A - tau (log rho)^2 over all tokens; outside the interval the clip has no slope."""
    return token_mean(
        torch.clamp(ratio(o), math.exp(low), math.exp(high)) * A - tau * (o.now - o.old) ** 2
        for o, A in each(groups, std=False)
    )
