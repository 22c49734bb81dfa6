"""The real thing: llama.cpp's server out of a package, its tokens and log-probs against PyTorch's."""

import os
import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fullscale.engine.http.client import Client, Patience
from fullscale.engine.http.dialects import LlamaCpp
from fullscale.engine.http.engine import HttpEngine
from fullscale.engine.http.gguf_file import gguf_saver, write_gguf
from fullscale.engine.http.publishing import FixedWeights, FromDisk
from fullscale.engine.http.serving import LlamaServer, RestartedWeights, serve, why_not
from fullscale.engine.local import decoder, turn_ends
from fullscale.monitors.judge import Judge, JudgeError
from fullscale.world.questions import Question
from tests.fullscale.engine.small import (
    SETTINGS,
    full_forward,
    model,
    over,
    prompts,
    replies,
    same,
    tokenizer,
    uniforms,
)
from tests.fullscale.engine.small import engine as local

needed = pytest.mark.skipif(bool(why_not()), reason=why_not())
MEAN, LARGEST = 1e-5, 5e-5
"""Measured: 1.3e-6 and 5.9e-6."""


@pytest.fixture
def server():
    found = LlamaServer(context_tokens=256)
    yield found
    found.stop()


def playing(server, folder, **more):
    return HttpEngine(
        Client(server.url, Patience(20.0, 2, 0.05)),
        LlamaCpp(),
        FromDisk(folder, RestartedWeights(server), gguf_saver(tokenizer())),
        decoder(tokenizer()),
        turn_ends(tokenizer()),
        len(tokenizer()),
        **({"chunk_tokens": 4} | more),
    )


def gaps(of, episodes, temperature):
    return np.concatenate([np.abs(x.logp[x.sampled] - full_forward(of, x, temperature)[0]) for x in episodes])


@needed
def test_log_probs_agree_with_those_of_pytorch_at_the_temperature_of_sampling(server, tmp_path):
    engine = playing(server, tmp_path)
    engine.publish(3, model())
    for temperature in (1.0, 0.8):
        settings = replace(SETTINGS, temperature=temperature)
        episodes = engine.play(prompts(), replies(), settings, uniforms)
        found = gaps(model(), episodes, temperature)
        assert len(found) > 80
        assert [x.ended for x in episodes] == ["over"] * 9
        assert found.mean() < MEAN
        assert found.max() < LARGEST
        other = gaps(model(), episodes, 1.8 - temperature)
        assert other.mean() > 0.05, "another temperature would pass as well"
        assert all((x.version[x.sampled] == 3).all() for x in episodes)
    assert not engine.violations
    assert not engine.failures


@needed
def test_the_likeliest_tokens_are_those_of_the_local_engine(server, tmp_path):
    engine = playing(server, tmp_path)
    engine.publish(0, model())
    mine = engine.play(prompts(), replies(), SETTINGS, None)
    theirs = local(model()).play(prompts(), replies(), SETTINGS, None)
    assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    assert sum(len(x.turns) for x in mine) > 12


@needed
def test_a_rerun_finds_the_same_tokens_in_other_company(server, tmp_path):
    engine = playing(server, tmp_path)
    engine.publish(0, model())
    together = engine.play(prompts(), replies(), SETTINGS, uniforms)
    engine.concurrent = 1
    alone = engine.play(prompts(), replies(), SETTINGS, uniforms)
    assert [x.ids.tolist() for x in together] == [x.ids.tolist() for x in alone]
    assert len({tuple(x.ids[x.sampled]) for x in together}) == 9


@needed
def test_weights_published_in_the_middle_make_what_follows(server, tmp_path):
    engine = playing(server, tmp_path)
    engine.publish(3, model())

    def between(step):
        if step == 1:
            engine.publish(4, model(seed=1))

    (spoken,) = engine.play(prompts()[:1], over, replace(SETTINGS, stop=(), temperature=1.0), uniforms, between)
    version = spoken.version[spoken.sampled]
    assert Counter(version.tolist()) == {3: 4, 4: 6}
    for number, of in ((3, model()), (4, model(seed=1))):
        gap = np.abs(spoken.logp[spoken.sampled] - full_forward(of, spoken, 1.0)[0])
        assert gap[version == number].max() < LARGEST < gap[version != number].max()


@needed
def test_killed_in_the_middle(server, tmp_path):
    engine = playing(server, tmp_path)
    engine.publish(3, model())

    def between(step):
        if step == 1:
            os.kill(server.pid, signal.SIGKILL)

    episodes = engine.play(prompts(), replies(), SETTINGS, uniforms, between)
    assert len(episodes) == 9
    assert {x.ended for x in episodes} <= {"failed", "over"}
    assert sum(x.ended == "failed" for x in episodes) == engine.failures["connection"] > 5
    engine.publish(3, model())  # starts it again
    assert [x.ended for x in engine.play(prompts(), replies(), SETTINGS, uniforms)] == ["over"] * 9


