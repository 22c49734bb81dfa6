"""The cluster of :mod:`.setting` on a bare heap: no library, nothing general, the arithmetic of the model of record.

The calendar is a heap of (time, sequence number, what to call, with what). Each engine keeps its sequences in a heap by the
virtual time at which they leave, with one timer; a tool call is one entry, as its end is known when it begins. The numbers
are looked up block by block, the route and the tokens of all turns of a block at once.
"""

import math
from collections import deque
from heapq import heappop, heappush
from itertools import count

import numpy as np

from sim.cluster.draws import BLOCK, Draws
from sim.cluster.plan import Plan
from sim.cluster.scheduling import Capacity
from tests.sim.cluster.peers.setting import Lines, Outputs, lines

__all__ = ["heap_loop"]

NAN, NEVER = float("nan"), math.inf


class Engine:
    __slots__ = ("armed", "heap", "n", "rollouts", "step_s", "stopped", "t", "token", "v", "waiting")

    def __init__(self, base_s: float) -> None:
        self.n = self.rollouts = self.token = 0
        self.v = self.t = 0.0
        self.step_s, self.armed, self.stopped = base_s, NEVER, False
        self.heap: list[tuple[float, int, Rollout]] = []
        self.waiting: list[Rollout] = []


class Rollout:
    __slots__ = ("choices", "chunk_v", "engine", "group", "latencies", "number", "remaining", "tokens", "turn", "wrote")

    def __init__(self, number: int, group: "Group", engine: Engine, line: tuple[list[int], list[float], list[float]]):
        self.number, self.group, self.engine = number, group, engine
        self.choices, self.tokens, self.latencies = line
        self.turn, self.remaining, self.wrote = 0, self.tokens[0], 0.0


class Group:
    __slots__ = ("complete", "done", "members", "start_version", "take_version", "valid")

    def __init__(self, version: int) -> None:
        self.start_version, self.take_version = version, -1
        self.members: list[Rollout] = []
        self.done = self.valid = 0
        self.complete = 0  # 1: enough of them count; -1: too few


