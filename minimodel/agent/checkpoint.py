"""Checkpoints: everything a run needs to go on, in one file that is there whole or not at all.

Random numbers are indexed, so there is no generator to save, and the questions of a step follow from its number, so there
is no cursor. What is saved is the step, the policy with its optimiser, the older versions a schedule still needs, and
the rows written so far.
"""

import io
import os
import uuid
from pathlib import Path
from typing import Any

import torch

__all__ = ["Checkpoint"]


class Checkpoint:
    """One run's place on disk.

    Parameters
    ----------
    path
        The file.
    key
        Name of the run: hash of its config, seed and code. A file of another run is refused.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = Path(path), key

    def save(self, state: dict[str, Any]) -> None:
        """Write the state to a temporary name, flush it to disk, and rename it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save({"key": self.key, **state}, buffer)
        writing = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        try:
            with writing.open("wb") as file:
                file.write(buffer.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            writing.replace(self.path)
        finally:
            writing.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """Return the state, or None where there is none.

        Raises
        ------
        RuntimeError
            When the file cannot be read or belongs to another run.
        """
        if not self.path.is_file():
            return None
        try:
            state: dict[str, Any] = torch.load(self.path, weights_only=True)
        except Exception as error:
            raise RuntimeError(
                f"{self.path} cannot be read ({error!r}); move it away to begin the run again"
            ) from error
        if state.get("key") != self.key:
            raise RuntimeError(f"{self.path} is of run {state.get('key')}, not {self.key}; move it away")
        return state

    def remove(self) -> None:
        """Forget a run that ended, and what a save that was killed has left."""
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}-*"):
            left.unlink(missing_ok=True)
