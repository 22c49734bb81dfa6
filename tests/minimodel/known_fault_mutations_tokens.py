"""Each known fault put into the tiny transformer's path, with the test of ``test_known_faults_tokens.py`` that then
must fail; see ``known_fault_mutations.py``."""

from dataclasses import replace

import numpy as np
import torch

from minimodel.agent import collect as collect_module
from minimodel.agent import learner, policy, watch
from minimodel.agent.engine import LocalConversation
from minimodel.agent.learner import Minibatch
from minimodel.agent.policy import TinyPolicy
from minimodel.agent.watch import Probe
from sim.learning import normalisers, penalties, step_credit, view
from sim.learning.normalisers import TokenMean
from sim.learning.weights import Bounded, Weights
from tests.known_fault_mutations import micro_batches
from tests.mutations import Mutation, around, entering, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""


fails = entering(MUTATIONS)


def written(wrong):
    """Replace what an engine's conversation writes by `wrong(conversation, what it wrote)`."""
    shipped = LocalConversation.write
    return put(LocalConversation, "write", lambda self, *given: wrong(self, shipped(self, *given)))


def noted(wrong):
    """Replace what is written down of a turn: `wrong(shipped, arrays, rows, k, at, wrote, played)`."""
    return around(collect_module._Arrays, "turn", wrong)


def prepared(**wrong):
    """Change the batch that a rule is given: each field by a function of itself."""
    shipped = learner.rule_batch

    def mutated(*given, **more):
        found = shipped(*given, **more)
        return replace(found, **{name: change(getattr(found, name)) for name, change in wrong.items()})

    return everywhere(shipped, mutated)


# --- what is trained on -----------------------------------------------------------------------------------------------

F2 = "test_f2_the_gradient_does_not_scale_with_pieces"
F5 = "test_f5_only_what_was_sampled_is_trained"
F6 = "test_f6_costs_of_what_came_back_reach_nobody"
F8 = "test_f8_what_was_sampled_is_what_is_read_and_trained_on"


fails(F2)(micro_batches(lambda part, share: part.factor * share), "divided by the number of pieces again")
fails(F2)(micro_batches(lambda part, share: TokenMean()(part.sampled)), "each piece has its own denominator")

fails(F5)(prepared(mask=lambda mask: ~mask), "the mask is inverted")
fails(F5)(prepared(mask=lambda mask: mask.roll(1, -1)), "the mask is off by one")


@fails(F5, F6)
def observations_are_marked_as_sampled(patch, tests):
    def wrong(shipped, self, rows, k, at, wrote, played):
        shipped(self, rows, k, at, wrote, played)
        self.sampled[rows[~played.done], at : at + wrote.ids.shape[1] + 2] = True

    noted(wrong)(patch, tests)


fails(F6)(prepared(mask=lambda mask: mask | True), "everything is marked as sampled")


@fails(F6)
def observations_are_discounted(patch, tests):
    def returns_to_go(reward, mask, gamma=1.0):
        found, carried = torch.zeros_like(reward), torch.zeros_like(reward[..., 0])
        for t in range(reward.shape[-1] - 1, -1, -1):
            carried = reward[..., t] + gamma * carried
            found[..., t] = carried
        return torch.where(mask, found, 0.0)

    everywhere(step_credit.returns_to_go, returns_to_go)(patch, tests)


def encoded_again(ids):
    """One filler for both: what comes of decoding to text and encoding it."""
    return np.where(ids == 17, 16, ids) if isinstance(ids, np.ndarray) else torch.where(ids == 17, 16, ids)


fails(F8)(
    noted(lambda shipped, *at: shipped(*at[:-2], replace(at[-2], ids=encoded_again(at[-2].ids)), at[-1])),
    "what is kept is encoded again",
)


@fails(F8)
def the_learner_encodes_again(patch, tests):
    shipped = Minibatch.of

    def of(cls, *given):
        found = shipped(*given)
        return replace(found, ids=encoded_again(found.ids))

    patch.setattr(Minibatch, "of", classmethod(of))


@fails(F8)
def the_history_is_encoded_again_at_every_turn(patch, tests):
    def wrong(shipped, self, keep, observation):
        shipped(self, keep, observation)
        self.ids = encoded_again(self.ids)

    around(LocalConversation, "read", wrong)(patch, tests)


# --- both sides of a ratio --------------------------------------------------------------------------------------------

F9 = "test_f9_one_temperature_on_both_sides"
F11 = "test_f11_a_position_predicts_the_next_token"
F12 = "test_f12_a_masked_entry_cannot_make_a_nan"
F16 = "test_f16_a_batch_of_which_nothing_arrived"


def told(wrong):
    """Replace the scalars of a policy by `wrong(name, value)`."""
    shipped = TinyPolicy.scalars
    return put(
        TinyPolicy,
        "scalars",
        lambda self, *given: {name: wrong(name, value) for name, value in shipped(self, *given).items()},
    )


@fails(F9)
def the_engine_forgets_the_temperature(patch, tests):
    def wrong(shipped, self, *given):
        self.policy = TinyPolicy(self.policy.model)
        return shipped(self, *given)

    around(LocalConversation, "write", wrong)(patch, tests)


