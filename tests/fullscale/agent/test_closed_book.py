"""What a model answers without looking anything up, by hand: an engine that says what it is told."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullscale.agent.closed_book import closed_book
from fullscale.engine.protocol import Spoken, Turn
from fullscale.world.exact_match import normalise
from fullscale.world.questions import Question
from tests.fullscale.agent.small import ASKED, dialogue, engine, environment, taught, tokenizer

SPAIN = Question("s", "What is the capital of Spain?", ("Madrid", "City of Madrid"))


class Saying:
    """Says one thing to each prompt in turn; None where it fails."""

    def __init__(self, *texts):
        self.texts, self.asked = texts, []

    def play(self, prompts, reply, settings, uniforms, between=None):
        self.asked.append((prompts, settings, uniforms))
        return [
            self._episode(row, prompt, text, reply)
            for row, (prompt, text) in enumerate(zip(prompts, self.texts, strict=True))
        ]

    def _episode(self, row, prompt, text, reply):
        wrote = [] if text is None else tokenizer().encode(text, add_special_tokens=False)
        turns = () if text is None else (Turn(tuple(wrote), text, "stop"),)
        assert text is None or reply([row], turns)[0].ids is None, "one turn is all there is"
        n, T = len(prompt), len(prompt) + len(wrote)
        zeros = np.zeros(T, np.int64)
        flat = np.zeros(T, np.float32)
        ended = "failed" if text is None else "over"
        return Spoken(np.array([*prompt, *wrote]), np.arange(T) >= n, flat, flat, zeros, zeros, zeros, turns, ended)


def asked(*texts, questions=None, **more):
    saying, of = Saying(*texts), environment()
    found = closed_book(saying, dialogue(of), [SPAIN] * len(texts) if questions is None else questions, **more)
    return found, saying


def test_what_stands_before_the_closing_tag_is_graded_by_exact_match():
    texts = (
        "Madrid</answer>",
        " the city of MADRID.</answer> or Paris",
        "Paris</answer>Madrid",
        "Madrid",
        "",
        "In Madrid</answer>",
    )
    found, _ = asked(*texts)
    assert found.tolist() == [True, True, False, True, False, False]


def test_each_is_asked_its_own_question_with_the_answer_begun_for_it():
    found, saying = asked("Paris</answer>", "Paris</answer>", questions=[ASKED[0], ASKED[1]])
    assert found.tolist() == [True, False]
    ((prompts, settings, uniforms),) = saying.asked
    talk = dialogue(environment())
    for prompt, question in zip(prompts, ASKED[:2], strict=True):
        before = talk.prompt(question)
        assert prompt[: len(before)] == before
        assert tokenizer().decode(prompt[len(before) :]) == "<answer>"
    assert uniforms is None, "the likeliest tokens"
    assert settings.stop == ("</answer>",)


def test_there_is_room_for_the_answer_whatever_the_prompts_length():
    long = Question("l", "What is the capital of " + "the kingdom of " * 30 + "Spain?", ("Madrid",))
    _, saying = asked("x", "y", questions=[SPAIN, long], answer_tokens=7)
    ((prompts, settings, _),) = saying.asked
    assert settings.turn_tokens == 7
    assert settings.context_tokens >= max(map(len, prompts)) + 7


def test_with_an_engine_it_is_what_the_models_likeliest_tokens_say():
    """Found here by full forwards, token by token: a question whose gold answer is that is known, others are not."""
    of, network = environment(), taught()
    ids = dialogue(of).prompt(ASKED[0]) + tokenizer().encode("<answer>", add_special_tokens=False)
    said: list[int] = []
    while len(said) < 16 and "</answer>" not in tokenizer().decode(said):
        with torch.no_grad():
            said.append(int(network(input_ids=torch.tensor([ids + said])).logits[0, -1].argmax()))
    gold = tokenizer().decode(said).partition("</answer>")[0]
    assert normalise(gold), "the guard: it says something"
    questions = [replace(ASKED[0], answers=(gold,)), replace(ASKED[0], answers=(gold + " x",))]
    assert closed_book(engine(of=network), dialogue(of), questions, 16).tolist() == [True, False]


def test_what_could_not_be_asked_is_not_a_wrong_answer():
    """A server that went away says nothing about what the model knows."""
    found, _ = asked("Madrid</answer>", None, "Paris</answer>")
    assert np.asarray(found, float)[[0, 2]].tolist() == [1.0, 0.0]
    assert np.isnan(np.asarray(found, float)[1])


def test_no_questions_are_no_answers():
    of = environment()
    with pytest.raises(ValueError):
        closed_book(Saying(), dialogue(of), [])
