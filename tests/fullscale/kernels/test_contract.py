"""The layout of the vocabulary: a function of its size and of nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels.contract import BLOCKS, STRIP, Strip, Tile, shard, strips

vocabularies = st.one_of(st.integers(1, 64), st.integers(1, 200_000))
ranks = st.sampled_from((1, 2, 4, 8))


@given(vocabularies)
def test_strips_tile_the_vocabulary(V):
    found = strips(V)
    assert [j for s in found for j in (s.start, s.stop)][1:-1:2] == [s.start for s in found[1:]]
    assert (found[0].start, found[-1].stop) == (0, V)
    assert all(1 <= len(s) <= STRIP for s in found)


@given(vocabularies, ranks)
def test_the_strips_of_all_ranks_are_those_of_one(V, n):
    assert tuple(s for rank in range(n) for s in strips(V, rank, n)) == strips(V)


@given(vocabularies, ranks)
def test_no_strip_crosses_the_edge_of_a_shard(V, n):
    for rank in range(n):
        whole = shard(V, rank, n)
        assert all(whole.start <= s.start and s.stop <= whole.stop for s in strips(V, rank, n))
        assert sum(map(len, strips(V, rank, n))) == len(whole)


@given(vocabularies, ranks)
def test_shards_are_even_to_one_column(V, n):
    sizes = [len(shard(V, rank, n)) for rank in range(n)]
    assert sum(sizes) == V
    assert max(sizes) - min(sizes) <= 1


def test_the_vocabulary_of_a_large_model_by_hand():
    """152,064 = 8 blocks of 19,008 columns: nine strips of 2,048 and one of 576 in each."""
    found = strips(152_064)
    assert len(found) == 80
    assert [len(s) for s in found[:10]] == [2048] * 9 + [576]
    assert found[10] == Strip(19_008, 21_056)
    assert strips(152_064, 3, 4) == found[60:]


def test_a_vocabulary_that_eight_does_not_divide_by_hand():
    assert [shard(5003, rank, 4) for rank in range(4)] == [
        Strip(0, 1250),
        Strip(1250, 2501),
        Strip(2501, 3752),
        Strip(3752, 5003),
    ]
    assert [(s.start, s.stop) for s in strips(7)] == [(j, j + 1) for j in range(7)]
    assert strips(7, 0, 8) == ()  # the first of eight blocks of seven columns is empty
    assert strips(1) == (Strip(0, 1),)


@pytest.mark.parametrize("n", [-1, 0, 3, 5, 6, 16])
def test_ranks_that_blocks_cannot_be_dealt_to(n):
    with pytest.raises(ValueError, match=rf"ranks = {n} must be one of 1, 2, 4, 8"):
        shard(100, 0, n)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_none(rank):
    with pytest.raises(ValueError, match=rf"rank = {rank} must lie in 0 \.\. 1"):
        strips(100, rank, 2)


@pytest.mark.parametrize("V", [0, -8])
def test_a_vocabulary_without_columns(V):
    with pytest.raises(ValueError, match=f"vocabulary = {V} must be at least 1"):
        strips(V)


def test_a_strip_is_whole_tiles_of_the_fused_kernel():
    assert STRIP % Tile().columns == 0
    assert BLOCKS == 8
