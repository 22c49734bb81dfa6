"""A real server on this machine: llama.cpp's, out of the package xllamacpp, in a process of its own.

Its weights are those of the file it was started with, so new weights mean a new process behind the same address. That is
good for tests, a smoke run and a judge; a run that trains wants a server that loads weights.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fullscale.engine.http.chunk import part
from fullscale.engine.http.client import Client, Patience, ServerError
from fullscale.engine.http.gguf_file import NAME, write_gguf

__all__ = ["LlamaServer", "RestartedWeights", "serve", "why_not"]


def why_not() -> str:
    """Return what keeps this machine from running the server, and the way out; "" where nothing does."""
    for module, install in (("xllamacpp", "pip install 'xllamacpp>=2026.10'"), ("gguf", "pip install gguf")):
        if find_spec(module) is None:
            return f"llama.cpp's server needs the package {module}, which is not installed: {install}"
    return ""


class LlamaServer:
    """A server that can be started again with other weights.

    Parameters
    ----------
    port
        Where it listens, on 127.0.0.1; 0 for a free one.
    slots
        Requests it works on at once.
    context_tokens
        Most tokens of each, prompt included.
    threads
        Threads it computes with.
    patience_s
        Time it may take to start, s.
    """

    def __init__(
        self, *, port: int = 0, slots: int = 4, context_tokens: int = 2048, threads: int = 1, patience_s: float = 120.0
    ) -> None:
        for name, value in (("slots", slots), ("context_tokens", context_tokens), ("threads", threads)):
            if value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.port = _free_port() if port == 0 else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._options = {"port": self.port, "slots": slots, "context_tokens": context_tokens, "threads": threads}
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None

    @property
    def pid(self) -> int | None:
        """The number of its process; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self, weights: Path, name: str) -> None:
        """Start with a GGUF file, under this name, and wait until it answers.

        Raises
        ------
        RuntimeError
            When it runs already, ends, or does not answer in time; the message holds the last lines of its log.
        ModuleNotFoundError
            When a package is missing; it says what to install.
        """
        missing = why_not()
        if missing:
            raise ModuleNotFoundError(missing)
        if self._process is not None:
            raise RuntimeError(f"the server on {self.url} runs already; stop it first")
        options = json.dumps(self._options | {"path": str(weights), "name": name})
        with tempfile.NamedTemporaryFile(prefix="llama-server-", suffix=".log", delete=False) as log:
            self._log = Path(log.name)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fullscale.engine.http.llama_server", options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End its process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._log is not None:
            self._log.unlink(missing_ok=True)
            self._log = None

    def log(self, lines: int = 20) -> str:
        """Return the last lines it wrote."""
        return "" if self._log is None else "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def _wait(self) -> None:
        assert self._process is not None
        client, deadline = Client(self.url, Patience(2.0, 1)), time.monotonic() + self._patience_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}:\n{self.log()}")
            try:
                client.get("/health")
            except ServerError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"the server on {self.url} did not answer within {self._patience_s:g} s:\n{self.log()}")


class RestartedWeights:
    """Makes a server hold weights by starting it again; the name it is given is the version.

    Parameters
    ----------
    server
        Which; it need not run yet.
    """

    def __init__(self, server: LlamaServer) -> None:
        self.server, self.client = server, Client(server.url)

    def load(self, version: int, folder: Path) -> None:
        """Start the server with the file :data:`~fullscale.engine.http.gguf_file.NAME` of a folder."""
        self.server.stop()
        self.server.start(folder / NAME, str(version))

    def held(self) -> str:
        """Return the version that the server says it holds."""
        return str(part(self.client.get("/props"), "model_alias"))


@contextmanager
def serve(
    model: Path,
    port: int = 0,
    *,
    name: str = "0",
    texts: bool = True,
    slots: int = 4,
    context_tokens: int = 2048,
    threads: int = 1,
) -> Iterator[LlamaServer]:
    """Run a server while the context lasts.

    Parameters
    ----------
    model
        A GGUF file, or a folder that ``from_pretrained`` reads, of a Llama: it is written as float32 GGUF first.
    name
        What the server calls the model: the version of the weights.
    texts
        As in :func:`~fullscale.engine.http.gguf_file.write_gguf`, for a folder: True for a judge, False for a policy.
    """
    server = LlamaServer(port=port, slots=slots, context_tokens=context_tokens, threads=threads)
    with tempfile.TemporaryDirectory(prefix="llama-weights-") as folder:
        weights = Path(model)
        if weights.is_dir():
            weights = Path(folder) / NAME
            _convert(Path(model), weights, texts)
        server.start(weights, name)
        try:
            yield server
        finally:
            server.stop()


def _convert(folder: Path, into: Path, texts: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    write_gguf(model, AutoTokenizer.from_pretrained(folder, local_files_only=True), into, texts=texts)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
