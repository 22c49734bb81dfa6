"""The losses of the field as their papers print them, in plain torch: baselines, and GRPO with what was made of it.

Each takes the groups of :func:`tests.sim.learning.softmax_table.groups` and the whole case. Stop-gradients are the papers'
own ``detach()``; clips and minima are differentiated by autograd. Nothing here comes from the package. Corrections for data
of another policy are in ``published_corrections.py``.
"""

import statistics

import torch

# --- parts ------------------------------------------------------------------------------------------------------------


def relative(rewards, std=True):
    """r - mean, over the sample standard deviation if `std`; 0 where all rewards are one."""
    if len(set(rewards)) < 2:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    scale = statistics.stdev(rewards) if std else 1.0
    return [(r - mean) / scale for r in rewards]


def each(groups, std=True, reward=lambda rollout: rollout.reward):
    """(rollout, A) of every rollout, A relative to its group."""
    for group in groups:
        yield from zip(group, relative([reward(o) for o in group], std), strict=True)


def clipped(rho, A, low=0.2, high=0.2):
    """PPO's surrogate, to be maximised (arXiv 1707.06347, equation 7)."""
    return torch.minimum(rho * A, torch.clamp(rho, 1 - low, 1 + high) * A)


def ratio(o):
    """pi / pi_old, token by token."""
    return torch.exp(o.now - o.old)


def kappa(o):
    """pi_old / mu, token by token."""
    return torch.exp(o.old - o.mu)


def k3(o):
    """Schulman's third estimate of KL(pi || ref), token by token."""
    return torch.exp(o.ref - o.now) - (o.ref - o.now) - 1


def rollout_mean(terms):
    """(1 / rollouts) sum over rollouts of one number each, made a loss."""
    terms = list(terms)
    return -sum(terms) / len(terms)


def token_mean(terms):
    """(1 / all tokens) sum over all tokens, made a loss; `terms` holds one tensor a rollout."""
    terms = list(terms)
    return -sum(t.sum() for t in terms) / sum(len(t) for t in terms)


# --- baselines --------------------------------------------------------------------------------------------------------


def reinforce(groups, case):
    return rollout_mean(o.reward * o.now.sum() for group in groups for o in group)


def reinforce_running(groups, case):
    b = case.batch.running_reward.item()
    return rollout_mean((o.reward - b) * o.now.sum() for group in groups for o in group)


def rloo(groups, case):
    """arXiv 2402.14740: the others' mean as baseline."""

    def terms():
        for group in groups:
            for i, o in enumerate(group):
                others = [p.reward for j, p in enumerate(group) if j != i]
                yield (o.reward - sum(others) / len(others)) * o.now.sum()

    return rollout_mean(terms())


def remax(groups, case):
    """arXiv 2310.10505, algorithm 1."""
    greedy = case.batch.greedy_reward.tolist()
    return rollout_mean((o.reward - greedy[q]) * o.now.sum() for q, group in enumerate(groups) for o in group)


def ungrouped(groups, case):
    """GRPO where every rollout is a group of one: no mean, no spread."""
    return rollout_mean(clipped(ratio(o), o.reward).mean() for group in groups for o in group)


# --- clipped ----------------------------------------------------------------------------------------------------------


def grpo(groups, case, beta=0.001):
    """arXiv 2402.03300, equation 3: the KL estimate stands inside the mean over a rollout's tokens."""
    return rollout_mean((clipped(ratio(o), A) - beta * k3(o)).mean() for o, A in each(groups))


def dr_grpo(groups, case):
    """arXiv 2503.20783: no division by the spread, none by the rollout's own length."""
    return rollout_mean(clipped(ratio(o), A).sum() for o, A in each(groups, std=False))


def soft_overlong(length, limit, buffer):
    """arXiv 2503.14476, equation 13, its three cases."""
    if length <= limit - buffer:
        return 0.0
    return ((limit - buffer) - length) / buffer if length <= limit else -1.0


