"""The cluster of :mod:`.setting` as a SimPy user would write it: everything that acts is a process.

A rollout is a process: it asks its engine for a turn and waits for the event that says it is written, asks a
:class:`simpy.Resource` for a server in a ``with``, and waits for whichever is first, the tool's answer or the time limit.
An engine is a process that sleeps until its next turn is written and is interrupted when that changes. The learner is a
process that waits for one group after the other, trains, and pauses the engines to load what it has made.

It is given whatever costs nothing in clarity: no event that nobody waits for, no process for a step of another, numbers
looked up and turned into lists block by block with numpy, the route and the tokens of all turns of a block at once, and one
sum for what all sequences of an engine have written.

Engines were tried in six forms, all with the same outputs, at 1,000 slots; CPU time in multiples of the bare heap's:

- interrupted at every arrival, 10.6; only when the turn that is written next becomes another one, 8.1 (this one);
- woken by an event instead (any of that and a timeout), 12.4; the tokens in a numpy array, 11.8;
- virtual time, a heap and one early timer, as the model of record has: 6.5, and 9.0 interrupted at every arrival. Whoever
  writes that has left the usual way, so it is not the peer; the ratio to it is 0.8 of the one that is shown.

``race=False`` waits for the smaller of answer and limit, which is known when the call begins, instead of for both.
"""

from collections.abc import Generator
from operator import attrgetter
from typing import Any

import numpy as np
import simpy

from sim.cluster.draws import BLOCK, Draws
from sim.cluster.plan import Plan
from sim.cluster.scheduling import Capacity
from tests.sim.cluster.peers.setting import Lines, Outputs, lines

__all__ = ["Idiomatic"]

Events = Generator[simpy.Event, Any, None]


class Engine:
    """Sequences that share one engine: each of n decodes a token in base + each n seconds."""

    def __init__(self, env: simpy.Environment, base_s: float, each_s: float) -> None:
        self.env, self.base_s, self.each_s = env, base_s, each_s
        self.rollouts = 0  # assigned
        self.paused = False
        self.remaining: list[float] = []  # tokens of each sequence
        self.written: list[simpy.Event] = []
        self.since = self.due = 0.0
        self.process = env.process(self.run())

    def generate(self, tokens: float) -> simpy.Event:
        """Return an event that happens when so many tokens are written."""
        written = self.env.event()
        self.advance()
        self.remaining.append(tokens)
        self.written.append(written)
        if not self.paused and self.env.now + tokens * self.step_s() < self.due:
            self.process.interrupt()
        return written

    def step_s(self) -> float:
        return self.base_s + self.each_s * len(self.remaining)

    def advance(self) -> None:
        """Write what was written since the last change."""
        now = self.env.now
        if now > self.since:
            if self.remaining and not self.paused:
                made = (now - self.since) / self.step_s()
                self.remaining = [tokens - made for tokens in self.remaining]
            self.since = now

    def pause(self) -> None:
        self.advance()
        self.paused = True
        self.process.interrupt()

    def resume(self) -> None:
        self.advance()
        self.paused = False
        self.process.interrupt()

    def run(self) -> Events:
        """Sleep until the next turn is written, or until somebody changes what that is."""
        env = self.env
        while True:
            try:
                if self.remaining and not self.paused:
                    delay = max(0.0, min(self.remaining) * self.step_s())
                    self.due = env.now + delay
                    yield env.timeout(delay)
                    self.depart()
                else:
                    self.due = float("inf")
                    yield env.event()
            except simpy.Interrupt:
                pass

    def depart(self) -> None:
        self.advance()
        now, step_s = self.env.now, self.step_s()
        while self.remaining:
            least = min(self.remaining)
            if now + least * step_s > now:
                return
            at = self.remaining.index(least)
            del self.remaining[at]
            self.written.pop(at).succeed()


