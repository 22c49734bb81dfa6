"""Each known fault put into the shipped code, with the test of ``test_known_faults.py`` that must then fail.

A mutation takes a ``monkeypatch`` and the namespace of the tests, and replaces what the library ships: a method on its
class, a function in every module that imported it.
"""

from dataclasses import replace

import numpy as np

from sim.learning import logprobs, normalisers, penalties, step_credit, view
from sim.learning.credit import Advantage, GroupCredit, LeaveOneOut
from sim.learning.normalisers import ConstantLength, SequenceMean, TokenMean
from sim.learning.rule import Prepared, Rule
from sim.learning.weights import Bounded, Weights
from sim.signals import tokens
from tests.mutations import Mutation, around, entering, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""

fails = entering(MUTATIONS)


# --- normalisers ------------------------------------------------------------------------------------------------------

F1 = "test_f1_the_update_does_not_depend_on_micro_batching"
F2 = "test_f2_the_gradient_does_not_scale_with_accumulation_steps"
F3 = "test_f3_three_things_are_called_the_grpo_loss"
F15_ROWS = "test_f15_what_is_excluded_is_in_neither_numerator_nor_denominator"
F15_KEPT = "test_f15_kept_weights_are_averaged_over_the_kept"
F16 = "test_f16_a_fully_masked_batch_has_no_gradient_and_no_metrics"


def micro_batches(factor):
    """Give micro-batches the factors `factor(micro-batch, its share of the rollouts)`."""
    shipped = Prepared.cut

    def cut(self, along, index):
        part = shipped(self, along, index)
        made = factor(part, len(part.mask) / len(self.mask))
        return replace(part, factor=made, signal=part.sampled * part.advantage.value * made)

    return put(Prepared, "cut", cut)


fails(F1, F2)(
    micro_batches(lambda part, share: TokenMean()(part.sampled) * share), "mean of the means of micro batches"
)
fails(F1, F2)(micro_batches(lambda part, share: TokenMean()(part.sampled)), "each micro batch has its own denominator")
fails(F1, F2)(micro_batches(lambda part, share: part.factor * share), "divided by the accumulation steps again")
fails(F1, F3)(put(TokenMean, "__call__", SequenceMean.__call__), "token mean is the sequence mean")
fails(F3)(put(SequenceMean, "__call__", TokenMean.__call__), "sequence mean is the token mean")
fails(F3)(
    put(ConstantLength, "__call__", lambda self, lengths: 1 / lengths[..., 0].size / lengths.shape[-1]),
    "constant length is the longest of the batch",
)
fails(F3)(
    put(normalisers, "_per_rollout", lambda x: np.full((*x.shape[:-1], 1), float(x.shape[-1]))),
    "padding counts as length",
)
fails(F15_ROWS)(
    around(Rule, "prepare", lambda shipped, self, b: replace(shipped(self, b), factor=self.normaliser(b.mask + 0.0))),
    "excluded tokens are in the denominator",
)
fails(F15_ROWS)(
    put(normalisers, "_count", lambda x: np.full((1, 1, 1), float(x.size))), "excluded rollouts are counted"
)
fails(F15_KEPT)(
    everywhere(tokens.masked_mean, lambda values, mask: float((values * mask).mean())),
    "the mean is over the discarded too",
)
fails(F16)(put(normalisers, "_inverse", lambda x: 1 / x), "no tokens are divided by")
fails(F16)(
    everywhere(tokens.masked_mean, lambda values, mask: float((values * mask).sum() / mask.sum())),
    "a mean of nothing is nan",
)
fails(F16)(
    everywhere(tokens.masked_mean, lambda values, mask, mean=tokens.masked_mean: mean(values, mask) or 0.0),
    "a mean of nothing is zero",
)


# --- credit -----------------------------------------------------------------------------------------------------------

F4 = "test_f4_a_group_is_a_task_and_not_a_trajectory"
F6 = "test_f6_costs_are_masked_before_they_are_discounted"
F7 = "test_f7_an_observation_does_not_end_the_episode"
F13 = "test_f13_a_group_with_one_usable_reward"
F13_DDOF = "test_f13_degrees_of_freedom_are_stated"
F14 = "test_f14_equal_rewards_have_no_spread"


def give_credit(wrong, of=GroupCredit):
    """Replace what a credit returns by `wrong(shipped, credit, batch)`."""
    shipped = of.__call__
    return put(of, "__call__", lambda self, batch: wrong(shipped, self, batch))


