"""Requests pass through a door; publishing shuts it, waits until nobody is inside, and opens it again."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Door"]


class Door:
    """Many may be inside at once, or one who shut it; who wants to shut it goes before those who want to pass."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._inside, self._shutting = 0, 0
        self._shut = False

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Be inside; waits while the door is shut, or somebody waits to shut it."""
        with self._change:
            self._change.wait_for(lambda: not self._shut and not self._shutting)
            self._inside += 1
        try:
            yield
        finally:
            with self._change:
                self._inside -= 1
                self._change.notify_all()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Keep the door shut; waits until all who are inside have left."""
        with self._change:
            self._shutting += 1
            try:
                self._change.wait_for(lambda: not self._shut and not self._inside)
                self._shut = True
            finally:
                self._shutting -= 1
                self._change.notify_all()
        try:
            yield
        finally:
            with self._change:
                self._shut = False
                self._change.notify_all()
