import math
import threading

import pytest

from fullscale.engine.http.client import Patience
from fullscale.engine.protocol import Reply
from tests.fullscale.engine.http.standin import (
    SETTINGS,
    VOCABULARY,
    DropError,
    Server,
    completion,
    decode,
    encode,
    engine,
    luck,
    over,
    sampled,
    standing,
)


@pytest.fixture
def server():
    with standing() as found:
        yield found


def spoilt(server, change, only="a"):
    """Answers to the row whose prompt begins with `only` are changed."""

    def hook(path, body):
        if decode(body["prompt"]).startswith(only):
            answer = completion(server, body)
            change(answer["choices"][0])
            return 200, answer
        return None

    return hook


def without(name):
    return lambda choice: choice.pop(name)


def with_(name, value):
    return lambda choice: choice.update({name: value})


def logps(choice, values):
    choice["logprobs"]["token_logprobs"] = values


VIOLATIONS = {
    "re-encoded prompt": ("prompt", with_("prompt_token_ids", [98, 97])),
    "longer prompt": ("prompt", with_("prompt_token_ids", [1, 97])),
    "prompt not told": ("malformed", without("prompt_token_ids")),
    "no ids": ("no ids", without("token_ids")),
    "empty": ("no ids", lambda c: (c.update(token_ids=[]), logps(c, []))),
    "null ids": ("no ids", with_("token_ids", None)),
    "texts for ids": ("malformed", with_("token_ids", ["b", "c"])),
    "fewer log-probs": ("count", lambda c: c["logprobs"]["token_logprobs"].pop()),
    "more than asked": ("count", lambda c: (c.update(token_ids=[98] * 9), logps(c, [-1.0] * 9))),
    "outside the vocabulary": ("id", lambda c: (c.update(token_ids=[VOCABULARY]), logps(c, [-1.0]))),
    "negative id": ("id", lambda c: (c.update(token_ids=[-1]), logps(c, [-1.0]))),
    "log-prob above 0": ("log-prob", lambda c: (c.update(token_ids=[98]), logps(c, [1e-9]))),
    "log-prob null": ("log-prob", lambda c: (c.update(token_ids=[98]), logps(c, [None]))),
    "log-prob NaN": ("log-prob", lambda c: (c.update(token_ids=[98]), logps(c, [math.nan]))),
    "log-prob -inf": ("log-prob", lambda c: (c.update(token_ids=[98]), logps(c, [-math.inf]))),
    "no log-probs": ("malformed", with_("logprobs", None)),
}


@pytest.mark.parametrize("name", VIOLATIONS)
def test_an_answer_that_is_no_honest_continuation_is_counted_and_its_episode_dropped(server, name):
    kind, change = VIOLATIONS[name]
    server.hook = spoilt(server, change)
    playing = engine(server)
    bad, good = playing.play([encode("a"), encode("k")], over, SETTINGS, luck)
    assert bad.ended == "failed"
    assert bad.reason.startswith(kind)
    assert decode(bad.ids) == "a"
    assert bad.turns == ()
    assert good.ended == "over"
    assert decode(good.ids) == "klmnopq"
    assert playing.violations == {kind: 1}
    assert not playing.failures


def test_a_violation_in_a_later_chunk_keeps_what_was_honest(server):
    def later(path, body):
        if len(body["prompt"]) > 4:
            answer = completion(server, body)
            answer["choices"][0]["prompt_token_ids"] = answer["choices"][0]["prompt_token_ids"][1:]
            return 200, answer
        return None

    server.hook = later
    (spoken,) = engine(server, chunk_tokens=4).play([encode("a")], over, SETTINGS, luck)
    assert (spoken.ended, decode(spoken.ids), sampled(spoken)) == ("failed", "abcde", encode("bcde"))


@pytest.mark.parametrize(
    ("answer", "kind", "counted"),
    [
        ((200, b"{not json"), "not JSON", "malformed"),
        ((200, [1]), "no choices", None),
        ((400, b"too long"), "status 400", "status"),
    ],
)
def test_answers_of_another_form(server, answer, kind, counted):
    server.hook = lambda path, body: answer if body["prompt"] == encode("a") else None
    playing = engine(server)
    bad, good = playing.play([encode("a"), encode("k")], over, SETTINGS, luck)
    assert (bad.ended, good.ended) == ("failed", "over")
    assert kind in bad.reason
    assert playing.failures == ({counted: 1} if counted else {})
    assert playing.violations == ({} if counted else {"malformed": 1})


def test_5xx_then_ok_is_as_if_nothing_had_been(server):
    quiet = engine(server, chunk_tokens=2).play([encode("a")], over, SETTINGS, luck)
    failures = iter([(503, b"busy"), None, (500, b""), DropError] + [None] * 9)

    def hook(path, body):
        said = next(failures)
        if said is DropError:
            raise DropError
        return said

    server.hook = hook
    playing = engine(server, chunk_tokens=2)
    (spoken,) = playing.play([encode("a")], over, SETTINGS, luck)
    assert spoken.ids.tolist() == quiet[0].ids.tolist()
    assert spoken.ended == "over"
    assert not playing.failures


def test_5xx_for_ever_fails_that_episode_alone(server):
    server.hook = lambda path, body: (500, b"out of memory") if body["prompt"][0] == ord("a") else None
    playing = engine(server)
    bad, good = playing.play([encode("a"), encode("k")], over, SETTINGS, luck)
    assert (bad.ended, good.ended) == ("failed", "over")
    assert "status 500: out of memory (attempt 3 of 3)" in bad.reason
    assert playing.failures == {"status": 1}


def test_a_hanging_server_fails_that_episode_alone(server):
    free = threading.Event()
    server.hook = lambda path, body: free.wait(10) and None if body["prompt"][0] == ord("a") else None
    playing = engine(server, patience=Patience(timeout_s=0.2, attempts=3))
    bad, good = playing.play([encode("a"), encode("k")], over, SETTINGS, luck)
    free.set()
    assert (bad.ended, good.ended) == ("failed", "over")
    assert "no answer within 0.2 s" in bad.reason
    assert playing.failures == {"timeout": 1}


def test_a_server_that_dies_in_the_middle_fails_what_was_under_way(server):
    calls = []

    def reply(rows, turns):
        calls.append(list(rows))
        return [Reply(None) if row == 0 else Reply(tuple(encode("x"))) for row in rows]

    dying = Server()
    with standing(dying):
        playing = engine(dying, patience=Patience(timeout_s=2.0, attempts=2, backoff_s=0.0), chunk_tokens=3)
        dead = threading.Event()

        def die(path, body):
            if dead.is_set() or "x" in decode(body["prompt"][1:]):
                dead.set()
                raise DropError
            return

        dying.hook = die
        played = playing.play([encode("a"), encode("k"), encode("p")], reply, SETTINGS, luck)
    assert [x.ended for x in played] == ["over", "failed", "failed"]
    assert calls == [[0, 1, 2]]
    assert playing.failures == {"connection": 2}
    assert decode(played[1].ids) == "klmnopqx"
    assert len(played[1].turns) == 1


def test_nobody_there_any_more():
    with standing() as gone:
        playing = engine(gone, patience=Patience(timeout_s=2.0, attempts=2, backoff_s=0.0))
    played = playing.play([encode("a")] * 3, over, SETTINGS, luck)
    assert [x.ended for x in played] == ["failed"] * 3
    assert playing.failures == {"connection": 3}
