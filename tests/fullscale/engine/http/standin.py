"""A server that is not one: real HTTP on a real port, and a language in which the next letter follows the last.

A token is a character, save those in `LONG`. The weights' version shows in every log-prob, so that a test sees which weights
made a token without believing what anybody stamped.
"""

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fullscale.engine.http.client import Client, Patience
from fullscale.engine.http.dialects import Vllm
from fullscale.engine.http.engine import HttpEngine
from fullscale.engine.protocol import Reply, Settings, Turn

VOCABULARY, END = 200, 0
LONG = {150: "x</s>y"}
SETTINGS = Settings(temperature=1.0, turn_tokens=6, context_tokens=40, stop=("</s>",))
PATIENT = Patience(timeout_s=5.0, attempts=3, backoff_s=0.0)


class DropError(Exception):
    """The connection breaks."""


def decode(ids: Sequence[int]) -> str:
    return "".join(LONG.get(i) or chr(i) for i in ids)


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def logp_of(token: int, version: int) -> float:
    return -(token + 1000 * version) / 1024  # exact in binary


@dataclass
class Server:
    """What it was asked, and what it is."""

    version: int = 0
    seen: list[tuple[str, Any]] = field(default_factory=list)
    hook: Callable[[str, Any], Any] | None = None
    """(path, body) -> None, or what is answered instead: (status, anything)."""
    then: Callable[[list[int], int], int] = lambda prompt, seed: prompt[-1] + 1
    """(what stands before, seed) -> the next token."""
    port: int = 0
    lock: Any = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str = "/v1/completions") -> list[Any]:
        return [body for where, body in self.seen if where == path]

    def continued(
        self, prompt: list[int], most: int, seed: int, ends: Sequence[int], stops: Sequence[str]
    ) -> list[int]:
        ids = list(prompt)
        for _ in range(most):
            ids.append(self.then(ids, seed))
            if ids[-1] in ends or any(stop in decode(ids[len(prompt) :]) for stop in stops):
                break
        return ids[len(prompt) :]

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        with self.lock:
            self.seen.append((path, body))
        said = None if self.hook is None else self.hook(path, body)
        return said if said is not None else (200, self.says(path, body))

    def says(self, path: str, body: Any) -> Any:
        return completion(self, body)


def completion(server: Server, body: Any) -> Any:
    """vLLM's answer."""
    ids = server.continued(body["prompt"], body["max_tokens"], body["seed"], body["stop_token_ids"], body["stop"])
    text = decode(ids)
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "text": text,
                "logprobs": {
                    "text_offset": [],
                    "token_logprobs": [logp_of(i, server.version) for i in ids],
                    "tokens": [decode([i]) for i in ids],
                    "top_logprobs": [],
                },
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": ids,
                "prompt_token_ids": body["prompt"],
            }
        ],
        "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids), "total_tokens": 0},
    }


@contextmanager
def standing(server: Server | None = None) -> Iterator[Server]:
    """Serve while the context lasts."""
    server = Server() if server is None else server

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            try:
                status, said = server.answer(self.path, body)
            except DropError:
                self.close_connection = True
                return
            sent = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_POST = _respond  # noqa: N815 (their names)

        def log_message(self, *args: Any) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # who asked has gone
                super().handle_error(request, client_address)

    http = Quiet(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@dataclass
class Weights:
    """Publishes to the stand-in."""

    server: Server
    lies: str = ""
    published: list[int] = field(default_factory=list)

    def publish(self, version: int, model: Any) -> None:
        self.server.version = version
        self.published.append(version)

    def held(self) -> str:
        return self.lies or str(self.server.version)


def engine(
    server: Server, *, version: int = 3, patience: Patience = PATIENT, dialect: Any = None, **more: Any
) -> HttpEngine:
    found = HttpEngine(
        Client(server.url, patience), dialect or Vllm("policy"), Weights(server), decode, [END], VOCABULARY, **more
    )
    found.publish(version, None)
    return found


def over(rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply]:
    return [Reply(None)] * len(rows)


def luck(row: int, place: int) -> float:
    return ((row * 97 + place * 31) % 1000) / 1000


def made_by(spoken):
    """The version whose weights made each token, by the log-probs that they gave it."""
    return [
        round((-x * 1024 - i) / 1000)
        for i, x in zip(sampled(spoken), spoken.logp[spoken.sampled].tolist(), strict=True)
    ]


def sampled(spoken):
    return spoken.ids[spoken.sampled].tolist()


def observing(text, turns=2):
    """Reads `text` after every turn but the last."""
    had = Counter()

    def reply(rows, ended):
        had.update(rows)
        return [Reply(None) if had[row] >= turns else Reply(tuple(encode(text))) for row in rows]

    return reply