def as_they_are(batch):
    return Advantage(batch.reward[..., None], np.zeros(batch.reward.shape[:-1], bool))


fails(F4)(give_credit(lambda shipped, c, batch: as_they_are(batch)), "every trajectory is a group")


@fails(F4, F13)
def the_mean_of_a_single_one_is_zero(patch, tests):
    def wrong(shipped, c, batch):
        return as_they_are(batch) if batch.reward.shape[-1] == 1 else shipped(c, batch)

    give_credit(wrong)(patch, tests)


fails(F4)(
    give_credit(lambda shipped, c, batch: shipped(c, replace(batch, reward=np.sort(batch.reward)))),
    "advantages are in the order of rewards",
)


@fails(F13)
def the_spread_of_one_is_nan(patch, tests):
    def wrong(shipped, c, batch):
        found, alone = shipped(c, batch), np.sum(np.isfinite(batch.reward), -1)[..., None, None] < 2
        return replace(found, value=np.where(alone, np.nan, found.value))

    give_credit(wrong)(patch, tests)


fails(F13)(
    give_credit(lambda shipped, c, batch: replace(shipped(c, batch), degenerate=np.zeros(len(batch.reward), bool))),
    "a group of one is not reported",
)
fails(F13)(
    give_credit(lambda shipped, c, batch: shipped(c, replace(batch, reward=np.nan_to_num(batch.reward), valid=None))),
    "missing rewards are zero",
)
fails(F13_DDOF)(
    give_credit(lambda shipped, c, batch: shipped(GroupCredit(c.std, 1 - c.ddof, c.epsilon), batch)),
    "degrees of freedom are swapped",
)


@fails(F14)
def equal_rewards_are_told_by_a_one_pass_variance(patch, tests):
    def wrong(shipped, c, batch):
        x = batch.reward[batch.valid].astype(np.float32)
        spread = np.float64((x * x).mean() - x.mean() ** 2)
        value = np.where(batch.valid, (batch.reward - x.mean()) / np.sqrt(spread), 0.0)
        return Advantage(value[..., None], np.array([spread == 0]))

    give_credit(wrong)(patch, tests)


@fails(F14)
def the_others_are_told_equal_by_a_one_pass_variance(patch, tests):
    def wrong(shipped, c, batch):
        x = batch.reward[0].astype(np.float32)
        others = np.array([np.delete(x, i) for i in range(len(x))])
        spread = np.sqrt(np.abs((others * others).mean(1) - others.mean(1) ** 2))
        return replace(shipped(c, batch), value=((x - others.mean(1)) / (spread + 1e-6))[None, :, None])

    give_credit(wrong, LeaveOneOut)(patch, tests)


def to_go(at_masked):
    """Replace what returns_to_go carries back from a masked token."""

    def returns_to_go(reward, mask, gamma=1.0):
        found, carried = np.zeros(reward.shape), 0.0
        for t in range(len(reward) - 1, -1, -1):
            carried = reward[t] + gamma * carried if mask[t] else at_masked(reward[t], carried, gamma)
            found[t] = carried * mask[t]
        return found

    return everywhere(step_credit.returns_to_go, returns_to_go)


fails(F7, F6)(to_go(lambda reward, carried, gamma: 0.0), "an observation ends the episode")
fails(F7, F6)(to_go(lambda reward, carried, gamma: reward + gamma * carried), "an observation is discounted")


# --- weights and their reports ----------------------------------------------------------------------------------------

F5 = "test_f5_only_sampled_tokens_are_trained"
F12 = "test_f12_a_masked_entry_cannot_make_a_nan"
F17 = "test_f17_entropy_and_surprisal_are_two_quantities"
F19 = "test_f19_two_clip_fractions_both_named"
F20 = "test_f20_the_importance_weight_is_not_differentiated"


def weigh(wrong):
    """Replace what a bounded ratio returns by `wrong(weights, view)`."""
    shipped = Bounded.__call__
    return put(Bounded, "__call__", lambda self, view: wrong(shipped(self, view), view))


fails(F16)(
    weigh(lambda w, view: replace(w, value=w.value / ((w.value * view.mask).sum() / view.mask.sum()))),
    "weights are divided by their mean",
)
fails(F5)(
    around(Rule, "prepare", lambda shipped, self, batch: shipped(self, replace(batch, mask=~batch.mask))),
    "the mask is inverted",
)
fails(F5)(
    around(Rule, "prepare", lambda shipped, self, batch: shipped(self, replace(batch, mask=batch.mask | True))),
    "observations are trained too",
)


