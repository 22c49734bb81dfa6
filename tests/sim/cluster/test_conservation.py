"""Every law has a log that breaks it and no other; legal histories break none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.conservation import check, violations
from sim.cluster.events import EventLog, Kind
from sim.cluster.staleness import lag_sums
from tests.sim.cluster.legal_logs import CHOICES, LEGAL_LOGS, MOST_ACTIVE, SERVERS, STORY, walked

COLUMNS = ("t_s", "kind", "entity", "traj", "turn", "version", "value")


def at(kind, traj=-1, nth=0):
    """Index of a row of the story."""
    return [i for i, row in enumerate(STORY) if row[1] == kind and traj in (-1, row[3])][nth]


def changed(*changes):
    """The story with other values in some rows: (index, {column: value}), .."""
    rows = list(STORY)
    for index, values in changes:
        rows[index] = tuple(values.get(name, old) for name, old in zip(COLUMNS, rows[index], strict=True))
    return rows


def without(*indices):
    return [row for i, row in enumerate(STORY) if i not in indices]


def inserted(after, *rows):
    return [*STORY[: after + 1], *rows, *STORY[after + 1 :]]


def swapped(i, j):
    rows = list(STORY)
    rows[i], rows[j] = rows[j], rows[i]
    return rows


LOAD = at(Kind.SYNC_START)
RESUMED = at(Kind.GEN_START, 2, 1)
ENDED = at(Kind.GEN_END, 2)
LAST = at(Kind.GEN_START, 3)
LOST = at(Kind.GEN_ABORT, 3)
TAKE = at(Kind.TRAIN_TAKE)
STOPPED = at(Kind.STOP)

BROKEN = [
    # --- time, stop
    (
        changed((at(Kind.TOOL_END, 1), {"t_s": 3.0})),
        "time: row 13, t = 3 s, trajectory 1: falls from 4.5 s",
    ),
    (
        changed((at(Kind.GROUP_DROP), {"t_s": 11.0})),
        "stop: row 40, t = 11 s, GROUP_DROP 1: GROUP_DROP after STOP at 10 s",
    ),
    (
        inserted(STOPPED, (10.0, Kind.CONTROL, -1, -1, -1, 2, 8.0)),
        "stop: row 38, t = 10 s, CONTROL -1: CONTROL after STOP at 10 s",
    ),
    # --- life
    (
        without(at(Kind.TRAJ_ABORT)),
        "life: row 38, t = 10 s, trajectory 3: GEN_ABORT is its last event, and the run has stopped",
    ),
    (
        inserted(20, (6.0, Kind.TRAJ_START, 1, 2, 0, 0, 0.0)),
        "life: row 21, t = 6 s, trajectory 2: TRAJ_START starts again",
    ),
    (
        inserted(15, (5.0, Kind.TOOL_RETRY, 0, 1, 0, 1, 0.0)),
        "life: row 16, t = 5 s, trajectory 1: TOOL_RETRY after its end",
    ),
    (swapped(3, 4), "life: row 3, t = 0 s, trajectory 1: GEN_START before it starts"),
    # --- place, pair
    (
        without(at(Kind.GEN_PAUSE)),
        "place: row 27, t = 8 s, trajectory 2: GEN_START while GEN_START of row 20 is open",
    ),
    (
        changed((at(Kind.GEN_END, 2), {"entity": 1})),
        "pair: row 32, t = 9 s, trajectory 2: GEN_END is no end of GEN_START of row 28: another place, turn or version",
    ),
    (
        changed((at(Kind.GEN_END, 2), {"version": 0})),
        "pair: row 32, t = 9 s, trajectory 2: GEN_END is no end of GEN_START of row 28: another place, turn or version",
    ),
    (
        changed((at(Kind.TOOL_END, 0), {"kind": Kind.GEN_PAUSE})),
        "pair: row 16, t = 6 s, trajectory 0: GEN_PAUSE is no end of TOOL_START of row 14: another place, turn or version",
    ),
    (
        inserted(26, STORY[26]),
        "pair: row 27, t = 7.5 s, trajectory 2: GEN_PAUSE ends what was not open",
    ),
    (without(LOST), "pair: row 34, t = 9 s, trajectory 3: GEN_START never ends"),
    (inserted(35, STORY[35]), "pair: row 36, t = 9.5 s, TRAIN_END 1: TRAIN_END ends what was not open"),
    (inserted(27, STORY[27]), "pair: row 28, t = 8 s, SYNC_END 0: SYNC_END ends what was not open"),
    # --- turns, tokens
    (
        changed((RESUMED, {"turn": 1}), (ENDED, {"turn": 1})),
        "turns: row 28, t = 8 s, trajectory 2: GEN_START has turn 1 where 0 is due",
    ),
    (
        changed((at(Kind.TOOL_ENQUEUE, 1), {"turn": 1})),
        "turns: row 8, t = 3 s, trajectory 1: TOOL_ENQUEUE has turn 1 where 0 is due",
    ),
    (
        changed((at(Kind.TRAJ_END, 0), {"turn": 1})),
        "turns: row 22, t = 7 s, trajectory 0: TRAJ_END has turn 1 where 2 is due",
    ),
    (
        changed((at(Kind.GEN_PAUSE), {"value": -1.0})),
        "tokens: row 26, t = 7.5 s, trajectory 2: -1 tokens, must be at least 0",
    ),
    (
        changed((at(Kind.GEN_PAUSE), {"value": np.nan})),
        "tokens: row 26, t = 7.5 s, trajectory 2: nan tokens, must be at least 0",
    ),
    # --- servers, sequences
    (swapped(9, 10), "servers: row 9, t = 4 s, pool 0: 2 at once, must be at most 1"),
    (
        inserted(
            20,
            (6.0, Kind.GROUP_ADMIT, 2, -1, 0, 0, 9.0),
            (6.0, Kind.TRAJ_START, 2, 4, 0, 0, 0.0),
            (6.0, Kind.GEN_START, 0, 4, 0, 0, 10.0),
            (6.0, Kind.GEN_ABORT, 0, 4, 0, 0, 0.0),
            (6.0, Kind.TRAJ_ABORT, 2, 4, 0, 0, 0.0),
            (6.0, Kind.GROUP_DROP, 2, -1, -1, 0, 0.0),
        ),
        "sequences: row 23, t = 6 s, engine 0: 3 at once, must be at most 2",
    ),
    # --- published, version
    (
        changed((at(Kind.GROUP_DROP), {"version": 1})),
        "published: row 40, t = 10 s, GROUP_DROP 1: GROUP_DROP has version 1 where 2 is due",
    ),
    (
        changed((at(Kind.TRAJ_START, 3), {"version": 0})),
        "published: row 31, t = 8.75 s, trajectory 3: TRAJ_START has version 0 where 1 is due",
    ),
    (
        changed(
            (at(Kind.VERSION, nth=1), {"version": 3}),
            (at(Kind.TRAJ_ABORT), {"version": 3}),
            (at(Kind.GROUP_DROP), {"version": 3}),
        ),
        "published: row 36, t = 9.5 s, VERSION -1: VERSION has version 3 where 2 is due",
    ),
    (
        changed((RESUMED, {"version": 0}), (ENDED, {"version": 0})),
        "version: row 28, t = 8 s, trajectory 2: a chunk of version 0 but engine 0 has version 1",
    ),
    (
        [
            row
            for i, row in enumerate(changed(*((i, {"version": 2}) for i in (LOAD, LOAD + 2, RESUMED, ENDED))))
            if i not in (LAST, LOST)
        ],
        "version: row 28, t = 8 s, trajectory 2: a chunk of version 2 is newer than the published 1",
    ),
    (
        inserted(LAST - 1, (9.0, Kind.ENGINE_FAIL, 0, -1, -1, -1, 0.0)),
        "version: row 35, t = 9 s, trajectory 3: a chunk of version 1 begins on engine 0, which is down",
    ),
    # --- group
    (inserted(0, STORY[0]), "group: row 1, t = 0 s, group 0: GROUP_ADMIT when admitted, must be unknown"),
    (swapped(18, 19), "group: row 18, t = 6 s, group 1: TRAJ_START when unknown, must be admitted"),
    (inserted(23, STORY[23]), "group: row 24, t = 7 s, group 0: GROUP_READY when ready, must be admitted"),
    (without(23), "group: row 28, t = 8.5 s, group 0: TRAIN_TAKE when admitted, must be ready"),
    (inserted(TAKE, STORY[TAKE]), "group: row 30, t = 8.5 s, group 0: TRAIN_TAKE when taken, must be ready"),
    (
        inserted(TAKE, (8.5, Kind.GROUP_DROP, 0, -1, -1, 1, 0.0)),
        "group: row 30, t = 8.5 s, group 0: GROUP_DROP when taken, must be admitted or ready",
    ),
    (
        [
            *STORY[: LAST + 1],
            (9.0, Kind.GROUP_READY, 1, -1, -1, 1, 1.0),
            (9.0, Kind.TRAIN_TAKE, 1, -1, 0, 1, 2.0),
            *STORY[LAST + 1 : -1],
        ],
        "group: row 36, t = 9 s, group 1: taken while 1 of its trajectories run",
    ),
    # --- held, lag
    (
        without(at(Kind.GROUP_DROP)),
        "held: row 33, t = 9 s, trajectory 2 of group 1: neither taken nor dropped; 1 held after STOP, must be 0",
    ),
    (
        changed((TAKE, {"version": 2})),
        "lag: row 29, t = 8.5 s, group 0: lags sum to 4 where 2 were counted at versions; one that differs is taken here",
    ),
]


# --- worked by hand ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "message"), BROKEN, ids=[message.split(",")[0] for _, message in BROKEN])
def test_a_broken_law_is_named_and_no_other(rows, message):
    assert violations(EventLog.of(rows), servers={0: 1}, max_sequences=2) == [message]


def test_every_law_is_among_those_broken():
    from sim.cluster import conservation

    laws = {word.strip("*") for word in conservation.__doc__.split() if word.startswith("*") and word != "*"}
    assert {message.split(":")[0] for _, message in BROKEN} == {word.rstrip("*:.,") for word in laws}


def test_the_story_breaks_none():
    assert violations(EventLog.of(STORY), servers={0: 1}, max_sequences=2) == []
    check(EventLog.of(STORY), servers={0: 1, 1: None}, max_sequences=2)


def test_check_names_the_first_five():
    log = EventLog.of([(t, *row[1:]) for t, row in zip(range(len(STORY), 0, -1), STORY, strict=True)])
    with pytest.raises(
        ValueError, match="43 violations of conservation laws among 41 events, where 0 are allowed"
    ) as error:
        check(log)
    assert len(str(error.value).split("\n")) == 6


def test_loads_that_overlap_are_legal():
    """In place, the learner may send the next version before the engines have the last one."""
    rows = [
        (float(t), kind, -1, -1, -1, version, 0.0)
        for t, (kind, version) in enumerate(
            [(Kind.SYNC_START, 1), (Kind.SYNC_START, 2), (Kind.SYNC_END, 1), (Kind.VERSION, 1), (Kind.SYNC_END, 2)]
        )
    ]
    assert violations(EventLog.of(rows)) == []


# --- properties -------------------------------------------------------------------------------------------------------


@given(log=LEGAL_LOGS)
def test_legal_histories_break_no_law(log):
    assert violations(log, servers=SERVERS, max_sequences=MOST_ACTIVE) == []


@given(choices=CHOICES, share=st.floats(0, 1))
def test_a_run_that_still_goes_on_breaks_none(choices, share):
    log = walked(choices, stops=False)
    assert violations(log.rows(slice(0, int(share * len(log)))), servers=SERVERS, max_sequences=MOST_ACTIVE) == []


@given(log=LEGAL_LOGS, data=st.data())
def test_a_lost_event_of_a_trajectory_is_noticed(log, data):
    """Whichever it is, but for waiting and retrying, which may be left out, and what is written twice in two pieces."""
    telling = (Kind.TRAJ_START, Kind.GEN_END, Kind.TOOL_START, Kind.TOOL_END, Kind.TRAJ_END, Kind.TRAJ_ABORT)
    rows = log.of_kind(*telling)
    if len(rows):
        lost = data.draw(st.sampled_from(rows.tolist()))
        assert violations(log.rows(np.arange(len(log)) != lost)) != []


def test_the_walks_reach_what_the_laws_are_about():
    """The properties above would hold of histories in which nothing happens."""
    generator = np.random.default_rng(0)
    logs = [walked(generator.integers(0, 10_000, 150).tolist()) for _ in range(20)]
    seen = {kind for log in logs for kind in log.kind.tolist()}
    assert seen >= set(Kind) - {Kind.GROUP_HOLD, Kind.GROUP_RESUME, Kind.CONTROL}
    assert sum(lag_sums(log)[0] for log in logs) > 100
