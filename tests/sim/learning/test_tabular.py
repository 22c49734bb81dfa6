"""What the simulator's loop hands to a rule: every array a part may read, and the two policies beside the sampler's."""

import numpy as np
import pytest

from sim.learning import family
from sim.learning.credit import GreedyBaseline, GroupCredit, RunningBaseline
from sim.learning.lookup import Lookup
from sim.learning.loop import train
from sim.learning.normalisers import BatchMean
from sim.learning.penalties import KlToGo
from sim.learning.presets import null
from sim.learning.rule import Rule
from sim.learning.shaping import Efficiency
from sim.learning.tabular import draw, greedy, rule_batch, scalar_values
from sim.learning.weights import Bounded, Unweighted
from sim.mdp.policy import PolicyTables
from sim.mdp.sampling import Sampler
from sim.records.config import ConfigError, replace
from sim.records.rng import BlockStream

CONFIG = null()
POLICY = CONFIG.policy()
GRAPH = CONFIG.graph()
SAMPLER = Sampler(GRAPH)
GUESS = "policy/logit/start/answer"


def batch(reads=frozenset(), shift=0.0):
    streams = BlockStream((0, 1), "tabular/question"), BlockStream((0, 1), "tabular/turn")
    w = np.zeros((2, POLICY.features.shape[1]))
    now, other = POLICY.tables(w), POLICY.tables(w + shift)
    sample = draw(SAMPLER, now, streams, 0, prompts=16, group=4)
    lookup = Lookup.of(sample, SAMPLER.decisions)
    made = rule_batch(SAMPLER, sample, lookup, now, proximal=other, reference=other, reads=reads)
    return made, sample, lookup, now, other


def test_what_is_read_is_there_and_nothing_else():
    bare, *_ = batch()
    assert all(getattr(bare, name) is None for name in ("reference", "turn", "state", "duration_s"))
    full, sample, *_ = batch(frozenset(("reference", "turn", "state", "duration_s")), shift=0.5)
    nodes = SAMPLER.nodes(sample)
    q, g = 3, 2
    for k in range(GRAPH.turns):
        assert full.state[1, q, g, k] == nodes[k, 1, g * 16 + q]
        assert full.turn[1, q, g, k] == k
    took = sum(
        GRAPH.latency_s[nodes[k, 1, g * 16 + q], SAMPLER.actions(sample)[k, 1, g * 16 + q]]
        for k in range(GRAPH.turns)
        if full.mask[1, q, g, k]
    )
    assert full.duration_s[1, q, g] == pytest.approx(took)
    assert took > 0
    assert np.abs(full.reference - full.behaviour)[full.mask].max() > 0.1
    np.testing.assert_array_equal(full.proximal, full.reference)


def test_the_exact_kl_of_visited_states():
    made, sample, lookup, now, other = batch(shift=0.5)
    kl = scalar_values(now, other, lookup, made.behaviour, frozenset(("kl",)))["kl", "ref"]
    p, gap = now.probability[0], now.log_probability[0] - other.log_probability[0]
    by_context = (p * gap).sum(-1)
    assert by_context.max() > 0.001
    context = GRAPH.context[SAMPLER.nodes(sample)[0, 0, 0]]
    assert kl[0, 0, 0, 0] == pytest.approx(by_context[context])
    assert (kl[~made.mask] == 0).all()
    assert scalar_values(now, other, lookup, made.behaviour, frozenset()) == {}


def test_greedy_takes_the_likeliest_action():
    p = np.array([[[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]]])
    assert greedy(PolicyTables(p, np.log(p + 1e-300))).probability.tolist() == [[[0, 1, 0], [1, 0, 0]]]


def last(rule, **more):
    return train(replace(CONFIG, {"rule": rule, "steps": 4, "prompts": 32} | more), (0, 1, 2), study="tabular")[GUESS]


def test_a_running_baseline_follows_the_batches():
    """By hand: baseline 0, then .1 x the first batch's mean, and so on."""
    credit = RunningBaseline(0.9)
    runs = train(
        replace(CONFIG, {"rule": Rule(credit, Unweighted()), "steps": 3, "optimiser.rate": 0.0}), (0,), study="tabular"
    )
    b = 0.0
    from sim.learning.batch import Batch

    for reward in runs["train/reward"][0]:
        made = Batch(np.full((1, 2, 2), reward), running_reward=np.array([b]))
        assert credit(made).value.ravel() == pytest.approx(reward - b)
        b = float(credit.after(made)[0])
    assert b == pytest.approx(0.1 * (runs["train/reward"][0] @ [0.81, 0.9, 1.0]))
    assert np.abs(last(Rule(credit, Unweighted())) - last(family.reinforce())).max() > 1e-3  # the loop carries it


def test_a_greedy_baseline_is_of_the_same_questions():
    """Where policy and answers are certain, the greedy rollout is the sampled one and no advantage is left."""
    sure = {"habit": (("start/answer", 60.0), ("fresh/answer", 60.0), ("failed/answer", 60.0))}
    sure |= {"world.guess_known": 1.0, "world.guess_unknown": 0.0, "world.stale": 0.0}
    assert np.ptp(last(Rule(GreedyBaseline(), Unweighted()), **sure), axis=1).max() == 0
    assert np.ptp(last(Rule(GreedyBaseline(), Unweighted())), axis=1).min() > 0


def test_a_decoupled_objective_clips_about_the_learner():
    """With a lag the learner's own ratio starts at 1; against the sampler it has moved and is clipped."""
    moving = {"lag": 3, "steps": 12, "optimiser.rate": 8.0}
    tight = family.decoupled_ppo(0.01, 0.01)
    loose = replace(tight, {"weight.factors": (Bounded("proximal/behaviour"), Bounded())})
    learner = {"proximal": "learner"} | moving
    np.testing.assert_array_equal(last(tight, **learner), last(loose, **learner))  # one update: nothing to clip
    assert np.abs(last(tight, **moving) - last(loose, **moving)).max() > 1e-3


def test_engine_noise_is_seen_by_kappa_and_by_nothing_else():
    free = Rule(GroupCredit(std=False), Bounded("proximal/behaviour"), BatchMean())
    blind = Rule(GroupCredit(std=False), Bounded("now/proximal"), BatchMean())
    np.testing.assert_allclose(last(free), last(blind), rtol=1e-12)  # no mismatch: both ratios are 1
    assert np.abs(last(free, mismatch=0.5) - last(blind, mismatch=0.5)).max() > 1e-4
    with pytest.raises(ConfigError, match=r"mismatch = -1\.0 must be at least 0"):
        replace(CONFIG, {"mismatch": -1.0})


def test_kl_to_go_and_efficiency_reach_the_update():
    plain = Rule(GroupCredit(std=False), Unweighted())
    away = {"habit": (("start/answer", -1.0), ("fresh/answer", 2.0), ("failed/answer", -2.0)), "lag": 0}
    pulled = replace(plain, {"penalties": (KlToGo(1.0),)})
    assert np.abs(last(plain, **away) - last(pulled, **away)).max() > 1e-6
    hurried = replace(plain, {"shaping": (Efficiency(0.5),)})
    assert np.abs(last(plain, **away) - last(hurried, **away)).max() > 1e-3


def test_what_the_simulator_does_not_have_is_named():
    with pytest.raises(ConfigError, match=r"this rule reads 'process_reward', .* which the simulator has not"):
        last(family.minimax_forge())
