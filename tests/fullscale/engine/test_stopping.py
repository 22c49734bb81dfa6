"""Why turns and episodes end, each reason by itself."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fullscale.engine.protocol import Reply, Settings, Spoken, Turn
from tests.fullscale.engine.small import SETTINGS, engine, model, over, prompts, tokenizer

PLAIN = replace(SETTINGS, stop=(), turn_tokens=40, context_tokens=100)


def scripted(*texts: str | Sequence[int]) -> Callable[[int, int], float]:
    """Uniforms that make a model to which all tokens are equally likely say these texts, one a row."""
    ids = [tokenizer().encode(text) if isinstance(text, str) else list(text) for text in texts]
    size = len(tokenizer())

    def at(row: int, place: int) -> float:
        return (ids[row][place] + 0.5) / size if place < len(ids[row]) else 0.5 / size

    return at


@cache
def flat() -> Any:
    """A model to which all tokens are equally likely."""
    found = model(seed=9, tied=False)
    with torch.no_grad():
        found.lm_head.weight.zero_()
    return found


def play(settings: Settings, *texts: str | Sequence[int], reply: Any = over, prompt: int = 5) -> list[Spoken]:
    given = [prompts(1)[0][:prompt]] * len(texts)
    return engine(flat()).play(given, reply, settings, scripted(*texts))


def only(spoken: Spoken) -> Turn:
    (turn,) = spoken.turns
    return turn


def test_the_script_is_said_and_its_log_prob_is_that_of_a_flat_distribution() -> None:
    spoken = play(replace(PLAIN, turn_tokens=3), "Question: Paris")[0]
    assert only(spoken).ids == tuple(tokenizer().encode("Question: Paris"))[:3]
    np.testing.assert_allclose(spoken.logp[spoken.sampled], -np.log(len(tokenizer())), rtol=1e-6)
    np.testing.assert_allclose(spoken.entropy[spoken.sampled], np.log(len(tokenizer())), rtol=1e-6)


def test_the_turns_most_tokens() -> None:
    turn = only(play(replace(PLAIN, turn_tokens=4), "Question: Paris?")[0])
    assert (turn.why, len(turn.ids)) == ("length", 4)


def test_the_end_of_turn_token_is_kept_in_the_ids_and_not_in_the_text() -> None:
    turn = only(play(PLAIN, "Paris<|im_end|>Madrid")[0])
    assert turn.why == "eos"
    assert turn.text == "Paris"
    assert turn.ids == tuple(tokenizer().encode("Paris<|im_end|>"))


def test_the_contexts_most_tokens_end_turn_and_episode_whatever_the_reply() -> None:
    spoken = play(
        replace(PLAIN, context_tokens=8), "Question: Paris?", reply=lambda rows, turns: [Reply(())], prompt=5
    )[0]
    assert only(spoken).why == "context"
    assert spoken.ended == "context"
    assert len(spoken.ids) == 8
    assert play(replace(PLAIN, context_tokens=8), "Question: Paris?")[0].ended == "over"  # the reply said so itself


def test_an_observation_without_room_for_a_token_after_it_ends_the_episode_unread() -> None:
    def told(n: int) -> Spoken:
        reply = lambda rows, turns: [Reply((7,) * n if len(turns[0].ids) == 2 else None)]  # noqa: E731
        return play(replace(PLAIN, turn_tokens=2, context_tokens=12), [9, 9] + [9] * 50, reply=reply, prompt=5)[0]

    assert told(4).turns[0].why == "length"
    fits, exact, large = told(4), told(5), told(6)
    assert (fits.ended, len(fits.ids), len(fits.turns)) == ("over", 12, 2)  # 5 + 2 + 4, and one sampled
    assert fits.turns[1].why == "context"
    assert [(s.ended, len(s.ids), len(s.turns)) for s in (exact, large)] == [("context", 7, 1)] * 2


def test_a_prompt_without_room_is_an_episode_without_turns() -> None:
    spoken = play(replace(PLAIN, context_tokens=5), "Paris", "Paris", prompt=5)
    assert [(s.ended, s.turns, len(s.ids)) for s in spoken] == [("context", (), 5)] * 2
    assert not spoken[0].sampled.any()


@pytest.mark.parametrize(
    ("text", "stop", "ends_with"),
    [
        ("<search>Paris</search><answer>", "</search>", "</search><"),  # the tag ends inside a token
        ("<search>Paris</search> and", "</search>", "</search>"),
        ("Paris, 日本 is", "日本", "日本"),  # three bytes a character, a token each
        ("naïve é!", "é", "é"),
        ("<answer>Paris</answer>", "Par", "Paris"),
    ],
)
def test_a_stop_string_over_tokens_inside_tokens_and_in_characters_of_several_bytes(
    text: str, stop: str, ends_with: str
) -> None:
    turn = only(play(replace(PLAIN, stop=("never", stop)), text)[0])
    assert turn.why == "stop"
    assert turn.text.endswith(ends_with)
    assert turn.text.count(stop) == 1
    ids = tokenizer().encode(text)
    assert turn.ids == tuple(ids[: len(turn.ids)])  # as sampled, never encoded again
    assert stop not in tokenizer().decode(ids[: len(turn.ids) - 1])


def test_ids_that_no_encoder_would_make_are_carried_as_they_are() -> None:
    """Known fault F8: `Paris` letter by letter is five tokens, and stays five."""
    letters = [tokenizer().convert_tokens_to_ids(c) for c in "Paris"]
    assert len(tokenizer().encode("Paris")) == 1
    spoken = play(replace(PLAIN, turn_tokens=5), letters)[0]
    assert only(spoken).ids == tuple(letters)
    assert only(spoken).text == "Paris"
    assert spoken.ids[5:].tolist() == letters


def test_bytes_that_are_no_text_are_carried_too() -> None:
    broken = [tokenizer().convert_tokens_to_ids(c) for c in ("æ", "Ĺ")]
    turn = only(play(replace(PLAIN, turn_tokens=2), broken)[0])
    assert turn.ids == tuple(broken)
    assert turn.text == "\ufffd"


def test_a_stop_string_counts_within_its_turn_alone() -> None:
    """Half of it at the end of one turn and half at the beginning of the next is none."""
    text = tokenizer().encode("</search>")
    assert len(text) == 3
    state = iter([Reply(()), Reply(None)])
    settings = replace(PLAIN, stop=("</search>",), turn_tokens=2)
    said = {**dict(enumerate(text)), 3: text[0]}

    def uniforms(row: int, place: int) -> float:
        return (said[place] + 0.5) / len(tokenizer())

    (spoken,) = engine(flat()).play([[5, 6]], lambda rows, turns: [next(state)], settings, uniforms)
    assert [turn.why for turn in spoken.turns] == ["length", "length"]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match=r"temperature = 0 must be positive; for the likeliest tokens"):
        Settings(0, 5, 5)
    with pytest.raises(ValueError, match="turn_tokens = 0 must be at least 1"):
        Settings(1, 0, 5)
    with pytest.raises(ValueError, match="context_tokens = 0 must be at least 1"):
        Settings(1, 5, 0)
    with pytest.raises(ValueError, match="an empty stop string"):
        Settings(1, 5, 5, ("",))
