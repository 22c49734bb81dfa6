"""What may start, and the start of a group. Left and called again where draws or room are missing: nothing is half done."""

from __future__ import annotations

from sim.cluster import rules
from sim.cluster.compiled import calendar, engine, groups, rollouts
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import Late, Reason, Rule
from sim.cluster.compiled.state import NONE, QUEUED, RUNNING, drawn, group_at, prompt, traj_at, whole
from sim.cluster.draws import BLOCK
from sim.cluster.events import Kind

__all__ = ["admit", "begin_group"]

GROUP_ADMIT, TRAJ_START, GROUP_RESUME = int(Kind.GROUP_ADMIT), int(Kind.TRAJ_START), int(Kind.GROUP_RESUME)
CAPACITY, BY_RUNNING, UNCONSUMED, AIMD = int(Rule.CAPACITY), int(Rule.RUNNING), int(Rule.UNCONSUMED), int(Rule.AIMD)
GO_ON, FRESH, AGAIN, ROWS_FULL, LIVE_FULL = (
    int(why) for why in (Reason.GO_ON, Reason.FRESH, Reason.AGAIN, Reason.ROWS_FULL, Reason.LIVE_FULL)
)
EXHAUSTED = -1
"""All prompts are played."""
TAIL = int(Late.TAIL)
NAN = float("nan")

capacity, fixed_width = compiled(rules.capacity), compiled(rules.fixed_width)
may_start_round, round_launches = compiled(rules.may_start_round), compiled(rules.round_launches)


@compiled
def admit(w: Record) -> int:
    """Start what the admission rule allows; return a :class:`Reason`."""
    if w.rounds:
        return _rounds(w)
    while _allowed(w) >= w.members:
        why = begin_group(w, False)
        if why == EXHAUSTED:
            return GO_ON
        if why != GO_ON:
            return why
    return GO_ON


@compiled
def _allowed(w: Record) -> int:
    """Return how many rollouts may start."""
    free = w.slots - w.running
    if w.rule == CAPACITY:
        in_flight = w.incomplete * w.group
        allowed = capacity(w.published, w.accepted * w.group, in_flight, w.eta, w.batch_size, in_flight + free)
        return allowed if allowed < w.group or w.members == w.group else free
    if w.rule == BY_RUNNING:
        return fixed_width(w.width, w.running, w.slots, w.running)
    if w.rule == UNCONSUMED:
        allowed = fixed_width(w.width, w.unconsumed * w.group, w.slots, w.running)
        return allowed if allowed < w.group or w.members == w.group else free
    if w.rule == AIMD:
        return fixed_width(w.width, w.running, w.slots, w.running)
    return 0  # groups arrive by themselves


@compiled
def begin_group(w: Record, from_tail: bool) -> int:
    """Start the next group; EXHAUSTED when there is none, another :class:`Reason` when something is missing."""
    if from_tail:
        number, play = prompt(w.tail, w.tail_first).prompt, prompt(w.tail, w.tail_first).play
    elif w.again_first < w.again_n:
        number, play = prompt(w.again, w.again_first).prompt, prompt(w.again, w.again_first).play
    elif w.prompts >= 0 and w.fresh >= w.prompts:
        return EXHAUSTED
    else:
        number, play = w.fresh, 0
    if w.traj_n + w.members > w.traj_cap or w.group_n >= w.group_cap:
        return ROWS_FULL
    if w.live + w.members > w.live_cap:
        return LIVE_FULL
    why = calendar.full(w)
    if why != GO_ON:
        return why
    if play == 0:
        if number // BLOCK != w.block:
            return FRESH
        row, on = w.block_row + number % BLOCK * w.members, w.block_shelf
    else:
        if number != w.again_prompt or play != w.again_play:
            w.again_prompt, w.again_play = number, play
            return AGAIN
        row, on = w.again_row, w.again_shelf
        w.again_prompt = NONE
    if from_tail:
        w.tail_first += 1
    elif play > 0:
        w.again_first += 1
    else:
        w.fresh += 1
    if w.rounds:
        w.to_launch -= 1
    _start(w, number, play, row, on)
    return GO_ON


