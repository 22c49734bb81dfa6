import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from fullscale.engine.http.dialects import Vllm
from fullscale.engine.protocol import Reply, Settings
from tests.fullscale.engine.http.standin import (
    END,
    LONG,
    SETTINGS,
    VOCABULARY,
    completion,
    decode,
    encode,
    engine,
    logp_of,
    luck,
    observing,
    over,
    sampled,
    standing,
)


@pytest.fixture
def server():
    with standing() as found:
        yield found


def test_an_episode_by_hand(server):
    playing = engine(server, chunk_tokens=4)
    (spoken,) = playing.play([encode("go")], observing("(o)"), SETTINGS, luck)
    # six letters after "o", in chunks of 4 and 2; read "(o)"; six after ")"
    assert decode(spoken.ids) == "go" + "pqrstu" + "(o)" + "*+,-./"
    assert spoken.sampled.tolist() == [False] * 2 + [True] * 6 + [False] * 3 + [True] * 6
    assert spoken.turn.tolist() == [0] * 11 + [1] * 6
    assert spoken.version.tolist() == [-1] * 2 + [3] * 6 + [-1] * 3 + [3] * 6
    assert spoken.segment.tolist() == [0] * 17
    assert [logp_of(i, 3) for i in sampled(spoken)] == spoken.logp[spoken.sampled].tolist()
    assert spoken.logp[~spoken.sampled].tolist() == [0.0] * 5
    assert np.isnan(spoken.entropy[spoken.sampled]).all()
    assert spoken.entropy[~spoken.sampled].tolist() == [0.0] * 5
    assert [(turn.text, turn.why) for turn in spoken.turns] == [("pqrstu", "length"), ("*+,-./", "length")]
    assert (spoken.ended, spoken.reason) == ("over", "")
    prompts = [decode(body["prompt"]) for body in server.asked()]
    assert prompts == ["go", "gopqrs", "gopqrstu(o)", "gopqrstu(o)*+,-"]
    assert [body["max_tokens"] for body in server.asked()] == [4, 2, 4, 2]


def test_a_stop_string_inside_a_token_ends_the_turn_and_what_follows_in_the_chunk_is_dropped(server):
    server.then = lambda before, seed: (
        150 if before[-1] == ord("c") else ord("a") if before[-1] == 150 else before[-1] + 1
    )

    def deaf(path, body):  # goes on after the stop string
        return 200, completion(server, body | {"stop": []})

    server.hook = deaf
    playing = engine(server, chunk_tokens=6)
    (spoken,) = playing.play([encode("a")], over, SETTINGS, luck)
    assert sampled(spoken) == [ord("b"), ord("c"), 150]
    assert [(turn.text, turn.why) for turn in spoken.turns] == [("bc" + LONG[150], "stop")]
    assert playing.unused == 3
    server.hook = None
    (again,) = playing.play([encode("a")], over, SETTINGS, luck)
    assert again.turns == spoken.turns
    assert playing.unused == 3


def test_the_end_of_turn_token_ends_it(server):
    server.then = lambda before, seed: END if before[-1] == ord("c") else before[-1] + 1
    (spoken,) = engine(server).play([encode("a")], over, SETTINGS, luck)
    assert sampled(spoken) == [ord("b"), ord("c"), END]
    assert [(turn.text, turn.why) for turn in spoken.turns] == [("bc", "eos")]


def test_a_server_that_stops_earlier_than_the_turn_ends_is_asked_to_go_on(server):
    server.then = lambda before, seed: before[-1] + 1
    server.hook = lambda path, body: (200, completion(server, body | {"max_tokens": 2}))
    (spoken,) = engine(server, chunk_tokens=5).play([encode("a")], over, SETTINGS, luck)
    assert decode(sampled(spoken)) == "bcdefg"
    assert [body["max_tokens"] for body in server.asked()] == [5, 4, 2]


def test_the_context_bounds_what_is_asked_for_and_ends_the_episode(server):
    tight = replace(SETTINGS, turn_tokens=10, context_tokens=9)
    playing = engine(server)
    full, fits = playing.play([encode("abcd"), encode("abcdefghi")], observing("x"), tight, luck)
    assert decode(full.ids) == "abcdefghi"
    assert [(turn.why, len(turn.ids)) for turn in full.turns] == [("context", 5)]
    assert (full.ended, fits.ended) == ("context", "context")
    assert fits.turns == ()
    assert len(fits.ids) == 9
    assert [body["max_tokens"] for body in server.asked()] == [5]


def test_an_observation_without_room_ends_it(server):
    (spoken,) = engine(server).play([encode("go")], observing("x" * 40), SETTINGS, luck)
    assert (spoken.ended, len(spoken.turns), len(spoken.ids)) == ("context", 1, 8)


