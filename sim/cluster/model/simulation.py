"""The simulation: rollouts walk the tool graph from engine to tool and back, under the version then on the engine.

SimPy is used as a calendar: what happens often is a callback on a timeout (an engine's timer, a tool's answer), what happens
seldom is a process (the learner, a controller, failures, arrivals, whatever a user adds). Delays, never absolute times, go
into the calendar, and what falls on one instant happens in the order in which it was scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np
import simpy

from sim.cluster.draws import BLOCK, Draws
from sim.cluster.events import DropReason, Kind
from sim.cluster.model.engine import Engine
from sim.cluster.model.learner import Learner
from sim.cluster.model.memory import engine_of
from sim.cluster.model.pool import Pool
from sim.cluster.model.processes import arrivals, controller, failures
from sim.cluster.model.scheduler import Scheduler
from sim.cluster.model.state import Fate, Group, Luck, Place, Trajectory, lucks
from sim.cluster.plan import Plan
from sim.cluster.scheduling import Aimd, Arrivals

__all__ = ["Deadlock", "Process", "Simulation"]

Row = tuple[float, int, int, int, int, int, float]
Process = Callable[[simpy.Environment, "Simulation"], Generator[Any, Any, Any]]

OVER, TRAJ_END = Place.OVER, int(Kind.TRAJ_END)
_WRITTEN_TURN = (Place.WRITTEN, Place.CALLING, Place.SERVED, Place.BACKOFF)
_ASSIGNED = attrgetter("assigned")


class Deadlock(RuntimeError):  # noqa: N818  the state is the error
    """Nothing is left to happen and the run is not over; the message names who waits for what."""


class Simulation:
    """One run.

    Parameters
    ----------
    plan
        The cluster as arrays.
    draws
        Its random numbers.
    record
        Whether to keep the event log.
    learn
        Called with the groups of a batch and the version that trained on them; returns the action thresholds of the next
        version ([context][action]), or None for the same.
    processes
        Processes of the user's own, started after those of the model: generators of (environment, simulation).
    on_version
        Called after every version, for progress.
    """

    def __init__(
        self,
        plan: Plan,
        draws: Draws,
        *,
        record: bool = True,
        learn: Callable[[list[Group], int], Any] | None = None,
        processes: Iterable[Process] = (),
        on_version: Callable[[int], None] | None = None,
    ) -> None:
        c = plan.cluster
        self.plan, self.draws, self.cluster = plan, draws, c
        self.env = simpy.Environment()
        # Rows one after the other: no object a row, so nothing for the garbage collector to visit.
        self.written_log: list[float] = []
        self.log: Callable[[Row], None] | None = self.written_log.extend if record else None
        self.ticket: Callable[[], int] = count(1).__next__
        self.serial: Callable[[], int] = count(1).__next__
        self.published = 0
        self.token_cap = c.rounds.token_cap if c.rounds is not None else None
        self.on_version = on_version
        self._learn, self._may_fail = learn, c.engines.failures is not None
        self._timeout = self.env.timeout
        self._blocks: dict[int, list[Luck]] = {}
        self._tables()
        self.thresholds = [plan.initial.tolist()]
        self.engines: list[Engine] = [engine_of(self, i) for i in range(c.engines.count)]
        self.pools = [Pool(self, i) for i in range(len(c.tools))]
        self.trajectories: list[Trajectory] = []
        self.scheduler, self.learner = Scheduler(self), Learner(self)
        self._done = self.env.event()
        self._processes(processes)

    def _tables(self) -> None:
        plan, g = self.plan, self.plan.graph
        self._context, self._initial = g.context.tolist(), g.initial.tolist()
        self._outcome, self._target = plan.outcome.tolist(), g.target.tolist()
        self._observed, self._reward = g.observed.astype(float).tolist(), g.reward.tolist()
        self._pool = plan.pool.tolist()
        rows, A = plan.tokens, len(g.actions)
        laws = list(zip(rows.scale.tolist(), rows.shape.tolist(), rows.cap.tolist(), strict=True))
        self._laws = [laws[first : first + A] for first in range(0, len(laws), A)]  # [node][action]
        self._states, self._turns = g.states, g.turns
        self._shapes = len(plan.tokens.shapes)

    def _processes(self, more: Iterable[Process]) -> None:
        c, env = self.cluster, self.env
        if c.horizon_s is not None:
            self.after(c.horizon_s, self._at_horizon, None)
        env.process(self.learner.run())
        if isinstance(c.admission, Aimd):
            env.process(controller(self, c.admission))
        if isinstance(c.admission, Arrivals):
            env.process(arrivals(self, c.admission))
        if c.engines.failures is not None:
            for engine in self.engines:
                env.process(failures(self, engine))
        for process in more:
            env.process(process(env, self))

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Simulate until the last version, or the horizon.

        Raises
        ------
        Deadlock
            When nothing is left to happen before that.
        """
        self.scheduler.admit(self.env.now)
        try:
            self.env.run(until=self._done)
        except RuntimeError as error:
            if not str(error).startswith("No scheduled events left"):  # SimPy's own words; others are a process's error
                raise
            raise Deadlock(self._who_waits()) from None
        self._finish()

    def stop(self) -> None:
        """End the run at this instant."""
        if not self._done.triggered:
            self._done.succeed()

    def _at_horizon(self, _: Any) -> None:
        self.stop()

    def after(self, delay_s: float, then: Callable[[Any], None], value: Any) -> None:
        """Call `then` with an event that carries `value` after a delay."""
        event = self._timeout(delay_s, value)
        event.callbacks.append(then)

    def _finish(self) -> None:
        now = self.env.now
        if self.log is not None:
            self.log((now, int(Kind.STOP), -1, -1, -1, self.published, 0.0))
        for engine in self.engines:
            engine.stopped = True
        self.abort([t for t in self.trajectories if t.place != Place.OVER], now)
        for group in self.scheduler.groups:
            if group.fate < Fate.TAKEN and self.log is not None:
                why = float(DropReason.STOPPED)
                self.log((now, int(Kind.GROUP_DROP), group.id, -1, -1, self.published, why))

    def _who_waits(self) -> str:
        s, learner = self.scheduler, self.learner
        missing = self.scheduler.needed // self.cluster.learner.minibatches - len(learner._taken)
        prompts = self.cluster.workload.prompts
        reasons = [f"the learner waits for {missing} more groups at version {learner.version}"]
        reasons.append(f"{s.buffered} are complete, {s.incomplete} incomplete")
        if prompts is not None and s.fresh >= prompts:
            reasons.append(f"the source of {prompts} prompts is exhausted")
        return f"deadlock at {self.env.now:g} s: " + ", ".join(reasons) + "; nothing else will happen"

    # --- a rollout's walk -------------------------------------------------------------------------------------------

    def launch(self, group: Group, now: float) -> None:
        """Start the rollouts of a group."""
        first = len(self.trajectories)
        for member, luck in enumerate(self._lucks(group)):
            node = self._initial[luck.kind]
            traj = Trajectory(first + member, group, member, luck, self.cluster.workload.prompt_tokens, node)
            traj.start_s, traj.start_version = now, self.published
            self.trajectories.append(traj)
            group.members.append(traj)
            self._assign(traj)
            if self.log is not None:
                row = (now, int(Kind.TRAJ_START), group.id, traj.id, member, self.published, float(luck.kind))
                self.log(row)
            traj.engine.submit(traj, now)

    def _assign(self, traj: Trajectory) -> None:
        """Choose the engine with the fewest rollouts, the first of several; one that is down only where all are."""
        there = [engine for engine in self.engines if not engine.down] if self._may_fail else self.engines
        traj.engine = best = min(there or self.engines, key=_ASSIGNED)
        best.assigned += 1

    def move(self, traj: Trajectory) -> None:
        """Give a rollout another engine."""
        traj.engine.assigned -= 1
        self._assign(traj)

    def decide(self, traj: Trajectory, version: int) -> None:
        """Choose the action of a turn under a version, and how many tokens it writes."""
        luck, turn, node = traj.luck, traj.turn, traj.node
        u, thresholds = luck.route[turn], self.thresholds[version][self._context[node]]
        action = 0
        while u >= thresholds[action]:
            action += 1
        scale, shape, cap = self._laws[node][action]
        if shape >= 0:
            tokens = scale * luck.length[turn * self._shapes + shape] * luck.length_factor
        else:
            tokens = scale * luck.length_factor
        traj.remaining = cap if tokens > cap else tokens
        traj.action = action
        traj.choices.append((node, action, version))

    def written(self, traj: Trajectory, now: float) -> None:
        """A turn is written, or as much of it as a round allows: call the tool, or go on."""
        if traj.remaining > 0.0:
            self.park(traj, now)
            return
        traj.context += traj.written
        traj.written, traj.remaining = 0.0, -1.0
        pool = self._pool[traj.action]
        if pool < 0:
            self.observe(traj, now)
        else:
            self.pools[pool].call(traj, now)

    def observe(self, traj: Trajectory, now: float) -> None:
        """What an action brought is there: the next turn, or the end."""
        node, action, turn, luck = traj.node, traj.action, traj.turn, traj.luck
        thresholds, u = self._outcome[luck.kind][node][action], luck.outcome[turn]
        outcome = 0
        while u >= thresholds[outcome]:
            outcome += 1
        traj.context += self._observed[node][action][outcome]
        traj.node = node = self._target[node][action][outcome]
        traj.turn = turn = turn + 1
        traj.attempt = 0
        if node >= self._states or turn == self._turns:
            self._end(traj, self._reward[node], True, now)
        elif traj.group.held or self.token_cap is not None or traj.engine.down:
            self._turn(traj, now)
        else:
            traj.engine.submit(traj, now)

    def give_up(self, traj: Trajectory, now: float) -> None:
        """A tool has failed for good: the rollout ends and does not count."""
        traj.turn += 1
        self._end(traj, float("nan"), False, now)

    def _end(self, traj: Trajectory, reward: float, valid: bool, now: float) -> None:
        traj.place, traj.end_s, traj.reward, traj.valid = OVER, now, reward, valid
        traj.engine.assigned -= 1
        if self.log is not None:
            row = (now, TRAJ_END, traj.group.id, traj.id, traj.turn, self.published, reward)
            self.log(row)
        self.scheduler.over(traj.group, valid, now)

    def _turn(self, traj: Trajectory, now: float) -> None:
        """Begin the next turn, unless its group is held or it has written its share of this round."""
        if traj.group.held:
            traj.place = Place.HELD
        elif self.token_cap is not None and traj.round_tokens >= self.token_cap:
            self.park(traj, now)
        else:
            if traj.engine.down:
                self.move(traj)
            traj.engine.submit(traj, now)

    # --- interventions ----------------------------------------------------------------------------------------------

    def park(self, traj: Trajectory, now: float) -> None:
        """Hold a rollout that has written its share of this round."""
        traj.place = Place.HELD
        self.scheduler.running -= 1
        self.scheduler.admit(now)

    def hold(self, rollouts: list[Trajectory], now: float) -> None:
        """Stop rollouts at their next turn, or in the middle of the one they write; tools go on."""
        for place in (Place.QUEUED, Place.WRITING):
            for traj in rollouts:
                if traj.place == place:
                    traj.engine.remove(traj, now, Kind.GEN_PAUSE)
                    traj.place = Place.HELD
        self._settle(now)

    def resume(self, rollouts: list[Trajectory], now: float) -> None:
        """Let held rollouts go on, in a new round."""
        for traj in rollouts:
            traj.round_tokens = 0.0
        for traj in rollouts:
            if traj.place == Place.HELD:
                self._turn(traj, now)

    def abort(self, rollouts: list[Trajectory], now: float) -> None:
        """Abort rollouts: those that only wait first, so that nobody takes a place that is freed at the same instant."""
        for busy in (False, True):
            for traj in rollouts:
                place = traj.place
                if place == Place.OVER or (place in (Place.WRITING, Place.SERVED)) != busy:
                    continue
                if place in (Place.QUEUED, Place.WRITING):
                    traj.engine.remove(traj, now, Kind.GEN_ABORT)
                elif place in (Place.CALLING, Place.SERVED):
                    self.pools[self._pool[traj.action]].cancel(traj, now)
                if place in _WRITTEN_TURN and traj.remaining <= 0.0:
                    traj.turn += 1  # this turn is written
                traj.ticket, traj.waits = 0, None
                traj.place, traj.end_s, traj.cancelled = Place.OVER, now, True
                traj.engine.assigned -= 1
                if self.log is not None:
                    row = (now, int(Kind.TRAJ_ABORT), traj.group.id, traj.id, traj.turn, self.published, 0.0)
                    self.log(row)
        self._settle(now)

    def _settle(self, now: float) -> None:
        for engine in self.engines:
            engine.settle(now)

    def learn(self, groups: list[Group], version: int) -> None:
        """Make the next version's policy."""
        made = self._learn(groups, version) if self._learn is not None else None
        self.thresholds.append(self.thresholds[-1] if made is None else np.asarray(made).tolist())

    def _lucks(self, group: Group) -> list[Luck]:
        """Return the draws of a group's rollouts."""
        if group.play > 0:
            return lucks(self.draws.again(group.prompt, group.play))
        block, row = divmod(group.prompt, BLOCK)
        if block not in self._blocks:
            self._blocks = {b: drawn for b, drawn in self._blocks.items() if b == block - 1}
            self._blocks[block] = lucks(self.draws.block(block))
        members = self.cluster.workload.members
        return self._blocks[block][row * members : (row + 1) * members]