@compiled
def _start(w: Record, number: int, play: int, row: int, on: int) -> None:
    """Start a group whose draws begin at a row."""
    g = group_at(w, w.group_n)
    g.id, g.prompt, g.play, g.start_version = w.group_n, number, play, w.published
    g.fate, g.done, g.valid, g.held, g.in_round = RUNNING, 0, 0, 0, w.open
    g.ready_s, g.take_version = NAN, -1
    w.group_n += 1
    w.incomplete += 1
    w.unconsumed += 1
    calendar.log(w, GROUP_ADMIT, g.id, -1, play, w.published, float(number))
    w.running += w.members
    w.live += w.members
    for member in range(w.members):
        t = _rollout(w, row + member, on)
        t.group, t.member = g.id, member
        engine.assign(w, t)
        calendar.log(w, TRAJ_START, g.id, t.id, member, w.published, float(t.kind))
        engine.submit(w, t)


@compiled
def _rollout(w: Record, row: int, on: int) -> Record:
    """Return a new rollout with the luck of a row."""
    t = traj_at(w, w.traj_n)
    luck = drawn(w.drawn, row)
    t.id, t.row, t.shelf, t.kind = w.traj_n, row, on, luck.kind
    w.traj_n += 1
    t.length_factor, t.latency_factor = luck.length_factor, luck.latency_factor
    t.node, t.turn, t.attempt, t.action, t.place = whole(w.initial, t.kind).x, 0, 0, -1, QUEUED
    t.context, t.written, t.remaining = w.prompt_tokens, 0.0, -1.0
    t.chunk = t.chunk_v = t.chunk_prefill = t.kv = t.cached = t.round_tokens = 0.0
    t.tokens = t.token_versions = t.tool_s = 0.0
    t.job = t.waits = 0
    t.version = t.oldest = t.newest = t.cache_engine = t.cache_epoch = -1
    t.next = t.prev = NONE
    t.start_s, t.start_version, t.end_s = w.now, w.published, NAN
    t.reward, t.valid, t.cancelled = NAN, 1, 0
    return t


# --- rounds -------------------------------------------------------------------------------------------------------------


@compiled
def _rounds(w: Record) -> int:
    """Open a round if one may start, launch what it still has to, close it if it is over; as often as that goes on."""
    while True:
        if not w.open:
            if not may_start_round(w.started, w.settled, w.ahead, False):
                return GO_ON
            _open(w)
        while w.open and w.to_launch > 0 and w.slots - w.running >= w.members:
            why = begin_group(w, w.long != 0 and w.tail_first < w.tail_n)
            if why == EXHAUSTED:
                w.to_launch = 0
                break
            if why != GO_ON:
                return why
        if w.open and w.whatever and w.to_launch == 0 and w.running == 0:
            groups.close(w)
        if w.open or w.held_first == NONE:
            return GO_ON


@compiled
def _open(w: Record) -> None:
    w.open = 1
    w.started += 1
    w.to_complete = max(0, w.needed - w.surplus)
    w.surplus -= w.needed - w.to_complete  # groups that completed between rounds
    w.long = w.late == TAIL and w.tail_n - w.tail_first >= w.to_complete and w.to_complete > 0
    launches = w.to_complete if w.long else round_launches(w.to_complete, w.over)
    held, resumed = w.held_first, 0
    w.held_first = w.held_last = NONE
    i = held
    while i != NONE:
        resumed += 1
        i = group_at(w, i).next
    w.to_launch = max(0, launches - resumed)
    i = held
    while i != NONE:
        g = group_at(w, i)
        i = g.next
        g.held, g.in_round = 0, 1
        first, end = g.id * w.members, (g.id + 1) * w.members
        w.running += rollouts.alive(w, first, end, True)
        calendar.log(w, GROUP_RESUME, g.id, -1, -1, w.published, 0.0)
        rollouts.resume(w, first, end)
    if w.to_complete == 0:
        groups.close(w)
