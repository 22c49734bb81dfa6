"""Indexed random numbers: a draw is named by (seed, stream, step), never by what was drawn before it.

Philox is a counter-based generator: its output is a function of a key and a counter. The key is (hash of the stream's
name, seed), the counter starts at (0, 0, step, 0), so every block is independent of every other, two arms of one study
stay aligned when their episodes end at different turns, and a seed gives the same bits alone, in a block of seeds, or in
another process. A stream's name starts with the study's name, so that claims do not share their luck.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockStream", "normals", "stream_key", "uniforms"]


@lru_cache(maxsize=4096)
def stream_key(stream: str) -> int:
    """Return the 64-bit key of a stream's name (BLAKE2b, so that it is the same in every process)."""
    if not stream:
        raise ValueError("a stream needs a name such as 'study/rollout'; got ''")
    return int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")


class BlockStream:
    """One stream for a block of seeds: dense blocks of draws, one generator re-aimed by its counter.

    Parameters
    ----------
    seeds
        Non-negative integers below 2**63; each row of a drawn block belongs to one of them.
    stream
        The stream's name.
    """

    def __init__(self, seeds: tuple[int, ...], stream: str) -> None:
        for seed in seeds:
            if not 0 <= seed < 2**63:
                raise ValueError(f"seed {seed} is outside [0, 2**63); choose a non-negative integer")
        self.seeds = seeds
        self.stream = stream
        self._bits = np.random.Philox(key=np.array([stream_key(stream), 0], dtype=np.uint64))
        self._generator = np.random.Generator(self._bits)
        self._state = self._bits.state

    def _aim(self, seed: int, step: int) -> None:
        state = self._state
        state["state"]["key"][1] = seed
        state["state"]["counter"][:] = (0, 0, step, 0)
        state["buffer_pos"] = 4  # the four buffered words belong to another counter
        state["has_uint32"] = 0
        self._bits.state = state

    def uniforms(
        self, step: int, shape: tuple[int, ...], out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """Return uniforms on [0, 1), shape [seeds, *shape], float32: multiples of 2**-24, enough for a choice.

        An event of probability p < 2**-24 = 6e-8 is drawn with probability 2**-24 at most; no study looks there.
        """
        block = np.empty((len(self.seeds), *shape), np.float32) if out is None else out
        for row, seed in zip(block, self.seeds, strict=True):
            self._aim(seed, step)
            self._generator.random(out=row, dtype=np.float32)
        return block

    def doubles(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return uniforms on [0, 1), shape [seeds, *shape], float64: multiples of 2**-53, fine enough for tails."""
        block = np.empty((len(self.seeds), *shape))
        for row, seed in zip(block, self.seeds, strict=True):
            self._aim(seed, step)
            self._generator.random(out=row)
        return block

    def normals(self, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return standard normals, shape [seeds, *shape], float64."""
        block = np.empty((len(self.seeds), *shape))
        for row, seed in zip(block, self.seeds, strict=True):
            self._aim(seed, step)
            self._generator.standard_normal(out=row)
        return block


def uniforms(seed: int, stream: str, step: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the uniforms named by (seed, stream, step); see :meth:`BlockStream.uniforms`.

    >>> bool((uniforms(3, "demo/rollout", 7, (2,)) == uniforms(3, "demo/rollout", 7, (2,))).all())
    True
    """
    return BlockStream((seed,), stream).uniforms(step, shape)[0]


def normals(seed: int, stream: str, step: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the standard normals named by (seed, stream, step)."""
    return BlockStream((seed,), stream).normals(step, shape)[0]
