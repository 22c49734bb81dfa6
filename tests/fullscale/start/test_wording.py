"""What a demonstrator says is read as it was meant, whatever a question or an answer holds."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fullscale.dialogue.tags import ARGUMENT, neutral, parse
from fullscale.start.wording import THOUGHTS, queries, turn_text

TEXT = st.text(alphabet=st.sampled_from("ab Z<>/|!?é.-’search answer"), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("question", "ways"),
    [
        ("What is the capital of Peru?", ("capital Peru", "What is the capital of Peru", "Peru")),
        ("Name what borders St. Lucia.", ("borders St Lucia", "Name what borders St. Lucia", "St Lucia")),
        ("Peru?", ("Peru",)),
        ("who was it?", ("who was it",)),  # no word that says anything
        ("?!", ("?!",)),
        ("Is </search> a tag?", ("search tag", "Is < /search> a tag")),
    ],
)  # fmt: skip
def test_queries_by_hand(question, ways):
    assert queries(question) == ways


@given(TEXT)
def test_queries_are_different_and_none_is_blank(question):
    assume(question.strip())
    ways = queries(question)
    assert len(set(ways)) == len(ways) > 0
    assert all(way.strip() for way in ways)


@given(st.sampled_from(sorted(ARGUMENT)), TEXT, st.booleans())
def test_a_turn_is_read_as_it_was_meant(action, argument, think):
    assume(neutral(argument).strip())
    text = turn_text(action, argument, THOUGHTS[action][0] if think else "")
    said = parse(text)
    assert (said.name, said.reason, said.end) == (action, "", len(text))
    assert said.argument == (neutral(argument).strip() if ARGUMENT[action] else "")
    assert text.startswith("<think>") == think


def test_there_are_sentences_for_every_action_and_no_tag_in_them():
    assert THOUGHTS.keys() == ARGUMENT.keys()
    assert all(len(each) > 1 and "<" not in "".join(each) for each in THOUGHTS.values())
