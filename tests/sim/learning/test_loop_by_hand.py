"""The vectorised loop against the plainest one: one seed, one rollout, one turn at a time, written from the definitions.

The plain loop reads the task from its `ToolGraph` and shares with the package only the uniforms. What it agrees on is the
whole of a run: every weight update and every column that is written down.
"""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from sim.learning.credit import GroupCredit
from sim.learning.loop import train
from sim.learning.normalisers import BatchMean, SequenceMean, TokenMean
from sim.learning.optimisers import Adam, Natural, Sgd
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.rule import Rule
from sim.learning.setup import Content, Drive, Features, Training
from sim.learning.weights import Bounded, Unweighted, ppo_clip
from sim.mdp.worlds import read_more_world
from sim.records.rng import uniforms

FACTOR = {  # of each rollout, from the lengths of all
    BatchMean: lambda lengths: [1 / len(lengths)] * len(lengths),
    SequenceMean: lambda lengths: [1 / n / len(lengths) for n in lengths],
    TokenMean: lambda lengths: [1 / sum(lengths)] * len(lengths),
}


class PlainRun:
    """One seed."""

    def __init__(self, config, seed, study):
        self.c, self.seed, self.study = config, seed, study
        self.task = config.world.graph()
        self.states = {s.name: s for s in self.task.states}
        self.ends = {t.name: t for t in self.task.terminals}
        self.offers = {s.context: [a.name for a in s.actions] for s in self.task.states}
        self.free = [(c, a) for c in self.task.contexts for a in self.offers[c][1:]]
        self.on = [f"{c}/{a}" in config.features.on for c, a in self.free]
        self.private = [0.0] * len(self.free)
        self.shared = [0.0] * config.features.shared
        self.push = 0.0
        self.moments = defaultdict(lambda: [0.0, 0.0])
        self.columns = defaultdict(list)

    # -- the policy --

    def shift(self):
        return sum(self.shared) / math.sqrt(max(len(self.shared), 1)) + self.push

    def logits(self):
        habit = dict(self.c.habit)
        found = {}
        for (c, a), on, w in zip(self.free, self.on, self.private, strict=True):
            found[c, a] = habit.get(f"{c}/{a}", 0.0) + (self.c.features.private * w + self.shift() if on else w)
        return found

    def policy(self):
        z = self.logits()
        table = {}
        for c, offered in self.offers.items():
            weight = {a: math.exp(z.get((c, a), 0.0)) for a in offered}
            table[c] = {a: w / sum(weight.values()) for a, w in weight.items()}
        return table

    # -- rollouts --

    def rollout(self, policy, kind, u):
        """Return [(context, action)], the reward, and the turn after which it was solved (None if never)."""
        node, taken = self.task.initial[kind], []
        for act, back in u:
            state = self.states[node]
            name = pick([(a, policy[state.context].get(a, 0.0)) for a in self.task.actions], act)
            taken.append((state.context, name))
            action = next(a for a in state.actions if a.name == name)
            node = pick([(o.to, self.task.per_kind(o.probability)[kind]) for o in action.outcomes], back)
            if node in self.ends:
                end = self.ends[node]
                return taken, end.reward, len(taken) if end.solved else None
        return taken, self.task.turn_limit_reward, None

    def batch(self, policy, step):
        Q, G, K = self.c.prompts, self.c.group, self.task.turn_limit
        question = uniforms(self.seed, f"{self.study}/question", step, (Q,))
        turn = uniforms(self.seed, f"{self.study}/turn", step, (K, 2, G, Q))
        kinds = [pick([(i, share) for i, (_, share) in enumerate(self.task.kinds)], u) for u in question]
        return [[self.rollout(policy, kinds[q], turn[:, :, g, q]) for g in range(G)] for q in range(Q)]

    # -- the update --

    def coefficients(self, groups, behaviour, now):
        """Yield (context, action, coefficient of log pi, of the entropy, of the KL) of every decision of the batch."""
        rule = self.c.rule
        lengths = [len(taken) for group in groups for taken, _, _ in group]
        factors = iter(FACTOR[type(rule.normaliser)](lengths))
        strength = {type(p): p.strength for p in rule.penalties}
        for group in groups:
            for (taken, _, _), A in zip(group, advantages([r for _, r, _ in group], rule.credit), strict=True):
                f = next(factors)
                for c, a in taken:
                    rho = now[c][a] / behaviour[c][a]
                    weight = 1.0
                    if isinstance(rule.weight, Bounded):
                        high, low = rule.weight.positive.high, rule.weight.negative.low
                        weight = 0.0 if (A > 0 and rho > high) or (A < 0 and rho < low) else rho
                    yield c, a, weight * A * f, strength.get(EntropyBonus, 0) * f, -strength.get(KlPerState, 0) * f

    def gradient(self, groups, behaviour, now, reference):
        """Return the gradient with respect to each free logit."""
        found = dict.fromkeys(self.free, 0.0)
        for c, a, g, h, k in self.coefficients(groups, behaviour, now):
            entropy = -sum(p * math.log(p) for p in now[c].values())
            kl = sum(p * math.log(p / reference[c][b]) for b, p in now[c].items())
            for b, p in now[c].items():
                if (c, b) in found:
                    found[c, b] += g * ((a == b) - p) - h * p * (math.log(p) + entropy)
                    found[c, b] += k * p * (math.log(p / reference[c][b]) - kl)
        return found

    def update(self, dz):
        """Chain rule to the weights, then the optimiser."""
        strength, n = self.c.features.private, max(len(self.shared), 1)
        pulled = sum(dz[f] for f, on in zip(self.free, self.on, strict=True) if on) / math.sqrt(n)
        for i, (f, on) in enumerate(zip(self.free, self.on, strict=True)):
            self.private[i] += self.step(("private", i), dz[f] * (strength if on else 1.0))
        for i in range(len(self.shared)):
            self.shared[i] += self.step(("shared", i), pulled)

    def step(self, key, g):
        o = self.c.optimiser
        if isinstance(o, Sgd):
            return o.rate * g
        m = self.moments[key]
        m[0], m[1] = o.b1 * m[0] + (1 - o.b1) * g, o.b2 * m[1] + (1 - o.b2) * g * g
        corrected = m[0] / (1 - o.b1**self.updates), m[1] / (1 - o.b2**self.updates)
        return o.rate * corrected[0] / (math.sqrt(corrected[1]) + o.epsilon)

    def run(self):
        self.updates = 0
        reference = self.policy()
        history = [(reference, self.shift())]
        for step in range(self.c.steps):
            behaviour, old_shift = history[max(step - self.c.lag, 0)]
            now = self.policy()
            groups = self.batch(behaviour, step)
            self.write_policy(now, reference, [d for group in groups for taken, _, _ in group for d in taken])
            for _ in range(self.c.inner_updates):
                self.updates += 1
                self.update(self.gradient(groups, behaviour, self.policy(), reference))
            drive = self.c.drive
            if drive and drive.start <= step < drive.start + drive.duration:
                self.push += drive.rate
            history.append((self.policy(), self.shift()))
            self.write_batch(groups, behaviour, self.policy(), (old_shift, self.shift()))
        return self.columns

    # -- what is written down --

    def write_policy(self, now, reference, decisions):
        put, rollouts = self.put, self.c.prompts * self.c.group
        kl = {c: sum(p * math.log(p / reference[c][a]) for a, p in table.items()) for c, table in now.items()}
        for (c, a), z in self.logits().items():
            put(f"policy/logit/{c}/{a}", z)
            put(f"decision/share/{c}/{a}", now[c][a])
        for c, table in now.items():
            if len(table) > 1:
                put(f"decision/entropy/{c}", -sum(p * math.log(p) for p in table.values()))
                put(f"drift/kl_decision/{c}", kl[c])
        met = sum(kl[c] for c, _ in decisions) / rollouts  # the decisions of a rollout, on average
        coin = 1 / (1 + math.exp(-math.sqrt(self.c.content.coupling) * self.shift()))
        words = self.c.content.tokens * (coin * math.log(2 * coin) + (1 - coin) * math.log(2 * (1 - coin)))
        put("policy/shared_shift", self.shift())
        put("drift/kl_decisions", met)
        put("drift/kl_content", words)
        put("drift/kl_trajectory", met + words)

    def write_batch(self, groups, behaviour, after, shifts):
        put, K = self.put, self.task.turn_limit
        rollouts = [r for group in groups for r in group]
        put("train/reward", fmean(reward for _, reward, _ in rollouts))
        put("train/turns", fmean(len(taken) for taken, _, _ in rollouts))
        put("train/degenerate_share", fmean(len({r for _, r, _ in group}) == 1 for group in groups))
        for t in range(K):
            put(f"behaviour/accuracy/turn{t}", fmean(s is not None and s <= t + 1 for _, _, s in rollouts))
            for a in self.task.actions:
                put(f"behaviour/{a}_share/turn{t}", fmean(len(d) > t and d[t][1] == a for d, _, _ in rollouts))
        if self.c.watch_workflows:
            counts = Counter(tuple(a for _, a in taken) for taken, _, _ in rollouts)
            shares = [n / len(rollouts) for n in counts.values()]
            put("behaviour/effective_workflows", math.exp(-sum(p * math.log(p) for p in shares)))
            searched = fmean(any(a == "search" for _, a in taken) for taken, _, _ in rollouts)
            put("behaviour/no_search_share", 1 - searched)
        distance = [[after[c][a] / behaviour[c][a] for c, a in taken] for taken, _, _ in rollouts]
        decisions = [abs(rho - 1) for row in distance for rho in row]
        put("drift/ratio/turn/distance", fmean(decisions))
        put("drift/ratio/turn/outside", fmean(d > 0.2 for d in decisions))
        put("drift/ratio/trajectory/distance", fmean(abs(math.prod(row) - 1) for row in distance))
        coupling = math.sqrt(self.c.content.coupling)
        old, new = (1 / (1 + math.exp(-coupling * s)) for s in shifts)
        words = self.c.content.tokens * len(rollouts)  # a content token is 1 with probability old, 0 otherwise
        mean = old * abs(new / old - 1) + (1 - old) * abs((1 - new) / (1 - old) - 1)
        put("drift/ratio/token/distance", (sum(decisions) + words * mean) / (len(decisions) + words))

    def put(self, name, value):
        self.columns[name].append(value)


