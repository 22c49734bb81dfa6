import hashlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fullscale.engine.http.engine import seed_of
from tests.fullscale.engine.http.standin import (
    SETTINGS,
    Server,
    encode,
    engine,
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


def by_seed(before, seed):
    digest = hashlib.blake2b(repr((before, seed)).encode(), digest_size=2).digest()
    return 32 + int.from_bytes(digest, "little") % 90


def test_f28_eight_samples_of_one_prompt_have_eight_streams(server):
    server.then = by_seed
    played = engine(server, chunk_tokens=3).play([encode("same")] * 8, over, SETTINGS, luck)
    assert len({tuple(sampled(x)) for x in played}) == 8
    assert len({body["seed"] for body in server.asked()}) == 16


@given(st.integers(1, 8), st.permutations(range(6)))
@settings(max_examples=10, deadline=None)
def test_f28_tokens_depend_on_luck_alone_not_on_company_order_or_who_answers_first(concurrent, order):
    with standing(Server(then=by_seed)) as server:
        alone = engine(server, chunk_tokens=3, concurrent=1).play([encode("q")] * 6, observing("x"), SETTINGS, luck)
        server.hook = lambda path, body: time.sleep((body["seed"] % 7) / 1000)
        playing = engine(server, chunk_tokens=3, concurrent=concurrent)
        mixed = playing.play([encode("q")] * 6, observing("x"), SETTINGS, lambda row, place: luck(order[row], place))
    for row, spoken in enumerate(mixed):
        assert spoken.ids.tolist() == alone[order[row]].ids.tolist()


def test_the_seed_of_a_chunk_is_a_hash_of_the_uniform_where_it_begins(server):
    asked = []

    def uniforms(row, place):
        asked.append((row, place))
        return 0.125 * place / 10

    engine(server, chunk_tokens=4).play([encode("a")], observing("x"), SETTINGS, uniforms)
    assert asked == [(0, 0), (0, 4), (0, 6), (0, 10)]  # two turns of six, in chunks of four and two
    assert [body["seed"] for body in server.asked()] == [seed_of(0.125 * place / 10) for _, place in asked]


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=50, unique=True))
def test_seeds_lie_in_their_range_and_differ(uniforms):
    seeds = [seed_of(x + 0.0) for x in uniforms]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == len({x + 0.0 for x in uniforms})


def test_a_uniform_outside_its_range_is_refused(server):
    with pytest.raises(ValueError, match="must lie in"):
        engine(server).play([encode("a")], over, SETTINGS, lambda row, place: 1.0)
