"""Each known fault of clusters put into the shipped code, with the test of ``test_known_faults.py`` that must then fail."""

from dataclasses import replace

import numpy as np
from simpy.resources.resource import Request

from sim.cluster import rules, staleness
from sim.cluster.draws import Draws
from sim.cluster.measures import survivorship
from sim.cluster.model.engine import Engine
from sim.cluster.model.pool import Pool
from sim.cluster.model.scheduler import Scheduler
from sim.cluster.model.simulation import Simulation
from sim.cluster.model.state import Place
from sim.records.rng import BlockStream
from tests.mutations import Mutation, around, entering, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""

fails = entering(MUTATIONS)


# --- versions ---------------------------------------------------------------------------------------------------------

F22 = "test_f22_every_token_has_the_version_that_wrote_it"
F23 = "test_f23_staleness_is_judged_by_token"
F23_UNKNOWN = "test_f23_a_version_that_nobody_noted_is_no_lag_of_zero"


@fails(F22)
def a_version_is_read_when_the_reply_is_there(patch, tests):
    shipped = Engine._book

    def book(self, traj, *given, **more):
        traj.version = self.version
        shipped(self, traj, *given, **more)

    patch.setattr(Engine, "_book", book)


fails(F22)(
    put(Engine, "swap", lambda self, version, now: setattr(self, "version", version)), "a request has one version"
)


def stamped(wrong):
    """Note of each chunk's version what `wrong(trajectory, as it was before)` says."""

    def mutate(patch, tests):
        shipped = Engine._stamp

        def stamp(self, traj, now):
            before = (traj.oldest, traj.newest)
            shipped(self, traj, now)
            wrong(traj, *before)

        patch.setattr(Engine, "_stamp", stamp)

    return mutate


fails(F23)(stamped(lambda traj, *before: setattr(traj, "oldest", traj.newest)), "the oldest version is the last one")
fails(F23)(
    stamped(lambda traj, oldest, newest: setattr(traj, "newest", max(newest, traj.oldest))), "the newest is the first"
)


def spans(wrong):
    """Replace what is said of the versions of trajectories."""
    shipped = staleness.token_versions
    return everywhere(shipped, lambda log: wrong(shipped(log)))


fails(F23, F23_UNKNOWN)(
    spans(lambda found: replace(found, oldest=found.newest, token_mean=found.newest)), "judged by the last version"
)
fails(F23, F23_UNKNOWN)(
    spans(lambda found: replace(found, token_mean=(found.oldest + found.newest) / 2)), "the mean is over versions"
)
fails(F23_UNKNOWN)(
    spans(lambda found: replace(found, coverage=np.ceil(found.coverage))), "coverage forgets the unknown"
)


@fails(F23_UNKNOWN)
def an_unknown_version_is_no_lag(patch, tests):
    shipped = staleness.chunks

    def chunks(log):
        found = shipped(log)
        return replace(found, version=np.where(found.version < 0, 6, found.version))

    everywhere(shipped, chunks)(patch, tests)


# --- what is trained --------------------------------------------------------------------------------------------------

F24 = "test_f24_admission_control_trains_slow_prompts_as_often_as_fast_ones"
F24_REPORT = "test_f24_a_discard_that_was_chosen_reports_what_it_costs"
F25 = "test_f25_the_rule_of_capacity"
F25_AGAIN = "test_f25_a_quota_is_asked_for_again_when_a_rollout_fails"


fails(F24)(put(rules, "may_take", lambda group, head, window: True), "whatever is complete is taken")
fails(F24)(
    put(Scheduler, "_old", lambda self, group: self.sim.published - min(t.oldest for t in group.members) > 1),
    "the old are discarded unasked",
)


def reporting(wrong):
    """Report on a run whose books of groups are `wrong(books)`."""

    def report(run, *given, shipped=survivorship):
        return shipped(replace(run, books=replace(run.books, groups=wrong(run.books.groups))), *given)

    return everywhere(survivorship, report)


fails(F24_REPORT)(
    reporting(lambda groups: replace(groups, dropped=np.zeros_like(groups.dropped))),
    "what was dropped was never started",
)
fails(F24_REPORT)(
    reporting(lambda groups: replace(groups, taken=groups.taken | groups.dropped)), "what was dropped was trained on"
)


def capacity(rule):
    """Replace the rule by min(concurrency - running, rule(...))."""

    def wrong(version, accepted, running, eta, batch, concurrency):
        return max(0, min(concurrency - running, int(rule(version, accepted, running, eta, batch))))

    return everywhere(rules.capacity, wrong)


fails(F25)(capacity(lambda v, accepted, running, eta, B: (eta + v) * B - accepted - running), "one version too late")
fails(F25)(capacity(lambda v, accepted, running, eta, B: (eta + v + 2) * B - accepted - running), "one too early")
fails(F25)(capacity(lambda v, accepted, running, eta, B: (eta + v + 1) * B - running), "what is accepted is forgotten")
fails(F25)(capacity(lambda v, accepted, running, eta, B: (eta + v + 1) * B - accepted), "what runs is forgotten")
fails(F25)(
    everywhere(rules.capacity, lambda v, a, r, eta, batch, concurrency: max(0, int((eta + v + 1) * batch) - a - r)),
    "concurrency is forgotten",
)


