"""How a run lives in its process: no signal in the middle of a step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["stopping_between_steps"]


@contextmanager
def stopping_between_steps() -> Iterator[Callable[[], int]]:
    """Hold back Ctrl-C and a request to terminate; what is yielded returns the signal that came, or 0.

    A second one of the same kind is not held back. In a thread other than the main one signals are left alone.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  the signature of a handler
        came.append(number)
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: came[0] if came else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
