"""A run's network by name: the same every time, with an adapter, with layers that keep only their input."""

import copy

import pytest
import torch

from fullscale.model import smollm2
from fullscale.model.network import SMOLLM2, TINY, adapted, checkpointed, loaded, shape_of, shaped, tokenizer_of
from tests.fullscale.agent.small import model

real = pytest.mark.skipif(smollm2.why_not() != "", reason=smollm2.why_not())
IDS = torch.tensor([[5, 9, 300, 17, 4, 250]])


def logits(network):
    with torch.no_grad():
        return network(input_ids=IDS).logits


def lora(network, seed=0, rank=2, targets=("q_proj", "v_proj")):
    return adapted(network, rank, 4, targets, seed)


def trained(network):
    return {name: p.detach().clone() for name, p in network.named_parameters() if p.requires_grad}


def test_the_tiny_model_is_the_same_every_time():
    a, words = loaded(TINY, torch.float32)
    torch.manual_seed(5)
    b, again = loaded(TINY, torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert words.get_vocab() == again.get_vocab() == tokenizer_of(TINY).get_vocab()
    assert not a.training
    assert len(words) == a.config.vocab_size
    assert logits(a).std() > 1  # it has opinions
    half, _ = loaded(TINY, torch.bfloat16)
    assert {p.dtype for p in half.parameters()} == {torch.bfloat16}


def test_a_folder_is_what_was_saved_there(tmp_path):
    network, words = model(), tokenizer_of(TINY)
    network.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    again, others = loaded(str(tmp_path), torch.float32)
    torch.testing.assert_close(logits(again), logits(network), rtol=0, atol=1e-5)
    assert not again.training
    text = "<search>capital of Spain</search> é"
    assert others.encode(text) == words.encode(text) == tokenizer_of(str(tmp_path)).encode(text)
    assert shape_of(str(tmp_path), None).hidden_size == network.config.hidden_size
    fresh = shaped(shape_of(str(tmp_path), None), torch.bfloat16)
    assert [p.shape for p in fresh.parameters()] == [p.shape for p in network.parameters()]
    assert {p.dtype for p in fresh.parameters()} == {torch.bfloat16}


@real
def test_the_packaged_models_words_and_shape_come_without_its_weights():
    words = tokenizer_of(SMOLLM2)
    assert words.decode(words.encode("Paris is the capital")) == "Paris is the capital"
    assert "<|im_end|>" in words.get_vocab()
    shape = shape_of(SMOLLM2, None)
    assert (shape.hidden_size, shape.num_hidden_layers, shape.vocab_size) == (576, 30, 49152)


def test_a_model_that_is_not_there_is_an_error_of_the_system(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for call in (lambda: loaded(str(tmp_path / "none"), torch.float32), lambda: tokenizer_of(str(tmp_path / "none"))):
        with pytest.raises((OSError, ValueError), match="none"):
            call()


def test_a_shape_of_ones_own_is_asked_of_nobody():
    fields = {"model_type": "qwen2", "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
    shape = shape_of("no/such-model", fields)
    assert (type(shape).__name__, shape.hidden_size, shape.num_hidden_layers) == ("Qwen2Config", 32, 3)
    assert fields["model_type"] == "qwen2"  # what was given stays as it was
    assert shape_of(TINY, None).vocab_size == len(tokenizer_of(TINY))


# --- adapters ---------------------------------------------------------------------------------------------------------


def test_an_adapter_begins_as_nothing_and_its_seed_draws_the_rest():
    plain = model()
    a, b, other = (lora(copy.deepcopy(plain), seed) for seed in (0, 0, 1))
    torch.testing.assert_close(logits(a), logits(plain), rtol=0, atol=1e-6)
    drawn, again, others = trained(a), trained(b), trained(other)
    assert all(torch.equal(x, again[name]) for name, x in drawn.items())
    differ = {name for name, x in drawn.items() if not torch.equal(x, others[name])}
    assert differ == {name for name in drawn if "lora_A" in name}
    assert all((x == 0).all() for name, x in drawn.items() if "lora_B" in name)
    assert len(drawn) == 2 * 2 * 2  # layers, targets, both factors


def test_drawing_an_adapter_moves_nobody_elses_luck():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    lora(model(), seed=9)
    assert torch.equal(torch.rand(4), expected)


def test_an_update_counts_alpha_over_rank():
    network = adapted(model(), 2, 6, ("q_proj",))
    layer = network.base_model.model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        layer.lora_B["default"].weight.fill_(0.5)
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
        update = layer(x) - layer.base_layer(x)
        factors = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    torch.testing.assert_close(update, 6 / 2 * x @ factors.T, rtol=1e-4, atol=1e-5)
    assert update.abs().max() > 0.1


def test_a_layer_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="c_attn"):
        lora(model(), targets=("c_attn",))


def test_without_the_package_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ModuleNotFoundError, match="pip install peft"):
        lora(model())


# --- checkpointing ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_adapter", [False, True])
def test_layers_that_run_again_give_the_same_gradient(with_adapter):
    """And the backward finds less that was kept for it."""
    gradients, held = [], []
    for checkpointing in (False, True):
        network = checkpointed(model(scale=2.0)) if checkpointing else model(scale=2.0).train()
        network = lora(network) if with_adapter else network
        kept = {}

        def note(x, kept=kept):
            kept[x.data_ptr()] = x.numel()
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            loss = network(input_ids=IDS.repeat(4, 30), use_cache=False).logits.logsumexp(-1).mean()
        loss.backward()
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
        held.append(sum(kept.values()))
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()
    assert gradients[0].norm() > 0
    assert held[1] < 0.7 * held[0]