@fails(F25_AGAIN)
def the_quota_is_refilled_at_a_weight_sync_only(patch, tests):
    shipped = Scheduler.admit

    def admit(self, now):
        if self.sim.published not in self.sim.__dict__.setdefault("asked", set()):
            self.sim.asked.add(self.sim.published)
            shipped(self, now)

    patch.setattr(Scheduler, "admit", admit)


@fails(F25_AGAIN)
def what_failed_still_counts(patch, tests):
    shipped = Scheduler.discard

    def discard(self, *given, **more):
        shipped(self, *given, **more)
        self.incomplete += 1

    patch.setattr(Scheduler, "discard", discard)


# --- what a process waits for -----------------------------------------------------------------------------------------

F26_GET = "test_f26_a_get_that_timed_out_eats_nothing"
F26_CALL = "test_f26_a_call_that_was_cancelled_takes_no_server"
F27_SLOT = "test_f27_a_slot_is_free_again_when_its_holder_is_interrupted"
F27_SERVER = "test_f27_a_server_is_free_again_when_its_holder_is_cancelled"

fails(F26_GET)(
    lambda patch, tests: patch.setitem(tests, "withdraw", lambda request: None), "the losing get is not taken back"
)


@fails(F26_CALL)
def the_cancelled_stay_in_line(patch, tests):
    shipped = Pool._release

    def release(self, now):
        for traj in self._queue:
            traj.place = Place.CALLING
        shipped(self, now)

    patch.setattr(Pool, "_release", release)


fails(F27_SLOT)(put(Request, "__exit__", lambda self, *error: None), "an interrupted holder keeps its slot")
fails(F27_SERVER)(put(Pool, "cancel", lambda self, traj, now: None), "a cancelled holder keeps its server")


# --- randomness -------------------------------------------------------------------------------------------------------

F28_STREAMS = "test_f28_every_sample_of_a_group_has_a_stream_of_its_own"
F28_ORDER = "test_f28_neither_the_order_nor_the_number_of_workers_changes_a_sample"
F29 = "test_f29_the_same_seed_gives_the_same_bytes_under_every_hash_seed"


@fails(F28_STREAMS)
def one_stream_per_group(patch, tests):
    shipped = Draws._rollouts

    def rollouts(self, *given):
        found = shipped(self, *given)
        first = np.repeat(np.arange(0, len(found.kind), 8), 8)
        names = ("route", "outcome", "length", "latency")
        return replace(found, **{name: getattr(found, name)[first] for name in names})

    patch.setattr(Draws, "_rollouts", rollouts)


fails(F28_STREAMS)(
    around(BlockStream, "_aim", lambda shipped, self, seed, step: shipped(self, 0, step)), "the seed is ignored"
)


@fails(F28_ORDER)
def one_generator_is_read_in_the_order_of_work(patch, tests):
    shipped = Simulation.decide

    def decide(self, traj, version):
        generator = self.__dict__.setdefault("generator", np.random.default_rng(0))
        traj.luck.length[:] = generator.random(len(traj.luck.length)).tolist()
        shipped(self, traj, version)

    patch.setattr(Simulation, "decide", decide)


@fails(F28_ORDER)
def luck_belongs_to_engines(patch, tests):
    shipped = Simulation.decide

    def decide(self, traj, version):
        traj.luck.route[traj.turn] = (traj.luck.route[traj.turn] + traj.engine.index / 2) % 1
        shipped(self, traj, version)

    patch.setattr(Simulation, "decide", decide)


def in_the_child(mutation):
    """Put the mutation before the program that runs under each hash seed."""
    return lambda patch, tests: patch.setitem(tests, "PROGRAM", mutation + tests["PROGRAM"])


HASHED_NAMES = """
import sim.records.rng
sim.records.rng.stream_key = lambda stream: hash(stream) % 2**64
"""
TOOLS_OF_A_SET = """
from sim.cluster.workload import Chain
from dataclasses import replace
shipped = Chain.graph
Chain.graph = lambda self: shipped(replace(self, tools=tuple({f"{name}" for name in self.tools})))
"""
HASHED_TIES = """
from sim.cluster.model.simulation import Simulation
from sim.cluster.model.state import Place
shipped = Simulation.abort
Simulation.abort = lambda self, some, now: shipped(self, sorted(some, key=lambda traj: hash(f"traj {traj.id}")), now)
"""
fails(F29)(in_the_child(HASHED_NAMES), "streams are keyed by the hash of their name")
fails(F29)(in_the_child(TOOLS_OF_A_SET), "tools are in the order of a set")
fails(F29)(in_the_child(HASHED_TIES), "what is aborted at one instant is in the order of a hash")
