import random
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullscale.engine.http.client import Client
from fullscale.engine.http.dialects import Vllm
from fullscale.engine.http.engine import HttpEngine
from tests.fullscale.engine.http.standin import (
    END,
    SETTINGS,
    VOCABULARY,
    Weights,
    decode,
    encode,
    engine,
    luck,
    made_by,
    observing,
    over,
    standing,
)


@pytest.fixture
def server():
    with standing() as found:
        yield found


def test_f22_a_version_published_while_a_request_is_under_way_does_not_label_it(server):
    """Version 3 when it is asked, 4 is published meanwhile: five tokens of each, never ten of 4."""
    playing, publishing = engine(server, chunk_tokens=5), []

    def in_the_middle(path, body):
        if not publishing:
            publishing.append(threading.Thread(target=playing.publish, args=(4, None)))
            publishing[0].start()
            deadline = time.monotonic() + 5
            while not playing._door._shutting and server.version == 3 and time.monotonic() < deadline:
                time.sleep(0.001)
            assert server.version == 3  # it waits for this very request

    server.hook = in_the_middle
    (spoken,) = playing.play([encode("a")], over, replace(SETTINGS, turn_tokens=10), luck)
    publishing[0].join(5)
    assert spoken.version[spoken.sampled].tolist() == [3] * 5 + [4] * 5
    assert made_by(spoken) == [3] * 5 + [4] * 5
    assert playing.version == 4


def test_f22_a_chunk_is_of_one_version(server):
    playing, publishing = engine(server, chunk_tokens=10), []

    def in_the_middle(path, body):
        publishing.append(threading.Thread(target=playing.publish, args=(4, None)))
        publishing[0].start()
        time.sleep(0.02)

    server.hook = in_the_middle
    (spoken,) = playing.play([encode("a")], over, replace(SETTINGS, turn_tokens=10), luck)
    publishing[0].join(5)
    assert spoken.version[spoken.sampled].tolist() == made_by(spoken) == [3] * 10
    assert playing.version == 4


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_whenever_weights_are_published_every_token_carries_the_version_that_made_it(publish_at, chunk):
    with standing() as server:
        playing = engine(server, version=0, chunk_tokens=chunk)

        def between(step):
            for version, at in enumerate(publish_at, 1):
                if at == step:
                    playing.publish(version, None)

        prompts = [encode(x) for x in "abc"]
        played = playing.play(prompts, observing("-"), SETTINGS, luck, between)
    for spoken in played:
        assert spoken.version[spoken.sampled].tolist() == made_by(spoken)
    assert next(body["cache_salt"] for body in server.asked()) == "version-0"


def test_publications_from_another_thread_never_meet_a_request(server):
    playing = engine(server, version=0, chunk_tokens=2, concurrent=8)
    stop, published = threading.Event(), []

    def publish():
        version = 0
        while not stop.is_set():
            version += 1
            playing.publish(version, None)
            published.append(version)
            time.sleep(0.003)

    server.hook = lambda path, body: time.sleep(random.random() / 200)
    thread = threading.Thread(target=publish)
    thread.start()
    played = playing.play([encode(x) for x in "abcdefgh"], observing("x", 4), SETTINGS, luck)
    stop.set()
    thread.join(5)
    seen = Counter()
    for spoken in played:
        assert spoken.version[spoken.sampled].tolist() == made_by(spoken)
        seen.update(made_by(spoken))
    assert len(seen) > 2, "nothing was published meanwhile"


def test_a_publication_that_the_server_does_not_confirm_stamps_nothing():
    with standing() as server:
        playing = engine(server)
        playing.publisher = Weights(server, lies="7")
        with pytest.raises(RuntimeError, match=r"version 4 was published, .* says it holds 7"):
            playing.publish(4, None)
        assert playing.version is None
        with pytest.raises(RuntimeError, match="nothing was published"):
            playing.play([encode("a")], over, SETTINGS, luck)
        playing.publisher = Weights(server)
        playing.publish(5, None)
        assert playing.play([encode("a")], over, SETTINGS, luck)[0].ended == "over"


def test_a_publication_that_goes_wrong_under_way_fails_the_episodes_and_play_returns(server):
    playing = engine(server, chunk_tokens=2)

    def between(step):
        if step == 1:
            playing.publisher = Weights(server, lies="9")
            with pytest.raises(RuntimeError):
                playing.publish(4, None)

    (spoken,) = playing.play([encode("a")], over, SETTINGS, luck, between)
    assert spoken.ended == "failed"
    assert "unknown which weights" in spoken.reason
    assert decode(spoken.ids) == "abc"
    assert playing.violations == {"version": 1}


def test_what_the_server_holds_is_not_published_again_and_what_it_lost_is(server):
    playing, one, other = engine(server), object(), object()
    published = playing.publisher.published
    for version, model in ((4, one), (4, one), (4, other), (5, other), (4, other)):
        playing.publish(version, model)
    assert published == [3, 4, 4, 5, 4]
    server.version = 0  # it was started again, by whomever
    playing.publish(4, other)
    assert published == [3, 4, 4, 5, 4, 4]
    assert playing.version == server.version == 4


def test_before_the_first_publication_and_a_negative_version(server):
    fresh = HttpEngine(Client(server.url), Vllm("policy"), Weights(server), decode, [END], VOCABULARY)
    with pytest.raises(RuntimeError, match="nothing was published"):
        fresh.play([encode("a")], over, SETTINGS, luck)
    with pytest.raises(ValueError, match="version = -1"):
        fresh.publish(-1, None)
