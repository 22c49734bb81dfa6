"""JSON over HTTP to one server: a time limit, a few attempts, and errors that say what happened.

Only what a server cannot have answered is asked again: a connection that was refused or broke, and the statuses that say
"not now". A request that ran out of time is not, since the server may still be at work on it. Whoever asks reads one answer
or none, so an attempt whose answer was lost adds nothing to any record.
"""

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

__all__ = ["Client", "Patience", "ServerError"]

Kind = Literal["connection", "timeout", "status", "malformed"]
_AGAIN = frozenset({429, 500, 502, 503, 504})
_MOST_BYTES = 2**28
_SHOWN = 300


class ServerError(RuntimeError):
    """A server that gave no answer that can be used.

    Attributes
    ----------
    kind
        "connection": refused or broken; "timeout": no answer in time; "status": an answer that is an error; "malformed": an
        answer that is not JSON.
    status
        The HTTP status, where there was one.
    """

    def __init__(self, kind: Kind, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.kind, self.status = kind, status


@dataclass(frozen=True)
class Patience:
    """How long an answer is waited for, and how often it is asked for."""

    timeout_s: float = 600.0
    """Time an attempt may take, s."""
    attempts: int = 3
    """Attempts of a request."""
    backoff_s: float = 0.5
    """Time between the first attempt and the second, s; it doubles with each."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0 or not self.backoff_s >= 0:
            raise ValueError(
                f"timeout_s = {self.timeout_s} must be positive and backoff_s = {self.backoff_s} at least 0"
            )
        if self.attempts < 1:
            raise ValueError(f"attempts = {self.attempts} must be at least 1")


class Client:
    """Asks one server; safe to use from several threads, each request has a connection of its own.

    No proxy is used, whatever the environment says: the server is one's own.

    Parameters
    ----------
    url
        Where the server is, such as ``http://127.0.0.1:8000``; a path in it is put before every other.
    patience
        Limits.
    api_key
        Sent as a bearer token; none by default.
    sleep
        How to wait between attempts.
    """

    def __init__(
        self,
        url: str,
        patience: Patience | None = None,
        *,
        api_key: str = "",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; write http://host:port")
        self.url, self.patience = url.rstrip("/"), Patience() if patience is None else patience
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place, self._before = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {api_key}"} if api_key else {}
        )
        self._sleep = sleep

    def get(self, path: str) -> Any:
        """Return what the server answers, decoded; see :meth:`post`."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send `body` as JSON and return the answer, decoded; None where it is empty.

        Raises
        ------
        ServerError
            When no attempt had an answer with a status below 300 that is JSON.
        """
        return self._ask("POST", path, json.dumps(body, allow_nan=False).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        for attempt in range(1, self.patience.attempts + 1):
            try:
                return self._attempt(method, path, body)
            except ServerError as error:
                again = error.kind == "connection" or error.status in _AGAIN
                if not again or attempt == self.patience.attempts:
                    said = f"{error} (attempt {attempt} of {self.patience.attempts})"
                    raise ServerError(error.kind, said, error.status) from error.__cause__
                self._sleep(self.patience.backoff_s * 2 ** (attempt - 1))
        raise AssertionError("unreachable")

    def _attempt(self, method: str, path: str, body: bytes | None) -> Any:
        asked = f"{method} {self.url}{path}"
        deadline = time.monotonic() + self.patience.timeout_s
        connection = self._connection(self._place, timeout=self.patience.timeout_s)
        try:
            connection.request(method, self._before + path, body, self._headers)
            line = connection.sock  # the connection forgets it where the server will close it
            with connection.getresponse() as response:
                read = self._read(line, response, deadline)
        except TimeoutError:
            raise ServerError("timeout", f"{asked}: no answer within {self.patience.timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise ServerError("connection", f"{asked}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status >= 300:
            raise ServerError("status", f"{asked}: status {response.status}: {_start(read)}", response.status)
        try:
            return json.loads(read) if read.strip() else None
        except ValueError as error:  # covers bytes that are no UTF-8
            raise ServerError(
                "malformed", f"{asked}: the answer is not JSON: {_start(read)}", response.status
            ) from error

    @staticmethod
    def _read(line: socket.socket, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """Read the whole body; a server that sends byte by byte has no longer than one that sends nothing."""
        parts: list[bytes] = []
        size = 0
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if not response.isclosed():
                line.settimeout(left)
            part = response.read1(2**16)
            if not part:
                if response.length:
                    raise http.client.IncompleteRead(b"".join(parts), response.length)
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise http.client.HTTPException(f"the answer is longer than {_MOST_BYTES} bytes")


def _start(body: bytes) -> str:
    text = " ".join(body[: 4 * _SHOWN].decode(errors="replace").split())
    return text[:_SHOWN] + ("..." if len(text) > _SHOWN else "")
