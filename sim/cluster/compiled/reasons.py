"""Why the kernel comes back to its caller, and names for the choices that the world holds as numbers."""

from enum import IntEnum

__all__ = ["Late", "Reason", "Rule", "SeriesRow", "Stage", "SyncMode", "Then", "What"]


class Reason(IntEnum):
    """Why the kernel has come back; GO_ON: it has not."""

    GO_ON = 0
    DONE = 1
    """The run is over and finished."""
    LIMIT = 2
    """It has done as much as it was asked to: the caller may want to be interrupted."""
    DEADLOCK = 3
    """The calendar is empty."""
    FRESH = 4
    """It needs the draws of the block of the next fresh prompt."""
    AGAIN = 5
    """It needs the draws of the next prompt that is played again."""
    SERIES = 6
    """It needs draws of a law of its own: those of `who`."""
    LEARN = 7
    """A batch is trained: it needs the next version's policy."""
    VERSION = 8
    """A version is made, and the caller wants to be told."""
    LOG_FULL = 9
    """The log needs room."""
    CALENDAR_FULL = 10
    """The calendar needs room."""
    ROWS_FULL = 11
    """The tables of rollouts or groups need room."""
    LIVE_FULL = 12
    """Tables as long as there are rollouts alive need room."""


class Then(IntEnum):
    """What follows before the calendar goes on."""

    NOTHING = 0
    WRITTEN = 1
    """The next of the turns that an engine has written."""
    LEARNER = 2
    CONTROLLER = 3
    ARRIVAL = 4
    FAIL = 5
    UP = 6
    START = 7
    """The processes begin."""
    FINISH = 8


class What(IntEnum):
    """Kinds of calendar entry. Those of a tool's answer are the kinds of event that it logs."""

    TIMER = 0
    RETRY = 1
    TOOL_END = 9
    TOOL_TIMEOUT = 10
    TOOL_FAIL = 11
    LEARNER = 20
    SWAPPED = 21
    LOADED = 22
    CONTROLLER = 23
    ARRIVAL = 24
    FAIL = 25
    UP = 26
    HORIZON = 27
    DONE = 28


class Stage(IntEnum):
    """Where the learner is; it waits at those that end in a calendar entry."""

    STEP = 0
    ASK = 1
    ASKED = 2
    TRAIN = 3
    TRAINED = 4
    LEARN = 5
    SEND = 6
    LOAD = 7
    LOADED = 8
    SENT = 9
    TOLD = 10


class Rule(IntEnum):
    """Admission rules."""

    CAPACITY = 0
    RUNNING = 1
    UNCONSUMED = 2
    AIMD = 3
    ARRIVALS = 4
    ROUNDS = 5


class Late(IntEnum):
    """What becomes of late groups."""

    CANCEL = 0
    REQUEUE = 1
    RESUME = 2
    TAIL = 3


class SyncMode(IntEnum):
    """Sync modes."""

    BLOCKING = 0
    INTERRUPT = 1
    IN_PLACE = 2
    PULL = 3


class SeriesRow(IntEnum):
    """Rows of the table of laws of their own; up times of engine e follow at UP + 2 e, down times one later."""

    JITTER = 0
    ARRIVAL = 1
    UP = 2
