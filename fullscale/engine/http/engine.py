"""Episodes written by a server.

A round asks the server for the next chunk of every live episode, at most so many requests at once; then the turns that ended
are answered, all together and in ascending order, and the next round begins. So what is asked next depends on what was
written and not on which answer came first, and weights that are published reach episodes under way after one chunk.

Publishing waits until no chunk is in flight. A chunk is of one version, the one the server had confirmed when the request
was sent, and nothing can be published before its answer is there: a version is never read after the reply.

Ids go in and ids come out. The prompt of a request is what the segment holds so far; what the server returns is what is
recorded. An answer that is no honest continuation is counted by its kind
(:class:`~fullscale.engine.http.chunk.ViolationError`), and its episode is dropped, as it is when the server does not answer:
both are the engine's failure, not the policy's.

A server draws with numbers of its own, so uniforms cannot be followed token by token. The seed of a request is a hash of the
row's uniform at the place where the chunk begins, so it depends on the row's luck and on nothing else; whether the same seed
gives the same tokens is the server's affair. Without uniforms the likeliest tokens are taken; servers then report log-probs
at temperature 1, which are unknown (NaN) for any other temperature. Entropies are unknown: NaN.
"""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from fullscale.engine.episode import Episode
from fullscale.engine.http.chunk import Asked, Chunk, Dialect, ViolationError, check
from fullscale.engine.http.client import Client, ServerError
from fullscale.engine.http.door import Door
from fullscale.engine.http.publishing import Publisher
from fullscale.engine.protocol import Answering, Between, Settings, Spoken, Turn, Uniforms
from fullscale.engine.sampling import Decode

__all__ = ["HttpEngine", "seed_of"]


class HttpEngine:
    """Samples with what a server holds; see the module.

    Parameters
    ----------
    client
        The server.
    dialect
        How it is spoken to.
    publisher
        How weights reach it.
    decode
        Ids -> text, as :func:`fullscale.engine.local.decoder` makes it.
    ends
        Ids that end a turn, as :func:`fullscale.engine.local.turn_ends` finds them.
    vocabulary
        Ids lie below it: rows of the model's head.
    chunk_tokens
        Most tokens a request asks for.
    concurrent
        Most requests at once.
    """

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        publisher: Publisher,
        decode: Decode,
        ends: Collection[int],
        vocabulary: int,
        *,
        chunk_tokens: int = 128,
        concurrent: int = 64,
    ) -> None:
        for name, value in (("vocabulary", vocabulary), ("chunk_tokens", chunk_tokens), ("concurrent", concurrent)):
            if value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.client, self.dialect, self.publisher = client, dialect, publisher
        self.decode, self.ends, self.vocabulary = decode, frozenset(ends), vocabulary
        self.chunk_tokens, self.concurrent = chunk_tokens, concurrent
        self.violations: Counter[str] = Counter()
        """Answers that were no honest continuation, by kind."""
        self.failures: Counter[str] = Counter()
        """Requests that had no answer, by kind of :class:`~fullscale.engine.http.client.ServerError`."""
        self.unused = 0
        """Tokens that came after the end of a turn, and were dropped."""
        self.version: int | None = None
        """The version that the server confirmed last; None before, and while it is unknown what it holds."""
        self.counting = Lock()  # plays of several threads count
        self._model: Any = None
        self._door = Door()

    def publish(self, version: int, model: Any) -> None:
        """Make the server hold `model` under this version; a hook or another thread may call this.

        It waits for requests in flight; those that follow wait for it. What was published last, and is held still by the
        server's own account, is not published again: a model must not change under a version. Whatever goes wrong, no
        version is stamped until another publication has gone right.

        Raises
        ------
        ValueError
            For a negative version, or one the publisher refuses.
        ServerError, ViolationError
            When the server does not do what it is told, or says afterwards that it holds another version.
        """
        if version < 0:
            raise ValueError(f"version = {version} must be at least 0: -1 marks tokens that no version sampled")
        if self._holds(version, model):
            return
        with self._door.shut():
            self.version = None
            self.publisher.publish(version, model)
            held = self.publisher.held()
            if held != str(version):
                raise ViolationError(
                    "version", f"version {version} was published, {self.client.url} says it holds {held}"
                )
            self.version, self._model = version, model

    def _holds(self, version: int, model: Any) -> bool:
        if version != self.version or model is not self._model:
            return False
        try:
            return self.publisher.held() == str(version)
        except (ServerError, ViolationError):
            return False

    def play(
        self,
        prompts: Sequence[Sequence[int]],
        reply: Answering,
        settings: Settings,
        uniforms: Uniforms | None,
        between: Between | None = None,
    ) -> list[Spoken]:
        """Play an episode on every prompt; see :class:`~fullscale.engine.protocol.Engine`.

        Whatever the server does, this returns; `reply`, `uniforms` and `between` are called from the caller's own thread,
        and what they raise passes through. `between` is called before every round, with its number.

        Raises
        ------
        RuntimeError
            Before any weights were published.
        ValueError
            For a temperature at which the server's log-probs would be those of another, an empty prompt, an id outside the
            vocabulary, a uniform outside [0, 1), or replies of another number than the turns.
        """
        if self.version is None:
            raise RuntimeError(f"nothing was published to {self.client.url} yet; call publish(version, model) first")
        refusal = self.dialect.refuse(None if uniforms is None else settings.temperature)
        if refusal:
            raise ValueError(f"temperature = {settings.temperature}: {refusal}")
        rows = [_Row(Episode(i, prompt, settings, self.vocabulary)) for i, prompt in enumerate(prompts)]
        with ThreadPoolExecutor(self.concurrent, thread_name_prefix="episode") as pool:
            _Play(self, rows, settings, uniforms, pool).run(reply, between)
        return [row.spoken() for row in rows]

    def request(self, asked: Asked) -> "Drawn | Exception":
        """Return the chunk that the server answers, checked, and its version; or what went wrong."""
        with self._door.passing():
            version = self.version  # cannot change before this leaves the door
            if version is None:
                return ViolationError(
                    "version", "it is unknown which weights the server holds: a publication went wrong"
                )
            asked = replace(asked, version=version)
            try:
                chunk = self.dialect.chunk(self.client.post(self.dialect.path, self.dialect.body(asked)))
                check(chunk, asked, self.vocabulary)
            except (ServerError, ViolationError) as error:
                return error
        return Drawn(chunk, version)


