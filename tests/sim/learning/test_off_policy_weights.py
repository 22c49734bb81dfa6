"""Which ratios keep their gradient: four losses at three ratios by finite differences, and ratios no number can hold.

The ratio is that of a rare action, of probability .006 when it was sampled: the token a clip loses first.
"""

import math

import numpy as np
import pytest

from sim.learning import family
from sim.learning.batch import Batch
from sim.learning.batch_weights import SecondMoment
from sim.learning.credit import GroupCredit, NoBaseline
from sim.learning.penalties import SampledKl
from sim.learning.rule import Rule
from sim.learning.view import View, exponential
from sim.learning.weights import Bounded, Product, Region, Unweighted, ppo_clip

RARE = 0.006

# eps of each: PPO .2/.2; CISPO high 4; K2.5 |log rho| <= .5; DIS .2/.28. The three frozen weights are stop-gradients.
LOSSES = {
    "PPO": lambda logp, frozen, A: -min(math.exp(logp) * A, min(max(math.exp(logp), 0.8), 1.2) * A),
    "CISPO": lambda logp, frozen, A: -min(math.exp(frozen), 1 + 4.0) * A * logp,
    "K2.5": lambda logp, frozen, A: -min(max(math.exp(logp), math.exp(-0.5)), math.exp(0.5)) * A,
    "DIS": lambda logp, frozen, A: -(math.exp(frozen) if 0.8 < math.exp(frozen) < 1.28 else 0.0) * A * logp,
}
"""Loss of one token by log rho (and log rho where it is not differentiated)."""

RULES = {
    "PPO": family.grpo(0.2, 0.2, kl=0.0),
    "CISPO": family.cispo(4.0),
    "K2.5": family.kimi_k25(-0.5, 0.5),
    "DIS": family.glm5(0.2, 0.28),
}

TABLE = [(1.64, 1.0, (0, 1.64, 1.64, 0)), (4.39, 1.0, (0, 4.39, 0, 0)), (0.61, -1.0, (0, 0.61, 0.61, 0))]


def log_p(z):
    """log pi of the rare action at log-odds `z`."""
    return -math.log1p(math.exp(-z))


@pytest.mark.parametrize(("rho", "A", "weights"), TABLE)
def test_weights_of_a_rare_action_by_finite_differences(rho, A, weights):
    p = rho * RARE
    z, old, h = math.log(p / (1 - p)), math.log(RARE), 1e-6
    now = log_p(z)
    slope = (log_p(z + h) - log_p(z - h)) / (2 * h)
    for (name, loss), expected in zip(LOSSES.items(), weights, strict=True):
        up, down = (loss(log_p(x) - old, now - old, A) for x in (z + h, z - h))
        w = -(up - down) / (2 * h) / (A * slope)
        assert w == pytest.approx(expected, rel=1e-6, abs=1e-9), name
        view = View.of(*(np.full((1, 1, 1), x) for x in (now, old, A)), np.ones((1, 1, 1), bool))
        assert RULES[name].weight(view).value.item() == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize(
    ("rho", "A", "w"),
    [(5.0, -1, 5.0), (3.0001, -1, 0.0), (2.9999, -1, 2.9999), (0.79, -1, 0.0), (1.21, 1, 0.0), (0.5, 1, 0.5)],
)
def test_the_dual_clip_bounds_what_ppo_leaves_open(rho, A, w):
    """A < 0 and rho above 3: the loss is capped at 3 |A|, so its slope is 0. Without it rho = 5 keeps its weight."""
    rule = ppo_clip() if rho == 5.0 else ppo_clip(dual=3.0)
    view = View.of(*(np.full((1, 1, 1), x) for x in (math.log(rho), 0.0, float(A))), np.ones((1, 1, 1), bool))
    assert rule(view).value.item() == pytest.approx(w)


# --- second moment ----------------------------------------------------------------------------------------------------


def kept(log_rho, A, threshold, **more):
    """Which tokens of one rollout each SecondMoment keeps."""
    logs, advantage = np.array(log_rho).reshape(1, -1, 1), np.array(A, float).reshape(1, -1, 1)
    view = View.of(logs, np.zeros_like(logs), advantage, np.ones(logs.shape, bool))
    found = SecondMoment(threshold, **more)(view)
    np.testing.assert_array_equal(found.binding, found.value == 0)
    return (found.value > 0).ravel().tolist()


