import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.batch_weights import BatchNormalised, SecondMoment
from sim.learning.view import View, log_ratio
from sim.learning.weights import Bounded, Product, Region, Unweighted, Weight, ppo_clip
from sim.records.config import ConfigError

LOGP = hnp.arrays(float, (2, 3, 4), elements=st.floats(-8, 0))
SIGNED = hnp.arrays(float, (2, 3, 1), elements=st.floats(-3, 3))
MASK = hnp.arrays(bool, (2, 3, 4))


def clip(ratio, A, low=0.2, high=0.2):
    """The weights of tokens with these ratios and advantages."""
    logp = np.log(np.array(ratio, float)).reshape(1, -1, 1)
    advantage = np.array(A, float).reshape(1, -1, 1)
    return ppo_clip(low, high)(View.of(logp, np.zeros_like(logp), advantage, np.ones(logp.shape, bool)))


@pytest.mark.parametrize(
    ("ratio", "A", "weight", "binding", "outside"),
    [
        (1.0, 1, 1.0, False, False),
        (1.1, 1, 1.1, False, False),
        (1.5, 1, 0.0, True, True),  # A > 0 above: no reason to go further
        (1.5, -1, 1.5, False, True),  # A < 0 above: must come back
        (0.5, 1, 0.5, False, True),  # A > 0 below: must come back
        (0.5, -1, 0.0, True, True),  # A < 0 below: no reason to go further
        (9.0, -1, 9.0, False, True),  # unbounded: this is PPO's known hole
        (1.5, 0, 1.5, False, True),  # no advantage: the weight does not matter, nothing binds
    ],
)
def test_the_table_of_cases(ratio, A, weight, binding, outside):
    found = clip([ratio], [A])
    assert found.value.item() == pytest.approx(weight)
    assert found.unclamped.item() == pytest.approx(ratio)
    assert found.binding.item() is binding
    assert found.outside.item() is outside


def test_unequal_bounds():
    found = clip([1.25, 1.3, 0.85, 0.75], [1, 1, -1, -1], low=0.2, high=0.28)
    assert found.binding.ravel().tolist() == [False, True, False, True]


@given(LOGP, LOGP, SIGNED, MASK, st.floats(0.05, 0.9), st.floats(0.05, 3))
def test_the_weight_is_the_slope_of_the_clipped_objective(logp, behaviour, A, mask, low, high):
    def objective(x):
        rho = np.exp(x - behaviour)
        return np.minimum(rho * A, np.clip(rho, 1 - low, 1 + high) * A)

    found = ppo_clip(low, high)(View.of(logp, behaviour, A, mask))
    rho = np.exp(logp - behaviour)
    kink = (np.abs(rho - 1 + low) < 1e-3) | (np.abs(rho - 1 - high) < 1e-3)
    h = 1e-6
    slope = (objective(logp + h) - objective(logp - h)) / (2 * h)
    keep = mask & ~kink
    np.testing.assert_allclose((found.value * A)[keep], slope[keep], rtol=1e-5, atol=1e-6)


@given(LOGP, SIGNED, MASK)
def test_on_policy_every_weight_is_one(logp, A, mask):
    for weight in (ppo_clip(), Unweighted()):
        for behaviour in (logp, logp.copy()):  # told by identity or found by computing
            found = weight(View.of(logp, behaviour, A, mask))
            assert np.all(np.broadcast_to(found.value, logp.shape) == 1)
            assert found.binding is None or not found.binding.any()
            assert found.outside is None or not found.outside.any()


@given(LOGP, LOGP, SIGNED, MASK)
def test_unweighted_reports_the_ratio_and_does_not_use_it(logp, behaviour, A, mask):
    found = Unweighted()(View.of(logp, behaviour, A, mask))
    assert np.all(np.broadcast_to(found.value, logp.shape) == 1)
    np.testing.assert_allclose(found.unclamped, np.where(mask, np.exp(logp - behaviour), 1.0))


