"""Groups: when they start, what becomes of them when they are complete, late or too old, and who is taken next.

What may happen is decided by the functions of :mod:`sim.cluster.rules`; this file keeps the books they are asked about.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from sim.cluster import rules
from sim.cluster.events import DropReason, Kind
from sim.cluster.model.state import Fate, Group, Place
from sim.cluster.scheduling import Aimd, Capacity, FixedWidth

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Simulation

__all__ = ["Scheduler"]


class Scheduler:
    """The books of groups."""

    def __init__(self, sim: Simulation) -> None:
        c = sim.cluster
        self.sim, self.cluster, self.drop = sim, c, c.drop
        self.group, self.members = c.workload.group, c.workload.members
        self.needed = c.groups_needed
        self.groups: list[Group] = []
        self.head = 0  # the oldest group neither taken nor dropped
        self._window = c.order.reach
        self._by_completion = c.order.window is None
        self._complete: deque[Group] = deque()
        self._ready: list[tuple[int, Group]] = []
        self.running = 0  # rollouts launched, not over, and neither parked nor held with their group
        self.incomplete = self.accepted = self.unconsumed = self.buffered = 0  # groups
        self.fresh = 0  # prompts taken from the source
        self.again: deque[tuple[int, int]] = deque()  # (prompt, play) to be played again
        self.tail: deque[tuple[int, int]] = deque()  # those that wait for a round of their own
        self.width = c.admission.start if isinstance(c.admission, Aimd) else 0
        self.completed = 0  # rollouts, since the controller last grew
        self.round, self._whatever = c.rounds, c.learner.whatever_is_complete
        self.open = False
        self.started = self.settled = self.surplus = 0
        self.to_launch = self.to_complete = 0
        self.long = False
        self.held: list[Group] = []

    # --- admission --------------------------------------------------------------------------------------------------

    def admit(self, now: float) -> None:
        """Start what the admission rule allows. To be called whenever something was taken, dropped, freed or published."""
        if self.round is not None:
            self._rounds(now)
            return
        while self._allowed() >= self.members:
            following = self._following()
            if following is None:
                return
            self.start(following, now)

    def _allowed(self) -> int:
        """Return how many rollouts may start."""
        a, slots, running, G = self.cluster.admission, self.cluster.slots, self.running, self.group
        free = slots - running
        if isinstance(a, Capacity):
            in_flight = self.incomplete * G
            allowed = rules.capacity(
                self.sim.published, self.accepted * G, in_flight, a.eta, self.cluster.learner.batch, in_flight + free
            )
            return allowed if allowed < G or self.members == G else free  # G by the rule are a whole group
        if isinstance(a, FixedWidth):
            held = running if a.of == "running" else self.unconsumed * G
            allowed = rules.fixed_width(a.width, held, slots, running)
            return allowed if a.of == "running" or allowed < G or self.members == G else free
        if isinstance(a, Aimd):
            return rules.fixed_width(self.width, running, slots, running)
        return 0  # groups arrive by themselves

    def _following(self) -> tuple[int, int] | None:
        """Return (prompt, play) of the group to start next: one to be played again, or a fresh one; None for no more."""
        if self.again:
            return self.again.popleft()
        prompts = self.cluster.workload.prompts
        if prompts is not None and self.fresh >= prompts:
            return None
        self.fresh += 1
        return self.fresh - 1, 0

    def arrive(self, now: float) -> bool:
        """Start a group that has come by itself; False when the source is empty."""
        following = self._following()
        if following is not None:
            self.start(following, now)
        return following is not None

    def start(self, following: tuple[int, int], now: float) -> None:
        """Start a group."""
        prompt, play = following
        sim = self.sim
        group = Group(len(self.groups), prompt, play, sim.published)
        self.groups.append(group)
        self.incomplete += 1
        self.unconsumed += 1
        if sim.log is not None:
            sim.log((now, int(Kind.GROUP_ADMIT), group.id, -1, play, sim.published, float(prompt)))
        self.running += self.members
        group.in_round = self.open
        sim.launch(group, now)

    # --- completion -------------------------------------------------------------------------------------------------

    def over(self, group: Group, valid: bool, now: float) -> None:
        """Count a member of `group` that has ended by itself."""
        if not group.held:
            self.running -= 1
        self.completed += 1
        group.done += 1
        group.valid += valid
        if group.done == self.group:
            self.complete(group, now)
        elif self.round is not None:
            self._rounds(now)
        else:
            self.admit(now)

    def complete(self, group: Group, now: float) -> None:
        """Put a complete group into the buffer, or drop it."""
        if self.members > self.group:
            self.abort(group, now)
        if group.held:
            group.held = False
            self.held.remove(group)
        if group.valid <= self.cluster.workload.least_valid * self.group:
            self.discard(group, DropReason.INVALID, now)
        elif self._old(group):
            self.discard(group, DropReason.OLD, now, again=self.drop is not None and self.drop.then == "requeue")
        else:
            self.incomplete -= 1
            self.accepted += 1
            self.buffered += 1
            group.fate, group.ready_s = Fate.READY, now
            if self.sim.log is not None:
                row = (now, int(Kind.GROUP_READY), group.id, -1, -1, self.sim.published, float(group.valid))
                self.sim.log(row)
            if self._by_completion:
                self._complete.append(group)
            else:
                heappush(self._ready, (group.id, group))
            if self.round is not None:
                self._count(group, now)
        self.sim.learner.offer(now)  # also after a drop: those behind it may be next
        self.admit(now)

    def abort(self, group: Group, now: float) -> None:
        """Abort the members of a group that are not over."""
        alive = [traj for traj in group.members if traj.place != Place.OVER]
        if not group.held:
            self.running -= sum(traj.place != Place.HELD for traj in alive)
        self.sim.abort(alive, now)

    def discard(self, group: Group, why: DropReason, now: float, again: bool = False) -> None:
        """Drop a group, running or complete; `again` plays its prompt once more."""
        if group.fate == Fate.RUNNING:
            self.abort(group, now)
            self.incomplete -= 1
            if group.in_round and self.open and why != DropReason.LATE:
                self.to_launch += 1  # another takes its place in the round
        else:
            self.accepted -= 1
            self.buffered -= 1
        if group.held:
            group.held = False
            self.held.remove(group)
        group.fate = Fate.DROPPED
        self.unconsumed -= 1
        if self.sim.log is not None:
            self.sim.log((now, int(Kind.GROUP_DROP), group.id, -1, -1, self.sim.published, float(why)))
        if again:
            self.again.append((group.prompt, group.play + 1))

    # --- age --------------------------------------------------------------------------------------------------------

    def _old(self, group: Group) -> bool:
        if self.drop is None:
            return False
        written = [traj for traj in group.members if traj.oldest >= 0]
        if not written:
            return False
        oldest, newest = min(t.oldest for t in written), max(t.newest for t in written)
        return rules.too_old(self.sim.published, oldest, newest, self.drop.bound, self.drop.by == "newest")

    def sweep(self, now: float) -> None:
        """Drop what a newly published version has made too old."""
        if self.drop is None:
            return
        also_running = self.drop.running and self.drop.by == "oldest"
        for group in self.groups[self.head :]:
            if (group.fate == Fate.READY or (also_running and group.fate == Fate.RUNNING)) and self._old(group):
                self.discard(group, DropReason.OLD, now, again=self.drop.then == "requeue")
        self.sim.learner.offer(now)  # those behind what was dropped may be next

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self) -> Group | None:
        """Return the group to be taken now, if any may be."""
        groups = self.groups
        while self.head < len(groups) and groups[self.head].fate >= Fate.TAKEN:
            self.head += 1
        if self._by_completion:
            while self._complete and self._complete[0].fate != Fate.READY:
                self._complete.popleft()
            if not self._complete:
                return None
            group = self._complete.popleft()
        else:
            while self._ready and self._ready[0][1].fate != Fate.READY:
                heappop(self._ready)
            if not self._ready or not rules.may_take(self._ready[0][0], self.head, self._window):
                return None
            group = heappop(self._ready)[1]
        group.fate = Fate.TAKEN
        self.unconsumed -= 1
        self.buffered -= 1
        return group

    # --- rounds -----------------------------------------------------------------------------------------------------

    def _rounds(self, now: float) -> None:
        """Open a round if one may start, launch what it still has to, close it if it is over; as often as that goes on."""
        assert self.round is not None
        while True:
            if not self.open:
                if not rules.may_start_round(self.started, self.settled, self.round.ahead, False):
                    return
                self._open(now)
            while self.open and self.to_launch > 0 and self.cluster.slots - self.running >= self.members:
                following = self.tail.popleft() if self.long and self.tail else self._following()
                if following is None:
                    self.to_launch = 0
                    break
                self.to_launch -= 1
                self.start(following, now)
            if self.open and self._whatever and self.to_launch == 0 and self.running == 0:
                self._close(now)
            if self.open or not self.held:
                return

    def _open(self, now: float) -> None:
        assert self.round is not None
        self.open = True
        self.started += 1
        self.to_complete = max(0, self.needed - self.surplus)
        self.surplus -= self.needed - self.to_complete  # groups that completed between rounds
        self.long = self.round.late == "tail" and len(self.tail) >= self.to_complete > 0
        launches = self.to_complete if self.long else rules.round_launches(self.to_complete, self.round.over)
        resumed, self.held = self.held, []
        self.to_launch = max(0, launches - len(resumed))
        for group in resumed:
            group.held, group.in_round = False, True
            alive = [traj for traj in group.members if traj.place != Place.OVER]
            self.running += len(alive)
            if self.sim.log is not None:
                self.sim.log((now, int(Kind.GROUP_RESUME), group.id, -1, -1, self.sim.published, 0.0))
            self.sim.resume(alive, now)
        if self.to_complete == 0:
            self._close(now)

    def _count(self, group: Group, now: float) -> None:
        """Count a complete group for the round it belongs to, or for the next one."""
        if self._whatever:
            return
        if not (self.open and group.in_round):
            self.surplus += 1
            return
        self.to_complete -= 1
        if self.to_complete == 0:
            self._close(now)

    def _close(self, now: float) -> None:
        """End a round: deal with the late groups, and hand over."""
        assert self.round is not None
        self.open, self.to_launch = False, 0
        late = [group for group in self.groups[self.head :] if group.fate == Fate.RUNNING and not group.held]
        for group in late:
            group.in_round = False
            if self.round.late == "resume":
                self._hold(group, now)
                continue
            self.discard(group, DropReason.LATE, now, again=self.round.late == "requeue")
            if self.round.late == "tail":
                self.tail.append((group.prompt, group.play + 1))
        if self._whatever:
            if self.buffered == 0:
                self.settled += 1  # nothing to train on: the next round may start
            else:
                self.sim.learner.offer(now)

    def _hold(self, group: Group, now: float) -> None:
        alive = [traj for traj in group.members if traj.place != Place.OVER]
        group.held = True
        self.held.append(group)
        self.running -= sum(traj.place != Place.HELD for traj in alive)
        if self.sim.log is not None:
            self.sim.log((now, int(Kind.GROUP_HOLD), group.id, -1, -1, self.sim.published, 0.0))
        self.sim.hold(alive, now)
