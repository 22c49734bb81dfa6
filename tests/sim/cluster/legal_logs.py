"""Logs of legal histories: one worked by hand, and any number walked at random, choice by choice."""

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st

from sim.cluster.events import DropReason, EventLog, Kind

MEMBERS, ENGINES, MOST_ACTIVE = 2, 2, 3
SERVERS = {0: 1, 1: None}

STORY = [
    # One engine, one pool with one server. Groups 0 and 1 of two trajectories each: group 0 is taken one version after it
    # started, group 1 is left when the run stops. The engine loads version 1 while trajectory 2 writes. What version 1 was
    # trained on does not matter here and is left out.
    (0.0, Kind.GROUP_ADMIT, 0, -1, 0, 0, 7.0),
    (0.0, Kind.TRAJ_START, 0, 0, 0, 0, 0.0),
    (0.0, Kind.GEN_START, 0, 0, 0, 0, 10.0),
    (0.0, Kind.TRAJ_START, 0, 1, 1, 0, 0.0),
    (0.0, Kind.GEN_START, 0, 1, 0, 0, 10.0),
    (2.0, Kind.GEN_END, 0, 0, 0, 0, 20.0),
    (2.0, Kind.TOOL_START, 0, 0, 0, 0, 0.0),
    (3.0, Kind.GEN_END, 0, 1, 0, 0, 30.0),
    (3.0, Kind.TOOL_ENQUEUE, 0, 1, 0, 0, 0.0),
    (4.0, Kind.TOOL_TIMEOUT, 0, 0, 0, 0, 0.0),
    (4.0, Kind.TOOL_START, 0, 1, 0, 0, 0.0),
    (4.5, Kind.TOOL_RETRY, 0, 0, 0, 1, 0.0),
    (4.5, Kind.TOOL_ENQUEUE, 0, 0, 0, 1, 0.0),
    (5.0, Kind.TOOL_END, 0, 1, 0, 0, 0.0),
    (5.0, Kind.TOOL_START, 0, 0, 0, 1, 0.0),
    (5.0, Kind.TRAJ_END, 0, 1, 1, 0, 1.0),
    (6.0, Kind.TOOL_END, 0, 0, 0, 1, 0.0),
    (6.0, Kind.GEN_START, 0, 0, 1, 0, 40.0),
    (6.0, Kind.GROUP_ADMIT, 1, -1, 0, 0, 8.0),
    (6.0, Kind.TRAJ_START, 1, 2, 0, 0, 0.0),
    (6.0, Kind.GEN_START, 0, 2, 0, 0, 10.0),
    (7.0, Kind.GEN_END, 0, 0, 1, 0, 10.0),
    (7.0, Kind.TRAJ_END, 0, 0, 2, 0, 0.0),
    (7.0, Kind.GROUP_READY, 0, -1, -1, 0, 2.0),
    (7.5, Kind.VERSION, -1, -1, -1, 1, 0.0),
    (7.5, Kind.SYNC_START, 0, -1, -1, 1, 0.0),
    (7.5, Kind.GEN_PAUSE, 0, 2, 0, 0, 15.0),
    (8.0, Kind.SYNC_END, 0, -1, -1, 1, 0.0),
    (8.0, Kind.GEN_START, 0, 2, 0, 1, 25.0),
    (8.5, Kind.TRAIN_TAKE, 0, -1, 0, 1, 1.0),
    (8.5, Kind.TRAIN_START, 1, -1, 0, 1, 60.0),
    (8.75, Kind.TRAJ_START, 1, 3, 1, 1, 0.0),
    (9.0, Kind.GEN_END, 0, 2, 0, 1, 45.0),
    (9.0, Kind.TRAJ_END, 1, 2, 1, 1, 1.0),
    (9.0, Kind.GEN_START, 0, 3, 0, 1, 10.0),
    (9.5, Kind.TRAIN_END, 1, -1, 0, 1, 0.0),
    (9.5, Kind.VERSION, -1, -1, -1, 2, 0.0),
    (10.0, Kind.STOP, -1, -1, -1, -1, 0.0),
    (10.0, Kind.GEN_ABORT, 0, 3, 0, 1, 5.0),
    (10.0, Kind.TRAJ_ABORT, 1, 3, 0, 2, 0.0),
    (10.0, Kind.GROUP_DROP, 1, -1, -1, 2, float(DropReason.STOPPED)),
]


def story() -> EventLog:
    """The history worked by hand."""
    return EventLog.of(STORY)


