"""What is asked of a server and what must come back: the ids that follow a prompt of ids, and how likely each was.

A dialect is how one kind of server says it. It turns a request into a body and an answer into a chunk; whether the chunk is
an honest continuation of the prompt is judged here, the same for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Asked", "Chunk", "Dialect", "ViolationError", "check", "maybe", "numbers", "part", "whole_numbers"]


class ViolationError(RuntimeError):
    """An answer that is no honest continuation of what was asked.

    Attributes
    ----------
    kind
        ``"prompt"``: the server saw another prompt; ``"no ids"``: it returned none; ``"count"``: not as many ids as
        log-probs, or more than were asked for; ``"id"``: one outside the vocabulary; ``"log-prob"``: one that is no number
        of at most 0; ``"version"``: made by other weights; ``"malformed"``: not of the form that such answers have.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True)
class Asked:
    """A request for the tokens that follow."""

    prompt: tuple[int, ...]
    """Ids of the segment so far."""
    tokens: int
    """Most tokens to be returned."""
    temperature: float | None
    """Divides the logits; None for the likeliest tokens."""
    seed: int
    """Seed of the server's draws, in [0, 2**31)."""
    stop: tuple[str, ...]
    """Texts at which the server may stop early."""
    ends: tuple[int, ...]
    """Ids at which it may stop early, ascending."""
    version: int
    """Version of the weights that answer."""


@dataclass(frozen=True)
class Chunk:
    """An answer."""

    ids: tuple[int, ...]
    """Tokens that were sampled."""
    logp: tuple[float, ...]
    """Their log-probs, nats."""
    prompt: tuple[int, ...] | None = None
    """The prompt as the server saw it; None where it does not say."""
    prompt_tokens: int | None = None
    """How many tokens it saw; None where it does not say."""
    version: str | None = None
    """Version of the weights by the server's own account; None where it does not say."""


class Dialect(Protocol):
    """How one kind of server is spoken to."""

    @property
    def path(self) -> str:
        """Return where requests go."""
        ...

    def refuse(self, temperature: float | None) -> str:
        """Return why this server's log-probs would not be those of sampling at this temperature; "" where they are."""
        ...

    def body(self, asked: Asked) -> dict[str, Any]:
        """Return the request."""
        ...

    def chunk(self, answer: Any) -> Chunk:
        """Return what an answer says.

        Raises
        ------
        ViolationError
            When it has another form.
        """
        ...


def check(chunk: Chunk, asked: Asked, vocabulary: int) -> None:
    """Judge an answer.

    Raises
    ------
    ViolationError
        When it is no honest continuation.
    """
    if chunk.prompt is not None and chunk.prompt != asked.prompt:
        at = next(
            (i for i, pair in enumerate(zip(chunk.prompt, asked.prompt, strict=False)) if pair[0] != pair[1]), None
        )
        where = "in length" if at is None else f"from token {at} on"
        raise ViolationError(
            "prompt", f"{len(asked.prompt)} ids were sent, the server saw {len(chunk.prompt)}, other {where}"
        )
    if chunk.prompt_tokens is not None and chunk.prompt_tokens != len(asked.prompt):
        raise ViolationError(
            "prompt", f"{len(asked.prompt)} ids were sent, the server saw {chunk.prompt_tokens} tokens"
        )
    if chunk.version is not None and chunk.version != str(asked.version):
        raise ViolationError("version", f"version {asked.version} was asked, {chunk.version!r} answered")
    if not chunk.ids:
        raise ViolationError("no ids", "the server returned no token")
    if len(chunk.ids) != len(chunk.logp) or len(chunk.ids) > asked.tokens:
        raise ViolationError(
            "count",
            f"{len(chunk.ids)} ids came with {len(chunk.logp)} log-probs; at most {asked.tokens} were asked for",
        )
    strange = [i for i in chunk.ids if not 0 <= i < vocabulary]
    if strange:
        raise ViolationError("id", f"{strange[:5]} lie outside the vocabulary, 0 .. {vocabulary - 1}")
    wrong = [x for x in chunk.logp if not (math.isfinite(x) and x <= 0)]
    if wrong:
        raise ViolationError("log-prob", f"{wrong[:5]}; a log-prob is a number of at most 0")


def part(answer: Any, *names: str | int) -> Any:
    """Return what stands in an answer under these names, one inside the other.

    Raises
    ------
    ViolationError
        When there is no such thing.
    """
    found = answer
    for name in names:
        named = isinstance(found, Mapping) and name in found
        numbered = isinstance(found, list) and isinstance(name, int) and name < len(found)
        if named or numbered:
            found = found[name]
        else:
            raise ViolationError("malformed", f"the answer has no {'.'.join(map(str, names))}")
    return found


def maybe(answer: Any, name: str) -> Any:
    """Return what stands in an answer under this name; None where there is no such thing."""
    return answer.get(name) if isinstance(answer, Mapping) else None


def whole_numbers(value: Any, name: str) -> tuple[int, ...]:
    """Return a list of ids.

    Raises
    ------
    ViolationError
        When it is missing, or holds something else.
    """
    if value is None:
        raise ViolationError("no ids", f"the answer has no {name}")
    if not isinstance(value, list) or not all(type(i) is int for i in value):
        raise ViolationError("malformed", f"{name} is no list of ids")
    return tuple(value)


def numbers(value: Any, name: str) -> tuple[float, ...]:
    """Return a list of log-probs; NaN for one that is null.

    Raises
    ------
    ViolationError
        When it is missing, or holds something else.
    """
    if not isinstance(value, list) or not all(x is None or type(x) in (int, float) for x in value):
        raise ViolationError("malformed", f"{name} is no list of numbers")
    return tuple(math.nan if x is None else float(x) for x in value)
