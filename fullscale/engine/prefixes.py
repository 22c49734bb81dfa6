"""Prompts that were read, kept for the next call: keys and values by version and ids."""

from collections import OrderedDict

from fullscale.engine.slots import Kept

__all__ = ["Prefixes"]


class Prefixes:
    """The most recently used prompts within a bound of memory.

    Parameters
    ----------
    most_bytes
        What is kept at most; a prompt that alone is larger is not kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[int, tuple[int, ...]], Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, version: int, ids: tuple[int, ...]) -> Kept | None:
        """Return what this version made of these ids; None where it is not kept."""
        found = self._kept.get((version, ids))
        if found is not None:
            self._kept.move_to_end((version, ids))
        return found

    def add(self, version: int, ids: tuple[int, ...], kept: Kept) -> None:
        """Keep it, at the cost of what was not used for the longest time."""
        size = _size(kept)
        if size > self.most_bytes or (version, ids) in self._kept:
            return
        self._kept[version, ids] = kept
        self.bytes += size
        while self.bytes > self.most_bytes:
            self.bytes -= _size(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self.bytes = 0


def _size(kept: Kept) -> int:
    return sum(key.nbytes + value.nbytes for key, value in kept)
