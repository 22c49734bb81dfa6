"""What each KL penalty regularises: exact gradients of one choice, and of whole trajectories, by enumeration."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean
from sim.learning.penalties import EntropyBonus, KlPerState, KlToGo, LikelihoodFloor, SampledKl, SquaredLogRatio
from sim.learning.rule import Rule
from sim.learning.shaping import KlInReward
from sim.learning.step_credit import RewardToGo
from sim.learning.view import View
from sim.learning.weights import Unweighted
from sim.mdp.exact import occupancy, trajectories
from sim.mdp.policy import tables

# --- one choice among three -------------------------------------------------------------------------------------------

PI, REF, MU = np.array([1.0, 0, -1]), np.array([0, 0.5, 0]), np.array([-0.5, 0.2, 0.6])
EXACT, FORWARD = [0.3640, -0.2332, -0.1308], [0.3912, -0.2071, -0.1840]


def log_softmax(z):
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def expected(penalty, sampler):
    """E over the sampler's actions of (minus the coefficient) x grad log pi: what the penalty pushes against."""
    now, mu, ref = (log_softmax(z)[None, None] for z in (PI, sampler, REF))
    view = View.of(now, mu, np.zeros((1, 1, 1)), np.ones(now.shape, bool), reference=ref)
    c = -penalty(view)[0, 0]
    return np.einsum("a,a,ab->b", np.exp(mu[0, 0]), c, np.eye(3) - np.exp(now[0, 0]))


def by_difference(f, z, h=1e-6):
    """Gradient of a function of logits by central differences."""
    return np.array([(f(z + h * e) - f(z - h * e)) / (2 * h) for e in np.eye(len(z))])


def kl(z, w):
    p, q = log_softmax(z), log_softmax(w)
    return (np.exp(p) * (p - q)).sum()


def second_order(z):
    """E over pi of k2, which is not the KL."""
    d = log_softmax(z) - log_softmax(REF)
    return (np.exp(log_softmax(z)) * d * d / 2).sum()


def test_f18_the_exact_gradients_by_differences():
    assert by_difference(lambda z: kl(z, REF), PI) == pytest.approx(EXACT, abs=5e-5)
    assert by_difference(lambda z: kl(REF, z), PI) == pytest.approx(FORWARD, abs=5e-5)


@pytest.mark.parametrize(
    ("estimator", "correction", "sampler", "gradient"),
    [
        ("k1", "none", PI, [0, 0, 0]),
        ("k2", "none", PI, EXACT),
        ("k3", "none", PI, FORWARD),
        # on policy the correction changes nothing unless it is differentiated
        ("k1", "detached", PI, [0, 0, 0]),
        ("k3", "detached", PI, FORWARD),
        ("k1", "differentiated", PI, EXACT),
        ("k3", "differentiated", PI, EXACT),
        # off policy
        ("k1", "detached", MU, [0, 0, 0]),
        ("k2", "detached", MU, EXACT),
        ("k3", "detached", MU, FORWARD),
        ("k1", "differentiated", MU, EXACT),
        ("k3", "differentiated", MU, EXACT),
        ("k2", "differentiated", MU, by_difference(second_order, PI)),
    ],
)
def test_f18_what_an_estimate_regularises(estimator, correction, sampler, gradient):
    found = expected(SampledKl(1.0, estimator, correction), sampler)
    assert found == pytest.approx(gradient, abs=5e-5)
    assert expected(SampledKl(0.3, estimator, correction), sampler) == pytest.approx(0.3 * found)


def test_f18_uncorrected_off_policy_is_none_of_them():
    for estimator in ("k2", "k3"):
        found = expected(SampledKl(1.0, estimator), MU)
        for gradient in (EXACT, FORWARD):
            assert np.abs(found - gradient).max() > 0.05
    assert np.abs(by_difference(second_order, PI) - EXACT).max() > 0.02  # nor is k2's own expectation the KL


# --- trajectories of a small graph ------------------------------------------------------------------------------------

Z, Z_REF = np.array([0.9, -1.4]), np.array([-0.8, 0.5])