class Walk:
    """A history in which each choice picks one of the moves that are legal now."""

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, int, int, int, float]] = []
        self.now, self.published, self.step = 0.0, 0, 0
        self.loaded, self.loading, self.down = [0] * ENGINES, [-1] * ENGINES, [False] * ENGINES
        self.group: list[int] = []  # of each trajectory
        self.where: list[str] = []  # idle, chunk, queue, tool, backoff, over; of each trajectory
        self.place: dict[int, int] = {}  # engine or pool; these four of each trajectory
        self.version: dict[int, int] = {}
        self.turn: dict[int, int] = {}
        self.attempt: dict[int, int] = {}
        self.written: list[bool] = []
        self.state: list[str] = []  # running, ready, taken, dropped; of each group
        self.training: tuple[int, int] | None = None

    def log(
        self, kind: Kind, entity: int = -1, traj: int = -1, turn: int = -1, version: int = -1, value: float = 0
    ) -> None:
        self.rows.append((self.now, kind, entity, traj, turn, version, value))

    # --- moves --------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        group = len(self.state)
        self.state.append("running")
        self.log(Kind.GROUP_ADMIT, group, turn=0, version=self.published, value=float(group))
        for member in range(MEMBERS):
            traj = len(self.where)
            self.group.append(group)
            self.where.append("idle")
            self.written.append(False)
            self.turn[traj] = 0
            self.log(Kind.TRAJ_START, group, traj, member, self.published)

    def write(self, traj: int, engine: int) -> None:
        if self.written[traj]:
            self.turn[traj] += 1
        self.written[traj] = False
        self.where[traj], self.place[traj], self.version[traj] = "chunk", engine, self.loaded[engine]
        self.log(Kind.GEN_START, engine, traj, self.turn[traj], self.loaded[engine], 12.0)

    def end_chunk(self, traj: int, kind: Kind, tokens: float) -> None:
        self.where[traj], self.written[traj] = "idle", kind == Kind.GEN_END
        self.log(kind, self.place[traj], traj, self.turn[traj], self.version[traj], tokens)

    def enqueue(self, traj: int, pool: int) -> None:
        self.where[traj], self.place[traj], self.attempt[traj] = "queue", pool, 0
        self.log(Kind.TOOL_ENQUEUE, pool, traj, self.turn[traj], 0)

    def serve(self, traj: int) -> None:
        self.where[traj] = "tool"
        self.log(Kind.TOOL_START, self.place[traj], traj, self.turn[traj], self.attempt[traj])

    def end_tool(self, traj: int, kind: Kind) -> None:
        self.where[traj] = "idle" if kind == Kind.TOOL_END else "backoff"
        self.log(kind, self.place[traj], traj, self.turn[traj], self.attempt[traj])

    def retry(self, traj: int) -> None:
        self.where[traj], self.attempt[traj] = "queue", self.attempt[traj] + 1
        self.log(Kind.TOOL_RETRY, self.place[traj], traj, self.turn[traj], self.attempt[traj])

    def finish(self, traj: int) -> None:
        group = self.group[traj]
        self.where[traj] = "over"
        self.log(Kind.TRAJ_END, group, traj, self.turns(traj), self.published, float(traj % 2))
        if all(w == "over" for w, g in zip(self.where, self.group, strict=True) if g == group):
            self.state[group] = "ready"
            self.log(Kind.GROUP_READY, group, version=self.published, value=float(MEMBERS))

    def turns(self, traj: int) -> int:
        return self.turn[traj] + self.written[traj]

    def abort(self, traj: int) -> None:
        if self.where[traj] == "chunk":
            self.end_chunk(traj, Kind.GEN_ABORT, 1.0)
        elif self.where[traj] == "tool":
            self.end_tool(traj, Kind.TOOL_ABORT)
        self.where[traj] = "over"
        self.log(Kind.TRAJ_ABORT, self.group[traj], traj, self.turns(traj), self.published)

    def drop(self, group: int, why: DropReason) -> None:
        for traj, of in enumerate(self.group):
            if of == group and self.where[traj] != "over":
                self.abort(traj)
        self.state[group] = "dropped"
        self.log(Kind.GROUP_DROP, group, version=self.published, value=float(why))

    def take(self, group: int) -> None:
        self.state[group] = "taken"
        self.log(Kind.TRAIN_TAKE, group, turn=0, version=self.published, value=float(self.step))
        self.log(Kind.TRAIN_START, self.step, turn=0, version=self.published, value=50.0)
        self.training = (self.step, self.published)

    def publish(self) -> None:
        assert self.training is not None
        step, version = self.training
        self.log(Kind.TRAIN_END, step, turn=0, version=version)
        self.published, self.step, self.training = version + 1, step + 1, None
        self.log(Kind.VERSION, version=self.published)

    def load(self, engine: int) -> None:
        self.loading[engine] = self.published
        self.log(Kind.SYNC_START, engine, version=self.published)
        for traj in self.writing(engine):
            self.end_chunk(traj, Kind.GEN_PAUSE, 3.0)

    def loads(self, engine: int) -> None:
        self.loaded[engine], self.loading[engine] = self.loading[engine], -1
        self.log(Kind.SYNC_END, engine, version=self.loaded[engine])

    def fail(self, engine: int) -> None:
        for traj in self.writing(engine):
            self.end_chunk(traj, Kind.GEN_ABORT, 2.0)
        self.down[engine] = True
        self.log(Kind.ENGINE_FAIL, engine)

    def up(self, engine: int) -> None:
        self.down[engine], self.loaded[engine] = False, self.published
        self.log(Kind.ENGINE_UP, engine, version=self.published)

    def stop(self) -> None:
        self.log(Kind.STOP)
        for group, state in enumerate(self.state):
            if state in ("running", "ready"):
                self.drop(group, DropReason.STOPPED)

    # --- what is legal ------------------------------------------------------------------------------------------------

    def writing(self, engine: int) -> list[int]:
        return [traj for traj, where in enumerate(self.where) if where == "chunk" and self.place[traj] == engine]

    def moves(self, rare: bool) -> list[Callable[[], None]]:
        """What may happen now, what leads on more than once; with what goes wrong if `rare`."""
        found: list[Callable[[], None]] = []
        for t, where in enumerate(self.where):
            found += getattr(self, f"moves_of_{where}")(t) if where != "over" else []
        for g, state in enumerate(self.state):
            if state == "ready" and self.training is None:
                found += [partial(self.take, g)] * 3
            if state in ("running", "ready") and rare:
                found.append(partial(self.drop, g, DropReason.OLD))
        if self.training is not None:
            found += [self.publish] * 3
        for e in range(ENGINES):
            if self.loading[e] >= 0:
                found += [partial(self.loads, e)] * 2
            elif self.down[e]:
                found += [partial(self.up, e)] * 2
            else:
                found += [partial(self.load, e)] * (self.loaded[e] < self.published)
                found += [partial(self.fail, e)] * rare
        if self.state.count("running") < 3:
            found.append(self.admit)
        return found

    def moves_of_idle(self, t: int) -> list[Callable[[], None]]:
        free = [e for e in range(ENGINES) if self.loading[e] < 0 and not self.down[e]]
        found: list[Callable[[], None]] = [
            partial(self.write, t, e) for e in free if len(self.writing(e)) < MOST_ACTIVE
        ]
        if self.written[t]:
            found += [partial(self.finish, t)] * 3 + [partial(self.enqueue, t, p) for p in SERVERS]
        return found

    def moves_of_chunk(self, t: int) -> list[Callable[[], None]]:
        ends = [(Kind.GEN_END, 8.0)] * 4 + [(Kind.GEN_PAUSE, 4.0), (Kind.GEN_PREEMPT, 0.0), (Kind.GEN_ABORT, 2.0)]
        return [partial(self.end_chunk, t, k, n) for k, n in ends]

    def moves_of_queue(self, t: int) -> list[Callable[[], None]]:
        pool = self.place[t]
        serving = sum(w == "tool" and self.place[i] == pool for i, w in enumerate(self.where))
        servers = SERVERS[pool]
        return [partial(self.serve, t)] * (servers is None or serving < servers)

    def moves_of_tool(self, t: int) -> list[Callable[[], None]]:
        ends = [Kind.TOOL_END] * 4 + [Kind.TOOL_TIMEOUT, Kind.TOOL_FAIL]
        return [partial(self.end_tool, t, k) for k in ends]

    def moves_of_backoff(self, t: int) -> list[Callable[[], None]]:
        return [partial(self.retry, t)]


def walked(choices: list[int], stops: bool = True) -> EventLog:
    """The history of these choices; the time between two moves depends on the choice as well, and is often none."""
    walk = Walk()
    for choice in choices:
        walk.now += (choice % 5 // 2) * 0.5
        moves = walk.moves(rare=choice % 29 == 7) or [walk.admit]
        moves[choice % len(moves)]()
    if stops:
        walk.stop()
    return EventLog.of(walk.rows)


CHOICES = st.lists(st.integers(0, 10_000), max_size=150)
LEGAL_LOGS = st.builds(walked, CHOICES)
