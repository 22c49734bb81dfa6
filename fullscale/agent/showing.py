"""A run as it goes, in lines: one a step, for people and for logs."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

import numpy as np

from fullscale.agent.setup import Training
from fullscale.agent.watch import Row

__all__ = ["Table", "bar"]

_EVERY_S = 10.0
"""Least time between two words on work that takes long, s."""


class Table:
    """Writes a line for every step: reward, behaviour by turn, KL, entropy, mismatch.

    Parameters
    ----------
    config
        The run.
    out
        Where to.
    """

    def __init__(self, config: Training, out: TextIO) -> None:
        self.steps, self.turns, self.out = config.steps, config.task.world.turns, out
        self.actions = config.task.world.graph().actions
        self.last_s = time.monotonic()
        self.begun = False

    def row(self, row: Row) -> None:
        """Write a step."""
        if not self.begun:
            turns = "  ".join(f"{name + ' by turn':<{5 * self.turns - 1}}" for name in self.actions)
            self._write(f"{'step':>9}  reward  solved  tools  {turns}  KL/token  entropy  |engine - learner|   s")
            self.begun = True
        now = time.monotonic()
        shares = "  ".join(
            " ".join(f"{row[f'behaviour/{name}_share/turn{t}']:.2f}" for t in range(self.turns)).ljust(
                len(f"{name} by turn")
            )
            for name in self.actions
        )
        self._write(
            f"{int(row['step']) + 1:>4}/{self.steps:<4}  {row['train/reward']:6.3f}  {row['behaviour/solved_share']:6.3f}  "
            f"{row['behaviour/tool_share']:5.2f}  {shares}  {row['drift/kl_token']:8.1e}  {row['entropy/token']:7.3f}  "
            f"{row['mismatch/mean']:.0e} max {row['mismatch/max']:.0e}  {now - self.last_s:3.0f}"
        )
        if not np.isnan(row.get("eval/solved_share", np.nan)):
            self._write(
                f"{'held out':>9}  {row['eval/reward']:6.3f}  {row['eval/solved_share']:6.3f}  {row['eval/tool_share']:5.2f}"
                f"  without any tool {row['eval/closed_book']:.3f}"
            )
        self.last_s = now

    def _write(self, line: str) -> None:
        self.out.write(line + "\n")
        self.out.flush()


def bar(what: str) -> Callable[[int, int], None]:
    """Return a function of (done, total) that says now and then how far something is."""
    last_s = -np.inf

    def report(done: int, total: int) -> None:
        nonlocal last_s
        if done == total or time.monotonic() - last_s > _EVERY_S:
            last_s = time.monotonic()
            sys.stdout.write(f"{what}: {done} of {total}\n")
            sys.stdout.flush()

    return report
