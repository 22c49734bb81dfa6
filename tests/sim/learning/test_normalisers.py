import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, Normaliser, SequenceMean, TokenMean
from sim.records.config import ConfigError

# [Q, G, T]: ragged rollouts, some of them excluded (length 0 throughout).
MASKS = hnp.arrays(bool, hnp.array_shapes(min_dims=3, max_dims=3, min_side=1, max_side=4))
EVERY = [TokenMean(), SequenceMean(), ConstantLength(3.0), BatchMean(), *(MicrobatchMean(n) for n in (1, 2, 3, 16))]


def total(normaliser, values, mask):
    """The loss: every value times its factor, summed."""
    return float((np.broadcast_to(normaliser(mask.astype(float)), mask.shape) * values * mask).sum())


def ragged(*lengths, Q=1):
    """A mask [Q, G, T] of rollouts with these lengths."""
    return (np.arange(max(lengths)) < np.array(lengths)[:, None]).reshape(Q, -1, max(lengths))


# --- by hand: five tokens of loss 2 and one of loss 10 -----------------------------------------------------------------

VALUES = np.array([2.0, 10.0])[:, None]


@pytest.mark.parametrize(
    ("normaliser", "expected"),
    [
        (TokenMean(), 20 / 6),
        (SequenceMean(), (2 + 10) / 2),
        (ConstantLength(7.0), 20 / 14),
        (BatchMean(), 20 / 2),
        (MicrobatchMean(1), (2 + 10) / 2),
        (MicrobatchMean(2), 20 / 6),
    ],
)
def test_two_rollouts(normaliser, expected):
    assert total(normaliser, VALUES, ragged(5, 1)) == pytest.approx(expected)


def test_microbatches_follow_the_recorded_order_across_groups():
    # Two groups of three, micro-batches of four: the second group is cut after its first rollout.
    mask = ragged(1, 2, 3, 4, 5, 6, Q=2)
    factor = MicrobatchMean(4)(mask.astype(float))
    first, second = 1 / (1 + 2 + 3 + 4) / 2, 1 / (5 + 6) / 2
    assert factor.ravel() == pytest.approx([first] * 4 + [second] * 2)


def test_an_excluded_rollout_is_in_no_denominator():
    values, mask = np.ones((1, 4, 4)), ragged(4, 4, 0, 0)
    for normaliser in (TokenMean(), SequenceMean(), ConstantLength(4.0), MicrobatchMean(1), MicrobatchMean(2)):
        assert total(normaliser, values, mask) == pytest.approx(1.0)
    assert total(BatchMean(), values, mask) == pytest.approx(4.0)


@pytest.mark.parametrize("normaliser", EVERY, ids=str)
def test_a_batch_with_nothing_in_it_has_factors_of_zero(normaliser):
    assert np.all(normaliser(np.zeros((2, 3, 4))) == 0)


@pytest.mark.parametrize("normaliser", EVERY, ids=str)
def test_seeds_are_apart(normaliser):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 3, (5, 2, 3, 4)).astype(float)
    apart = np.stack([np.broadcast_to(normaliser(x), x.shape) for x in lengths])
    np.testing.assert_array_equal(np.broadcast_to(normaliser(lengths), lengths.shape), apart)
    assert apart.max() > 0


def test_lengths_in_tokens_weigh_a_turn_by_its_tokens():
    lengths = np.array([[[2.0, 6.0]], [[8.0, 0.0]]])
    assert TokenMean()(lengths).item() == pytest.approx(1 / 16)
    assert SequenceMean()(lengths).ravel() == pytest.approx([1 / 16, 1 / 16])


# --- properties -------------------------------------------------------------------------------------------------------


@given(MASKS)
def test_microbatches_of_one_are_the_sequence_mean(mask):
    one, mean = MicrobatchMean(1)(mask.astype(float)), SequenceMean()(mask.astype(float))
    np.testing.assert_allclose(one, mean, rtol=1e-14)


@given(MASKS, st.integers(0, 3))
def test_one_microbatch_is_the_token_mean(mask, more):
    Q, G, _ = mask.shape
    whole = MicrobatchMean(Q * G + more)(mask.astype(float))
    np.testing.assert_allclose(whole, np.broadcast_to(TokenMean()(mask.astype(float)), whole.shape), rtol=1e-14)


@given(MASKS, st.integers(1, 9))
def test_means_of_a_constant_are_that_constant(mask, size):
    assume(mask.any())
    for normaliser in (TokenMean(), SequenceMean(), MicrobatchMean(size)):
        assert total(normaliser, np.full(mask.shape, 3.0), mask) == pytest.approx(3.0)


@given(hnp.arrays(bool, st.tuples(st.just(2), st.integers(1, 3), st.integers(1, 4))), st.integers(1, 9), st.data())
def test_microbatch_mean_by_definition(mask, size, data):
    values = data.draw(hnp.arrays(float, mask.shape, elements=st.floats(-5, 5)))
    rows = list(zip(values.reshape(-1, mask.shape[-1]), mask.reshape(-1, mask.shape[-1]), strict=True))
    chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
    means = [
        sum((v * m).sum() for v, m in c) / sum(m.sum() for _, m in c) for c in chunks if any(m.any() for _, m in c)
    ]
    expected = sum(means) / len(means) if means else 0.0
    assert total(MicrobatchMean(size), values, mask) == pytest.approx(expected, abs=1e-12)


@given(MASKS, st.sampled_from(EVERY))
def test_padding_changes_nothing(mask, normaliser):
    padded = np.concatenate([mask, np.zeros_like(mask)], axis=-1)
    values = np.arange(mask.size, dtype=float).reshape(mask.shape)
    more = np.concatenate([values, np.full_like(values, 99.0)], axis=-1)
    assert total(normaliser, more, padded) == pytest.approx(total(normaliser, values, mask))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConstantLength(0.0), "length = 0.0 must be positive"),
        (lambda: MicrobatchMean(0), "size = 0 must be at least 1"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_they_are_normalisers():
    assert all(isinstance(n, Normaliser) for n in EVERY)