@dataclass(frozen=True)
class Drawn:
    """A chunk, and what made it."""

    chunk: Chunk
    """What the server answered."""
    version: int
    """The version it held when the request was sent, and until the answer was there."""


@dataclass(eq=False)
class _Row:
    """An episode, and what the engine has to know of it besides."""

    episode: Episode
    written: int = 0
    """Tokens of the turn that is being written."""
    failure: str = ""
    """Why the engine could not go on with it."""

    @property
    def live(self) -> bool:
        return not self.episode.ended and not self.failure

    def spoken(self) -> Spoken:
        if not self.failure:
            return self.episode.spoken()
        self.episode.ended = "over"
        return replace(self.episode.spoken(), ended="failed", reason=self.failure)


class _Play:
    """One call."""

    def __init__(
        self,
        engine: HttpEngine,
        rows: Sequence[_Row],
        settings: Settings,
        uniforms: Uniforms | None,
        pool: ThreadPoolExecutor,
    ) -> None:
        self.engine, self.rows, self.settings, self.uniforms, self.pool = engine, rows, settings, uniforms, pool
        self.known = uniforms is not None or settings.temperature == 1

    def run(self, reply: Answering, between: Between | None) -> None:
        """Go round until no episode is live."""
        step = 0
        while live := [row for row in self.rows if row.live]:
            if between is not None:
                between(step)
            answers = list(self.pool.map(self.engine.request, [self._asked(row) for row in live]))
            ended = [
                (row, turn) for row, answer in zip(live, answers, strict=True) if (turn := self._hear(row, answer))
            ]
            if ended:
                self._reply(ended, reply)
            step += 1

    def _asked(self, row: _Row) -> Asked:
        settings, ids = self.settings, row.episode.ids
        room = min(settings.turn_tokens - row.written, settings.context_tokens - len(ids))
        greedy = self.uniforms is None
        return Asked(
            prompt=tuple(ids),
            tokens=min(self.engine.chunk_tokens, room),
            temperature=None if greedy else settings.temperature,
            seed=0 if self.uniforms is None else seed_of(row.episode.uniform(self.uniforms)),
            stop=settings.stop,
            ends=tuple(sorted(self.engine.ends)),
            version=-1,  # known when the request is sent
        )

    def _hear(self, row: _Row, answer: Drawn | Exception) -> Turn | None:
        """Write down what was drawn; return the turn where it ended."""
        engine = self.engine
        if not isinstance(answer, Drawn):
            row.failure = str(answer)
            counted = engine.violations if isinstance(answer, ViolationError) else engine.failures
            with engine.counting:
                counted[getattr(answer, "kind", "")] += 1
            return None
        chunk = answer.chunk
        for n, (token, logp) in enumerate(zip(chunk.ids, chunk.logp, strict=True), 1):
            turn = row.episode.write(
                token, logp if self.known else math.nan, math.nan, answer.version, engine.decode, engine.ends
            )
            row.written += 1
            if turn is not None:
                engine.unused += len(chunk.ids) - n
                row.written = 0
                return turn
        return None

    def _reply(self, ended: Sequence[tuple[_Row, Turn]], reply: Answering) -> None:
        replies = reply([row.episode.row for row, _ in ended], [turn for _, turn in ended])
        if len(replies) != len(ended):
            raise ValueError(f"{len(ended)} turns had {len(replies)} replies; give one to each, in their order")
        for (row, _), said in zip(ended, replies, strict=True):
            row.episode.answer(said)


def seed_of(uniform: float) -> int:
    """Return a seed in [0, 2**31) that is a hash of a number.

    >>> seed_of(0.25) == seed_of(0.25) != seed_of(0.5)
    True
    """
    digest = hashlib.blake2b(struct.pack("<d", uniform), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 33