def dapo(groups, case, limit=20480, buffer=4096):
    """arXiv 2503.14476, equations 8 and 13."""
    scored = each(groups, reward=lambda o: o.reward + soft_overlong(len(o), limit, buffer))
    return token_mean(clipped(ratio(o), A, 0.2, 0.28) for o, A in scored)


def gspo(groups, case, low=3e-4, high=4e-4):
    """arXiv 2507.18071, equations 5 to 7: the ratio itself is differentiated."""
    return rollout_mean(clipped(torch.exp((o.now - o.old).mean()), A, low, high) for o, A in each(groups))


def cispo(groups, case, high=4.0):
    """MiniMax M1, arXiv 2506.13585, equations 4 and 5, no lower bound."""
    return token_mean(torch.clamp(ratio(o), max=1 + high).detach() * A * o.now for o, A in each(groups))


def minimax_forge(groups, case, process=0.1, efficiency=0.1):
    """arXiv 2605.26494: rewards to go in CISPO; the median time as base and the mean return as baseline are ours."""

    def terms():
        for group in groups:
            usual = statistics.median(o.duration for o in group)
            returns = []
            for o in group:
                steps = [process * p for p in o.process.tolist()]
                steps[-1] += o.reward + efficiency * min(max(1 - o.duration / usual, -1), 1)
                returns.append([sum(steps[t:]) for t in range(len(steps))])
            baseline = sum(r[0] for r in returns) / len(returns)
            for o, to_go in zip(group, returns, strict=True):
                A = torch.tensor(to_go, dtype=o.now.dtype) - baseline
                yield torch.clamp(ratio(o), max=5.0).detach() * A * o.now

    return token_mean(terms())


def step_advantages(group, gamma):
    """GiGPO's second comparison (arXiv 2505.10978, equations 5 to 7): {(rollout, turn): A_step}."""
    at_state = {}
    for i, o in enumerate(group):
        turns = sorted(set(o.turn))
        for k, turn in enumerate(turns):
            state = o.state[o.turn.index(turn)]
            to_go = gamma ** (len(turns) - 1 - k) * o.reward  # the outcome comes with the last turn
            at_state.setdefault(state, []).append(((i, turn), to_go))
    found = {}
    for members in at_state.values():
        for (key, _), A in zip(members, relative([value for _, value in members]), strict=True):
            found[key] = A
    return found


def gigpo(groups, case, omega=1.0, gamma=0.95, beta=0.01):
    """arXiv 2505.10978, equations 8 and 9."""

    def terms():
        for group in groups:
            step = step_advantages(group, gamma)
            for i, (o, A) in enumerate(zip(group, relative([o.reward for o in group]), strict=True)):
                both = torch.tensor([A + omega * step[i, k] for k in o.turn], dtype=o.now.dtype)
                yield (clipped(ratio(o), both) - beta * k3(o)).mean()

    return rollout_mean(terms())


def search_r1(groups, case, size=8, beta=0.001, bonus=0.001):
    """Search-R1's scripts: masked means of loss, KL and entropy in every micro-batch, averaged over micro-batches."""
    chunks = {}
    for o, A in each(groups):
        term = clipped(ratio(o), A) - beta * k3(o) + bonus * o.entropy
        chunks.setdefault(o.place // size, []).append(term)
    return sum(token_mean(terms) for terms in chunks.values()) / len(chunks)


def likelihood_floor(o, A):
    """LLDS (arXiv 2512.04220): how far tokens of turns that fell have fallen, where the rollout was not worse."""
    fallen = o.old - o.now
    gate = torch.zeros(len(o), dtype=o.now.dtype)
    for k in set(o.turn):
        here = torch.tensor([turn == k for turn in o.turn])
        if A >= 0 and float(fallen.detach()[here].sum()) > 0:
            gate[here] = 1.0
    return gate * torch.relu(fallen)


def llds(groups, case, strength=0.2, beta=0.001, bonus=0.001):
    """Its code: GRPO's token mean with k3 and entropy, and the floor averaged over the same tokens."""
    return token_mean(
        clipped(ratio(o), A) - strength * likelihood_floor(o, A) - beta * k3(o) + bonus * o.entropy
        for o, A in each(groups)
    )