def heap_loop(made: Plan, draws: Draws) -> Outputs:
    """Simulate the cluster."""
    c = made.cluster
    assert isinstance(c.admission, Capacity)
    base_s, each_s, slots, eta = c.engines.base_s, c.engines.per_sequence_s, c.slots, c.admission.eta
    G, B, last, learner = c.workload.group, c.learner.batch, made.graph.turns - 1, c.learner
    timeout_s, sync_s, least = c.tools[0].timeout_s, c.sync.seconds, c.workload.least_valid * G
    calendar: list = []
    sequence = count().__next__
    now = 0.0
    engines = [Engine(base_s) for _ in range(c.engines.count)]
    free = [pool.servers for pool in c.tools]
    queues: list[deque[Rollout]] = [deque() for _ in c.tools]
    groups: list[Group] = []
    end_s: list[float] = []
    read: Lines = []
    version = running = accepted = incomplete = head = step = 0
    batch: list[Group] = []
    collecting = True

    def admit():
        nonlocal running, incomplete, read
        while slots - running >= G and (eta + version + 1) * B - accepted - incomplete >= G:
            prompt = len(groups)
            if prompt % BLOCK == 0:
                read = lines(made, draws.block(prompt // BLOCK))
            group = Group(version)
            groups.append(group)
            running += G
            incomplete += G
            first = prompt % BLOCK * G
            for line in read[first : first + G]:
                best = engines[0]
                for engine in engines:
                    if engine.rollouts < best.rollouts:
                        best = engine
                best.rollouts += 1
                rollout = Rollout(len(end_s), group, best, line)
                end_s.append(NAN)
                group.members.append(rollout)
                submit(rollout)

    def submit(rollout):
        engine = rollout.engine
        if engine.stopped:
            engine.waiting.append(rollout)
            return
        if now > engine.t:
            if engine.n:
                engine.v += (now - engine.t) / engine.step_s
            engine.t = now
        begin(engine, rollout)
        arm(engine)

    def begin(engine, rollout):
        rollout.chunk_v = engine.v
        heappush(engine.heap, (engine.v + rollout.remaining, sequence(), rollout))
        engine.n += 1
        engine.step_s = base_s + each_s * engine.n

    def arm(engine):
        if engine.n:
            delay = (engine.heap[0][0] - engine.v) * engine.step_s
            if delay < 0.0:
                delay = 0.0
            at = now + delay
            if at < engine.armed:
                engine.armed = at
                engine.token += 1
                heappush(calendar, (at, sequence(), fired, (engine, engine.token)))

    def fired(timer):
        engine, token = timer
        if token != engine.token:
            return
        engine.armed = NEVER
        if now > engine.t:
            if engine.n:
                engine.v += (now - engine.t) / engine.step_s
            engine.t = now
        heap, done = engine.heap, []
        while heap and now + (heap[0][0] - engine.v) * engine.step_s <= now:
            rollout = heappop(heap)[2]
            rollout.wrote += rollout.remaining
            engine.n -= 1
            engine.step_s = base_s + each_s * engine.n
            done.append(rollout)
        if not heap:
            engine.v = 0.0
        arm(engine)
        for rollout in done:
            turn = rollout.turn
            if turn == last:
                over(rollout, 1)
            elif free[rollout.choices[turn]]:
                free[rollout.choices[turn]] -= 1
                call(rollout)
            else:
                queues[rollout.choices[turn]].append(rollout)

    def call(rollout):
        took = rollout.latencies[rollout.turn]
        if took > timeout_s:
            heappush(calendar, (now + timeout_s, sequence(), timed_out, rollout))
        else:
            heappush(calendar, (now + took, sequence(), answered, rollout))

    def answered(rollout):
        release(rollout.choices[rollout.turn])
        rollout.turn += 1
        rollout.remaining = rollout.tokens[rollout.turn]
        submit(rollout)

    def timed_out(rollout):
        release(rollout.choices[rollout.turn])
        over(rollout, 0)

    def release(tool):
        if queues[tool]:
            call(queues[tool].popleft())
        else:
            free[tool] += 1

    def over(rollout, valid):
        nonlocal running, incomplete, accepted
        end_s[rollout.number] = now
        rollout.engine.rollouts -= 1
        running -= 1
        group = rollout.group
        group.done += 1
        group.valid += valid
        if not valid:
            rollout.wrote = 0.0
        if group.done == G:
            incomplete -= G
            group.complete = 1 if group.valid > least else -1
            if group.complete == 1:
                accepted += G
            admit()
            if collecting:
                collect()
        else:
            admit()

    def collect():
        nonlocal head, collecting
        while len(batch) < B // G:
            if head == len(groups) or not groups[head].complete:
                collecting = True
                return
            group = groups[head]
            head += 1
            if group.complete == 1:
                group.take_version = step
                batch.append(group)
        collecting = False
        tokens = 0.0
        for group in batch:
            for rollout in group.members:
                tokens += rollout.wrote
        rollouts = sum(group.valid for group in batch)
        batch.clear()
        took = learner.base_s + learner.per_rollout_s * rollouts + learner.per_token_s * tokens
        heappush(calendar, (now + took, sequence(), trained, None))

    def trained(_):
        for engine in engines:
            if now > engine.t:
                if engine.n:
                    engine.v += (now - engine.t) / engine.step_s
                engine.t = now
            for _at, _sequence, rollout in sorted(engine.heap, key=lambda entry: entry[1]):
                wrote = min(max(engine.v - rollout.chunk_v, 0.0), rollout.remaining)
                rollout.remaining -= wrote
                rollout.wrote += wrote
                engine.waiting.append(rollout)
            engine.heap.clear()
            engine.n, engine.v, engine.step_s, engine.stopped = 0, 0.0, base_s, True
        heappush(calendar, (now + sync_s, sequence(), loaded, None))

    def loaded(_):
        nonlocal version, step
        version += 1
        for engine in engines:
            engine.stopped, engine.t = False, now
            for rollout in engine.waiting:
                begin(engine, rollout)
            engine.waiting.clear()
            arm(engine)
        admit()
        step += 1
        if step < c.steps:
            collect()

    admit()
    collect()
    while step < c.steps:
        now, _, then, what = heappop(calendar)
        then(what)
    started, taken = ([getattr(group, name) for group in groups] for name in ("start_version", "take_version"))
    return Outputs(np.array(end_s), np.array(started), np.array(taken), now)
