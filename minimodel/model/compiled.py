"""Decoding with the tiny transformer in compiled code: the numbers of `Transformer.extend`, in a third of the time.

At this size PyTorch spends much of its time beside the matrix products. `decode.cpp` keeps a few dozen sequences in
the processor's first cache while the weights pass by, one sequence to a vector lane. What a sequence is given depends
neither on its company nor on its place, to the bit.

The source is compiled on first use (see `compiling`). Without a compiler nothing is lost but time: `why_not` says what
is missing, and `Transformer.extend` decodes. ``METASTABLE_COMPILED=0`` in the environment, read once, switches it off.

Sizes: B rows (sequences), S tokens fed, n tokens drawn, V words, D width, K inputs of a matrix.
"""

import ctypes
import functools
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import environ
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from minimodel.model.compiling import build, cache_folder
from minimodel.model.transformer import Size, Transformer

__all__ = ["SOURCES", "CompiledCache", "CompiledDecoder", "Drawn", "available", "why_not"]

SOURCES = tuple(Path(__file__).with_name(name) for name in ("decode.cpp", "lanes.h"))


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Shape(ctypes.Structure):  # these three mirror decode.cpp
    _fields_ = _fields(ctypes.c_int32, "width layers heads hidden words positions networks room")


class _Draw(ctypes.Structure):
    _fields_ = [
        *_fields(ctypes.c_int32, "tokens place names push_position push_token"),
        *_fields(ctypes.c_float, "push temperature"),
        *_fields(ctypes.c_void_p, "uniforms watch ids logp entropy watched"),
    ]


class _Job(ctypes.Structure):
    _fields_ = [
        *_fields(ctypes.c_int32, "groups length rows fed"),
        *_fields(ctypes.c_void_p, "weights reader cache occupants ids logits"),
        ("draw", ctypes.POINTER(_Draw)),
    ]


@functools.cache
def _library() -> ctypes.CDLL | str:
    """Return the compiled code, or why there is none."""
    if environ.get("METASTABLE_COMPILED") == "0":
        return "it is switched off by METASTABLE_COMPILED=0"
    try:
        library = ctypes.CDLL(str(build(SOURCES, cache_folder())))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return str(error)
    library.metastable_decode.argtypes = [ctypes.POINTER(_Shape), ctypes.POINTER(_Job)]
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    library.metastable_move.argtypes = [ctypes.POINTER(_Shape), pointer, count, pointer, pointer, count]
    library.metastable_move.restype = None
    return library


@functools.cache
def why_not() -> str:
    """Return why compiled decoding is not to be had on this machine, or "" where it is; builds it on first use.

    What was built is believed only when it gives the logits of a small `Transformer`.
    """
    found = _library()
    if isinstance(found, str):
        return found
    generator = torch.Generator().manual_seed(0)
    model = Transformer(Size(width=12, heads=3), 11, 6, generator=generator)
    ids = torch.randint(0, 11, (2 * found.metastable_lanes() + 1, 5), generator=generator)
    decoder = CompiledDecoder(model)
    off = (decoder.extend(ids, decoder.start(len(ids))) - model.extend(ids, model.start(len(ids)))).abs().max().item()
    return "" if off < 1e-5 else f"as compiled on this machine its logits are {off:.1e} away from PyTorch's"


def available() -> bool:
    """Return whether `CompiledDecoder` works on this machine; builds it on first use."""
    return not why_not()


@dataclass(frozen=True, eq=False)
class Drawn:
    """Tokens drawn for B rows, and what they were drawn from."""

    ids: Tensor
    """[B, n], int64."""
    logp: Tensor
    """Log-probability of each, nats, [B, n]."""
    entropy: Tensor
    """Entropy of the distribution each was drawn from, nats, [B, n]."""
    watched: Tensor
    """Log-probabilities of the watched ids at the watched place, nats, [B, W]."""


