import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.records.rng import BlockStream, normals, stream_key, uniforms

SEEDS = st.integers(0, 2**63 - 1)
STEPS = st.integers(0, 2**40)
NAMES = st.text(min_size=1, max_size=20)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 5))


def test_a_draw_has_a_name_and_a_value():
    """On record: a change of these numbers changes every run that was ever recorded."""
    assert stream_key("demo/rollout") == 4239937857000393619
    u, z = uniforms(3, "demo/rollout", 7, (3,)), normals(3, "demo/rollout", 7, (3,))
    assert (u.dtype, z.dtype) == (np.float32, np.float64)
    assert (u.astype(float) * 2**24).tolist() == [13243885, 9761391, 10918289]
    assert z == pytest.approx([-1.0680378120749143, -0.45396131677358836, -0.17131904907029102], rel=1e-15)


@given(SEEDS, NAMES, STEPS)
def test_key_and_counter_are_as_documented(seed, stream, step):
    name = hashlib.blake2b(stream.encode(), digest_size=8).digest()
    key = np.array([int.from_bytes(name, "little"), seed], dtype=np.uint64)
    counter = np.array([0, 0, step, 0], dtype=np.uint64)
    here = np.random.Generator(np.random.Philox(key=key, counter=counter)).random(5, dtype=np.float32)
    assert here.tobytes() == uniforms(seed, stream, step, (5,)).tobytes()


@given(SEEDS, NAMES, STEPS, SHAPES)
def test_the_same_name_gives_the_same_bits(seed, stream, step, shape):
    for draw in (uniforms, normals):
        once = draw(seed, stream, step, shape)
        draw(seed, stream, step + 1, shape)  # what is drawn in between does not matter
        assert once.tobytes() == draw(seed, stream, step, shape).tobytes()


@given(SEEDS, NAMES, STEPS)
def test_another_seed_stream_or_step_gives_other_bits(seed, stream, step):
    draws = [
        uniforms(seed, stream, step, (8,)),
        uniforms((seed + 1) % 2**63, stream, step, (8,)),
        uniforms(seed, stream + "x", step, (8,)),
        uniforms(seed, stream, step + 1, (8,)),
    ]
    assert len({d.tobytes() for d in draws}) == 4


@given(st.lists(SEEDS, min_size=1, max_size=5, unique=True), NAMES, st.lists(STEPS, min_size=1, max_size=4), SHAPES)
def test_a_block_holds_what_each_seed_draws_alone(seeds, stream, steps, shape):
    block = BlockStream(tuple(seeds), stream)
    for step in steps:  # in any order, uniforms and normals mixed
        for drawn, draw in ((block.uniforms(step, shape), uniforms), (block.normals(step, shape), normals)):
            assert drawn.shape == (len(seeds), *shape)
            for row, seed in zip(drawn, seeds, strict=True):
                assert row.tobytes() == draw(seed, stream, step, shape).tobytes()


@given(SEEDS, NAMES, STEPS, st.integers(1, 6), st.integers(0, 6))
def test_a_longer_block_begins_with_the_shorter(seed, stream, step, turns, more):
    """Arms with another turn limit keep the draws of the turns they share."""
    short, long = (uniforms(seed, stream, step, (k, 2, 3)) for k in (turns, turns + more))
    assert short.tobytes() == long[:turns].tobytes()


@given(SEEDS, STEPS)
def test_uniforms_are_multiples_of_two_to_the_minus_24_below_one(seed, step):
    u = uniforms(seed, "multiples", step, (64,)).astype(float)
    assert np.all((u >= 0) & (u < 1))
    assert np.array_equal(u * 2**24, np.floor(u * 2**24))


def test_an_array_can_be_filled():
    block = BlockStream((5, 6), "fill")
    out = np.empty((2, 3), np.float32)
    assert block.uniforms(4, (3,), out=out) is out
    assert out.tobytes() == block.uniforms(4, (3,)).tobytes()


def test_uniforms_are_uniform_and_normals_normal():
    seeds = tuple(range(200))
    u = BlockStream(seeds, "distribution").uniforms(0, (500,)).astype(float)
    z = BlockStream(seeds, "distribution").normals(0, (500,))
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(u.ravel() ** 1.02, "uniform").pvalue < 1e-3  # the mutation: a slight bend is seen


@pytest.mark.parametrize("axis", ["seed", "stream", "step"])
def test_neighbours_are_uncorrelated(axis):
    n = 20_000
    if axis == "seed":
        rows = [uniforms(s, "neighbours", 0, (n,)) for s in (0, 1, 2)]
    elif axis == "stream":
        rows = [uniforms(0, s, 0, (n,)) for s in ("neighbours/a", "neighbours/b", "neighbours/c")]
    else:
        rows = [uniforms(0, "neighbours", s, (n,)) for s in (0, 1, 2)]
    r = np.corrcoef(rows)[np.triu_indices(3, 1)]
    assert np.abs(r).max() < 4 / np.sqrt(n)


def test_uniforms_and_normals_of_one_name_do_not_run_into_the_next_step():
    long = uniforms(0, "long", 0, (40_000,))
    following = uniforms(0, "long", 1, (1000,))
    windows = np.lib.stride_tricks.sliding_window_view(long, 8)
    assert not (windows == following[:8]).all(1).any()


def test_stream_keys_are_the_same_in_every_process(fresh_python):
    shown = "stream_key('study/turn'), uniforms(3, 'study/turn', 7, (2,)).tobytes().hex()"
    program = f"from sim.records.rng import *; print({shown})"
    here = f"{stream_key('study/turn')} {uniforms(3, 'study/turn', 7, (2,)).tobytes().hex()}"
    for hash_seed in (0, 1):
        assert fresh_python(program, hash_seed=hash_seed).strip() == here


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match=rf"seed {seed} is outside \[0, 2\*\*63\)"):
        uniforms(seed, "x", 0, (1,))


def test_a_stream_without_a_name_is_refused():
    with pytest.raises(ValueError, match="a stream needs a name"):
        uniforms(0, "", 0, (1,))


@pytest.mark.parametrize("step", [-1, 2**64])
def test_a_step_out_of_range_is_refused(step):
    with pytest.raises((ValueError, OverflowError)):
        uniforms(0, "x", step, (1,))
