"""Entropy and exact KL: coefficients by hand, and their gradients through the simulator's `gradient`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.batch import Batch
from sim.learning.credit import NoBaseline
from sim.learning.lookup import Lookup
from sim.learning.normalisers import SequenceMean
from sim.learning.penalties import EntropyBonus, KlPerState, Penalty
from sim.learning.rule import Coefficients, Rule
from sim.learning.tabular import draw, gradient
from sim.learning.view import View
from sim.learning.weights import Unweighted, Weights
from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.policy import SoftmaxPolicy
from sim.mdp.sampling import Sampler
from sim.mdp.worlds import PRESETS
from sim.records.config import ConfigError
from sim.records.rng import BlockStream

NO_WEIGHTS = Weights(None, ())
GRAPH = PRESETS["read-more"]().graph().compiled()  # contexts of one, two and three actions
SAMPLER = Sampler(GRAPH)
D = len(GRAPH.free_names)
POLICY = SoftmaxPolicy(GRAPH, np.zeros(D), np.eye(D))
LOGITS = hnp.arrays(float, (2, D), elements=st.floats(-3, 3))


def test_coefficients_by_hand():
    mask = np.array([[[True, True], [True, False]]])
    logp, A = np.zeros(mask.shape), np.ones((1, 2, 1))
    factor = np.array([[[0.5], [0.25]]])
    view = View.of(logp, logp, A, mask, factor=factor)
    assert EntropyBonus(0.2)(view) == pytest.approx(0.2 * factor)
    assert KlPerState(0.2)(view) == pytest.approx(-0.2 * factor)  # uphill is away from the KL
    rule = Rule(NoBaseline(), Unweighted(), SequenceMean(), (EntropyBonus(0.2), KlPerState(1.0)))
    found = rule.coefficients(rule.prepare(Batch(np.zeros((1, 2)), mask, logp)), logp).scalars
    assert found["entropy"] == pytest.approx(np.array([[[0.05, 0.05], [0.1, 0]]]))
    assert found["kl", "ref"] == pytest.approx(np.array([[[-0.25, -0.25], [-0.5, 0]]]))


def test_scalars_are_named():
    assert EntropyBonus(0.1).scalar == "entropy"
    assert KlPerState(0.1).scalar == ("kl", "ref")
    assert KlPerState(0.1, reference="start").scalar == ("kl", "start")
    assert isinstance(EntropyBonus(0.1), Penalty)


def test_a_kl_penalty_does_not_reward_drift():
    with pytest.raises(ConfigError, match=r"strength = -0.1: .* use >= 0"):
        KlPerState(-0.1)


def batch(z):
    """Rollouts of two seeds at logits `z`."""
    now = POLICY.tables(z)
    streams = BlockStream((1, 2), "penalties/question"), BlockStream((1, 2), "penalties/turn")
    sample = draw(SAMPLER, now, streams, step=0, prompts=20, group=4)
    return now, sample, Lookup.of(sample, SAMPLER.decisions)


def scalar_sum(name, z, reference, sample, coefficient):
    """sum over visited decisions of coefficient x scalar, [S], with the visits held fixed; in plain loops."""
    pi, log_pi, log_ref = POLICY.tables(z).probability, POLICY.tables(z).log_probability, reference.log_probability
    S, Q = coefficient.shape[:2]
    running, action, node = SAMPLER.running(sample), SAMPLER.actions(sample), SAMPLER.nodes(sample)
    total = np.zeros(S)
    for k, s, n in zip(*np.nonzero(running), strict=True):
        c, a = GRAPH.context[node[k, s, n]], action[k, s, n]
        p, logs = pi[s, c], log_pi[s, c]
        value = {"logp": logs[a], "entropy": -(p * logs).sum(), ("kl", "ref"): (p * (logs - log_ref[s, c])).sum()}[name]
        total[s] += coefficient[s, n % Q, n // Q, k] * value
    return total


@pytest.mark.parametrize("scalar", ["logp", "entropy", ("kl", "ref")], ids=str)
def test_gradient_is_the_slope_at_fixed_visits(scalar):
    rng = np.random.default_rng(7)
    z = rng.normal(0, 1.5, (2, D))
    reference = POLICY.tables(rng.normal(0, 1.5, (2, D)))
    now, sample, lookup = batch(z)
    S, Q, G = sample.reward.shape
    mask = SAMPLER.running(sample).reshape(-1, S, G, Q).transpose(1, 3, 2, 0)
    coefficient = np.where(mask, rng.normal(size=mask.shape), 0.0)
    got = gradient(POLICY, now, reference, lookup, Coefficients({scalar: coefficient}, NO_WEIGHTS))
    h = 1e-5
    slope = np.zeros_like(z)
    for d in range(D):
        step = np.zeros_like(z)
        step[:, d] = h
        up, down = (scalar_sum(scalar, z + sign * step, reference, sample, coefficient) for sign in (1, -1))
        slope[:, d] = (up - down) / (2 * h)
    assert np.abs(slope).max() > 0.1
    np.testing.assert_allclose(got, slope, rtol=1e-6, atol=1e-7)


@given(LOGITS)
def test_the_kl_to_oneself_pulls_nowhere_and_entropy_pulls_to_the_middle(z):
    now, sample, lookup = batch(z)
    ones = np.ones((*sample.reward.shape, GRAPH.turns))
    kl = gradient(POLICY, now, now, lookup, Coefficients({("kl", "ref"): ones}, NO_WEIGHTS))
    assert np.abs(kl).max() < 1e-12
    entropy = gradient(POLICY, now, now, lookup, Coefficients({"entropy": ones}, NO_WEIGHTS))
    two = (GRAPH.offered.sum(1) == 2)[GRAPH.free_context]  # a choice of two: entropy grows towards log-odds 0
    assert np.all(entropy[:, two] * z[:, two] <= 1e-12)


def test_an_unknown_scalar_is_refused_by_name():
    now, sample, lookup = batch(np.zeros((2, D)))
    ones = np.ones((*sample.reward.shape, GRAPH.turns))
    with pytest.raises(ValueError, match=r"no scalar \('kl', 'start'\); it has 'logp', 'entropy' and \('kl', 'ref'\)"):
        gradient(POLICY, now, now, lookup, Coefficients({("kl", "start"): ones}, NO_WEIGHTS))


def test_exact_kl_by_hand():
    # pi has logits (1, 0, -1), the reference (0, .5, 0): the gradient of KL(pi || ref) is (.3640, -.2332, -.1308).
    end = (Outcome("end", 0.5), Outcome("other end", 0.5))
    graph = ToolGraph(
        "one choice", (("all", 1.0),), ("here",),
        (State("here", "here", (Action("a", end), Action("b", end), Action("c", end))),),
        (Terminal("end", 0.0), Terminal("other end", 1.0)), ("a", "b", "c"), turn_limit=1,
    ).compiled()  # fmt: skip
    policy = SoftmaxPolicy(graph, np.zeros(2), np.eye(2))
    now, reference = policy.tables(np.array([[-1.0, -2.0]])), policy.tables(np.array([[0.5, 0.0]]))
    streams = BlockStream((0,), "one/question"), BlockStream((0,), "one/turn")
    sampler = Sampler(graph)
    lookup = Lookup.of(draw(sampler, now, streams, 0, prompts=1, group=1), sampler.decisions)
    got = gradient(policy, now, reference, lookup, Coefficients({("kl", "ref"): np.ones((1, 1, 1, 1))}, NO_WEIGHTS))
    assert got[0] == pytest.approx([-0.2332, -0.1308], abs=5e-5)
    assert -got.sum() == pytest.approx(0.3640, abs=5e-5)  # the components sum to 0
