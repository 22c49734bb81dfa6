"""The wire formats: what is sent, and what is read out of answers as the servers' documentation has them."""

import math

import pytest

from fullscale.engine.http.chunk import Asked, Chunk, ViolationError, check, numbers, part, whole_numbers
from fullscale.engine.http.dialects import LlamaCpp, Sglang, Vllm
from tests.fullscale.engine.http.standin import SETTINGS, Server, decode, encode, engine, logp_of, luck, over, standing

ASKED = Asked((5, 6, 7), 4, 0.7, 11, ("</s>",), (0, 2), 3)
GREEDY = Asked((5, 6, 7), 4, None, 0, (), (), 3)

LLAMA_ANSWER = {
    "index": 0,
    "content": "MN",
    "tokens": [47, 328],
    "model": "3",
    "tokens_predicted": 2,
    "tokens_evaluated": 3,
    "truncated": False,
    "stop_type": "limit",
    "completion_probabilities": [
        {"id": 47, "token": "M", "bytes": [77], "prob": 0.25, "top_probs": [{"id": 314, "prob": 0.5}]},
        {"id": 328, "token": "N", "bytes": [78], "prob": 0.5, "top_probs": []},
    ],
}
SGLANG_ANSWER = {
    "text": "MN",
    "output_ids": [47, 328],
    "meta_info": {
        "id": "1",
        "finish_reason": {"type": "length", "length": 2},
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "weight_version": "3",
        "output_token_logprobs": [[-1.5, 47, None], [-0.5, 328, None]],
    },
}


def test_vllm_is_asked_for_ids_from_ids_over_the_whole_vocabulary():
    assert Vllm("policy").body(ASKED) == {
        "model": "policy",
        "prompt": [5, 6, 7],
        "max_tokens": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "seed": 11,
        "logprobs": 1,
        "return_token_ids": True,
        "stop": ["</s>"],
        "stop_token_ids": [0, 2],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
        "cache_salt": "version-3",
    }
    assert Vllm("policy").body(GREEDY)["temperature"] == 0.0


def test_raw_log_probs_of_vllm_are_refused_where_they_are_those_of_another_temperature():
    raw = Vllm("policy", processed=False)
    assert raw.refuse(1.0) == raw.refuse(None) == Vllm("policy").refuse(0.6) == ""
    assert "processed_logprobs" in raw.refuse(0.6)


def test_llama_cpp_is_asked_for_probabilities_after_sampling_and_never_to_stop_at_a_text():
    body = LlamaCpp().body(ASKED)
    assert body["samplers"] == ["temperature"]
    assert body["post_sampling_probs"] is True
    assert (body["prompt"], body["n_predict"], body["temperature"], body["seed"]) == ([5, 6, 7], 4, 0.7, 11)
    assert "stop" not in body
    assert (LlamaCpp().body(GREEDY)["temperature"], LlamaCpp().body(GREEDY)["post_sampling_probs"]) == (0.0, False)


def test_llama_cpp_is_read():
    chunk = LlamaCpp().chunk(LLAMA_ANSWER)
    assert chunk == Chunk((47, 328), (math.log(0.25), math.log(0.5)), prompt_tokens=3, version="3")
    check(chunk, ASKED, 400)
    assert LlamaCpp(versioned=False).chunk(LLAMA_ANSWER).version is None
    raw = LLAMA_ANSWER | {"completion_probabilities": [{"id": 47, "logprob": -1.5}, {"id": 328, "logprob": -0.5}]}
    assert LlamaCpp().chunk(raw).logp == (-1.5, -0.5)


def test_a_token_without_log_prob_is_noticed():
    """llama.cpp leaves out a token that leaves a character unfinished, at the end or between others."""
    drawn = LLAMA_ANSWER["completion_probabilities"]
    with pytest.raises(ViolationError, match="count: 2 ids came with 1 log-probs"):
        check(LlamaCpp().chunk(LLAMA_ANSWER | {"completion_probabilities": drawn[:1]}), ASKED, 400)
    with pytest.raises(ViolationError, match="count: the ids of `tokens` are not those"):
        LlamaCpp().chunk(LLAMA_ANSWER | {"completion_probabilities": drawn[1:]})


def test_a_probability_of_nothing_is_no_log_prob():
    drawn = [{"id": 47, "prob": 0.0}, {"id": 328, "prob": 0.5}]
    with pytest.raises(ViolationError, match="log-prob"):
        check(LlamaCpp().chunk(LLAMA_ANSWER | {"completion_probabilities": drawn}), ASKED, 400)


