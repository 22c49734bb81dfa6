"""Each known fault of asynchronous systems put into the shipped code, with the test that must then fail."""

from collections import deque
from dataclasses import replace
from itertools import count

import numpy as np

from fullscale.rollout import staleness as ages
from fullscale.rollout.books import Books
from fullscale.rollout.conductor import Conductor
from fullscale.rollout.ledger import Ledger
from sim.cluster import rules
from tests.mutations import Mutation, around, entering, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""

fails = entering(MUTATIONS)

# --- versions ---------------------------------------------------------------------------------------------------------

F23 = "test_f23_staleness_is_judged_by_token"
F23_UNKNOWN = "test_f23_a_version_that_nobody_noted_is_no_lag_of_zero"
F23_GROUP = "test_f23_a_group_without_a_version_is_as_old_as_its_start"


def labelled(wrong):
    """Staleness of versions relabelled by `wrong(version, update)`."""
    shipped = ages.staleness
    return everywhere(shipped, lambda version, sampled, update: shipped(wrong(version, update), sampled, update))


fails(F23)(labelled(lambda version, update: np.full_like(version, version.max())), "judged by the last version")
fails(F23_UNKNOWN)(labelled(lambda version, update: np.where(version < 0, update, version)), "unknown is a lag of 0")
fails(F23_GROUP)(put(Books, "_old", lambda self, held: held.oldest >= 0), "a group without a version is never too old")

# --- what is trained --------------------------------------------------------------------------------------------------

F24 = "test_f24_admission_control_trains_slow_prompts_as_often_as_fast_ones"
F24_REPORT = "test_f24_a_discard_that_was_chosen_reports_what_it_costs"


fails(F24)(
    put(Books, "_next", lambda self: next(iter(self.ready.values()), None)), "taken as completed, so fast ones go first"
)


@fails(F24_REPORT)
def only_what_still_runs_or_was_trained_is_reported(patch, tests):
    shipped = Ledger.survivorship

    def wrong(self, class_of, names):
        self.dropped, self.again, self.running, self.ready = {}, deque(), {}, {}
        return shipped(self, class_of, names)

    patch.setattr(Ledger, "survivorship", wrong)


fails(F24_REPORT)(put(Books, "_too_old", lambda self, oldest, newest: False), "nothing is ever dropped")

# --- what may start ---------------------------------------------------------------------------------------------------

F25 = "test_f25_the_rule_of_capacity"
F25_AGAIN = "test_f25_the_quota_is_asked_for_again_whatever_happens"

fails(F25)(
    put(rules, "capacity", lambda v, accepted, running, eta, batch, most: int((eta + v) * batch) - accepted - running),
    "a version less",
)
fails(F25)(around(Books, "allowed", lambda shipped, self: shipped(self) if not self.taken else 0), "taken ones fill it")


@fails(F25_AGAIN)
def the_quota_is_refilled_when_weights_arrive(patch, tests):
    shipped, quota = Books.allowed, {}

    def wrong(self):
        last = quota.setdefault(self.version, self.positions + shipped(self))
        return last - self.positions

    patch.setattr(Books, "allowed", wrong)


@fails(F25_AGAIN)
def a_failure_frees_nothing(patch, tests):
    shipped = Books.fail

    def wrong(self, ticket, reason):
        counted = shipped(self, ticket, reason)
        self.running[ticket.position] = ticket
        return counted

    patch.setattr(Books, "fail", wrong)


# --- what is waited for -----------------------------------------------------------------------------------------------


@fails("test_f26_a_wait_that_timed_out_eats_nothing")
def what_was_set_aside_is_lost(patch, tests):
    shipped = Books.take

    def wrong(self):
        batch = shipped(self)
        if batch is None:
            self.part = []
        return batch

    patch.setattr(Books, "take", wrong)


@fails("test_f27_a_slot_is_free_again_when_its_player_raises")
def a_player_that_raises_keeps_its_slot(patch, tests):
    patch.setattr(Conductor, "_failed", lambda self, ticket, error: None)


# --- randomness and going on ------------------------------------------------------------------------------------------


@fails("test_f28_neither_order_nor_number_of_workers_changes_a_sample")
def a_batch_is_in_the_order_of_completion(patch, tests):
    shipped = Books.take

    def wrong(self):
        there = [*self.part, *self.ready.values()]
        batch = shipped(self)
        return None if batch is None else sorted(batch, key=there.index)

    patch.setattr(Books, "take", wrong)


@fails("test_f28_neither_order_nor_number_of_workers_changes_a_sample")
def luck_is_that_of_the_moment(patch, tests):
    drawn, shipped = count(), tests["luck"]
    patch.setitem(tests, "luck", lambda ticket: shipped(replace(ticket, number=next(drawn))))


F30 = "test_f30_what_was_under_way_at_a_save_is_trained_once"


def loaded_without(name, wrong):
    """Go on from states in which `name` is `wrong(what it is)`, and see nothing missing."""

    def mutate(patch, tests):
        shipped = Ledger._load
        patch.setattr(Ledger, "_load", lambda self, state: shipped(self, {**state, name: wrong(state[name])}))
        patch.setattr(Ledger, "fates", lambda self: {})

    return mutate


fails(F30)(loaded_without("running", lambda rows: []), "what was under way is lost")
fails(F30)(loaded_without("ready", lambda rows: []), "the buffer is not saved")
fails(F30)(loaded_without("cursor", lambda cursor: 2), "the cursor is what was trained, so the rest is played twice")
fails(F30)(
    loaded_without("running", lambda rows: [[n, play + 1, *rest] for n, play, *rest in rows]), "a replay has fresh luck"
)
