"""The progress line of a sweep: below pytest's own line on a terminal, a line now and then in a log."""

import time
from typing import Any

from studies.kit.progress import Status

__all__ = ["Ticker"]

_REDRAW_S = 0.2
_LOG_S = 30.0  # a log that is silent for longer looks dead


class Ticker:
    """Shows the sweeps of one study, through the reporter and the capture manager of pytest."""

    def __init__(self, reporter: Any, capture: Any) -> None:
        self._reporter, self._capture = reporter, capture
        self._shown = -_REDRAW_S if reporter.isatty else time.monotonic()  # when; in a log quiet begins with the study

    def __call__(self, status: Status | None) -> None:
        """Show a status, unless one was shown a moment ago; take the line away for ``None``."""
        now = time.monotonic()
        if status is None:
            if self._reporter.isatty:
                self._below("")
        elif now - self._shown >= (_REDRAW_S if self._reporter.isatty else _LOG_S):
            self._shown = now
            if self._reporter.isatty:
                self._below(status.words)
            else:
                self._log(status.words)

    def _below(self, text: str) -> None:
        """Rewrite the line under the one pytest is writing, and put the cursor back where that one goes on.

        Pytest is told nothing of it. The line feed makes room at the bottom of the screen, where it scrolls.
        """
        line = self._reporter._tw
        with self._capture.global_and_fixture_disabled():
            back = f"\r\x1b[A\x1b[{line.width_of_current_line + 1}G"
            line._file.write(f"\n\r\x1b[K{text[: line.fullwidth - 1]}{back}")
            line._file.flush()

    def _log(self, text: str) -> None:
        """Write a line of its own."""
        reporter, line = self._reporter, self._reporter._tw
        with self._capture.global_and_fixture_disabled():
            if line.width_of_current_line:
                line.line()
            line.write(text)
            if reporter.verbosity > 0:
                reporter.currentfspath = None  # so that pytest ends this line and names the study again
            else:
                line.line()
            line.flush()