def ways(graph, z):
    """Every trajectory with its share of all episodes, and its turns padded: contexts, actions and mask, [n, K]."""
    found = trajectories(graph, tables(graph, z))
    weight = np.array([graph.share[t.kind] * t.probability for t in found])
    context, action = np.zeros((2, len(found), graph.turns), int)
    mask = np.zeros((len(found), graph.turns), bool)
    for i, t in enumerate(found):
        for k, (node, a) in enumerate(zip(t.nodes, t.actions, strict=False)):
            context[i, k], action[i, k], mask[i, k] = graph.context[node], a, True
    return found, weight, context, action, mask


def trajectory_kl(graph, z):
    """KL of the distribution over trajectories to the reference's: sum of P log(P / P_ref)."""
    now, ref = tables(graph, z).log_probability, tables(graph, Z_REF).log_probability
    _, weight, context, action, mask = ways(graph, z)
    return (weight * np.where(mask, now[context, action] - ref[context, action], 0).sum(1)).sum()


def state_kl(graph, z):
    """Exact KL of each context, [C]."""
    now, ref = tables(graph, z), tables(graph, Z_REF)
    return (now.probability * (now.log_probability - ref.log_probability)).sum(-1)


class Slopes:
    """d log pi(a | c) / dz and d KL(c) / dz, by central differences: [C, A, D] and [C, D]."""

    def __init__(self, graph, z, h=1e-6):
        steps = [(z + h * e, z - h * e) for e in np.eye(len(z))]

        def of(f):
            return np.stack([(f(up) - f(down)) / (2 * h) for up, down in steps], -1)

        self.log_pi = of(lambda x: tables(graph, x).log_probability)
        self.kl = of(lambda x: state_kl(graph, x))


def arrays(graph, z):
    """One rollout for each trajectory, each its own question: log-probs now and of the reference, exact KLs, [n, 1, K]."""
    _, weight, context, action, mask = ways(graph, z)
    now, ref = (tables(graph, x).log_probability[context, action] for x in (z, Z_REF))
    return weight, context, action, mask, now[:, None], ref[:, None], state_kl(graph, z)[context][:, None]


