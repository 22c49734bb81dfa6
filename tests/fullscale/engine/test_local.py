"""Whole episodes: what is sampled, with which log-prob, in whose company, by which version."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from fullscale.engine.local import LocalEngine, decoder, turn_ends
from fullscale.engine.protocol import Answering, Reply
from sim.records.rng import uniforms as block
from tests.fullscale.engine.small import (
    SETTINGS,
    engine,
    full_forward,
    largest_gap,
    model,
    over,
    prompts,
    replies,
    same,
    tokenizer,
    uniforms,
)


def others() -> dict[str, Any]:
    torch.manual_seed(1)
    shape = {
        "vocab_size": len(tokenizer()), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    }  # fmt: skip
    gpt2 = GPT2Config(vocab_size=len(tokenizer()), n_embd=32, n_layer=2, n_head=4, n_positions=256, eos_token_id=2)
    eager = model(seed=3, tied=False)
    eager.set_attn_implementation("eager")
    found = {
        "untied": model(seed=1, tied=False),
        "eager": eager,
        "float64": model(dtype=torch.float64),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**shape)),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**shape)),
        "gpt2": GPT2LMHeadModel(gpt2),
    }
    return {name: each.eval() for name, each in found.items()}


def test_every_log_prob_is_that_of_a_full_forward_over_ragged_prompts_turns_and_rows_that_end() -> None:
    spoken = engine().play(prompts(), replies(), SETTINGS, uniforms)
    assert largest_gap(model(), spoken) < 2e-5
    assert len({len(s.ids) for s in spoken}) > 5
    assert {len(s.turns) for s in spoken} == {1, 2, 3}
    assert min(s.entropy[s.sampled].min() for s in spoken) > 1
    assert all(s.logp[s.sampled].max() < 0 for s in spoken)


@pytest.mark.parametrize("name", ["untied", "eager", "float64", "qwen2", "qwen3", "gpt2"])
def test_other_models_too(name: str) -> None:
    of = others()[name]
    assert largest_gap(of, engine(of).play(prompts(6), replies(), SETTINGS, uniforms)) < 2e-5


def test_bfloat16_weights_have_a_float32_head() -> None:
    """A forward in float32 of the same weights differs by what 8 bits of mantissa do inside the body, and no more."""
    rounded = model(dtype=torch.bfloat16)
    spoken = engine(rounded).play(prompts(6), replies(), SETTINGS, uniforms)
    bodies = [np.abs(s.logp[s.sampled] - full_forward(rounded, s, SETTINGS.temperature)[0]) for s in spoken]
    assert 1e-4 < np.concatenate(bodies).mean() < 0.05
    logp = np.concatenate([s.logp[s.sampled] for s in spoken])
    assert len(np.unique(logp)) > 0.9 * len(logp)  # logits of 8 bits would meet again and again


def test_a_turn_is_what_was_sampled_and_columns_say_where_each_token_came_from() -> None:
    for spoken, prompt in zip(engine().play(prompts(), replies(), SETTINGS, uniforms), prompts(), strict=True):
        n = len(prompt)
        assert spoken.ids[:n].tolist() == prompt
        assert not spoken.sampled[:n].any()
        assert spoken.sampled.sum() == sum(len(turn.ids) for turn in spoken.turns)
        for k, turn in enumerate(spoken.turns):
            assert spoken.ids[spoken.sampled & (spoken.turn == k)].tolist() == list(turn.ids)
        assert (np.diff(spoken.turn) >= 0).all()
        assert (spoken.version == np.where(spoken.sampled, 0, -1)).all()
        assert not spoken.logp[~spoken.sampled].any()
        last = spoken.turns[-1]
        assert spoken.ids[-len(last.ids) :].tolist() == list(last.ids)


def as_row(row: int) -> Answering:
    """Replies to the only row there is, as to this one."""
    answer = replies()
    return lambda rows, turns: answer([row], turns)


def test_a_row_alone_says_what_it_says_in_company() -> None:
    together = engine().play(prompts(), replies(), SETTINGS, uniforms)
    for row in range(9):
        (alone,) = engine().play(
            [prompts()[row]], as_row(row), SETTINGS, lambda _, place, row=row: uniforms(row, place)
        )
        assert same(alone, together[row])
        np.testing.assert_allclose(alone.logp, together[row].logp, atol=2e-5, rtol=0)


def test_the_order_of_a_batch_how_many_fit_and_how_much_is_read_at_once_change_nothing() -> None:
    """Known fault F28: samples that depend on who finished first."""
    given, straight = prompts(), engine().play(prompts(), replies(), SETTINGS, uniforms)
    order = np.random.default_rng(0).permutation(len(given))
    answer = replies()
    shuffled = engine(rows=4, chunk_tokens=7, prefix_bytes=0).play(
        [given[i] for i in order],
        lambda rows, turns: answer([order[row] for row in rows], turns),
        SETTINGS,
        lambda row, place: uniforms(order[row], place),
    )
    assert all(same(shuffled[i], straight[row]) for i, row in enumerate(order))
    assert len({s.turns[0].ids for s in straight[:3]}) == 3  # rows of one prompt have luck of their own


def test_luck_has_a_place_for_every_token_of_every_turn() -> None:
    asked: dict[int, list[int]] = {}

    def noted(row: int, place: int) -> float:
        asked.setdefault(row, []).append(place)
        return uniforms(row, place)

    for row, spoken in enumerate(engine().play(prompts(), replies(), SETTINGS, noted)):
        places = [SETTINGS.turn_tokens * k + n for k, turn in enumerate(spoken.turns) for n in range(len(turn.ids))]
        assert asked[row] == places


def test_replies_are_asked_for_in_ascending_order_of_rows() -> None:
    batches = []

    def noted(rows: Any, turns: Any) -> list[Reply]:
        batches.append(list(rows))
        return answer(rows, turns)

    answer = replies()
    engine().play(prompts(12), noted, SETTINGS, uniforms)
    assert all(rows == sorted(rows) for rows in batches)
    assert max(map(len, batches)) > 1


def test_the_likeliest_tokens_are_those_of_generate() -> None:
    """Padding on the left, by transformers; no padding at all here."""
    given, most = prompts()[::3], 12
    settings = replace(SETTINGS, stop=(), turn_tokens=most)
    spoken = engine(ends=[]).play(given, over, settings, None)
    width = max(map(len, given))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in given])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in given])
    theirs = model().generate(
        ids, attention_mask=mask, max_new_tokens=most, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert [s.ids[len(p) :].tolist() for s, p in zip(spoken, given, strict=True)] == theirs[:, width:].tolist()
    assert largest_gap(model(), spoken) < 2e-5
    assert len({turn.ids for s in spoken for turn in s.turns}) > 1


def test_frequencies_are_the_models_probabilities_at_the_temperature() -> None:
    """A chi-square statistic of 4,000 first tokens, all of one prompt."""
    n, prompt = 4000, prompts()[0]
    draws = block(5, "engine/frequencies", 0, (n,))
    settings = replace(SETTINGS, turn_tokens=1, stop=(), temperature=0.5)
    spoken = engine(rows=1000).play([prompt] * n, over, settings, lambda row, place: float(draws[row]))
    counts = np.bincount([s.turns[0].ids[0] for s in spoken], minlength=len(tokenizer()))
    with torch.no_grad():
        p = torch.softmax(model()(torch.tensor([prompt])).logits[0, -1].double() / 0.5, -1).numpy()
    common = p * n >= 5
    expected = np.append(p[common], p[~common].sum()) * n
    seen = np.append(counts[common], counts[~common].sum())
    freedom = len(expected) - 1
    assert freedom > 20
    assert abs(((seen - expected) ** 2 / expected).sum() - freedom) < 4 * np.sqrt(2 * freedom)


def test_versions_are_those_that_sampled_and_log_probs_are_of_one_version_each() -> None:
    """Known fault F22: 4 published after five of ten tokens -> [3] * 5 + [4] * 5."""
    old, new = model(seed=0), model(seed=2)
    speaking = engine(old, version=3, ends=[])

    def publish(step: int) -> None:
        if step == 5:
            speaking.publish(4, new)

    settings = replace(SETTINGS, turn_tokens=10, stop=())
    spoken = speaking.play(prompts(4), over, settings, uniforms, publish)
    for s in spoken:
        assert s.version[s.sampled].tolist() == [3] * 5 + [4] * 5
        by_old, by_new = (full_forward(m, s, settings.temperature)[0] for m in (old, new))
        np.testing.assert_allclose(s.logp[s.sampled], np.append(by_old[:5], by_new[5:]), atol=2e-5)
        assert np.abs(by_old - by_new)[5:].max() > 0.1


def test_publishing_between_turns_of_many_rows_at_once() -> None:
    models = {version: model(seed=version) for version in range(4)}
    speaking = engine(models[0], version=0, rows=4)

    def publish(step: int) -> None:
        if step % 6 == 5:
            speaking.publish(min(step // 6 + 1, 3), models[min(step // 6 + 1, 3)])

    spoken = speaking.play(prompts(), replies(), SETTINGS, uniforms, publish)
    for s in spoken:
        by = np.stack([full_forward(models[v], s, SETTINGS.temperature)[0] for v in range(4)])
        versions = s.version[s.sampled]
        assert (np.diff(versions) >= 0).all()
        np.testing.assert_allclose(s.logp[s.sampled], by[versions, np.arange(len(versions))], atol=2e-5)
    assert {v for s in spoken for v in s.version[s.sampled].tolist()} >= {0, 1, 2, 3}
    assert any(len(set(s.version[s.sampled].tolist())) > 1 for s in spoken)


def test_a_prompt_is_read_once_for_its_rows_and_kept_for_its_version() -> None:
    read: list[tuple[int, int]] = []
    speaking = engine()

    def watch(of: Any) -> Any:
        return of.model.register_forward_pre_hook(
            lambda module, args, kwargs: read.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )

    hooks = [watch(model()), watch(model(seed=2))]
    try:
        settings = replace(SETTINGS, turn_tokens=1)
        first = speaking.play(prompts(9), over, settings, uniforms)
        assert read == [(3, max(map(len, prompts())) - 1), (9, 1)]
        assert all(same(a, b) for a, b in zip(first, speaking.play(prompts(9), over, settings, uniforms), strict=True))
        assert read[2:] == [(9, 1)]
        speaking.publish(0, model())
        speaking.play(prompts(9), over, settings, uniforms)
        assert read[3:] == [(9, 1)]
        speaking.publish(1, model(seed=2))
        spoken = speaking.play(prompts(9), over, settings, uniforms)
        assert read[4:] == [(3, max(map(len, prompts())) - 1), (9, 1)]
        assert largest_gap(model(seed=2), spoken) < 2e-5
    finally:
        for hook in hooks:
            hook.remove()


def test_the_same_version_number_for_other_weights_is_not_served_from_memory() -> None:
    speaking = engine(model(seed=0), version=7)
    speaking.play(prompts(3), over, SETTINGS, uniforms)
    speaking.publish(7, model(seed=2))
    assert largest_gap(model(seed=2), speaking.play(prompts(3), over, SETTINGS, uniforms)) < 2e-5


def test_what_hooks_and_replies_raise_passes_through_and_the_engine_plays_on() -> None:
    speaking = engine()
    expected = engine().play(prompts(), replies(), SETTINGS, uniforms)

    def fail(*given: Any) -> Any:
        raise KeyError("a tool broke")

    def late(step: int) -> None:
        if step == 4:
            fail()

    for attempt in (
        lambda: speaking.play(prompts(), fail, SETTINGS, uniforms),
        lambda: speaking.play(prompts(), replies(), SETTINGS, uniforms, late),
        lambda: speaking.play(prompts(), replies(), SETTINGS, lambda row, place: fail() if place > 3 else 0.5),
    ):
        with pytest.raises(KeyError, match="a tool broke"):
            attempt()
        again = speaking.play(prompts(), replies(), SETTINGS, uniforms)
        assert all(same(a, b) for a, b in zip(again, expected, strict=True))


def test_a_model_in_training_samples_without_dropout_and_trains_on() -> None:
    of = model(seed=4, tied=False)
    for layer in of.model.layers:
        layer.self_attn.attention_dropout = 0.5
    of.train()
    of.model.layers[0].eval()  # frozen by its owner
    before = {name: module.training for name, module in of.named_modules()}
    seen: list[bool] = []

    def learn(step: int) -> None:
        seen.append(of.training)
        loss = of(torch.tensor([[5, 6, 7]])).logits.square().mean()
        loss.backward()

    spoken = engine(of).play(prompts(3), over, SETTINGS, uniforms)
    assert {name: module.training for name, module in of.named_modules()} == before
    assert largest_gap(of, spoken) > 0.1
    assert largest_gap(of.eval(), spoken) < 2e-5
    of.train()
    of.model.layers[0].eval()
    engine(of).play(prompts(3), over, replace(SETTINGS, turn_tokens=3), uniforms, learn)
    assert {name: module.training for name, module in of.named_modules()} == before
    assert all(seen)
    assert of.lm_head.weight.grad is not None


def test_errors_say_what_is_wrong_and_the_way_out() -> None:
    empty = LocalEngine(decoder(tokenizer()), turn_ends(tokenizer()))
    with pytest.raises(RuntimeError, match=r"call publish\(version, model\) first"):
        empty.play(prompts(), over, SETTINGS, uniforms)
    with pytest.raises(ValueError, match="version = -1 must be at least 0"):
        empty.publish(-1, model())
    with pytest.raises(ValueError, match="chunk_tokens = 0 must be at least 1"):
        engine(chunk_tokens=0)
    with pytest.raises(ValueError, match="the prompt of row 1 is empty"):
        engine().play([[5], []], over, SETTINGS, uniforms)
    with pytest.raises(ValueError, match=r"row 0 was given the ids \[-1, 398\]; the model's lie in 0 .. 397"):
        engine().play([[5, -1, 398]], over, SETTINGS, uniforms)
    with pytest.raises(ValueError, match=r"row 2 was given the ids \[9999\]"):
        engine().play(
            prompts(3), lambda rows, turns: [Reply((9999,) if row == 2 else ()) for row in rows], SETTINGS, uniforms
        )
    with pytest.raises(ValueError, match=r"3 turns had 0 replies"):
        engine().play(prompts(3), lambda rows, turns: [], replace(SETTINGS, turn_tokens=1), uniforms)
    for bad in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=f"row 0 at place 0 is {bad}; it must lie in"):
            engine().play(prompts(1), over, SETTINGS, lambda row, place, bad=bad: bad)
    assert engine().play([], over, SETTINGS, uniforms) == []


def test_weights_that_overflowed_are_an_error_not_a_token() -> None:
    broken = model(seed=5, tied=False)
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"rows \[0, 1, 2\] of a batch of 3"):
        engine(broken).play(prompts(3), over, SETTINGS, uniforms)