def test_sglang_is_asked_for_ids_from_ids():
    body = Sglang().body(ASKED)
    assert body["input_ids"] == [5, 6, 7]
    assert body["return_logprob"] is True
    assert body["extra_key"] == "version-3"
    assert body["sampling_params"] == {
        "max_new_tokens": 4,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "sampling_seed": 11,
        "stop": ["</s>"],
        "stop_token_ids": [0, 2],
        "no_stop_trim": True,
        "skip_special_tokens": False,
    }


def test_sglang_is_read():
    chunk = Sglang().chunk(SGLANG_ANSWER)
    assert chunk == Chunk((47, 328), (-1.5, -0.5), prompt_tokens=3, version="3")
    check(chunk, ASKED, 400)
    with pytest.raises(ViolationError, match="count"):
        Sglang().chunk(SGLANG_ANSWER | {"output_ids": [47, 99]})
    with pytest.raises(ViolationError, match="no ids"):
        Sglang().chunk({"meta_info": SGLANG_ANSWER["meta_info"]})


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (LlamaCpp(), LLAMA_ANSWER | {"model": "4"}),
        (Sglang(), SGLANG_ANSWER | {"meta_info": SGLANG_ANSWER["meta_info"] | {"weight_version": "4"}}),
    ],
)
def test_other_weights_than_those_that_were_asked_are_noticed(dialect, answer):
    with pytest.raises(ViolationError, match="version 3 was asked, '4' answered"):
        check(dialect.chunk(answer), ASKED, 400)


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        (LlamaCpp(), LLAMA_ANSWER | {"tokens_evaluated": 2}),
        (Sglang(), SGLANG_ANSWER | {"meta_info": SGLANG_ANSWER["meta_info"] | {"prompt_tokens": 2}}),
    ],
)
def test_a_prompt_of_another_length_is_noticed(dialect, answer):
    with pytest.raises(ViolationError, match="prompt: 3 ids were sent, the server saw 2 tokens"):
        check(dialect.chunk(answer), ASKED, 400)


def test_where_two_prompts_part_is_told():
    with pytest.raises(ViolationError, match="3 ids were sent, the server saw 3, other from token 1 on"):
        check(Chunk((1,), (-1.0,), prompt=(5, 9, 7)), ASKED, 400)
    with pytest.raises(ViolationError, match="the server saw 2, other in length"):
        check(Chunk((1,), (-1.0,), prompt=(5, 6)), ASKED, 400)


@pytest.mark.parametrize("dialect", [LlamaCpp(), Vllm("policy"), Sglang()])
@pytest.mark.parametrize("answer", [None, [], {}, "text", {"choices": []}, {"choices": [[]]}, {"meta_info": 3}, 7])
def test_any_other_answer_is_a_violation_and_nothing_else(dialect, answer):
    with pytest.raises(ViolationError):
        dialect.chunk(answer)


def test_true_is_no_number_and_text_no_list():
    with pytest.raises(ViolationError):
        whole_numbers([1, True], "ids")
    with pytest.raises(ViolationError):
        whole_numbers([1.0], "ids")
    with pytest.raises(ViolationError):
        numbers("12", "log-probs")
    with pytest.raises(ViolationError, match=r"no a\.0"):
        part({"a": "text"}, "a", 0)


class SglangServer(Server):
    def says(self, path, body):
        if path == "/model_info":
            return {"model_path": "m", "weight_version": str(self.version)}
        sampling = body["sampling_params"]
        seed, ends, stops = sampling["sampling_seed"], sampling["stop_token_ids"], sampling["stop"]
        ids = self.continued(body["input_ids"], sampling["max_new_tokens"], seed, ends, stops)
        return {
            "text": decode(ids),
            "output_ids": ids,
            "meta_info": {
                "prompt_tokens": len(body["input_ids"]),
                "weight_version": str(self.version),
                "output_token_logprobs": [[logp_of(i, self.version), i, None] for i in ids],
            },
        }


class LlamaStandIn(Server):
    def says(self, path, body):
        ids = self.continued(body["prompt"], body["n_predict"], body["seed"], [], [])
        return {
            "tokens": ids,
            "model": str(self.version),
            "tokens_evaluated": len(body["prompt"]),
            "completion_probabilities": [{"id": i, "prob": math.exp(logp_of(i, self.version))} for i in ids],
        }


@pytest.mark.parametrize(("server", "dialect"), [(SglangServer(), Sglang()), (LlamaStandIn(), LlamaCpp())])
def test_one_episode_through_each(server, dialect):
    with standing(server):
        playing = engine(server, version=1, dialect=dialect, chunk_tokens=4)
        (spoken,) = playing.play([encode("go")], over, SETTINGS, luck)
    assert decode(spoken.ids) == "gopqrstu"
    assert spoken.version[2:].tolist() == [1] * 6
    assert spoken.logp[2:] == pytest.approx([logp_of(i, 1) for i in spoken.ids[2:].tolist()], abs=1e-6)
    assert not playing.violations