@needed
def test_a_prompt_that_the_server_has_no_room_for_fails_that_episode(server, tmp_path):
    engine = playing(server, tmp_path)
    engine.publish(0, model())
    long = prompts()[0] * 40
    bad, good = engine.play([long, prompts()[0]], over, replace(SETTINGS, context_tokens=2000), uniforms)
    assert (bad.ended, good.ended) == ("failed", "over")
    assert "exceeds the available context" in bad.reason


@needed
def test_serving_a_folder_with_fixed_weights(tmp_path):
    model().save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    with serve(tmp_path, name="7", texts=False, context_tokens=256) as server:
        client = Client(server.url)
        engine = HttpEngine(
            client,
            LlamaCpp(),
            FixedWeights(client, 7, "7"),
            decoder(tokenizer()),
            turn_ends(tokenizer()),
            len(tokenizer()),
        )
        engine.publish(7, None)
        episodes = engine.play(prompts()[:3], over, SETTINGS, uniforms)
        with pytest.raises(ValueError, match="fixed at version 7"):
            engine.publish(8, None)
        pid = server.pid
    assert gaps(model(), episodes, SETTINGS.temperature).max() < LARGEST
    assert server.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@needed
def test_a_judge_is_asked_through_the_servers_own_chat(tmp_path):
    """A tiny model of random weights says neither yes nor no, and that is what is told; kept to the words it says one."""
    write_gguf(model(), tokenizer(), tmp_path / "model.gguf")
    with serve(tmp_path / "model.gguf", context_tokens=512) as server:
        client, question = (
            Client(server.url, Patience(20.0, 1)),
            Question("q", "What is the capital of Spain?", ("Madrid",)),
        )
        asking = Judge(client)
        with pytest.raises(JudgeError, match="not yes or no"):
            asking.grade(question, "Madrid")
        kept = Judge(client, also={"grammar": 'root ::= "yes" | "no"'})
        verdicts = {kept.grade(question, answer) for answer in ("Madrid", "Lisbon", "Paris")}
    assert asking.said == {"unclear": 1}
    assert kept.said["yes"] + kept.said["no"] == 3
    assert verdicts <= {True, False}


@needed
def test_a_file_that_is_no_model_is_told_with_the_servers_own_words(server, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"nothing")
    with pytest.raises(RuntimeError, match=r"ended with status|did not answer") as raised:
        server.start(tmp_path / "model.gguf", "0")
    assert "model.gguf" in str(raised.value) or "load" in str(raised.value)
    assert server.pid is None


def test_sizes_must_be_positive():
    for name in ("slots", "context_tokens", "threads"):
        with pytest.raises(ValueError, match=f"{name} = 0"):
            LlamaServer(**{name: 0})


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setattr("fullscale.engine.http.serving.find_spec", lambda name: None)
    assert "pip install 'xllamacpp" in why_not()
    with pytest.raises(ModuleNotFoundError, match="xllamacpp"):
        LlamaServer().start("model.gguf", "0")


# ---------------------------------------------------------------- the file


def test_the_file_holds_the_weights_unrounded_and_heads_in_turns(tmp_path):
    gguf = pytest.importorskip("gguf")
    write_gguf(model(), tokenizer(), tmp_path / "model.gguf")
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    found = {tensor.name: tensor.data for tensor in read.tensors}
    state = {name: x.numpy() for name, x in model().state_dict().items()}
    assert np.array_equal(found["token_embd.weight"], state["model.embed_tokens.weight"])
    assert np.array_equal(found["blk.1.attn_v.weight"], state["model.layers.1.self_attn.v_proj.weight"])
    assert "output.weight" not in found
    assert len(found) == len(state) - 1
    mine, theirs = state["model.layers.0.self_attn.q_proj.weight"], found["blk.0.attn_q.weight"]
    # heads of 16: rows 0, 8, 1, 9, ... of each
    order = [head * 16 + half * 8 + i for head in range(4) for i in range(8) for half in range(2)]
    assert np.array_equal(theirs, mine[order])
    assert not np.array_equal(theirs, mine)
    assert read.fields["tokenizer.ggml.tokens"].contents()[1] == "<|im_start|>"
    assert read.fields["tokenizer.ggml.pre"].contents() == "gpt-2"


def test_a_policys_file_names_no_characters(tmp_path):
    gguf = pytest.importorskip("gguf")
    gguf_saver(tokenizer())(model(tied=False), tmp_path)
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    tokens = read.fields["tokenizer.ggml.tokens"].contents()
    assert tokens == [f"token{i}" for i in range(len(tokenizer()))]
    types = read.fields["tokenizer.ggml.token_type"].contents()
    assert types[:4] == [3, 3, 3, 1]
    assert "output.weight" in {tensor.name for tensor in read.tensors}


def test_what_is_no_llama_is_refused(tmp_path):
    pytest.importorskip("gguf")
    from transformers import GPT2Config, GPT2LMHeadModel

    other = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1, n_positions=8))
    with pytest.raises(ValueError, match="gpt2 is no Llama"):
        write_gguf(other, tokenizer(), tmp_path / "x.gguf")
