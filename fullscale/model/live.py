"""Bytes of tensors that are alive, and the most there were: of real tensors, or of fake ones that only have a size."""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveBytes"]


class LiveBytes(TorchDispatchMode):
    """Counts storages that operations make while it is entered, each once however many tensors view it, until it is freed.

    What autograd keeps for a backward is alive; what an operation needs only inside itself is not seen, and neither is what
    was there before.

    >>> with LiveBytes() as live:
    ...     a = torch.zeros(1000)
    ...     b = a.view(10, 100)
    ...     del a, b
    >>> live.now, live.peak
    (0, 4000)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        """Bytes alive."""
        self.peak = 0
        """The most bytes there were."""
        self._known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(found):
            key = storage._cdata
            if key not in given and key not in self._known:
                self._known[key] = weakref.finalize(storage, self._free, key, storage.nbytes())
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
        return found

    def _free(self, key: int, size: int) -> None:
        del self._known[key]
        self.now -= size


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
