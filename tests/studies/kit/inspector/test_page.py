import base64
import hashlib
import html.parser
import re
from pathlib import Path

import pytest

import studies.kit
from studies.kit.inspector.page import page, write
from tests.studies.kit.inspector.test_browser_looks import many
from tests.studies.kit.inspector.test_browser_safety import hostile_run

TEMPLATES = Path(studies.kit.__file__).parent / "templates"
SOURCES = [
    TEMPLATES / "inspector.html.j2",
    TEMPLATES / "inspector.css",
    *sorted((TEMPLATES / "inspector").glob("*.js")),
]


class Elements(html.parser.HTMLParser):
    """Tags, and the text of scripts and styles by (tag, id)."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.metas = [], {}, {}
        self.here = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        own = dict(attributes)
        self.tags.append((tag, tuple(sorted(own))))
        if tag == "meta":
            self.metas[own.get("http-equiv", own.get("name"))] = own.get("content")
        self.here = (tag, own.get("id", "")) if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self.here = None

    def handle_data(self, data):
        if self.here:
            self.inside[self.here] = self.inside.get(self.here, "") + data


def test_the_policy_admits_this_script_and_style_and_nothing_else(sample):
    found = Elements(page([sample], "x"))
    policy = found.metas["Content-Security-Policy"]
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(found.inside[tag, ""].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


def test_hostile_texts_add_no_element(sample):
    """Scripts of data come with steps; beyond them the page of any run has the same elements."""

    def elements(run):
        return [each for each in Elements(page([run], "x")).tags if each != ("script", ("id", "type"))]

    assert elements(hostile_run()) == elements(sample)


def test_the_title_is_escaped(sample):
    text = page([sample], "<b>&\"'")
    assert "<h1>&lt;b&gt;&amp;&#34;&#39;</h1>" in text
    assert "<b>&" not in text


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_sources_never_make_elements_of_text(path):
    text = path.read_text(encoding="utf-8")
    for way in (
        "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "DOMParser", "javascript:",
        "createContextualFragment", ".href", ".src", "fetch(", "XMLHttpRequest", "import(", "https://", "url(", "@import",
    ):  # fmt: skip
        assert way not in text, way
    assert not re.search(r"\son\w+=", text)


def test_the_page_is_the_same_each_time(sample):
    assert page([sample, hostile_run()], "x") == page([sample, hostile_run()], "x")


def test_no_run_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        page([], "x")


def test_the_file_is_written_into_a_new_folder(sample, tmp_path):
    path = write(tmp_path / "new" / "page.html", [sample], "x")
    assert path.read_bytes() == page([sample], "x").encode()


def test_five_thousand_rollouts_of_two_kilobytes_stay_small():
    run = many(5_000)
    words = sum(len(turn.generated) + len(turn.observed) for episode in run.episodes for turn in episode.turns)
    assert words > 10_000_000
    size = len(page([run], "x"))
    assert size < 15_000_000
    assert size < words  # packed, with index and script
