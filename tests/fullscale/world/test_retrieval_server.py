"""A server that speaks Search-R1's protocol: what is asked of it, what is made of its replies, and what is refused."""

import json
from contextlib import contextmanager

import pytest

from fullscale.environment import Environment, Task
from fullscale.tools.toolbox import Patience, Toolbox
from fullscale.world.passages import Passage
from fullscale.world.questions import Question
from fullscale.world.retrieval_server import RetrievalServer
from sim.mdp.worlds import World
from sim.records.tables import Outcome
from tests.fullscale.engine.http.standin import DropError, Server, standing

PARIS = {"id": "7", "contents": '"Paris"\nParis is the capital of France.\nIt is large.'}
OSLO = {"contents": "Oslo\nOslo is the capital of Norway."}
REPLY = {"result": [[{"document": PARIS, "score": 12.5}, {"document": OSLO, "score": 1.0}]]}
FOUND = [
    Passage("7", "Paris", "Paris is the capital of France.\nIt is large."),
    Passage("1", "Oslo", "Oslo is the capital of Norway."),
]


@contextmanager
def replying(said, status=200):
    def hook(path, body):
        if isinstance(said, Exception):
            raise said
        return status, said

    with standing(Server(hook=hook)) as server:
        yield server, RetrievalServer(f"{server.url}/retrieve", 5.0)


def test_the_request_and_the_reply_word_for_word():
    with replying(REPLY) as (server, retriever):
        assert retriever.search("capital of Fränce?", 3) == FOUND
        assert server.seen == [
            ("/retrieve", {"queries": ["capital of Fränce?"], "topk": 3, "return_scores": True}),
        ]


def test_documents_may_stand_without_scores():
    with replying({"result": [[PARIS, OSLO]]}) as (_, retriever):
        assert retriever.search("x", 2) == FOUND


def test_no_more_than_were_asked_for():
    with replying(REPLY) as (server, retriever):
        assert retriever.search("x", 1) == FOUND[:1]
        assert server.seen[0][1]["topk"] == 1


def test_nothing_may_be_found():
    with replying({"result": [[]]}) as (_, retriever):
        assert retriever.search("x", 3) == []


@pytest.mark.parametrize(
    ("contents", "title"),
    [('"Paris"\nA.', "Paris"), ("Paris\nA.", "Paris"), ('"\nA.', '"'), ('"A" and "B"\nA.', 'A" and "B')],
)
def test_titles_lose_their_quotation_marks(contents, title):
    with replying({"result": [[{"contents": contents}]]}) as (_, retriever):
        (found,) = retriever.search("x", 1)
    assert (found.title, found.text) == (title, "A.")


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        "paris",
        None,
        {"result": []},
        {"result": [[], []]},
        {"result": [None]},
        {"result": {"documents": []}},
        {"result": [["Paris is the capital of France."]]},
        {"result": [[{"document": "Paris"}]]},
        {"result": [[{"document": {"title": "Paris"}, "score": 1.0}]]},
        {"result": [[{"contents": None}]]},
        {"error": "out of memory"},
    ],
    ids=json.dumps,
)
def test_a_reply_of_another_form_is_told_with_what_was_replied(said):
    with replying(said) as (server, retriever), pytest.raises(ValueError, match="Search-R1's layout") as raised:
        retriever.search("x", 2)
    assert server.url in str(raised.value)
    assert str(said)[:40] in str(raised.value)


def test_what_is_no_json_is_no_reply():
    with replying(b"<html>busy</html>") as (_, retriever), pytest.raises(ValueError):
        retriever.search("x", 2)


@pytest.mark.parametrize(("said", "status"), [({"detail": "no"}, 500), ({}, 404), (DropError(), 200)])
def test_a_server_in_trouble_is_an_error_of_the_system(said, status):
    with replying(said, status) as (_, retriever), pytest.raises(OSError):
        retriever.search("x", 2)


def test_a_server_that_is_not_there_is_one_too():
    with replying(REPLY) as (_, retriever):
        pass
    with pytest.raises(OSError):
        retriever.search("x", 2)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ValueError, match=r"address = 'corpus.jsonl' must begin with http"):
        RetrievalServer("corpus.jsonl")
    with replying(REPLY) as (server, retriever):
        with pytest.raises(ValueError, match="k = 0; ask for at least 1"):
            retriever.search("x", 0)
        assert server.seen == []


def test_in_an_environment_trouble_is_an_infrastructure_failure_after_some_attempts():
    """And a search that was answered the second time is a search."""
    told = []

    def hook(path, body):
        told.append(body["queries"][0])
        return (200, REPLY) if len(told) > 1 and body["queries"] == ["France"] else (503, {})

    toolbox = Toolbox(Patience(timeout_s=5.0, attempts=2, backoff_s=0.0))
    france = Question("f", "What is the capital of France?", ("Paris",))
    with standing(Server(hook=hook)) as server:
        environment = Environment(Task(World()), RetrievalServer(f"{server.url}/retrieve"), toolbox)
        good, bad = environment.begin(france), environment.begin(france)
        (first,) = environment.act([good], ["<search>France</search>"])
        (second,) = environment.act([bad], ["<search>Spain</search>"])
    assert first.hit
    assert "Doc 1 (Title: Paris) Paris is the capital of France." in first.observation
    assert bad.outcome == Outcome.INFRASTRUCTURE_FAILURE
    assert second.reason.startswith(f"search, 2 of 2 attempts: OSError: {server.url}/retrieve replied with status 503")
    assert told == ["France", "France", "Spain", "Spain"]
