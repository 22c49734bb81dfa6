import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fullscale.world.exact_match import exact_match, holds, normalise


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (" The  U.S.A. ", "usa"),
        ("a cat, an owl; the dog", "cat owl dog"),
        ("Theatre", "theatre"),  # an article is a word
        ("well-known", "wellknown"),
        ("São Tomé", "são tomé"),
        ("“quoted”", "“quoted”"),  # punctuation is ASCII's, as there
        ("The The", "the the"),
        ("!!!", "!!!"),
        (" ", ""),
    ],
)
def test_normal_form(text, normal):
    assert normalise(text) == normal


def test_any_gold_answer_will_do():
    assert exact_match("the United Kingdom.", ["UK", "United Kingdom"])
    assert not exact_match("United Kingdoms", ["UK", "United Kingdom"])
    assert not exact_match("It is the UK", ["UK"])


def test_an_empty_answer_is_never_right():
    assert not exact_match(" ", ["", "The", "!"])
    assert not exact_match("the", ["a"])
    assert exact_match("A", ["a"])


def steps(text):
    """The four steps one after the other, character by character."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@given(st.text(), st.text())
@example("An apple", "apple!")
@example("a", "the")
def test_it_agrees_with_the_published_rule_wherever_something_is_left(said, gold):
    for text in (said, gold):
        assert normalise(text) == (steps(text) or " ".join(text.lower().split()))
    if steps(said):
        assert exact_match(said, [gold]) == (steps(said) == steps(gold))


@pytest.mark.parametrize(
    ("text", "golds", "there"),
    [
        ("The capital is Paris, on the Seine.", ["paris"], True),
        ("Parisian life", ["Paris"], False),
        ("New  York-based", ["new york"], False),
        ("the city of New York.", ["Boston", "New York"], True),
        ("São Tomé lies in Africa", ["Sao Tome"], True),
        ("anything", [""], False),
        ("", ["x"], False),
    ],
)
def test_a_text_names_an_answer_as_whole_words(text, golds, there):
    assert holds(text, golds) is there
