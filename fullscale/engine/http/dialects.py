"""The servers that can be spoken to, one small object each; the caller passes the one that fits."""

import math
from dataclasses import dataclass
from typing import Any

from fullscale.engine.http.chunk import Asked, Chunk, ViolationError, maybe, numbers, part, whole_numbers

__all__ = ["LlamaCpp", "Sglang", "Vllm"]


@dataclass(frozen=True)
class LlamaCpp:
    """llama.cpp's own server, ``/completion``; the one that runs on a CPU, see :mod:`fullscale.engine.http.serving`.

    It was run here: xllamacpp 2026.10.11549, float32 weights and cache, no flash attention. Log-probs of sampled tokens
    against a float32 forward of the same weights by PyTorch: mean |difference| 1.2e-6 nats, largest 5.9e-6 (tiny Llama, 263
    tokens); mean 3.5e-6, largest 1.7e-5 (SmolLM2-135M, 169 tokens). With flash attention, the default, the mean was 1.4e-3
    (tiny Llama, 58 tokens). What is read are the probabilities after sampling: the log-probs that it gives before are
    normalised by a sum of 49,152 float32 numbers one after the other (SmolLM2: mean 1.2e-4, largest 2.4e-4); greedy decoding
    has no others.

    Of the prompt it says how many tokens it saw. Where it stops at a text it returns fewer log-probs than ids, so it is not
    asked to, and what it writes after the end of a turn, less than a chunk, is dropped. It returns no log-prob for a token
    that leaves a character unfinished, unless its file names no characters:
    :func:`fullscale.engine.http.gguf_file.gguf_saver`.
    """

    versioned: bool = True
    """Whether the server's alias is its version, as those of :mod:`fullscale.engine.http.serving` have it."""
    path: str = "/completion"
    """Where requests go."""

    def refuse(self, temperature: float | None) -> str:
        """Return "": any temperature will do."""
        return ""

    def body(self, asked: Asked) -> dict[str, Any]:
        """Return the request."""
        return {
            "prompt": list(asked.prompt),
            "n_predict": asked.tokens,
            "temperature": 0.0 if asked.temperature is None else asked.temperature,
            "samplers": ["temperature"],  # nothing that leaves tokens out
            "seed": asked.seed,
            "n_probs": 1,
            "post_sampling_probs": asked.temperature is not None,
            "return_tokens": True,
            "cache_prompt": True,
        }

    def chunk(self, answer: Any) -> Chunk:
        """Return what an answer says."""
        drawn = part(answer, "completion_probabilities")
        if not isinstance(drawn, list):
            raise ViolationError("malformed", "completion_probabilities is no list")
        ids = whole_numbers(maybe(answer, "tokens"), "tokens")
        if ids[: len(drawn)] != tuple(part(each, "id") for each in drawn):
            raise ViolationError("count", "the ids of `tokens` are not those of `completion_probabilities`")
        return Chunk(
            ids,
            tuple(_logp(each) for each in drawn),
            prompt_tokens=part(answer, "tokens_evaluated"),
            version=part(answer, "model") if self.versioned else None,
        )


@dataclass(frozen=True)
class Vllm:
    """vLLM's ``/v1/completions``. It could not be run here: this is its documented form (0.2x to 0.3x), and nothing more.

    The server gives log-probs of its raw logits, right at temperature 1 alone, unless it was started with
    ``--logprobs-mode processed_logprobs``. ``--generation-config vllm`` keeps a model's own defaults (top-k and the like)
    away; they are set here too. Prefix caches are keyed by version through ``cache_salt``.
    """

    model: str
    """Name under which the model is served."""
    processed: bool = True
    """Whether the server was started with ``--logprobs-mode processed_logprobs``."""
    path: str = "/v1/completions"
    """Where requests go."""

    def refuse(self, temperature: float | None) -> str:
        """Return why this temperature cannot be had."""
        if self.processed or not _scaled(temperature):
            return ""
        return "raw log-probs are those of temperature 1; start the server with --logprobs-mode processed_logprobs"

    def body(self, asked: Asked) -> dict[str, Any]:
        """Return the request."""
        return {
            "model": self.model,
            "prompt": list(asked.prompt),
            "max_tokens": asked.tokens,
            "temperature": 0.0 if asked.temperature is None else asked.temperature,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "seed": asked.seed,
            "logprobs": 1,  # what is read is the sampled token's own
            "return_token_ids": True,
            "stop": list(asked.stop),
            "stop_token_ids": list(asked.ends),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "add_special_tokens": False,
            "cache_salt": f"version-{asked.version}",
        }

    def chunk(self, answer: Any) -> Chunk:
        """Return what an answer says."""
        choice = part(answer, "choices", 0)
        return Chunk(
            whole_numbers(maybe(choice, "token_ids"), "token_ids"),
            numbers(part(choice, "logprobs", "token_logprobs"), "token_logprobs"),
            prompt=whole_numbers(part(choice, "prompt_token_ids"), "prompt_token_ids"),
        )


@dataclass(frozen=True)
class Sglang:
    """SGLang's native ``/generate``. It could not be run here: this is its documented form (0.5), and nothing more.

    Its log-probs are at the temperature of sampling unless ``SGLANG_RETURN_ORIGINAL_LOGPROB`` is set; leave it unset. It
    keeps to the seed only under ``--enable-deterministic-inference``. It says which weights answered.
    """

    path: str = "/generate"
    """Where requests go."""

    def refuse(self, temperature: float | None) -> str:
        """Return "": any temperature will do."""
        return ""

    def body(self, asked: Asked) -> dict[str, Any]:
        """Return the request."""
        return {
            "input_ids": list(asked.prompt),
            "sampling_params": {
                "max_new_tokens": asked.tokens,
                "temperature": 0.0 if asked.temperature is None else asked.temperature,
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "sampling_seed": asked.seed,
                "stop": list(asked.stop),
                "stop_token_ids": list(asked.ends),
                "no_stop_trim": True,
                "skip_special_tokens": False,
            },
            "return_logprob": True,
            "extra_key": f"version-{asked.version}",
        }

    def chunk(self, answer: Any) -> Chunk:
        """Return what an answer says."""
        drawn = part(answer, "meta_info", "output_token_logprobs")
        if not isinstance(drawn, list):
            raise ViolationError("malformed", "meta_info.output_token_logprobs is no list")
        ids = whole_numbers(maybe(answer, "output_ids"), "output_ids")
        if len(ids) == len(drawn) and ids != tuple(part(each, 1) for each in drawn):
            raise ViolationError("count", "the ids of `output_ids` are not those of `output_token_logprobs`")
        return Chunk(
            ids,
            numbers([part(each, 0) for each in drawn], "output_token_logprobs"),
            prompt_tokens=part(answer, "meta_info", "prompt_tokens"),
            version=part(answer, "meta_info", "weight_version"),
        )


def _scaled(temperature: float | None) -> bool:
    """Whether the logits are divided by anything but 1 before a token is drawn."""
    return temperature is not None and temperature != 1


def _logp(drawn: Any) -> float:
    """Return the log-prob of a token that llama.cpp drew: the logarithm of its probability, or as it is given."""
    if isinstance(drawn, dict) and "logprob" in drawn:
        return numbers([drawn["logprob"]], "logprob")[0]
    probability = numbers([part(drawn, "prob")], "prob")[0]
    return math.log(probability) if probability > 0 else math.nan
