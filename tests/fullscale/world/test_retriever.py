import math
import threading

import numpy as np
import pytest

from fullscale.world.passages import Passage
from fullscale.world.retriever import BM25, corpus_key
from tests.fullscale.world.corpus import PASSAGES

bm25s = pytest.importorskip("bm25s", reason="needs bm25s (the extra `full`)")


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return BM25(PASSAGES, folder=tmp_path_factory.mktemp("index"))


def names(found):
    return [each.id for each in found]


def test_the_passage_that_answers_is_found(index):
    assert names(index.search("What is the capital of France?", 1)) == ["paris"]
    assert names(index.search("planet", 3)) == ["mercury"]


def test_accents_and_case_are_no_hindrance(index):
    assert names(index.search("SAO TOME", 1)) == ["st"]


@pytest.mark.parametrize("query", ["", "  ?!", "the of and", "xylophone"])
def test_nothing_that_is_known_finds_nothing(index, query):
    assert index.search(query, 3) == []
    assert not index.scores(query).any()


def test_more_than_there_are_gives_those_that_share_a_word(index):
    found = index.search("city", 1000)
    assert set(names(found)) == {"fr", "paris", "lyon", "st", "valencia", "boston", "hendaye"}


def test_at_least_one_is_asked_for(index):
    with pytest.raises(ValueError, match="k = 0"):
        index.search("city", 0)


def test_of_equals_the_earlier_comes_first(tmp_path):
    twins = [Passage(str(i), "", "few words" if i % 2 else "some more words") for i in range(3000)]
    assert names(BM25(twins, folder=tmp_path).search("words", 5)) == list("13579")


def test_scores_are_those_of_the_formula(tmp_path):
    texts = ["red fish", "red red bird", "blue"]
    index = BM25([Passage(str(i), "", text) for i, text in enumerate(texts)], folder=tmp_path)
    mean, idf = 2.0, {"red": math.log(1 + 1.5 / 2.5), "fish": math.log(1 + 2.5 / 1.5)}

    def term(word, text):
        count, length = text.split().count(word), len(text.split())
        return idf[word] * count / (count + 1.5 * (1 - 0.75 + 0.75 * length / mean))

    expected = [sum(term(word, text) for word in ("red", "fish")) for text in texts]
    assert expected[0] > 0.5
    np.testing.assert_allclose(index.scores("red fish"), expected, rtol=1e-6)


def test_stems_find_other_forms_of_a_word(tmp_path):
    pytest.importorskip("Stemmer", reason="needs PyStemmer")
    passages = [Passage("1", "", "rivers flowing north"), Passage("2", "", "a mountain")]
    assert names(BM25(passages, stem=True, folder=tmp_path).search("a river flows", 2)) == ["1"]
    assert BM25(passages, folder=tmp_path).search("a river flows", 2) == []  # another index, beside the first


def test_an_index_is_built_once_for_a_corpus(tmp_path, monkeypatch):
    first = BM25(PASSAGES, folder=tmp_path)
    monkeypatch.setattr(BM25, "_built", lambda self: pytest.fail("built again"))
    again = BM25(list(PASSAGES), folder=tmp_path)
    for query in ("capital city", "France", "Bolivia seat"):
        np.testing.assert_array_equal(first.scores(query), again.scores(query))
        assert first.scores(query).any()
    monkeypatch.undo()
    assert len(list((tmp_path / "bm25").iterdir())) == 1
    other = [Passage(each.id, each.title, each.text + "!") for each in PASSAGES]
    assert corpus_key(other) != corpus_key(PASSAGES)
    BM25(other, folder=tmp_path)
    assert len(list((tmp_path / "bm25").iterdir())) == 2


def test_by_default_it_is_kept_in_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    BM25(PASSAGES)
    assert len(list((tmp_path / "metastable" / "bm25").iterdir())) == 1


def test_of_two_that_build_at_once_the_first_is_kept(tmp_path, monkeypatch):
    built = BM25._built

    def slowly(self):
        monkeypatch.setattr(BM25, "_built", built)
        BM25(PASSAGES, folder=tmp_path)  # another process was faster
        return built(self)

    monkeypatch.setattr(BM25, "_built", slowly)
    assert names(BM25(PASSAGES, folder=tmp_path).search("planet", 1)) == ["mercury"]
    assert len(list((tmp_path / "bm25").iterdir())) == 1


def test_an_index_that_cannot_be_read_is_named(tmp_path):
    BM25(PASSAGES, folder=tmp_path)
    (folder,) = (tmp_path / "bm25").iterdir()
    (folder / "params.index.json").write_text("")
    with pytest.raises(RuntimeError, match=rf"{folder.name} cannot be read .*delete that folder"):
        BM25(PASSAGES, folder=tmp_path)


def test_nothing_to_search_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no passages"):
        BM25([], folder=tmp_path)
    with pytest.raises(ValueError, match="no word"):
        BM25([Passage("1", "", "the")], folder=tmp_path)
    assert list((tmp_path / "bm25").iterdir()) == []


def test_threads_find_what_one_finds(index):
    queries = ["capital of France", "city", "Bolivia", "Europe Africa"] * 8
    found = [None] * len(queries)

    def search(i):
        found[i] = names(index.search(queries[i], 3))

    threads = [threading.Thread(target=search, args=(i,)) for i in range(len(queries))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [names(index.search(query, 3)) for query in queries]