def test_second_moment_by_hand():
    # moving away: .1, .3, .5 (A > 0, up) and -.2 (A < 0, down); squares .01 .09 .25 .04, mean .0975
    logs, A = [0.1, 0.3, 0.5, -0.2, -2.0, 2.0], [1, 1, 1, -1, 1, -1]
    assert kept(logs, A, 0.1) == [True] * 6
    assert kept(logs, A, 0.09) == [True, True, False, True, True, True]  # without .25: mean .0467
    assert kept(logs, A, 0.04) == [True, False, False, True, True, True]  # without .09: mean .025
    assert kept(logs, A, 0.02) == [True, False, False, False, True, True]
    assert kept(logs, A, 0.009) == [False, False, False, False, True, True]  # those that come back stay
    # over all tokens the two that come back weigh most: squares .01 .04 .09 .25 4 4
    assert kept(logs, A, 0.1, of="all") == [True, True, True, True, False, False]
    assert kept(logs, A, 0.04, of="all") == [True, False, False, True, False, False]  # at .09 the mean is .0467


def test_second_moment_of_equal_tokens_is_one_fate():
    assert kept([0.3, 0.3, 0.1], [1, 1, 1], 0.05) == [False, False, True]
    assert kept([0.1, 0.3, 0.3], [1, 1, 1], 0.05) == [True, False, False]


# --- F12, F20, F21: numbers -------------------------------------------------------------------------------------------


def one(rule, reward, now, old, mask, dtype=np.float64):
    """Coefficients of one rollout, [T]."""
    now, old, mask = (np.array(x).reshape(1, 1, -1) for x in (now, old, mask))
    batch = Batch(np.array([[reward]], dtype), mask.astype(bool), old.astype(dtype))
    return rule.coefficients(rule.prepare(batch), now.astype(dtype)).scalars["logp"][0, 0]


def test_f12_a_masked_entry_is_masked_before_it_is_exponentiated():
    rule = Rule(NoBaseline(), ppo_clip())
    assert one(rule, -1.0, [0, 0], [0, -200], [1, 0], np.float32).tolist() == [-1, 0]
    assert one(rule, 1.0, [0, 0], [0, -200], [1, 0], np.float32).tolist() == [1, 0]


@pytest.mark.parametrize("weight", [ppo_clip(), Unweighted(), Bounded(), Bounded(level="sequence")], ids=str)
def test_f12_no_advantage_is_no_gradient_however_large_the_ratio(weight):
    """exp(200) is infinite in float32, and infinity times an advantage of 0 is no number."""
    assert one(Rule(NoBaseline(), weight), 0.0, [0, 0], [0, -200], [1, 1], np.float32).tolist() == [0, 0]
    assert one(Rule(NoBaseline(), weight), 0.0, [0, 0], [0, -2000], [1, 1]).tolist() == [0, 0]


def test_f20_the_importance_weight_is_not_differentiated():
    """-sg(e^t) t at t = ln 2 has slope -2; differentiating e^t t as well gives -(2 + 2 ln 2) = -3.386."""
    for rule in (family.cispo(4.0), Rule(NoBaseline(), Bounded("now/behaviour"))):
        plain = Rule(NoBaseline(), rule.weight)
        assert one(plain, 1.0, [math.log(2)], [0.0], [1]).tolist() == pytest.approx([2.0])


REGIONS = {
    "zero": Region(0.5, 2.0),
    "truncate": Region(0.5, 2.0, "truncate"),
    "high only": Region(high=2.0, outside="truncate"),
    "none": Region(),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("ratio", "tokens"), [(0.7, 300), (1.5, 3000), (0.6, 3000)])
@pytest.mark.parametrize("mode", REGIONS)
def test_f21_products_and_means_in_log_space(mode, ratio, tokens, dtype):
    """300 tokens at .7: the product is 3.4e-47, the geometric mean .7. Nothing is infinite or no number in any mode."""
    now = np.full((1, 1, tokens), math.log(ratio), dtype)
    view = View.of(now, np.zeros_like(now), np.ones((1, 1, 1), dtype), np.ones(now.shape, bool))
    region = REGIONS[mode]
    geometric = Bounded("now/behaviour", "geometric", region)(view)
    assert geometric.unclamped.item() == pytest.approx(ratio, rel=1e-5)
    assert geometric.value.item() == pytest.approx(ratio, rel=1e-5)  # inside [.5, 2]
    product = Bounded("now/behaviour", "sequence", region)(view)
    assert np.isfinite(product.value).all()
    assert np.isfinite(product.unclamped).all()
    high, low = ratio > 1, 0.0 if region.low == 0 or region.outside == "zero" else region.low
    expected = {"none": product.unclamped.item(), "zero": 0.0}.get(mode, 2.0 if high else low)
    if mode == "high only" and not high:
        expected = product.unclamped.item()
    assert product.value.item() == pytest.approx(expected)
    assert product.value.dtype == dtype


