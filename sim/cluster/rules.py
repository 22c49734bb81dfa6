"""Scheduling decisions, as functions of a few numbers: what may start, what may be taken, what is too old.

Nothing here knows of a clock, an event or a trajectory. The simulator's two engines call these functions (the compiled one
compiles them), and so may any loop that trains: they are the rules themselves. Counts are in rollouts unless they say
groups. All are ours except where a source is named.
"""

__all__ = [
    "GREEDY",
    "aimd",
    "capacity",
    "fixed_width",
    "may_start_round",
    "may_take",
    "round_launches",
    "too_old",
]

GREEDY = 2**62
"""A window that holds everything: whatever is complete may be taken."""


def capacity(version: int, accepted: int, running: int, eta: float, batch: int, concurrency: int) -> int:
    """Return how many rollouts may start now under AReaL's rule; at least 0.

        min(concurrency - running, (eta + version + 1) batch - (accepted + running))

    It bounds what was started and not yet trained on. It does *not* bound the staleness of any one rollout unless they are
    taken in the order in which they started. To be asked again whenever something is taken, dropped, failed or cancelled:
    a quota that is refilled only when weights arrive leaves generators idle.

    Parameters
    ----------
    version
        Version now published: updates made.
    accepted
        Rollouts completed and not dropped so far, those already trained on included.
    running
        Rollouts started and not completed.
    eta
        Batches that may be ahead; a fraction of one is allowed (verl's staleness threshold).
    batch
        Rollouts per version.
    concurrency
        Rollouts that may run at once.

    Source: inclusionAI/AReaL, ``staleness_manager.py``.

    >>> capacity(0, 0, 0, eta=0, batch=8, concurrency=100), capacity(0, 0, 8, eta=0, batch=8, concurrency=100)
    (8, 0)
    >>> capacity(1, 8, 0, eta=0, batch=8, concurrency=100), capacity(0, 0, 0, eta=2, batch=8, concurrency=100)
    (8, 24)
    """
    return max(0, min(concurrency - running, int((eta + version + 1) * batch) - (accepted + running)))


def fixed_width(width: int, held: int, concurrency: int, running: int) -> int:
    """Return how many rollouts may start so that at most `width` are held and at most `concurrency` run; at least 0."""
    return max(0, min(width - held, concurrency - running))


def may_start_round(started: int, settled: int, ahead: int, open_round: bool) -> bool:
    """Return whether a synchronous round may start: none is open, and at most `ahead` are waiting to be trained on.

    ``ahead=0`` is synchronous training, 1 is one step off: the next batch is generated while this one is trained on.
    """
    return not open_round and started - settled <= ahead


def round_launches(needed: int, over: float) -> int:
    """Return how many groups a round launches to keep the first `needed`: ceil(needed (1 + over))."""
    launched = int(needed * (1.0 + over))
    return launched if launched >= needed * (1.0 + over) else launched + 1


def may_take(group: int, head: int, window: int) -> bool:
    """Return whether a complete group may be taken: it is among the `window` oldest positions from the head on.

    The head is the oldest group neither taken nor dropped. A window of 1 is strict first in, first out;
    :data:`GREEDY` takes whatever is complete. With N groups held, the largest lag in groups is N + window - 2.
    Source: MiniMax, "The MiniMax-M2 Series" (arXiv 2605.26494), windowed FIFO.
    """
    return group - head < window


def too_old(version: int, oldest: int, newest: int, bound: int, by_newest: bool) -> bool:
    """Return whether a rollout that versions `oldest` to `newest` wrote is more than `bound` behind `version`."""
    return version - (newest if by_newest else oldest) > bound


def aimd(
    width: int,
    occupancy: float,
    completed: int,
    grow: float,
    trim_at: float,
    trim: float,
    hard_at: float,
    hard: float,
    least: int,
    most: int,
) -> int:
    """Return the next width of a controller that grows while memory allows and backs off at once when it does not.

    Above `hard_at` of KV memory the width is multiplied by `hard`, above `trim_at` by `trim`; otherwise by `grow` once
    `completed`, the rollouts completed since it last grew, has reached the width. Source of the scheme and its values:
    prime-rl, ``orchestrator/concurrency.py``.
    """
    if occupancy > hard_at:
        changed = int(width * hard)
    elif occupancy > trim_at:
        changed = int(width * trim)
    elif completed >= width:
        changed = int(width * grow)
        if changed == width:
            changed = width + 1
    else:
        changed = width
    return min(max(changed, least), most)
