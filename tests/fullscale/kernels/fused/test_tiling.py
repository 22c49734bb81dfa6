"""Pieces of the vocabulary, and plans."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels.contract import Tile, strips
from fullscale.kernels.fused.tiling import CHUNK, Piece, pieces, plan


def test_pieces_of_a_real_vocabulary():
    """Blocks of 19,008: nine strips of 2,048 and one of 576, so five strips and then the other five."""
    found = list(pieces(strips(152_064), kept=0))
    assert found[0] == Piece(0, 10_240, range(5))
    assert found[1] == Piece(10_240, 8_768, range(5, 10))
    assert len(found) == 16
    assert max(p.size for p in found) <= CHUNK


@given(st.integers(1, 60_000), st.sampled_from([1, 2, 4, 8]), st.data())
def test_pieces_hold_every_column_once(vocabulary, ranks, data):
    rank = data.draw(st.integers(0, ranks - 1))
    laid = strips(vocabulary, rank, ranks)
    kept = data.draw(st.integers(0, len(laid)))
    limit = data.draw(st.integers(1, 12_000))
    found = list(pieces(laid, kept, limit))
    at = 0
    for piece in found:
        assert piece.start == at
        assert piece.size == sum(len(laid[j]) for j in piece.strips)
        assert piece.size <= limit or len(piece.strips) == 1
        assert piece.strips.stop <= kept or piece.strips.start >= kept
        at += piece.size
    assert at == sum(map(len, laid))
    assert [j for piece in found for j in piece.strips] == list(range(len(laid)))


def test_plans():
    assert plan(Tile(), torch.bfloat16).tile == Tile(128, 256, 64)
    assert plan(Tile(), torch.bfloat16, heads=2).tile == Tile(128, 128, 64)
    assert plan(Tile(), torch.bfloat16, heads=2, bias=True).tile == Tile(128, 64, 64)
    assert plan(Tile(), torch.float32).tile == Tile(64, 64, 32)
    assert plan(Tile(16, 32, 16), torch.bfloat16, heads=2, bias=True).tile == Tile(16, 32, 16)
    assert plan(Tile(), torch.bfloat16).options["enable_fp_fusion"] is False