def test_a_compaction_begins_a_segment_whose_prompt_alone_is_sent(server):
    had = []

    def reply(rows, turns):
        had.extend(turns)
        return [Reply(None) if len(had) == 2 else Reply(tuple(encode("short")), compacts=True)] * len(rows)

    (spoken,) = engine(server).play([encode("a long beginning")], reply, SETTINGS, luck)
    assert [decode(body["prompt"]) for body in server.asked()] == ["a long beginning", "short"]
    assert decode(spoken.ids) == "a long beginning" + "hijklm" + "short" + "uvwxyz"
    assert spoken.segment.tolist() == [0] * 22 + [1] * 11


def test_greedy_asks_for_the_likeliest_and_knows_log_probs_at_temperature_one_alone(server):
    playing = engine(server)
    (one,) = playing.play([encode("a")], over, SETTINGS, None)
    (other,) = playing.play([encode("a")], over, replace(SETTINGS, temperature=0.7), None)
    assert [body["temperature"] for body in server.asked()] == [0.0, 0.0]
    assert one.logp[one.sampled].tolist() == [logp_of(i, 3) for i in sampled(one)]
    assert np.isnan(other.logp[other.sampled]).all()


def test_replies_come_together_in_ascending_order_and_from_the_callers_thread(server):
    calls = []

    def reply(rows, turns):
        calls.append((list(rows), [turn.text for turn in turns], threading.current_thread()))
        return [Reply(None)] * len(rows)

    def slow_first(path, body):
        time.sleep(0.05 if body["prompt"] == encode("a") else 0)

    server.hook = slow_first
    server.then = lambda before, seed: END if before[-1] in b"bdfz" else before[-1] + 1
    engine(server, chunk_tokens=2, concurrent=2).play([encode(x) for x in "ayce"], reply, SETTINGS, luck)
    here = threading.current_thread()
    assert calls == [([0, 1, 2, 3], ["b", "z", "d", "f"], here)]


def test_rows_whose_turns_end_in_different_rounds_are_answered_in_those_rounds(server):
    calls = []

    def reply(rows, turns):
        calls.append(list(rows))
        return [Reply(None)] * len(rows)

    server.then = lambda before, seed: END if before[-1] == ord("e") else before[-1] + 1
    engine(server, chunk_tokens=2).play([encode("a"), encode("d"), encode("b"), encode("d")], reply, SETTINGS, luck)
    assert calls == [[1, 3], [2], [0]]  # "d" writes "e" and the end, "b" needs four tokens, "a" five


def test_what_reply_uniforms_and_between_raise_passes_through_and_the_engine_plays_again(server):
    playing = engine(server)

    def broken(*_):
        raise KeyError("mine")

    for reply, uniforms, between in ((broken, luck, None), (over, broken, None), (over, luck, broken)):
        with pytest.raises(KeyError, match="mine"):
            playing.play([encode("a")], reply, SETTINGS, uniforms, between)
    assert playing.play([encode("a")], over, SETTINGS, luck)[0].ended == "over"


def test_between_is_called_before_every_round(server):
    steps = []
    engine(server, chunk_tokens=2).play(
        [encode("a")], over, SETTINGS, luck, lambda n: steps.append((n, len(server.seen)))
    )
    assert steps == [(0, 0), (1, 1), (2, 2)]


def test_replies_of_another_number_are_refused(server):
    with pytest.raises(ValueError, match="1 turns had 2 replies"):
        engine(server).play([encode("a")], lambda rows, turns: [Reply(None)] * 2, SETTINGS, luck)


@pytest.mark.parametrize("name", ["chunk_tokens", "concurrent"])
def test_sizes_must_be_positive(server, name):
    with pytest.raises(ValueError, match=f"{name} = 0"):
        engine(server, **{name: 0})


def test_prompts_are_checked(server):
    playing = engine(server)
    with pytest.raises(ValueError, match="empty"):
        playing.play([[]], over, SETTINGS, luck)
    with pytest.raises(ValueError, match="another tokenizer"):
        playing.play([[VOCABULARY]], over, SETTINGS, luck)
    assert playing.play([], over, SETTINGS, luck) == []
    assert not server.seen


def test_a_temperature_at_which_log_probs_would_be_others_is_refused(server):
    playing = engine(server, dialect=Vllm("policy", processed=False))
    with pytest.raises(ValueError, match=r"temperature = 0.7: .*processed_logprobs"):
        playing.play([encode("a")], over, Settings(0.7, 6, 40), luck)
    assert playing.play([encode("a")], over, SETTINGS, luck)[0].ended == "over"