def test_f21_the_unclamped_product_is_reported():
    """What a clamp hides is on record: exact as far as numbers reach, and from there on the largest that can be squared."""

    def product(ratio, tokens, dtype=np.float64):
        now = np.full((1, 1, tokens), math.log(ratio), dtype)
        view = View.of(now, np.zeros_like(now), np.ones((1, 1, 1), dtype), np.ones(now.shape, bool))
        found = Bounded("now/behaviour", "sequence", Region(0.5, 2.0))(view)
        assert found.binding.all()
        assert found.outside.all()
        return found.unclamped.item()

    assert product(0.7, 300) == pytest.approx(3.4e-47, rel=0.02)
    assert product(2.0, 500) == pytest.approx(2.0**500, rel=1e-9)
    assert product(2.0, 3000) == pytest.approx(8.1e153, rel=0.01)
    assert product(2.0, 3000, np.float32) == pytest.approx(1.1e19, rel=0.05)
    for dtype in (np.float32, np.float64):
        top = exponential(np.array([1e6], dtype))
        assert top.dtype == dtype
        assert np.isfinite(top * top).all()  # kappa x rho, each beyond every number


def test_f21_a_product_of_two_ratios_and_a_penalty_stay_finite():
    now, old, mu = (np.full((1, 1, 2000), x) for x in (-0.1, -3.0, -6.0))
    view = View.of(now, mu, np.array([[[-1.0]]]), np.ones(now.shape, bool), proximal=old, reference=now + 3000.0)
    both = Product((Bounded("proximal/behaviour", "sequence"), Bounded("now/proximal", "sequence")))(view)
    assert np.isfinite(both.value).all()
    for estimator in ("k1", "k2", "k3"):
        for correction in ("none", "detached", "differentiated"):
            assert np.isfinite(SampledKl(0.1, estimator, correction)(view)).all()


@pytest.mark.parametrize("name", family.__all__)
def test_f21_every_rule_gives_numbers_when_policies_have_nothing_in_common(name):
    """log-ratios of +-400 over 50 tokens, advantages of both signs and 0: no infinity, no NaN, in either precision."""
    rng = np.random.default_rng(0)
    shape = (3, 4, 50)
    for dtype in (np.float32, np.float64):
        logs = [(-np.abs(rng.normal(0, 200, shape))).astype(dtype) for _ in range(4)]
        reward = rng.normal(size=shape[:2]).astype(dtype)
        reward[1] = 1.0
        ones = np.ones(shape, bool)
        batch = Batch(
            reward, ones, logs[0], proximal=logs[1], reference=logs[2], turn=np.zeros(shape, int),
            state=np.zeros(shape, int), process_reward=np.zeros(shape, dtype), greedy_reward=np.zeros(3, dtype),
            duration_s=np.ones(shape[:2], dtype),
        )  # fmt: skip
        rule = getattr(family, name)()
        found = rule.coefficients(rule.prepare(batch), logs[3])
        assert np.isfinite(found.scalars["logp"]).all()
        assert np.isfinite(found.weights.unclamped).all()


def test_f14_one_pass_variance_would_explode():
    """The least of seven equal rewards and one other: the others of the singleton have no spread at all."""
    from sim.learning.credit import LeaveOneOut

    for dtype in (np.float32, np.float64):
        for x in (0.35, 0.4, 0.3):
            found = LeaveOneOut(std=True)(Batch(np.array([[0.0] + [x] * 7], dtype))).value[0, :, 0]
            assert found[0] == pytest.approx(-x, rel=1e-6)
            # seven others: six x and the 0; mean 6x/7, so x/7 above it, over their sd sqrt(6/7 x 1/7 x 7/6) x = x / sqrt(7)
            assert found[1:] == pytest.approx(np.full(7, 1 / math.sqrt(7)), rel=1e-5)
            flat = GroupCredit()(Batch(np.array([[x] * 8], dtype)))
            assert not flat.value.any()
            assert flat.degenerate.all()
