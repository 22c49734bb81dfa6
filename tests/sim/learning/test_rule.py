import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.batch_weights import SecondMoment
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.rule import Batch, Rule
from sim.learning.weights import Bounded, Product, Region, Unweighted, ppo_clip

RULES = [
    Rule(credit=GroupCredit(std=std), weight=weight, normaliser=normaliser, penalties=penalties)
    for std in (True, False)
    for weight in (ppo_clip(0.2, 0.28), Unweighted())
    for normaliser in (TokenMean(), SequenceMean(), ConstantLength(4.0), BatchMean(), MicrobatchMean(3))
    for penalties in ((), (EntropyBonus(0.01), KlPerState(0.05)))
]


def batch(seed=0, Q=4, G=3, T=5, excluded=True):
    """A ragged batch with an excluded rollout, and log-probs now that differ from those at sampling."""
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < rng.integers(1, T + 1, (Q, G, 1))
    valid = np.ones((Q, G), bool)
    reward = rng.integers(0, 2, (Q, G)).astype(float)
    reward[0] = np.arange(G)  # at least one group that is not degenerate
    if excluded:
        valid[1, 0], reward[1, 0] = False, np.nan
    behaviour = np.log(rng.uniform(0.1, 0.9, (Q, G, T)))
    logp = behaviour + rng.normal(0, 0.3, (Q, G, T))
    return Batch(reward, mask, behaviour, valid), logp


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_one_group_by_hand():
    reward, mask = np.array([[1.0, 0.0]]), np.array([[[True, True], [True, False]]])
    behaviour = np.log(np.full((1, 2, 2), 0.5))
    logp = np.log(np.array([[[0.55, 0.7], [0.55, 0.9]]]))  # ratios 1.1, 1.4, 1.1
    rule = Rule(credit=GroupCredit(std=False), weight=ppo_clip(0.2, 0.2), normaliser=TokenMean())
    g = rule.coefficients(rule.prepare(Batch(reward, mask, behaviour)), logp).scalars["logp"]
    # A = +-.5 over 3 tokens; the second token is clipped, the last one masked
    assert g[0] == pytest.approx(np.array([[1.1 * 0.5 / 3, 0], [-1.1 * 0.5 / 3, 0]]))


def test_penalties_on_one_scalar_add_up():
    b, logp = batch()
    once = Rule(penalties=(EntropyBonus(0.03),))
    twice = Rule(penalties=(EntropyBonus(0.01), EntropyBonus(0.02)))
    one, two = (rule.coefficients(rule.prepare(b), logp).scalars["entropy"] for rule in (once, twice))
    assert one.max() > 0
    np.testing.assert_allclose(two, one)


def test_the_scope_is_that_of_the_weight():
    assert Rule().scope == ppo_clip().scope


def test_shapes_that_do_not_fit_are_refused():
    b, _ = batch()
    with pytest.raises(ValueError, match=r"mask \(4, 3, 5\) does not fit the reward \(4, 2\); expected \(4, 2, 5\)"):
        Rule().prepare(Batch(b.reward[:, :2], b.mask, b.behaviour))
    with pytest.raises(ValueError, match=r"behaviour \(4, 3, 2\) does not fit"):
        Rule().prepare(Batch(b.reward, b.mask, b.behaviour[..., :2]))


# --- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{RULES.index(r)}")
def test_masked_and_excluded_tokens_get_exactly_nothing(rule):
    b, logp = batch()
    kept = b.mask & b.valid[..., None]
    c = rule.coefficients(rule.prepare(b), logp)
    for g in c.scalars.values():
        assert np.all(g[~kept] == 0)
        assert np.all(np.isfinite(g))
    assert np.abs(c.scalars["logp"]).max() > 0
    # what stands in the masked places cannot matter
    junk = np.where(kept, b.behaviour, -1e6), np.where(kept, logp, 0.0)
    again = rule.coefficients(rule.prepare(Batch(b.reward, b.mask, junk[0], b.valid)), junk[1])
    for name, g in c.scalars.items():
        np.testing.assert_array_equal(again.scalars[name], g)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{RULES.index(r)}")
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_gradient_does_not_depend_on_execution(rule, groups):
    """Cut into 4, 2 or 1 micro-batches of groups: the same coefficients, so the same parameter gradient."""
    b, logp = batch()
    prepared = rule.prepare(b)
    whole = rule.coefficients(prepared, logp)
    rng = np.random.default_rng(1)
    jacobian = {name: rng.normal(size=(*b.mask.shape, 6)) for name in whole.scalars}  # d scalar / d parameter

    def parameter_gradient(c, index):
        return sum(np.einsum("qgt,qgtp->p", c.scalars[name], jacobian[name][index]) for name in c.scalars)

    total = np.zeros(6)
    for start in range(0, 4, groups):
        index = slice(start, start + groups)
        total += parameter_gradient(rule.coefficients(prepared.cut("groups", index), logp[index]), index)
    expected = parameter_gradient(whole, slice(None))
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(total, expected, rtol=1e-12)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{RULES.index(r)}")
def test_micro_batches_in_any_order(rule):
    b, logp = batch(seed=3)
    prepared = rule.prepare(b)
    whole = rule.coefficients(prepared, logp).scalars
    for index in (np.array([2, 0]), np.array([3]), np.array([1])):
        part = rule.coefficients(prepared.cut("groups", index), logp[index]).scalars
        for name, g in part.items():
            np.testing.assert_array_equal(g, whole[name][index])


