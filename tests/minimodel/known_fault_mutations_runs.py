"""Each fault of ``test_known_faults_runs.py``, as a way to be wrong."""

from dataclasses import replace

import numpy as np

from minimodel.agent import collect as collect_module
from minimodel.agent import run as run_module
from minimodel.agent import watch
from minimodel.agent.collect import Draws
from minimodel.agent.engine import LocalConversation
from minimodel.agent.run import Run
from tests.mutations import Mutation, around, entering, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""


fails = entering(MUTATIONS)


# --- versions ---------------------------------------------------------------------------------------------------------

F22 = "test_f22_a_token_is_labelled_with_the_version_that_made_it"
F23 = "test_f23_staleness_is_judged_by_token"


@fails(F22, F23)
def tokens_are_labelled_when_the_episode_is_over(patch, tests):
    def wrong(shipped, self, rows, episodes):
        shipped(self, rows, episodes)
        newest = self.version[rows].max(-1, keepdims=True)
        self.version[rows] = np.where(self.sampled[rows], newest, -1)

    around(collect_module._Arrays, "end", wrong)(patch, tests)


@fails(F22)
def old_weights_write_under_the_new_number(patch, tests):
    def wrong(shipped, self, *given):
        self.version = self.engine.version
        return shipped(self, *given)

    around(LocalConversation, "write", wrong)(patch, tests)


@fails(F22)
def what_was_read_by_old_weights_is_kept(patch, tests):
    """New weights go on from the old ones' cache."""

    def wrong(shipped, self, *given):
        self.policy, self.version, self.decoder = self.engine.policy, self.engine.version, self.engine.decoder
        return shipped(self, *given)

    around(LocalConversation, "write", wrong)(patch, tests)


def judge(wrong):
    shipped = watch.staleness
    return everywhere(shipped, lambda batch, now: wrong(shipped(batch, now), batch, now))


fails(F23)(judge(lambda row, batch, now: dict.fromkeys(row, row["staleness/newest"])), "judged by the last version")
fails(F23)(
    judge(
        lambda row, batch, now: (
            row | {"staleness/token_mean": float((now - np.unique(batch.version[batch.version >= 0])).mean())}
        )
    ),
    "the mean is over versions",
)
fails(F23)(
    judge(
        lambda row, batch, now: (
            row | {"staleness/token_mean": float(np.where(batch.sampled, now - batch.version, 0).mean())}
        )
    ),
    "pads are no lag",
)


# --- randomness and resumption ----------------------------------------------------------------------------------------

F28_STREAMS = "test_f28_every_member_of_a_group_has_a_stream_of_its_own"
F28_ORDER = "test_f28_neither_company_nor_order_changes_an_episode"
F30 = "test_f30_resumption_neither_skips_nor_repeats_a_question"


def drawn(wrong):
    """Replace the uniforms of a run by `wrong(shipped, draws, name, step, shape)`."""
    shipped = Draws.block
    return put(Draws, "block", lambda self, name, step, *shape: wrong(shipped, self, name, step, shape))


fails(F28_STREAMS)(
    drawn(lambda shipped, d, name, step, shape: shipped(d, name, step, *shape[:-1], 1).repeat(shape[-1], -1)),
    "all members share one stream",
)
fails(F28_STREAMS)(
    drawn(lambda shipped, d, name, step, shape: shipped(replace(d, seed=0), name, step, *shape)), "the seed is ignored"
)
fails(F28_STREAMS)(drawn(lambda shipped, d, name, step, shape: shipped(d, name, 0, *shape)), "the step is ignored")


@fails(F28_STREAMS, F28_ORDER)
def one_generator_is_read_in_the_order_of_service(patch, tests):
    rng = np.random.default_rng(0)
    shipped = LocalConversation.write

    def write(self, tokens, uniforms, watch):
        return shipped(self, tokens, rng.random((tokens, len(self.ids)), np.float32), watch)

    put(LocalConversation, "write", write)(patch, tests)


@fails(F28_ORDER)
def uniforms_belong_to_the_place_in_the_service(patch, tests):
    shipped, dense = LocalConversation.write, np.random.default_rng(0).random((8, 100), np.float32)

    def write(self, tokens, uniforms, watch):
        return shipped(self, tokens, dense[:tokens, : len(self.ids)], watch)

    put(LocalConversation, "write", write)(patch, tests)


def saved(wrong):
    """Replace what a run saves by `wrong(state)`."""
    return around(Run, "state", lambda shipped, self: wrong(shipped(self)))


fails(F30)(saved(lambda state: state | {"step": state["step"] + 1}), "the cursor is ahead of what was trained")
fails(F30)(saved(lambda state: state | {"step": state["step"] - 1}), "the cursor is behind what was trained")


@fails(F30)
def questions_come_from_a_generator_that_is_not_saved(patch, tests):
    def choose(draws, step, questions, wanted):
        if step == 0:
            choose.rng = np.random.default_rng(0)
        return choose.rng.permutation(questions)[:wanted]

    choose.rng = np.random.default_rng(1)
    begin = tests["begin"]

    def fresh(*given, **how):  # a new process has a new generator
        choose.rng = np.random.default_rng(1)
        return begin(*given, **how)

    patch.setattr(run_module, "choose", choose)
    patch.setitem(tests, "begin", fresh)
