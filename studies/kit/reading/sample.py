"""Which rollouts of a run are kept to be read: of every step and every workflow as many as there is room for.

A few thousand rollouts drawn from all would hold none of a workflow that is about to appear. Here the episodes of a
stratum (step, workflow) stand in an order by the hash of what they are, and those kept are the first in the order by
(place in the stratum, hash). So each stratum keeps as many as any other, or all it has; and the same episodes are kept
in whatever order they come.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import insort
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from studies.kit.episodes import Episode

__all__ = ["Sample", "priority"]

Stratum = tuple[int, str]
"""Step and name of the workflow."""


class Sample:
    """The first ``most`` of the episodes seen so far, in the order above."""

    def __init__(self, most: int) -> None:
        if most < 0:
            raise ValueError(f"a sample of {most} episodes: must be 0 or more")
        self.most = most
        self.seen: Counter[Stratum] = Counter()
        """Episodes by stratum, kept or not."""
        self._kept: dict[Stratum, list[tuple[int, int, Episode]]] = {}
        self._size = 0
        self._arrived = 0
        # The last of each stratum, the one to go first on top. What was said of a stratum earlier stands there too.
        self._last: list[tuple[int, int, Stratum]] = []

    def add(self, episode: Episode, workflow: str) -> None:
        """Take an episode into account."""
        stratum = episode.step, workflow
        self.seen[stratum] += 1
        if not self.most:
            return
        kept, number = self._kept.setdefault(stratum, []), priority(episode)
        last = not kept or number > kept[-1][0]
        if last and self._size == self.most and (-len(kept) - 1, -number, stratum) < self._first_to_go():
            return  # it would be dropped at once
        self._arrived += 1
        insort(kept, (number, self._arrived, episode))
        self._size += 1
        self._tell(stratum)
        if self._size > self.most:
            self._drop()

    def _tell(self, stratum: Stratum) -> None:
        if self._kept[stratum]:
            heapq.heappush(self._last, self._entry(stratum))
        if len(self._last) > 4 * len(self._kept) + 64:  # mostly what no longer holds
            self._last = [self._entry(each) for each, kept in self._kept.items() if kept]
            heapq.heapify(self._last)

    def _entry(self, stratum: Stratum) -> tuple[int, int, Stratum]:
        kept = self._kept[stratum]
        return -len(kept), -kept[-1][0], stratum

    def _first_to_go(self) -> tuple[int, int, Stratum]:
        while not self._kept[self._last[0][-1]] or self._last[0] != self._entry(self._last[0][-1]):
            heapq.heappop(self._last)
        return self._last[0]

    def _drop(self) -> None:
        """Drop the last episode of all, which will never again be among the first: places only fall as others come."""
        *_, stratum = self._first_to_go()
        heapq.heappop(self._last)
        self._kept[stratum].pop()
        self._size -= 1
        self._tell(stratum)

    def episodes(self) -> tuple[Episode, ...]:
        """Return what is kept, by step, workflow and hash."""
        return tuple(episode for stratum in sorted(self._kept) for _, _, episode in self._kept[stratum])


def priority(episode: Episode) -> int:
    """Return a number in [0, 2**64) that depends on what the episode is and on nothing else."""
    parts = [str(episode.task), episode.role, episode.prompt, repr(episode.reward), str(int(episode.outcome))]
    for turn in episode.turns:
        parts += (turn.action, turn.generated, turn.observed, repr(turn.logp))
    text = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