class Group:
    """The rollouts of a prompt."""

    def __init__(self, env: simpy.Environment, version: int) -> None:
        self.start_version, self.take_version = version, -1
        self.complete = env.event()  # its value: whether enough of them count
        self.done = self.valid = 0
        self.tokens = 0.0


class Idiomatic:
    """One run."""

    def __init__(self, made: Plan, draws: Draws, *, race: bool = True) -> None:
        c = made.cluster
        assert isinstance(c.admission, Capacity)
        self.made, self.cluster, self.draws, self.race = made, c, draws, race
        self.eta, self.batch, self.group = c.admission.eta, c.learner.batch, c.workload.group
        self.timeout_s = c.tools[0].timeout_s
        self.env = env = simpy.Environment()
        self.engines = [Engine(env, c.engines.base_s, c.engines.per_sequence_s) for _ in range(c.engines.count)]
        self.tools = [simpy.Resource(env, pool.servers) for pool in c.tools]
        self.groups: list[Group] = []
        self.end_s: list[float] = []
        self.lines: Lines = []
        self.version = self.running = self.accepted = self.incomplete = 0

    def run(self) -> Outputs:
        self.admit()
        self.env.run(until=self.env.process(self.learner()))
        started = np.array([group.start_version for group in self.groups])
        taken = np.array([group.take_version for group in self.groups])
        return Outputs(np.array(self.end_s), started, taken, self.env.now)

    def admit(self) -> None:
        """Start groups while slots are free and AReaL's rule allows it."""
        while (
            self.cluster.slots - self.running >= self.group
            and (self.eta + self.version + 1) * self.batch - self.accepted - self.incomplete >= self.group
        ):
            prompt = len(self.groups)
            if prompt % BLOCK == 0:
                self.lines = lines(self.made, self.draws.block(prompt // BLOCK))
            group = Group(self.env, self.version)
            self.groups.append(group)
            self.running += self.group
            self.incomplete += self.group
            first = prompt % BLOCK * self.group
            for line in self.lines[first : first + self.group]:
                engine = min(self.engines, key=attrgetter("rollouts"))
                engine.rollouts += 1
                self.end_s.append(float("nan"))
                self.env.process(self.rollout(len(self.end_s) - 1, group, engine, *line))

    def rollout(
        self, number: int, group: Group, engine: Engine, choices: list[int], tokens: list[float], latencies: list[float]
    ) -> Events:
        env, last = self.env, len(tokens) - 1
        valid = True
        for turn, length in enumerate(tokens):
            yield engine.generate(length)
            if turn == last:
                group.tokens += sum(tokens)
                break
            with self.tools[choices[turn]].request() as server:
                yield server
                if self.race:
                    answer, limit = env.timeout(latencies[turn]), env.timeout(self.timeout_s)
                    valid = answer in (yield answer | limit)
                else:  # what comes first is known beforehand
                    valid = latencies[turn] <= self.timeout_s
                    yield env.timeout(latencies[turn] if valid else self.timeout_s)
            if not valid:
                break
        self.end_s[number] = env.now
        engine.rollouts -= 1
        self.running -= 1
        group.done += 1
        group.valid += valid
        if group.done == self.group:
            self.incomplete -= self.group
            counts = group.valid > self.cluster.workload.least_valid * self.group
            if counts:
                self.accepted += self.group
            group.complete.succeed(counts)
        self.admit()

    def learner(self) -> Events:
        env, spec = self.env, self.cluster.learner
        head = 0
        for step in range(self.cluster.steps):
            rollouts, tokens, missing = 0, 0.0, self.batch // self.group
            while missing:
                group = self.groups[head]
                head += 1
                if (yield group.complete):
                    group.take_version = step
                    rollouts += group.valid
                    tokens += group.tokens
                    missing -= 1
            yield env.timeout(spec.base_s + spec.per_rollout_s * rollouts + spec.per_token_s * tokens)
            for engine in self.engines:
                engine.pause()
            yield env.timeout(self.cluster.sync.seconds)
            self.version += 1
            for engine in self.engines:
                engine.resume()
            self.admit()
