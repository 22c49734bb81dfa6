import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.tools.reading import chunks


def test_pieces_keep_the_text_between_their_words():
    assert chunks(" one  two\nthree four five ", 2) == ("one  two", "three four", "five")


def test_a_word_without_end_is_cut():
    assert chunks("x" * 100, 1) == ("x" * 40, "x" * 40, "x" * 20)


def test_nothing_has_no_pieces():
    assert chunks(" \n", 3) == ()


@given(st.text(), st.integers(1, 7))
def test_nothing_is_lost_but_white_space(text, words):
    pieces = chunks(text, words)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    counts = [sum(-(-len(word) // 40) for word in piece.split()) for piece in pieces]
    assert all(count == words for count in counts[:-1])
    assert all(1 <= count <= words for count in counts[-1:])


def test_a_piece_holds_a_word():
    with pytest.raises(ValueError, match="words = 0"):
        chunks("a", 0)
