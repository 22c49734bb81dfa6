"""Taking a model apart gives its own logits back, or a refusal by name."""

from typing import Any

import pytest
import torch
from torch import nn
from transformers import GraniteConfig, GraniteForCausalLM, MistralConfig, MistralForCausalLM

from fullscale.model.halves import halves
from fullscale.model.tiny import tiny_config, tiny_model

SHAPE: dict[str, Any] = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.tensor([[3, 1, 4, 1, 5]])


def apart(model: Any) -> torch.Tensor:
    found = halves(model)
    with torch.no_grad():
        return found.widened().logits(found.body(input_ids=IDS, use_cache=False).last_hidden_state)


@pytest.mark.parametrize("tied", [True, False])
def test_the_two_halves_make_the_models_logits(tied: bool) -> None:
    model = tiny_model(tiny_config(tied=tied, layers=1))
    assert halves(model).weight.data_ptr() == model.lm_head.weight.data_ptr()
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    with torch.no_grad():
        torch.testing.assert_close(apart(model), model(IDS).logits, rtol=1e-5, atol=1e-5)
    assert apart(model).std() > 0.5


def test_a_divisor_is_applied() -> None:
    torch.manual_seed(0)
    model = GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)).eval()
    with torch.no_grad():
        torch.testing.assert_close(apart(model), model(IDS).logits, rtol=1e-5, atol=1e-6)
    assert apart(model).abs().max() > 1e-3


def test_a_bound_is_applied_before_the_divisor() -> None:
    model = tiny_model(tiny_config(layers=1))
    model.config.final_logit_softcapping, model.config.logits_scaling = 0.5, 2.0
    with torch.no_grad():
        expected = 0.5 * torch.tanh(model(IDS).logits / 0.5) / 2
    torch.testing.assert_close(apart(model), expected, rtol=1e-5, atol=1e-6)


def test_a_bfloat16_head_is_widened_before_it_is_applied() -> None:
    model = tiny_model(tiny_config(layers=1), dtype=torch.bfloat16)
    whole = halves(model)
    wide = whole.widened()
    assert wide.weight.dtype == torch.float32
    assert not wide.weight.requires_grad
    hidden = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = hidden.double() @ model.lm_head.weight.double().T
    torch.testing.assert_close(wide.logits(hidden).double(), exact, rtol=1e-5, atol=1e-4)
    assert (model.lm_head(hidden).double() - exact).abs().max() > 5e-3
    single = halves(tiny_model(tiny_config(layers=1)))
    assert single.widened().weight.data_ptr() == single.weight.data_ptr()


def test_what_is_refused() -> None:
    model = tiny_model(tiny_config(layers=1))
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(TypeError, match="the head of LlamaForCausalLM is a Sequential; it must be a plain Linear"):
        halves(model)
    with pytest.raises(TypeError, match="sliding window 4096"):
        halves(MistralForCausalLM(MistralConfig(**SHAPE)))
    model = tiny_model(tiny_config(layers=1))
    model.config.layer_types = ["sliding_attention"]
    with pytest.raises(TypeError, match=r"layer types \['sliding_attention'\]"):
        halves(model)
    model = tiny_model(tiny_config(layers=1))
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(TypeError, match="attn_implementation='sdpa'"):
        halves(model)