class CompiledCache:
    """Keys and values of the positions read so far; row i lives in vector lane `lanes[i]`."""

    def __init__(self, decoder: "CompiledDecoder", batch: int, room: int) -> None:
        self._decoder = decoder
        self.shape = _Shape(*decoder.shape, room)
        """What the compiled code is told of the network and of this cache."""
        self.length = 0
        """Positions held."""
        self.lanes: NDArray[np.int64] = np.arange(batch)
        """Where each row lives, [B]."""
        self.occupants = self._seated()
        """Row of each lane, -1 where there is none: whole vectors of lanes, int32."""
        s = self.shape
        self.past = torch.empty(len(self.occupants), s.networks, s.layers, room, 2, s.width)  # laid out by the code

    @property
    def rows(self) -> int:
        """Sequences held."""
        return len(self.lanes)

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order; rows of the last vectors move into lanes that fell free.

        Raises
        ------
        ValueError
            When a row is not there, or is named twice.
        """
        wanted = rows.numpy()
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.rows:
            raise ValueError(f"rows {wanted.min()} to {wanted.max()} are not all among the {self.rows} held")
        if len(np.unique(wanted)) < len(wanted):
            raise ValueError("a row is named twice; this cache cannot fork a sequence, so keep() each once")
        lanes, seats = self.lanes[wanted], self._decoder.seats(len(wanted))
        beyond = lanes >= seats
        moved = lanes[beyond]
        free = np.setdiff1d(np.arange(seats), lanes)[: len(moved)]
        self._decoder.library.metastable_move(
            self.shape, self.past.data_ptr(), self.length, moved.ctypes.data, free.ctypes.data, len(moved)
        )
        lanes[beyond] = free
        self.lanes = lanes
        self.occupants = self._seated()

    def _seated(self) -> NDArray[np.int32]:
        occupants = np.full(self._decoder.seats(self.rows), -1, np.int32)
        occupants[self.lanes] = np.arange(self.rows)
        return occupants


class CompiledDecoder:
    """A copy of a transformer's weights that decodes; make a new one when they have changed.

    Parameters
    ----------
    model
        The network, float32, with either kind of decision head.

    Raises
    ------
    RuntimeError
        Where there is no compiled code; ask `available` first.
    ValueError
        When the weights are not float32 in the processor's memory.
    """

    def __init__(self, model: Transformer) -> None:
        library = _library()
        if isinstance(library, str):
            raise RuntimeError(f"no compiled decoding here: {library}. Transformer.extend gives the same numbers")
        words = model.trunk.word.weight
        if words.dtype != torch.float32 or words.device.type != "cpu":
            raise ValueError(f"weights are {words.dtype} on {words.device}; compiled code reads float32 on the cpu")
        networks = [model.trunk] if model.decider is None else [model.trunk, model.decider]
        size, self.words, self.positions = model.size, model.vocabulary, model.positions
        hidden = size.feedforward * size.width
        self.shape = (size.width, size.layers, size.heads, hidden, self.words, self.positions, len(networks))
        """What a shape begins with; a cache adds its room."""
        self.library, self._lanes = library, library.metastable_lanes()
        panel = library.metastable_panel()
        self._weights = torch.cat([part for network in networks for part in _parts(network, size.layers, panel)])
        self._reader = np.zeros(self.positions, np.int32)
        self._reader[model.predictors] = 1

    def seats(self, rows: int) -> int:
        """Return the lanes of the vectors that `rows` sequences take up."""
        return -(-rows // self._lanes) * self._lanes

    def start(self, batch: int, positions: int | None = None) -> CompiledCache:
        """Return an empty cache for `batch` sequences of up to `positions` (all it can read, by default)."""
        room = self.positions if positions is None else positions
        if room > self.positions:
            raise ValueError(
                f"{room} positions exceed the {self.positions} this network has; build it with more of them"
            )
        return CompiledCache(self, batch, room)

    def extend(self, ids: Tensor, cache: CompiledCache) -> Tensor:
        """Feed `ids` [B, S] after what the cache holds; return the logits that predict the next token, [B, V].

        Raises
        ------
        ValueError
            When the rows are not those of the cache, there is no room for S more positions, or an id is not a word.
        """
        logits = torch.empty(len(ids), self.words)
        self._decode(ids, cache, 0, logits=logits.data_ptr())
        return logits

    def extend_and_draw(
        self,
        ids: Tensor,
        cache: CompiledCache,
        tokens: int,
        uniforms: NDArray[np.float32] | None,
        *,
        temperature: float = 1.0,
        watch: tuple[int, Sequence[int]] = (0, ()),
        push: tuple[int, int, float] | None = None,
    ) -> Drawn:
        """Feed `ids` [B, S], then draw the next n tokens of every row by inverse CDF; the last is not fed any more.

        Parameters
        ----------
        ids
            What is read first, at least one token: prompt, or the token drawn last and what was observed.
        cache
            What was read before; it then holds S + n - 1 positions more.
        tokens
            n.
        uniforms
            One for each token, [n, B]; without them the likeliest token is taken.
        temperature
            Divides the logits.
        watch
            A place among the n, and the ids whose log-probabilities are wanted there.
        push
            (position, token, logits): added to that token's logit where the token at that position is drawn.

        Raises
        ------
        ValueError
            As for `extend`; or when the uniforms are not [n, B], or a place or an id is not there.
        """
        B, names = len(ids), np.array(watch[1], np.int64)
        position, pushed, logits = push or (-1, 0, 0.0)
        self._are_words(np.append(names, pushed))
        if tokens < 1 or (uniforms is not None and uniforms.shape != (tokens, B)):
            raise ValueError(f"{tokens} tokens of {B} rows: at least 1, and uniforms [{tokens}, {B}] to draw them by")
        if len(names) and not 0 <= watch[0] < tokens:
            raise ValueError(f"place {watch[0]} is not among the {tokens} tokens drawn")
        if temperature <= 0:
            raise ValueError(f"temperature = {temperature} must exceed 0; for the likeliest token pass no uniforms")
        luck = None if uniforms is None else np.ascontiguousarray(uniforms, np.float32)
        drawn = Drawn(
            torch.empty(B, tokens, dtype=torch.int64),
            torch.empty(B, tokens),
            torch.empty(B, tokens),
            torch.empty(B, len(names)),
        )
        results = (part.data_ptr() for part in (drawn.ids, drawn.logp, drawn.entropy, drawn.watched))
        luck_at = None if luck is None else luck.ctypes.data
        order = _Draw(
            tokens, watch[0], len(names), position, pushed, logits, temperature, luck_at, names.ctypes.data, *results
        )
        self._decode(ids, cache, tokens - 1, draw=ctypes.pointer(order))
        return drawn

    def _decode(self, ids: Tensor, cache: CompiledCache, more: int, **wanted: Any) -> None:
        """Feed `ids` and `more` of the tokens drawn after them."""
        read = np.ascontiguousarray(ids.numpy(), np.int64)
        B, S = read.shape
        upto = cache.length + S + more
        if cache.rows != B:
            raise ValueError(f"ids have {B} rows, the cache {cache.rows}; keep() the rows that go on")
        if not S:
            raise ValueError("ids [B, 0] hold nothing to read; the next token is predicted from at least one")
        if upto > cache.shape.room:
            raise ValueError(
                f"{upto} positions do not fit a cache of {cache.shape.room}; start() one with room for them"
            )
        self._are_words(read)
        held = {"cache": cache.past.data_ptr(), "occupants": cache.occupants.ctypes.data, "length": cache.length}
        own = {"weights": self._weights.data_ptr(), "reader": self._reader.ctypes.data}
        groups = len(cache.occupants) // self._lanes
        job = _Job(groups=groups, rows=B, fed=S, ids=read.ctypes.data, **held, **own, **wanted)
        if self.library.metastable_decode(cache.shape, job):
            raise MemoryError("compiled decoding found no memory to work in")
        cache.length = upto

    def _are_words(self, ids: NDArray[np.int64]) -> None:
        if ids.size and not 0 <= ids.min() <= ids.max() < self.words:
            raise ValueError(f"ids {ids.min()} to {ids.max()} are not all among the {self.words} words")


def _parts(network: nn.Module, layers: int, panel: int) -> Iterator[Tensor]:
    """Yield a network's weights, flat, in the order in which decode.cpp reads them."""
    weights = {name.removesuffix(".weight"): p.detach() for name, p in network.named_parameters()}

    def packed(name: str) -> Tensor:
        """Return a matrix [outputs, K] as panels [outputs / panel, K, panel]; outputs that are missing are zeros."""
        outputs, K = weights[name].shape
        return nn.functional.pad(weights[name], (0, 0, 0, -outputs % panel)).view(-1, panel, K).mT.flatten()

    yield from (weights["word"].flatten(), weights["position"].flatten(), weights["norm"], packed("head"))
    for block in (f"blocks.{i}" for i in range(layers)):
        yield from (weights[f"{block}.norm_attention"], packed(f"{block}.qkv"), packed(f"{block}.mix"))
        yield from (weights[f"{block}.norm_feedforward"], packed(f"{block}.widen"), packed(f"{block}.narrow"))
