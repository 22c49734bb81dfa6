import base64
import json
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.tables import Outcome, Tokens
from studies.kit.episodes import Episode, Turn
from studies.kit.inspector.data import from_episodes
from studies.kit.inspector.encode import blocks, harmless, index

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


def unpacked(packed):
    return json.loads(zlib.decompress(base64.b64decode(packed)))


@given(VALUES)
def test_harmless_json_says_the_same_and_cannot_end_a_script(value):
    text = harmless(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert set("<>&").isdisjoint(text)


def test_the_index_lists_every_rollout_by_hand(sample):
    made = index(sample)
    kept = made["kept"]
    assert made["workflows"] == ["search-answer", "guess", "guess-search-answer"]  # 25, 10 and 5 of 40
    assert len(kept["step"]) == 40
    assert kept["step"] == sorted(kept["step"])
    assert [kept["turns"][row] for row in (0, 7, 8)] == [2, 3, 1]
    assert kept["reward"][:8] == [1.0] * 8
    assert kept["group"][:5] == [0, 0, 0, 0, 1]
    assert made["groups"][1] == ["1", "main", "1: which colour?"]  # without the word all prompts begin with
    assert kept["last"][0] == "blue 0"
    assert kept["kl"][0] == pytest.approx(-0.49)  # .01 - .5 + 0 of the search, 0 of the answer
    assert kept["kl"][8] == pytest.approx(1.7)
    assert made["marks"] == [[20, "guessing rises", False, "behaviour/guess"]]


def test_a_block_holds_words_and_tokens_once(sample):
    packed = blocks(sample)
    assert sorted(packed) == [0, 1, 2, 3, 4]
    block = unpacked(packed[1])
    texts = block["texts"]
    assert len(texts) == len(set(texts))
    assert len(block["episodes"]) == 8
    guess = block["episodes"][0]
    assert texts[guess["prompt"]] == "Question 0: which colour?"
    assert guess["versions"] == [2, 3, 4]
    assert guess["extras"] == [["format", 0.5]]
    turn = block["episodes"][1]["turns"][0]
    tokens = turn["tokens"]
    assert [texts[each] for each in tokens["piece"]] == ["look", " up", " fact1", "blue"]
    assert tokens["logp"] == [-10, -1500, -5000, None]  # millinats
    assert tokens["kind"] == [2, 2, 2, 0]
    assert tokens["version"] == [3, 3, 3, None]
    assert turn["decision"] == [None, None, 0.7]
    assert block["episodes"][0]["turns"][0]["tokens"]["id"] == [100, 101]


def test_a_column_of_one_value_is_that_value():
    turn = Turn("answer", tokens=None)
    run = from_episodes("r", [Episode(0, 0, (turn,), 1.0, Outcome.SOLVED)], ("answer",))
    tokens = Tokens(id=np.arange(3), sampled=np.ones(3, bool), train=np.zeros(3, bool))
    told = replace(run.episodes[0], turns=(replace(turn, tokens=tokens, pieces=("one",)),))
    packed = unpacked(blocks(replace(run, episodes=[told]))[0])["episodes"][0]["turns"][0]["tokens"]
    assert (packed["kind"], packed["version"], packed["logp"]) == (1, None, None)
    assert packed["piece"] is None  # one text for three tokens: whose it is is not guessed


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_are_written(value):
    episode = Episode(0, 0, (Turn("answer", logp=value),), value, Outcome.SOLVED, extras={"x": value})
    run = from_episodes("r", [episode], ("answer",), columns={"c": np.array([value])})
    assert index(run)["kept"]["reward"] == [None]
    assert json.loads(harmless(index(run)))["columns"]["c"] == [None]
    assert unpacked(blocks(run)[0])["episodes"][0]["extras"] == [["x", str(value)]]


def test_instructions_that_all_prompts_share_are_left_out():
    def asked(*prompts):
        episodes = [
            Episode(0, at, (Turn("answer"),), 1.0, Outcome.SOLVED, prompt=each) for at, each in enumerate(prompts)
        ]
        return [shown for _, _, shown in index(from_episodes("r", episodes, ("answer",)))["groups"]]

    assert asked("Answer this. Who was first?", "Answer this. Why?") == ["Who was first?", "Why?"]
    assert asked("Answer. Who?") == ["Answer. Who?"]
    assert asked("who", "why") == ["who", "why"]  # a common beginning within a word stays
    assert asked("Say it", "Say it") == ["Say it", "Say it"]


def test_a_workflow_without_share_is_listed(sample):
    rare = replace(sample.episodes[0], turns=(Turn("read"), Turn("answer", "x")))
    made = index(replace(sample, episodes=[*sample.episodes, rare]))
    assert made["workflows"][-1] == "read-answer"
    assert len(made["shares"][0]) == 3


@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_any_text_comes_back(text):
    run = from_episodes(
        "r", [Episode(0, text, (Turn("answer", text, text),), 1.0, Outcome.SOLVED, prompt=text)], ("answer",)
    )
    block = unpacked(blocks(run)[0])
    told = block["episodes"][0]
    assert block["texts"][told["prompt"]] == block["texts"][told["turns"][0]["observed"]] == text
