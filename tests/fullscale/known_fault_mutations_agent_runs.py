"""Each known fault put into runs of the language model, with the test of ``test_known_faults_agent_runs.py`` that must
then fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fullscale.agent import collecting, handed, marked, parts, rollouts, run, scoring
from fullscale.agent.beside import Beside
from fullscale.agent.handed import Scorable
from fullscale.agent.story import Story
from fullscale.engine import local
from fullscale.engine.episode import Episode
from fullscale.rollout import staleness as ages
from tests.fullscale.agent.small import tokenizer
from tests.fullscale.known_fault_mutations_agent import entered
from tests.mutations import Mutation, around, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation, bool]] = []
"""(name of a test, the fault in words, mutation that makes it fail, whether that takes more than a second)."""

fails = entered(MUTATIONS)


# --- tokens, on both sides ----------------------------------------------------------------------------------------------

F8 = "test_f8_what_was_sampled_is_what_is_read_and_trained_on"
F9 = "test_f9_one_temperature_on_both_sides"
F10 = "test_f10_one_support_on_both_sides"
F11 = "test_f11_a_position_predicts_the_next_token_of_its_own_segment"


def encoded_again(ids: Any) -> list[int]:
    return tokenizer().encode(tokenizer().decode(list(ids)), add_special_tokens=False)


@fails(F8)
def the_history_is_encoded_again_at_every_turn(patch, tests):
    shipped = Story.context.fget
    patch.setattr(Story, "context", property(lambda self: encoded_again(shipped(self))))


@fails(F8)
def what_is_kept_is_encoded_again(patch, tests):
    def wrong(shipped, self, said, pending, context_tokens):
        had = len(self.ids) - self._begins
        shipped(self, said, pending, context_tokens)
        new = np.array(encoded_again(said.ids[had:]))
        start = len(self.ids) - (0 if pending is None else len(pending.ids)) - (len(said.ids) - had)
        self.ids[start : start + len(new)] = new

    around(Story, "add", wrong)(patch, tests)


@fails(F8)
def the_learner_encodes_again(patch, tests):
    shipped = Scorable.of.__func__

    def of(cls, batch, *more):
        ids = batch.ids.copy()
        for at in np.ndindex(batch.length.shape):
            again = encoded_again(ids[at])[: ids.shape[-1]]
            ids[at][: len(again)] = again
        return shipped(cls, replace(batch, ids=ids), *more)

    patch.setattr(Scorable, "of", classmethod(of))


fails(F9)(
    around(parts, "Settings", lambda shipped, temperature, *more: shipped(1.0, *more)),
    "the engine forgets the temperature",
)
fails(F9)(
    around(parts, "policy_of", lambda shipped, m, temperature, *more: shipped(m, 1.0, *more)),
    "the learner forgets the temperature",
)


def likeliest(shipped: Any, logits: Any, *more: Any) -> Any:
    """Draw among the five likeliest tokens."""
    kept = logits >= logits.topk(5).values[..., -1:]
    return shipped(logits.masked_fill(~kept, -torch.inf), *more)


fails(F10)(around(local, "draw", likeliest), "the engine's log-prob is renormalised over the likeliest")
fails(F11)(
    around(
        scoring,
        "_placed",
        lambda shipped, *args: torch.nn.functional.pad(shipped(*args)[:, 1:], (0, 1)),
    ),
    "scalars stand at the place that predicts",
)
fails(F11)(
    around(handed, "mark", lambda shipped, ids, sampled, segment: shipped(ids, sampled, 0 * segment)),
    "segments run together",
)


@fails(F11)
def segments_are_exchanged(patch, tests):
    shipped = marked.MarkedPolicy.scalars

    def scalars(self, ids, wanted, reference=None):
        return {name: x.roll(1, 0) for name, x in shipped(self, ids, wanted, reference).items()}

    patch.setattr(marked.MarkedPolicy, "scalars", scalars)


# --- versions ---------------------------------------------------------------------------------------------------------

F22 = "test_f22_a_token_is_labelled_with_the_version_that_made_it"
F23 = "test_f23_staleness_is_judged_by_token"
F24 = "test_f24_slow_questions_are_trained_as_often_as_fast_ones"
F28 = "test_f28_every_member_of_a_group_has_a_stream_of_its_own"
F30 = "test_f30_resumption_neither_skips_nor_repeats_a_question"


@fails(F22)
def the_version_is_read_after_the_reply(patch, tests):
    def wrong(shipped, self, drawn):
        used, self.weights = self.weights, self.engine.published
        try:
            return shipped(self, drawn)
        finally:
            self.weights = used

    around(local._Play, "_write", wrong)(patch, tests)


@fails(F22)
def an_episode_has_one_version(patch, tests):
    def wrong(shipped, self):
        found = shipped(self)
        return replace(found, version=np.where(found.sampled, found.version.max(), -1))

    around(Episode, "spoken", wrong)(patch, tests)


@fails(F22)
def what_was_read_is_not_read_again(patch, tests):
    patch.setattr(local._Play, "_take_up", lambda self: setattr(self, "weights", self.engine.published))


@fails(F23)
def judged_by_the_last_version(patch, tests):
    shipped = ages.staleness
    everywhere(
        shipped,
        lambda version, sampled, update: shipped(np.where(version >= 0, version.max(), version), sampled, update),
    )(patch, tests)


@fails(F23)
def unknown_is_a_lag_of_zero(patch, tests):
    shipped = ages.staleness
    everywhere(
        shipped, lambda version, sampled, update: shipped(np.where(version < 0, update, version), sampled, update)
    )(patch, tests)


def drawn_again(self: Beside, number: int) -> Any:
    """A question for a ticket, whichever was asked before."""
    train = self.parts.world.train
    return collecting.chosen(self._draws("train"), number, train, 1)[0]


fails(F24, slow=True)(put(Beside, "_question", drawn_again), "questions are drawn with replacement")


# --- randomness and going on ------------------------------------------------------------------------------------------


@fails(F28, slow=True)
def one_stream_for_a_group(patch, tests):
    shipped = rollouts.Draws.block

    def block(self, name, step, *shape):
        found = shipped(self, name, step, *shape)
        return found[np.arange(len(found)) // 8 * 8] if name == "token" else found

    patch.setattr(rollouts.Draws, "block", block)


@fails(F28, slow=True)
def luck_is_by_place_in_the_call(patch, tests):
    shipped = rollouts.play
    everywhere(shipped, lambda *args, first=0, **more: shipped(*args, first=0, **more))(patch, tests)


@fails(F28, slow=True)
def luck_is_in_the_order_of_serving(patch, tests):
    shipped = rollouts._leg

    def leg(engine, desk, rows, first, last, settings, luck, between):
        ordered = luck if luck is None else np.roll(luck, len(luck) - len(rows), 0)
        return shipped(engine, desk, rows, first, last, settings, ordered, between)

    patch.setattr(rollouts, "_leg", leg)


def resumed(wrong: Callable[[dict[str, Any]], dict[str, Any]]) -> Mutation:
    """Go on from a state that has been changed."""

    def state(shipped, self):
        return wrong(shipped(self))

    return around(run.Run, "state", state)


fails(F30, slow=True)(
    resumed(lambda s: s | {"step": s["step"] + 1, "versions": {v + 1: x for v, x in s["versions"].items()}}),
    "the cursor is ahead of what was trained",
)
fails(F30, slow=True)(resumed(lambda s: s | {"step": 0, "rows": []}), "the cursor is not saved")
fails(F30, slow=True)(
    resumed(lambda s: s | {"optimiser": {"state": {}, "param_groups": s["optimiser"]["param_groups"]}}),
    "the optimiser begins anew",
)
fails(F30, slow=True)(
    resumed(
        lambda s: (
            s | {"versions": {v: {n: x * 1.01 for n, x in weights.items()} for v, weights in s["versions"].items()}}
        )
    ),
    "older versions are not saved",
)