def test_kl_per_state_and_kl_to_go_are_the_gradient_of_the_trajectory_kl(tiny):
    graph = tiny.compiled()
    weight, context, action, mask, now, ref, exact = arrays(graph, Z)
    assert weight.sum() == pytest.approx(1)
    slopes = Slopes(graph, Z)
    view = View.of(now, now, np.zeros((1, 1, 1)), mask[:, None], reference=ref, values={("kl", "ref"): exact})
    k, g = (-p(view) * view.sampled for p in (KlPerState(1.0), KlToGo(1.0)))
    k, g = k[:, 0], g[:, 0]
    at_states = np.einsum("n,nk,nkd->d", weight, k, slopes.kl[context])
    to_go = np.einsum("n,nk,nkd->d", weight, g, slopes.log_pi[context, action])

    visits = occupancy(graph, tables(graph, Z)).decision.sum((0, 2))
    fixed = by_difference(lambda z: visits @ state_kl(graph, z), Z)
    whole = by_difference(lambda z: trajectory_kl(graph, z), Z)
    assert np.abs(to_go).max() > 0.05
    np.testing.assert_allclose(at_states, fixed, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(at_states + to_go, whole, rtol=1e-6, atol=1e-9)
    assert np.abs(fixed - whole).max() > 0.05  # two quantities


def pairs_gradient(graph, rule):
    """E of the update of a rule in groups of two, over all pairs of trajectories of each kind of question, [D]."""
    found, weight, context, action, mask = ways(graph, Z)
    now, ref = (tables(graph, x).log_probability[context, action] for x in (Z, Z_REF))
    slope = Slopes(graph, Z).log_pi
    total = np.zeros(len(Z))
    for i, j in itertools.product(range(len(found)), repeat=2):
        if found[i].kind != found[j].kind:
            continue
        pair = [i, j]
        p = weight[i] * weight[j] / graph.share[found[i].kind]
        batch = Batch(np.zeros((1, 2)), mask[pair][None], now[pair][None], reference=ref[pair][None])
        c = rule.coefficients(rule.prepare(batch), batch.behaviour).scalars["logp"][0]
        total += p * np.einsum("ik,ikd->d", c, slope[context[pair], action[pair]])
    return total


@pytest.mark.parametrize("credit", [RewardToGo(), GroupCredit(std=False)], ids=["to go", "whole"])
def test_k1_in_the_reward_is_the_gradient_of_the_trajectory_kl(tiny, credit):
    """Unbiased up to the factor 1 - 1/G of a mean that includes the rollout itself; here 1/2."""
    graph = tiny.compiled()
    rule = Rule(credit, Unweighted(), BatchMean(), shaping=(KlInReward(0.3),))
    whole = by_difference(lambda z: trajectory_kl(graph, z), Z)
    assert np.abs(whole).max() > 0.1
    np.testing.assert_allclose(pairs_gradient(graph, rule), -0.3 * whole / 2, rtol=1e-6, atol=1e-9)


def test_k3_in_the_reward_is_not(tiny):
    """Its own derivative, the gradient of KL(ref || pi), is missing: as a loss it would be there."""
    graph = tiny.compiled()
    rule = Rule(RewardToGo(), Unweighted(), BatchMean(), shaping=(KlInReward(0.3, "k3"),))
    whole = by_difference(lambda z: trajectory_kl(graph, z), Z)
    assert np.abs(pairs_gradient(graph, rule) + 0.3 * whole / 2).max() > 0.01


# --- the others, by hand ----------------------------------------------------------------------------------------------


def view(log_rho, mask, A=0.0, factor=1.0, **more):
    """One rollout with these log-ratios to the sampler."""
    logs = np.array(log_rho, float)[None, None]
    shape = np.array([A]).reshape(1, 1, -1)
    return View.of(logs, np.zeros_like(logs), shape, np.array(mask, bool)[None, None], factor=factor, **more)


def pull(penalty, v):
    """The coefficients of the one rollout, [T], masked as a rule masks them."""
    return (penalty(v) * v.sampled)[0, 0]


def test_two_squares():
    # log-ratios .3, -.1 and one masked: the sequence's is .2
    v = view([0.3, -0.1, 9.0], [1, 1, 0], factor=0.5)
    assert pull(SquaredLogRatio(2.0), v) == pytest.approx([-0.4, -0.4, 0])  # -2 x 2 x .2 x .5
    assert pull(SquaredLogRatio(2.0, "token"), v) == pytest.approx([-0.6, 0.2, 0])
    against = replace(v, reference=np.array([[[0.1, 0.1, 0.1]]]))
    assert pull(SquaredLogRatio(1.0, "token", "now/reference"), against) == pytest.approx([-0.2, 0.2, 0])


def test_the_floor_by_hand():
    # turns 0 0 | obs | 1 1 | 2 with log-ratios to pi_old; turn 0 fell by .1 in all, turn 1 rose by .1, turn 2 fell
    logs, mask, turn = [-0.3, 0.2, -5.0, -0.2, 0.3, -0.1], [1, 1, 0, 1, 1, 1], np.array([[[0, 0, 0, 1, 1, 2]]])

    def held(A):
        return pull(LikelihoodFloor(0.2), view(logs, mask, A, factor=0.5, turn=turn)).tolist()

    up = pytest.approx(
        [0.1, 0, 0, 0, 0, 0.1]
    )  # the token of turn 0 that rose, and the fallen one of turn 1, are let be
    assert held(1.0) == up
    assert held(0.0) == up  # not worse than average is enough
    assert held(-1.0) == [0] * 6


def test_entropy_and_kl_by_hand():
    v = view([0.3, -0.1, 9.0], [1, 1, 0], factor=0.25)
    assert pull(EntropyBonus(0.2), v).tolist() == [0.05, 0.05, 0]
    assert pull(KlPerState(0.2), v).tolist() == [-0.05, -0.05, 0]
    going = replace(v, values={("kl", "ref"): np.array([[[0.5, 0.7, 3.0]]])})
    assert pull(KlToGo(2.0), going) == pytest.approx([-0.35, 0, 0])  # -2 x .7 x .25; nothing after the last
