"""The model that needs no download has what a real one has."""

import pytest
import torch

from fullscale.model.tiny import tiny_config, tiny_model, tiny_tokenizer


def test_the_tokenizer_carries_any_text_and_is_the_same_every_time() -> None:
    tokenizer = tiny_tokenizer()
    for text in ("<search>Who wrote it?</search>", "日本 naïve\n\n  \x00", "<|im_start|>user\n<|im_end|>"):
        assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text
    assert tokenizer.get_vocab() == tiny_tokenizer().get_vocab()
    assert len(tokenizer) <= 400
    assert tokenizer.tokenize("</search><answer>") == ["</", "search", "><", "answer", ">"]  # a tag ends inside a token
    assert len(tokenizer.encode("日")) == 3
    with pytest.raises(ValueError, match="vocabulary = 100 must be at least 259"):
        tiny_tokenizer(100)


def test_the_chat_template_is_chatml() -> None:
    tokenizer = tiny_tokenizer()
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    assert ids[0] == tokenizer.bos_token_id
    assert ids.count(tokenizer.eos_token_id) == 2


def test_the_model_is_the_same_for_a_seed_leaves_the_generator_alone_and_has_opinions() -> None:
    config = tiny_config(tied=False)
    before = torch.get_rng_state()
    a, b, c = tiny_model(config), tiny_model(config), tiny_model(config, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.no_grad():
        x, y, z = (model(ids).logits for model in (a, b, c))
        mute = tiny_model(config, scale=1.0)(ids).logits
    assert torch.equal(x, y)
    assert (x - z).abs().max() > 1
    assert x.std() > 1 > mute.std()
    assert config.num_attention_heads == 2 * config.num_key_value_heads == 4
    assert tiny_model(dtype=torch.bfloat16).dtype == torch.bfloat16
