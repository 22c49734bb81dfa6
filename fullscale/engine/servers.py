"""Inference servers, as configs of a run: which, where, and how weights reach it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullscale.engine.http.chunk import Dialect
from fullscale.engine.http.client import Client, Patience
from fullscale.engine.http.dialects import LlamaCpp, Sglang, Vllm
from fullscale.engine.http.engine import HttpEngine
from fullscale.engine.http.gguf_file import gguf_saver
from fullscale.engine.http.publishing import FromDisk, Publisher, SglangWeights, VllmWeights
from fullscale.engine.http.serving import LlamaServer, RestartedWeights
from sim.records.config import config

__all__ = ["AtSglang", "AtVllm", "OwnLlama", "Reader", "Server"]


@dataclass(frozen=True)
class Reader:
    """What an engine must know of a run's language."""

    tokenizer: Any
    """The tokenizer."""
    decode: Callable[[Sequence[int]], str]
    """Ids -> text."""
    ends: Collection[int]
    """Ids that end a turn."""
    vocabulary: int
    """Ids lie below it."""
    context_tokens: int
    """Most tokens of a context."""


@config
class OwnLlama:
    """llama.cpp's server, on this machine, started and stopped by the run; it is started again with every version.

    How far its log-probs are from a float32 forward: :class:`~fullscale.engine.http.dialects.LlamaCpp`.
    """

    slots: int = 8
    """Requests it works on at once."""
    threads: int = 1
    """Threads it computes with."""
    chunk_tokens: int = 64
    """Most tokens a request asks for; new weights reach an episode between requests."""

    def __post_init__(self) -> None:
        _positive(self, "slots", "threads", "chunk_tokens")

    def engine(self, reader: Reader, folder: Path) -> tuple[HttpEngine, Callable[[], None]]:
        """Return an engine that samples there, and what ends the server; weights are published in `folder`."""
        server = LlamaServer(slots=self.slots, context_tokens=reader.context_tokens, threads=self.threads)
        weights = FromDisk(folder, RestartedWeights(server), gguf_saver(reader.tokenizer))
        made = _engine(Client(server.url), LlamaCpp(), weights, reader, self.chunk_tokens, self.slots)
        return made, server.stop


@config
class AtVllm:
    """A vLLM server, started by the user with ``VLLM_SERVER_DEV_MODE=1``; it sees the run's folder under the same name.

    It could not be run here: what is spoken is its documented form.
    """

    address: str
    """Where it listens, such as ``http://127.0.0.1:8000``."""
    model: str
    """Name under which it serves the model."""
    processed: bool = False
    """Whether it was started with ``--logprobs-mode processed_logprobs``; without, its log-probs are those of temperature 1
    and another is refused."""
    concurrent: int = 256
    """Most requests of a call at once."""
    chunk_tokens: int = 256
    """Most tokens a request asks for."""
    timeout_s: float = 600.0
    """Time a request may take, s."""

    def __post_init__(self) -> None:
        _positive(self, "concurrent", "chunk_tokens", "timeout_s")

    def engine(self, reader: Reader, folder: Path) -> tuple[HttpEngine, Callable[[], None]]:
        """Return an engine that samples there, and what is to be done at the end; weights are published in `folder`."""
        client = Client(self.address, Patience(self.timeout_s))
        weights = FromDisk(folder, VllmWeights(client))
        made = _engine(client, Vllm(self.model, self.processed), weights, reader, self.chunk_tokens, self.concurrent)
        return made, _nothing


@config
class AtSglang:
    """An SGLang server, started by the user; it sees the run's folder under the same name.

    It could not be run here: what is spoken is its documented form.
    """

    address: str
    """Where it listens, such as ``http://127.0.0.1:30000``."""
    concurrent: int = 256
    """Most requests of a call at once."""
    chunk_tokens: int = 256
    """Most tokens a request asks for."""
    timeout_s: float = 600.0
    """Time a request may take, s."""

    def __post_init__(self) -> None:
        _positive(self, "concurrent", "chunk_tokens", "timeout_s")

    def engine(self, reader: Reader, folder: Path) -> tuple[HttpEngine, Callable[[], None]]:
        """Return an engine that samples there, and what is to be done at the end; weights are published in `folder`."""
        client = Client(self.address, Patience(self.timeout_s))
        weights = FromDisk(folder, SglangWeights(client))
        return _engine(client, Sglang(), weights, reader, self.chunk_tokens, self.concurrent), _nothing


Server = OwnLlama | AtVllm | AtSglang


def _engine(
    client: Client, dialect: Dialect, weights: Publisher, reader: Reader, chunk_tokens: int, concurrent: int
) -> HttpEngine:
    return HttpEngine(
        client,
        dialect,
        weights,
        reader.decode,
        reader.ends,
        reader.vocabulary,
        chunk_tokens=chunk_tokens,
        concurrent=concurrent,
    )


def _positive(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} = {getattr(config, name)} must be positive")


def _nothing() -> None:
    pass