def pick(options, u):
    """Return the option in whose part of [0, 1) `u` lies."""
    top = 0.0
    for name, p in options:
        top += p
        if u < top:
            return name
    return next(name for name, p in reversed(options) if p > 0)


def advantages(rewards, credit):
    mean = fmean(rewards)
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - credit.ddof)) if credit.std else 1.0
    return [(r - mean) / spread for r in rewards]


SMALL = Training(prompts=6, group=4, steps=6, watch_workflows=True, watch_trajectory_ratio=True)
READ_MORE = {
    "world": read_more_world(),
    "habit": (("start/answer", -0.5), ("fresh/verify", 0.3), ("fresh/read", -0.2), ("failed/answer", 0.4)),
    "watch_workflows": False,  # six turns of four actions are more workflows than are counted
}


def small(**changes):
    return replace(SMALL, **changes)


CASES = {
    "plain": small(habit=(("start/answer", 0.0), ("failed/answer", -1.0))),
    "sequence mean, Adam, three updates, shared weights": small(
        habit=(("start/answer", -1.0), ("fresh/answer", 1.0)),
        rule=Rule(GroupCredit(ddof=0), ppo_clip(0.1, 0.15), SequenceMean()),
        features=Features(shared=3, private=0.5),
        optimiser=Adam(0.2),
        inner_updates=3,
        content=Content(50, 0.01),
    ),
    "no clip, centred, behind": small(
        rule=Rule(GroupCredit(std=False), Unweighted(), TokenMean()), optimiser=Sgd(8.0), lag=2, inner_updates=2
    ),
    "penalties": small(
        **READ_MORE, rule=Rule(normaliser=TokenMean(), penalties=(EntropyBonus(0.05), KlPerState(0.5))), inner_updates=2
    ),
    "drive, behind, many tools": small(
        **READ_MORE,
        features=Features(on=("start/answer", "fresh/verify"), shared=4, private=0.0),
        drive=Drive(0.4, start=1, duration=3),
        lag=2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_loop_does_what_the_plain_loop_does(name):
    config, seeds = CASES[name], (0, 7)
    runs = train(config, seeds, study="plain")
    for row, seed in enumerate(seeds):
        expected = PlainRun(config, seed, "plain").run()
        assert len(expected) >= 30
        start = expected["policy/logit/start/answer"]
        assert start[0] != start[-1]  # it moved
        for column, values in expected.items():
            np.testing.assert_allclose(runs[column][row], values, rtol=1e-9, atol=1e-12, err_msg=column)


def test_content_ratios_are_taken_against_the_policy_that_sampled():
    config = small(content=Content(50, 0.04), drive=Drive(0.5), optimiser=Sgd(0.0), lag=2, features=Features(shared=2))
    runs = train(config, (0,), study="plain")
    expected = PlainRun(config, 0, "plain").run()["drift/ratio/token/distance"]
    np.testing.assert_allclose(runs["drift/ratio/token/distance"][0], expected, rtol=1e-9)


def test_natural_moves_a_rare_choice_as_fast_as_a_common_one():
    """One step of the natural gradient in the loop: (logit step) x p (1 - p) x visits is the SGD step."""
    for habit in (-2.0, 0.0):
        base = small(habit=(("start/answer", habit),), steps=2, prompts=64)
        configs = [replace(base, optimiser=o) for o in (Sgd(1.0), Natural(1.0))]
        sgd, natural = (train(c, (0, 1), study="plain")["policy/logit/start/answer"] for c in configs)
        p = 1 / (1 + math.exp(-habit))
        plain, stretched = np.diff(sgd, axis=1), np.diff(natural, axis=1)
        assert np.abs(plain).min() > 1e-4
        np.testing.assert_allclose(stretched * p * (1 - p), plain, rtol=1e-4)  # the start is visited once a rollout