fails(F9)(
    lambda patch, tests: patch.setattr(policy, "log_probs", lambda logits, temperature: logits.log_softmax(-1)),
    "the learner forgets the temperature",
)
fails(F11)(told(lambda name, value: value.roll(1, -1)), "scalars stand a place late")
fails(F11)(told(lambda name, value: value.roll(-1, -1)), "scalars stand a place early")
fails(F11)(
    lambda patch, tests: patch.setattr(
        TinyPolicy, "log_probs", lambda self, ids: self.model(ids[:, 1:]).log_softmax(-1)
    ),
    "a position predicts itself",
)


@fails(F12)
def the_ratio_is_masked_after_it_is_computed(patch, tests):
    everywhere(view.log_ratio, lambda top, bottom, mask: top - bottom)(patch, tests)
    everywhere(view.exponential, torch.exp)(patch, tests)


fails(F16)(put(normalisers, "_inverse", lambda x: 1 / x), "no tokens are divided by")
fails(F16)(
    lambda patch, tests: patch.setattr(
        watch, "_mean", lambda x, where: float(np.asarray(x, float)[where].sum() / max(where.sum(), 1))
    ),
    "a mean of nothing is zero",
)
fails(F16)(
    put(
        Probe,
        "per_turn",
        lambda self, values, where, shipped=Probe.per_turn: np.nan_to_num(shipped(self, values, where)).tolist(),
    ),
    "a turn nobody took has a mean of zero",
)


# --- named quantities -------------------------------------------------------------------------------------------------

F17 = "test_f17_entropy_is_of_the_distribution_and_of_sampled_tokens_alone"
F18 = "test_f18_each_estimate_regularises_what_its_gradient_says"
F19 = "test_f19_two_clip_fractions_both_named"
F20 = "test_f20_the_importance_weight_is_not_differentiated"
F21 = "test_f21_a_product_and_a_geometric_mean_are_two_weights_in_log_space"

fails(F17)(written(lambda talk, wrote: replace(wrote, entropy=-wrote.logp)), "the engine calls surprisal entropy")


@fails(F17)
def the_learner_calls_surprisal_entropy(patch, tests):
    shipped = TinyPolicy.scalars

    def scalars(self, ids, wanted, reference=None):
        found = shipped(self, ids, {*wanted, "logp"}, reference)
        return found | ({"entropy": -found["logp"]} if "entropy" in wanted else {})

    put(TinyPolicy, "scalars", scalars)(patch, tests)


@fails(F17)
def pads_are_in_the_mean(patch, tests):
    def per_turn(self, values, where):
        turn = torch.from_numpy(self.layout.turn_of)[1:]
        sampled = torch.where((self.sampled & where)[:, 1:], values, 0.0)
        every = (where.expand(len(values), -1)[:, 1:]).double()
        return [float(sampled[:, turn == k].sum() / every[:, turn == k].sum()) for k in range(self.layout.turns)]

    put(Probe, "per_turn", per_turn)(patch, tests)


def estimate(wrong):
    shipped = penalties.kl_estimate
    return everywhere(shipped, lambda d, estimator: wrong(*shipped(d, estimator)))


fails(F18)(estimate(lambda value, slope: (value, value())), "the estimate is its own derivative")
fails(F18)(estimate(lambda value, slope: (lambda: 0 * value(), slope)), "the ratio is not differentiated")
fails(F18)(
    lambda patch, tests: around(
        TinyPolicy,
        "scalars",
        lambda shipped, self, ids, wanted, reference=None: {
            name: value.detach() if name == ("kl", "ref") else value
            for name, value in shipped(self, ids, wanted, reference).items()
        },
    )(patch, tests),
    "the exact KL is detached",
)
fails(F19)(put(Weights, "binding", Weights.outside), "a bound binds whatever the sign")
fails(F19)(put(Weights, "outside", Weights.binding), "outside counts only what binds")


@fails(F19)
def the_two_fractions_are_exchanged(patch, tests):
    shipped, other = watch._joined, {"binding": "outside", "outside": "binding"}
    patch.setattr(watch, "_joined", lambda seen, name, mask: shipped(seen, other[name], mask))


def weigh(wrong):
    shipped = Bounded.__call__
    return put(Bounded, "__call__", lambda self, v: wrong(shipped(self, v), v))


fails(F20)(
    weigh(lambda w, v: replace(w, value=w.value * (1 + v.log_ratio("now/proximal")))), "the weight is differentiated"
)


def levels(wrong):
    shipped = view.over_level
    return everywhere(shipped, lambda x, level, mask, turn=None: wrong(shipped, x, level, mask, turn))


fails(F21)(levels(lambda shipped, x, level, mask, turn: shipped(x, "geometric", mask, turn)), "a product is a mean")
fails(F21)(
    levels(lambda shipped, x, level, mask, turn: shipped(x, "sequence" if level == "geometric" else level, mask, turn)),
    "a mean is a product",
)


@fails(F21)
def the_product_is_formed_outside_log_space(patch, tests):
    def wrong(shipped, x, level, mask, turn):
        if level != "geometric":
            return shipped(x, level, mask, turn)
        return shipped(x, "sequence", mask, turn).exp().pow(1 / mask.sum(-1, keepdim=True)).log()

    levels(wrong)(patch, tests)