def test_a_masked_entry_is_masked_before_it_is_exponentiated():
    logp, behaviour = np.zeros((1, 1, 2)), np.array([[[0.0, -2000.0]]])
    mask = np.array([[[True, False]]])
    assert log_ratio(logp, behaviour, mask).tolist() == [[[0, 0]]]
    for weight in (ppo_clip(), Unweighted()):
        found = weight(View.of(logp, behaviour, np.ones((1, 1, 1)), mask))
        assert np.isfinite(np.broadcast_to(found.value, mask.shape)).all()
        assert found.unclamped.ravel().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 0.0}, "low = 0.0"),
        ({"low": 1.0}, r"low = 1.0 must lie in \(0, 1\)"),
        ({"high": 0.0}, "high = 0.0 must be"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ppo_clip(**options)


def test_scopes():
    assert {w.scope for w in (ppo_clip(), Unweighted())} == {"token"}
    assert isinstance(ppo_clip(), Weight)
    assert isinstance(Unweighted(), Weight)


# --- regions, levels, products ----------------------------------------------------------------------------------------


def one_token(weight, ratio, A=1.0, kappa=None):
    """w of single-token sequences; `ratio` is now against proximal, `kappa` proximal against behaviour."""
    now = np.log(np.atleast_1d(np.asarray(ratio, float))).reshape(1, -1, 1)
    proximal = np.zeros_like(now)
    behaviour = proximal if kappa is None else -np.log(np.atleast_1d(np.asarray(kappa, float))).reshape(1, -1, 1)
    mask = np.ones(np.broadcast_shapes(now.shape, behaviour.shape), bool)
    now, proximal = (np.broadcast_to(x, mask.shape) for x in (now, proximal))
    proximal = behaviour if kappa is None else proximal
    A = np.broadcast_to(np.asarray(A, float), mask.shape)
    return weight(View.of(now, behaviour, A, mask, proximal=proximal))


@pytest.mark.parametrize(
    ("weight", "ratios", "expected"),
    [
        (Bounded(positive=Region(high=5.0, outside="truncate")), [0.1, 1.64, 4.39, 9.0], [0.1, 1.64, 4.39, 5.0]),
        (Bounded(positive=Region(0.5, 2.0)), [0.4, 0.5, 2.0, 2.1], [0, 0.5, 2.0, 0]),
        (Bounded(positive=Region(0.5, 2.0, "truncate")), [0.4, 1.0, 2.1], [0.5, 1.0, 2.0]),
        (Bounded(positive=Region(0.5, 2.0), inside="one"), [0.4, 0.7, 2.1], [0, 1, 0]),
        (Bounded(), [0.01, 100.0], [0.01, 100.0]),
        (SecondMoment(0.1, of="all"), np.exp([0.0, 0.1, -0.5, 0.9]), [1.0, np.exp(0.1), np.exp(-0.5), 0]),
        (SecondMoment(0.1), np.exp([0.0, 0.1, -0.9, 0.9]), [1.0, np.exp(0.1), np.exp(-0.9), 0]),
    ],
)
def test_regions_by_hand(weight, ratios, expected):
    found = one_token(weight, ratios)
    assert np.broadcast_to(found.value, (1, len(ratios), 1)).ravel() == pytest.approx(expected)
    assert found.unclamped.ravel() == pytest.approx(ratios if getattr(weight, "inside", "") != "one" else [1])


def test_the_sign_of_the_advantage_chooses_the_region():
    tapered = Bounded(
        positive=Region(high=2.0), negative=Region(high=1.0, outside="truncate")
    )  # zero above 2 where A > 0, truncated at 1 where A < 0
    assert one_token(tapered, [0.5, 1.5, 3.0], A=1).value.ravel() == pytest.approx([0.5, 1.5, 0])
    assert one_token(tapered, [0.5, 1.5, 3.0], A=-1).value.ravel() == pytest.approx([0.5, 1, 1])


def test_a_dual_clip_caps_what_a_single_one_lets_through():
    assert one_token(ppo_clip(dual=3.0), [0.5, 2.5, 9.0], A=-1).value.ravel() == pytest.approx([0, 2.5, 0])
    assert one_token(ppo_clip(), [0.5, 2.5, 9.0], A=-1).value.ravel() == pytest.approx([0, 2.5, 9.0])


def test_a_product_multiplies_values_and_joins_what_bound():
    weight = Product((Bounded("proximal/behaviour", positive=Region(0.5, 2.0)), ppo_clip()))
    found = one_token(weight, [1.1, 1.1, 1.5], kappa=[1.5, 3.0, 1.5])
    assert found.value.ravel() == pytest.approx([1.65, 0, 0])
    assert found.unclamped.ravel() == pytest.approx([1.65, 3.3, 2.25])
    assert found.binding.ravel().tolist() == [False, True, True]
    assert Product((ppo_clip(), Bounded(level="geometric"))).scope == "sequence"
    with pytest.raises(ConfigError, match="a product of no weights"):
        Product(())


@given(LOGP, LOGP, SIGNED, MASK)
def test_normalised_over_the_batch_weights_average_to_one(logp, behaviour, A, mask):
    weight = BatchNormalised(Bounded("now/behaviour", positive=Region(0.2, 5.0)))
    assert weight.scope == "batch"
    found = np.broadcast_to(weight(View.of(logp, behaviour, A, mask)).value, mask.shape)
    kept = Bounded("now/behaviour", positive=Region(0.2, 5.0))(View.of(logp, behaviour, A, mask)).value
    if (np.broadcast_to(kept, mask.shape)[mask] > 0).any():
        assert found[mask].mean() == pytest.approx(1)
    else:
        assert (found[mask] == 0).all()


def masked_by_sorting(square, threshold):
    """The published procedure in plain Python: drop the largest until the mean of the rest is below the threshold."""
    order = sorted(range(len(square)), key=lambda i: -square[i])
    kept = set(range(len(square)))
    for i in order:
        if not kept or np.mean([square[j] for j in kept]) <= threshold:
            break
        kept.discard(i)
    return kept


@given(hnp.arrays(float, 12, elements=st.floats(-2, 2), unique=True), hnp.arrays(bool, 12), st.floats(0.01, 2))
def test_the_second_moment_mask_is_the_published_one(log, mask, threshold):
    squares = log * log
    if len(np.unique(squares.round(12))) < len(squares):
        return  # ties share a fate here and are broken by position there
    shape = (1, 3, 4)
    view = View.of(log.reshape(shape), np.zeros(shape), np.ones((1, 3, 1)), mask.reshape(shape))
    found = np.broadcast_to(SecondMoment(threshold, of="all")(view).value, shape).ravel()
    real = np.flatnonzero(mask)
    kept = {real[i] for i in masked_by_sorting(list(squares[mask]), threshold)}
    assert {i for i in real if found[i] > 0} == kept
    assert np.mean([squares[i] for i in kept]) <= threshold if kept else True


def test_tokens_of_one_square_share_a_fate():
    log = np.array([0.5, -0.5, 0.1, 0.0]).reshape(1, 1, 4)
    view = View.of(log, np.zeros_like(log), np.ones((1, 1, 1)), np.ones(log.shape, bool))
    found = SecondMoment(0.1, of="all")(view)  # mean of all .1275; without one of the pair .0867; both go
    assert found.value.ravel() == pytest.approx([0, 0, np.exp(0.1), 1])
    assert found.binding.ravel().tolist() == [True, True, False, False]


def test_a_product_over_many_tokens_is_clamped_before_it_overflows():
    log = np.full((1, 2, 3000), np.log(2))
    view = View.of(log, np.zeros_like(log), np.array([[[1.0], [-1.0]]]), np.ones(log.shape, bool))
    for region in (Region(high=2.0, outside="truncate"), Region(), Region(high=2.0)):
        found = Bounded(level="sequence", positive=region)(view)
        assert np.isfinite(found.unclamped).all()
        assert found.unclamped.min() > 1e153
        assert np.isfinite(found.value).all()
    assert Bounded(level="sequence", positive=Region(high=2.0, outside="truncate"))(view).value.max() == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Region(2.0, 1.0), "a region from 2.0 to 1.0 is empty"),
        (lambda: Region(-1.0), "a region from -1.0"),
        (lambda: SecondMoment(0.0), "threshold = 0.0 must be positive"),
        (lambda: ppo_clip(dual=0.5), "dual = 0.5 must be above 1"),
        (lambda: Bounded("now/then"), "Bounded.ratio"),
    ],
)
def test_empty_regions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