@given(st.integers(0, 10_000), st.sampled_from(RULES))
def test_a_block_of_seeds_is_its_seeds_one_by_one(seed, rule):
    parts = [batch(seed + i) for i in range(3)]
    stacked = Batch(*(np.stack([getattr(b, n) for b, _ in parts]) for n in ("reward", "mask", "behaviour", "valid")))
    block = rule.coefficients(rule.prepare(stacked), np.stack([logp for _, logp in parts]))
    for i, (b, logp) in enumerate(parts):
        alone = rule.coefficients(rule.prepare(b), logp)
        for name, g in alone.scalars.items():
            np.testing.assert_array_equal(block.scalars[name][i], g)


@given(st.integers(0, 10_000), st.sampled_from(RULES), st.randoms(use_true_random=False))
def test_the_order_of_groups_does_not_matter(seed, rule, random):
    assume(not isinstance(rule.normaliser, MicrobatchMean))  # for which the recorded order is part of the objective
    b, logp = batch(seed)
    order = list(range(4))
    random.shuffle(order)
    shuffled = Batch(b.reward[order], b.mask[order], b.behaviour[order], b.valid[order])
    expected = rule.coefficients(rule.prepare(b), logp).scalars
    for name, g in rule.coefficients(rule.prepare(shuffled), logp[order]).scalars.items():
        np.testing.assert_allclose(g, expected[name][order], rtol=1e-12, atol=1e-15)


@given(hnp.arrays(float, (2, 3, 4), elements=st.floats(-3, 0)), st.sampled_from(RULES))
def test_no_valid_rollout_gives_zero_and_no_nan(logp, rule):
    nothing = Batch(np.full((2, 3), np.nan), np.ones((2, 3, 4), bool), logp.copy(), np.zeros((2, 3), bool))
    for g in rule.coefficients(rule.prepare(nothing), logp).scalars.values():
        assert np.all(g == 0)


@given(st.integers(0, 10_000))
def test_lengths_of_one_are_no_lengths(seed):
    b, logp = batch(seed)
    rule = Rule(normaliser=SequenceMean())
    ones = Batch(b.reward, b.mask, b.behaviour, b.valid, lengths=np.ones(b.mask.shape))
    same, twice = (rule.coefficients(rule.prepare(x), logp).scalars["logp"] for x in (b, ones))
    np.testing.assert_array_equal(same, twice)
    double = Batch(b.reward, b.mask, b.behaviour, b.valid, lengths=np.full(b.mask.shape, 2.0))
    np.testing.assert_allclose(rule.coefficients(rule.prepare(double), logp).scalars["logp"], same / 2)


def test_what_does_not_change_is_computed_once_and_not_shared_by_micro_batches():
    rng = np.random.default_rng(3)
    mask = np.ones((4, 2, 3), bool)
    behaviour, proximal = rng.normal(-1, 0.3, (2, *mask.shape))
    kappa = Bounded("proximal/behaviour", positive=Region(0.8, 1.2))
    rule = Rule(weight=Product((kappa, ppo_clip())))
    prepared = rule.prepare(Batch(rng.normal(size=(4, 2)), mask, behaviour, proximal=proximal))
    first, again = (rule.coefficients(prepared, proximal + shift) for shift in (0.1, -0.1))
    assert list(prepared.fixed) == [kappa]
    assert first.weights.bounds[0] is again.weights.bounds[0]
    assert first.weights.bounds[1] is not again.weights.bounds[1]
    part = prepared.cut("groups", slice(1, 3))
    found = rule.coefficients(part, proximal[1:3] + 0.1).scalars["logp"]
    np.testing.assert_array_equal(found, first.scalars["logp"][1:3])


def test_a_cut_that_would_divide_the_scope_is_refused_by_name():
    mask = np.ones((4, 2, 3), bool)
    batch = Batch(np.arange(8.0).reshape(4, 2), mask, np.zeros(mask.shape))
    logp = np.linspace(-0.5, 0.5, 24).reshape(mask.shape)
    for weight, along in ((SecondMoment(0.01), "groups"), (Bounded(level="sequence"), "tokens")):
        rule = Rule(weight=weight)
        prepared = rule.prepare(batch)
        with pytest.raises(ValueError, match=rf"needs a whole {rule.scope} in view and a cut along {along} would"):
            prepared.cut(along, slice(0, 1))
        scored = rule.coefficients(prepared, logp)  # the way out: score the batch, then cut
        part = scored.cut(along, slice(0, 1))["logp"]
        expected = scored.scalars["logp"]
        np.testing.assert_array_equal(part, expected[:1] if along == "groups" else expected[..., :1])
    with pytest.raises(ValueError, match="along = 'turns' must be one of 'groups', 'rollouts', 'tokens'"):
        Rule().prepare(batch).cut("turns", slice(0, 1))
