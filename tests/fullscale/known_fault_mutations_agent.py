"""Each known fault put into the language model's agent, with the test of ``test_known_faults_agent.py`` that must fail."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fullscale.agent import handed, record, watch
from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.story import Story
from fullscale.engine.episode import Episode
from sim.learning import normalisers, penalties, step_credit, view
from sim.learning.credit import Advantage, GroupCredit, LeaveOneOut
from sim.learning.normalisers import ConstantLength, SequenceMean, TokenMean
from tests.known_fault_mutations import micro_batches
from tests.mutations import Mutation, around, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation, bool]] = []
"""(name of a test, the fault in words, mutation that makes it fail, whether that takes more than a second)."""


def entered(table: list[tuple[str, str, Mutation, bool]]) -> Callable[..., Callable[..., Mutation]]:
    """Return what enters a mutation in a table, as :func:`tests.mutations.entering` does, with how long it takes."""

    def fails(*tests: str, slow: bool = False) -> Callable[..., Mutation]:
        """Enter a mutation under the tests that catch it."""

        def enter(mutation: Mutation, fault: str = "") -> Mutation:
            words = fault or mutation.__name__.replace("_", " ")
            table.extend((test, words, mutation, slow) for test in tests)
            return mutation

        return enter

    return fails


fails = entered(MUTATIONS)


# --- normalisers ------------------------------------------------------------------------------------------------------

F1 = "test_f1_the_update_does_not_depend_on_micro_batching"
F2 = "test_f2_the_gradient_does_not_scale_with_pieces"
F3 = "test_f3_three_things_are_called_the_grpo_loss"

fails(F1, F2)(micro_batches(lambda part, share: part.factor * share), "divided by the number of pieces again")
fails(F1, F2)(micro_batches(lambda part, share: TokenMean()(part.sampled)), "each piece has its own denominator")
fails(F1, F3)(put(TokenMean, "__call__", SequenceMean.__call__), "token mean is the sequence mean")
fails(F3)(put(SequenceMean, "__call__", TokenMean.__call__), "sequence mean is the token mean")
fails(F3)(
    put(ConstantLength, "__call__", lambda self, lengths: 1 / lengths[..., 0].numel() / lengths.shape[-1]),
    "constant length is the longest of the batch",
)


# --- what the rule is given -------------------------------------------------------------------------------------------

F4 = "test_f4_a_group_is_a_task_and_not_a_trajectory"
F5 = "test_f5_what_the_policy_wrote_is_what_is_trained"
F6 = "test_f6_costs_of_what_came_back_reach_nobody"
F7 = "test_f7_an_observation_does_not_end_the_episode"
F13 = "test_f13_a_group_of_which_one_reward_is_usable"
F14 = "test_f14_equal_rewards_have_no_spread"
F15 = "test_f15_what_is_excluded_is_in_neither_numerator_nor_denominator"


def given(wrong: Callable[[Any], dict[str, Any]]) -> Mutation:
    """Change the batch that a rule is given."""
    shipped = handed.given

    def mutated(*args: Any, **more: Any) -> Any:
        found = shipped(*args, **more)
        return replace(found, **wrong(found))

    return everywhere(shipped, mutated)


def give_credit(of: type, wrong: Callable[..., Any]) -> Mutation:
    """Replace what a credit returns by `wrong(shipped, credit, batch)`."""
    shipped = of.__call__  # type: ignore[operator]
    return put(of, "__call__", lambda self, batch: wrong(shipped, self, batch))


def as_they_are(batch: Any) -> Advantage:
    return Advantage(batch.reward[..., None], torch.zeros(batch.reward.shape[:-1], dtype=torch.bool))


fails(F4)(give_credit(GroupCredit, lambda shipped, c, batch: as_they_are(batch)), "every trajectory is a group")
fails(F4)(
    give_credit(GroupCredit, lambda shipped, c, batch: shipped(c, replace(batch, reward=batch.reward.sort().values))),
    "advantages are in the order of rewards",
)


@fails(F4)
def the_record_groups_by_trajectory(patch, tests):
    def wrong(shipped, *args):
        found = shipped(*args)
        return replace(found, task=f"{found.task}/{args[4]}")

    around(record, "_trajectory", wrong)(patch, tests)


fails(F4, F13)(
    given(lambda b: {"valid": None, "reward": torch.nan_to_num(b.reward)}), "what failed has a reward of zero"
)
fails(F13)(
    give_credit(
        GroupCredit,
        lambda shipped, c, batch: replace(shipped(c, batch), degenerate=torch.zeros(len(batch.reward)).bool()),
    ),
    "a group of one is not reported",
)
fails(F13)(
    give_credit(GroupCredit, lambda shipped, c, batch: shipped(GroupCredit(c.std, 1 - c.ddof, c.epsilon), batch)),
    "degrees of freedom are swapped",
)


@fails(F14)
def equal_rewards_are_told_by_a_one_pass_variance(patch, tests):
    def wrong(shipped, c, batch):
        kept = torch.ones_like(batch.reward).bool() if batch.valid is None else batch.valid
        x = batch.reward
        others = [x[0, kept[0] & (torch.arange(x.shape[1]) != g)] for g in range(x.shape[1])]
        mean = torch.stack([o.mean() for o in others])
        spread = torch.stack([((o * o).mean() - o.mean() ** 2).abs().sqrt() + 1e-9 for o in others])
        return Advantage(torch.where(kept, (x - mean) / spread, 0.0)[..., None], torch.zeros(1).bool())

    give_credit(LeaveOneOut, wrong)(patch, tests)


def excluded_tokens(b: Any) -> dict[str, Any]:
    every = torch.zeros_like(b.mask)
    every[..., 1:] = True
    return {"mask": every, "valid": None}


fails(F15)(given(excluded_tokens), "excluded rows count, and earn nothing")
fails(F15)(
    put(normalisers, "_count", lambda x: torch.full((1, 1, 1), float(x.numel()))), "excluded rollouts are counted"
)

fails(F5)(given(lambda b: {"mask": ~b.mask}), "the mask is inverted")
fails(F5)(given(lambda b: {"mask": b.mask.roll(1, -1)}), "the mask is off by one")
fails(F5)(
    put(
        Story,
        "_read",
        lambda self, ids, turn, segment, shipped=Story._read: (
            shipped(self, ids, turn, segment),
            self.sampled.__setitem__(slice(-1, None), True),
        ),
    ),
    "what was read is marked as sampled",
)
fails(F6)(given(lambda b: {"mask": b.mask | (torch.arange(b.mask.shape[-1]) > 0)}), "everything is marked as sampled")


def to_go(wrong: Callable[..., Any]) -> Mutation:
    """Replace the returns to go by a loop: carried = wrong(carried, is sampled, reward, gamma)."""

    def returns_to_go(reward: Any, mask: Any, gamma: float = 1.0) -> Any:
        found, carried = torch.zeros_like(reward), torch.zeros_like(reward[..., 0])
        for t in range(reward.shape[-1] - 1, -1, -1):
            carried = wrong(carried, mask[..., t], reward[..., t], gamma)
            found[..., t] = carried
        return torch.where(mask, found, 0.0)

    return everywhere(step_credit.returns_to_go, returns_to_go)


fails(F6, F7)(to_go(lambda carried, here, reward, gamma: reward + gamma * carried), "observations are discounted")
fails(F6, F7)(
    to_go(lambda carried, here, reward, gamma: torch.where(here, reward + gamma * carried, 0.0)),
    "an observation ends the episode",
)


# --- what is not there ---------------------------------------------------------------------------------------------------

F12 = "test_f12_a_masked_entry_cannot_make_a_nan"
F16 = "test_f16_a_batch_of_which_nothing_arrived"


@fails(F12)
def the_ratio_is_masked_after_it_is_computed(patch, tests):
    everywhere(view.log_ratio, lambda top, bottom, mask: top - bottom)(patch, tests)
    everywhere(view.exponential, torch.exp)(patch, tests)


fails(F16)(put(normalisers, "_inverse", lambda x: 1 / x), "no tokens are divided by")
fails(F16)(
    put(watch, "_mean", lambda x, where: float(np.asarray(x, float)[where].sum() / max(where.sum(), 1))),
    "a mean of nothing is zero",
)
fails(F16)(put(watch, "_nanmean", lambda values: float(np.nan_to_num(values).mean())), "what no update saw is zero")


# --- named quantities -------------------------------------------------------------------------------------------------

F17 = "test_f17_entropy_is_of_the_distribution_and_of_sampled_tokens_alone"
F18 = "test_f18_each_estimate_regularises_what_its_gradient_says"
F18_EXACT = "test_f18_an_exact_kl_is_differentiated"
F21 = "test_f21_a_product_and_a_geometric_mean_are_two_weights_in_log_space"

fails(F17)(
    around(
        Episode, "write", lambda shipped, self, token, logp, entropy, *more: shipped(self, token, logp, -logp, *more)
    ),
    "the engine calls surprisal entropy",
)


@fails(F17)
def the_learner_calls_surprisal_entropy(patch, tests):
    def wrong(shipped, self, ids, wanted, *more):
        found = dict(shipped(self, ids, {*wanted, "logp"}, *more))
        return found | ({"entropy": -found["logp"]} if "entropy" in wanted else {})

    around(LanguagePolicy, "scalars", wrong)(patch, tests)


@fails(F17)
def pads_are_in_the_mean(patch, tests):
    shipped = watch.Probe.per_turn

    def per_turn(self, values, where):
        turn = self.batch.turn[:, : self.members]
        counts = [(turn == k).sum() / max((where & (turn == k)).sum(), 1) for k in range(self.batch.action.shape[-1])]
        return [x / n for x, n in zip(shipped(self, values, where), counts, strict=True)]

    patch.setattr(watch.Probe, "per_turn", per_turn)


def estimate(wrong: Callable[..., Any]) -> Mutation:
    shipped = penalties.kl_estimate
    return everywhere(shipped, lambda d, estimator: wrong(*shipped(d, estimator)))


fails(F18)(estimate(lambda value, slope: (value, value())), "the estimate is its own derivative")
fails(F18)(estimate(lambda value, slope: (lambda: 0 * value(), slope)), "the ratio is not differentiated")


def of_policies(wrong: Callable[[Any, Any], Any]) -> Mutation:
    """Change scalars of a language model: `wrong(name, value)`."""

    def scalars(shipped, self, *args):
        return {name: wrong(name, value) for name, value in shipped(self, *args).items()}

    return around(LanguagePolicy, "scalars", scalars)


KL = ("kl", "ref")
fails(F18_EXACT)(of_policies(lambda name, x: x.detach() if name == KL else x), "the exact KL is detached")
fails(F18_EXACT)(of_policies(lambda name, x: -x if name == KL else x), "the exact KL pushes away")


@fails(F18_EXACT)
def the_kl_is_to_oneself(patch, tests):
    around(
        LanguagePolicy,
        "scalars",
        lambda shipped, self, ids, wanted, reference=None, where=None: shipped(self, ids, wanted, self, where),
    )(patch, tests)


def levels(wrong: Callable[..., Any]) -> Mutation:
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
