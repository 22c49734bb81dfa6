import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimodel.model import vocabulary
from minimodel.model.vocabulary import DECISIONS, SPECIALS, Vocabulary

SIZES = st.builds(
    Vocabulary,
    entities=st.integers(1, 9),
    relations=st.integers(1, 5),
    answers=st.integers(2, 9),
    fillers=st.integers(1, 5),
)


def test_the_default_has_144_words_in_a_fixed_order():
    words = Vocabulary()
    assert (words.first_filler, words.first_entity, words.first_relation, words.first_answer) == (16, 24, 72, 80)
    assert words.size == 144
    assert (words.filler(7), words.entity(0), words.relation(7), words.answer(63)) == (23, 24, 79, 143)


def test_specials_are_where_the_others_expect_them():
    first = ("PAD", "BOS", "QUESTION", "SEARCH", "ANSWER", "READ", "VERIFY")
    last = ("END", "DOCUMENT", "WRONG", "PASS", "REJECT", "INVALID", "NOTHING")
    assert [getattr(vocabulary, name) for name in first + last] == list(range(14))
    assert {Vocabulary().decision(a) for a in ("search", "answer", "read", "verify")} == {3, 4, 5, 6}
    assert all(Vocabulary().word(i) == a for a, i in DECISIONS.items())


@given(SIZES)
def test_every_id_is_one_word(words):
    spelled = [words.word(i) for i in range(words.size)]
    assert len(set(spelled)) == words.size
    made = [
        *(words.filler(i) for i in range(words.fillers)),
        *(words.entity(i) for i in range(words.entities)),
        *(words.relation(i) for i in range(words.relations)),
        *(words.answer(i) for i in range(words.answers)),
    ]
    assert made == list(range(SPECIALS, words.size))
    assert spelled[words.answer(1)] == "a1"


def test_arrays_of_numbers_give_arrays_of_ids():
    words = Vocabulary()
    assert words.answer(np.array([[0, 9], [63, 1]])).tolist() == [[80, 89], [143, 81]]
    assert words.entity(np.array([], np.int64)).shape == (0,)


@pytest.mark.parametrize(("give", "said"), [(64, "answer 64 is outside"), (np.array([3, -1]), "answer -1 is outside")])
def test_a_number_outside_its_class_is_named(give, said):
    with pytest.raises(ValueError, match=said):
        Vocabulary().answer(give)


@given(SIZES)
def test_questions_are_numbered_by_entity_then_relation(words):
    e, r = np.divmod(np.arange(words.entities * words.relations), words.relations)
    assert words.question(words.entity(e), words.relation(r)).tolist() == list(range(len(e)))


def test_text_is_readable():
    words = Vocabulary()
    ids = [1, 2, 41, 75, 18, 21, 3, 41, 75, 8, 89, 16, 4, 89, 7, 9, 13, 12]
    assert (
        words.text(ids) == "<bos> question e17 r3 ~2 ~5 search e17 r3 [document a9] ~0 answer a9 end [wrong] [invalid]"
    )
    with pytest.raises(ValueError, match="id 144 is outside"):
        words.text([144])


def test_an_unknown_action_is_named_with_its_neighbour():
    with pytest.raises(ValueError, match="'serach'; did you mean search"):
        Vocabulary().decision("serach")


def test_a_vocabulary_needs_two_answers():
    with pytest.raises(ValueError, match="answers = 1"):
        Vocabulary(answers=1)