@fails(F12)
def the_ratio_is_masked_after_it_is_computed(patch, tests):
    everywhere(view.log_ratio, lambda logp, behaviour, mask: logp - behaviour)(patch, tests)
    everywhere(view.exponential, np.exp)(patch, tests)


fails(F17)(everywhere(tokens.mean_surprisal, lambda logp, mask: -logp.sum() / mask.sum()), "padding is summed")
fails(F17)(everywhere(tokens.mean_surprisal, tokens.masked_mean), "surprisal has the sign of the log prob")
fails(F17)(
    everywhere(tokens.distribution_entropy, lambda logits: np.log(np.exp(logits).sum()) - logits[0]),
    "surprisal of what was sampled is called entropy",
)
fails(F19)(put(Weights, "binding", Weights.outside), "a bound binds whatever the sign")
fails(F19)(put(Weights, "outside", Weights.binding), "outside counts only what binds")
fails(F19)(
    everywhere(tokens.clip_fractions, lambda w, mask, both=tokens.clip_fractions: both(w, mask)[::-1]),
    "the two fractions are exchanged",
)
# d/dt exp(t) t = exp(t) (1 + t), which at t = ln 2 is 3.3863.
fails(F20)(weigh(lambda w, view: replace(w, value=w.value * (1 + view.now))), "the weight is differentiated")

F18 = "test_f18_each_estimate_regularises_what_its_gradient_says"
F21 = "test_f21_a_product_and_a_geometric_mean_are_two_weights_in_log_space"


def estimate(wrong):
    """Replace what kl_estimate returns by `wrong(value, slope)`."""
    shipped = penalties.kl_estimate
    return everywhere(shipped, lambda d, estimator: wrong(*shipped(d, estimator)))


fails(F18)(estimate(lambda value, slope: (value, value())), "the estimate is its own derivative")
fails(F18)(estimate(lambda value, slope: (lambda: 0 * value(), slope)), "the ratio is not differentiated")


def levels(wrong):
    """Replace what over_level returns by `wrong(shipped, log ratios, level, mask, turn)`."""
    shipped = view.over_level
    return everywhere(shipped, lambda x, level, mask, turn=None: wrong(shipped, x, level, mask, turn))


fails(F21)(levels(lambda shipped, x, level, mask, turn: shipped(x, "geometric", mask, turn)), "a product is a mean")
fails(F21)(
    levels(lambda shipped, x, level, mask, turn: shipped(x, "sequence" if level == "geometric" else level, mask, turn)),
    "a mean is a product",
)
fails(F21)(
    levels(lambda shipped, x, level, mask, turn: np.log(np.exp(50 * shipped(x, level, mask, turn))) / 50),
    "the product is formed outside log space",
)


# --- log-probs --------------------------------------------------------------------------------------------------------

F9 = "test_f9_one_temperature_on_both_sides"
F10 = "test_f10_one_support_on_both_sides"
F11 = "test_f11_a_position_predicts_the_next_token_and_no_other_sequence"


def token_logs(wrong):
    """Replace token_log_probability by `wrong(shipped, logits, token, options)`."""
    shipped = logprobs.token_log_probability
    return everywhere(shipped, lambda logits, token, **options: wrong(shipped, logits, token, options))


fails(F9)(
    token_logs(lambda shipped, logits, token, o: shipped(logits, token, **(o | {"temperature": 1.0}))),
    "the learner forgets the temperature",
)
fails(F10)(
    token_logs(lambda shipped, logits, token, o: shipped(logits, token, **(o | {"support": None}))),
    "log probs are over the whole vocabulary",
)


def next_logs(wrong):
    """Replace next_token_log_probability by `wrong(shipped, logits, token, start)`."""
    shipped = logprobs.next_token_log_probability
    return everywhere(shipped, lambda logits, token, start: wrong(shipped, logits, token, start))


fails(F11)(
    next_logs(lambda shipped, logits, token, start: shipped(np.roll(logits, -1, 0), token, start)),
    "a position predicts itself",
)
fails(F11)(
    next_logs(lambda shipped, logits, token, start: shipped(logits, token, np.arange(len(token)) == 0)),
    "the next sequence is predicted from the last",
)
