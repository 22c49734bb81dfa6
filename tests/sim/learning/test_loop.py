"""What a run of the simulator keeps: lag, drive, noise, evaluation, zero signal, blocks of seeds."""

from dataclasses import replace

import numpy as np
import pytest

from sim.learning.loop import train
from sim.learning.optimisers import Adam, Natural, Sgd
from sim.learning.rule import Rule
from sim.learning.setup import Content, Drive, Evaluation, Features, GradientNoise, Training
from sim.learning.weights import Unweighted, ppo_clip
from sim.mdp.worlds import read_more_world
from sim.records.config import difference
from sim.signals.drift import bernoulli_kl

BASE = Training(prompts=16, group=4, steps=12, habit=(("start/answer", -1.0), ("failed/answer", -1.0)))
SEEDS = (0, 1, 2)
START = "policy/logit/start/answer"


def run(config, seeds=SEEDS, **options):
    return train(config, seeds, study="loop", **options)


def same(a, b, prefixes):
    """Whether the columns with these prefixes are bitwise equal, and there are some."""
    names = [n for n in a.names if n.startswith(prefixes)]
    assert names
    return all(a[n].tobytes() == b[n].tobytes() for n in names)


# --- lag --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lag", [1, 3])
def test_the_batch_comes_from_the_policy_lag_steps_ago_drive_and_all(lag):
    """Rate 0: only the drive moves. What a lag of k samples is what a drive that begins k steps later samples."""
    still = replace(BASE, optimiser=Sgd(0.0))
    behind = run(replace(still, drive=Drive(0.5, duration=6), lag=lag))
    later = run(replace(still, drive=Drive(0.5, start=lag, duration=6)))
    assert same(behind, later, ("behaviour/", "train/"))
    # the policies themselves are lag steps apart
    z = behind[START]
    np.testing.assert_allclose(z[0], -1 + 0.5 * np.minimum(np.arange(12), 6))
    assert np.array_equal(later[START][:, lag:], z[:, :-lag])
    # and the sampled share follows the policy of step t - lag
    many = run(replace(still, drive=Drive(0.5, duration=6), lag=lag, prompts=2000))
    p = 1 / (1 + np.exp(-z[0]))
    sampled_from = p[np.maximum(np.arange(12) - lag, 0)]
    share = many["behaviour/answer_share/turn0"].mean(0)
    tolerance = 4 * np.sqrt(sampled_from * (1 - sampled_from) / (2000 * 4 * len(SEEDS)))
    assert np.all(np.abs(share - sampled_from) < tolerance)
    assert np.abs(share - p)[1:7].min() > tolerance.max()  # the mutation: as if there were no lag


def test_without_updates_a_lag_changes_nothing():
    still = replace(BASE, optimiser=Sgd(0.0))
    assert same(run(still), run(replace(still, lag=4)), ("behaviour/", "train/", "policy/", "drift/"))


def test_a_lag_lets_the_ratio_leave_one():
    ratios = [run(replace(BASE, lag=lag, steps=30))["drift/ratio/turn/distance"][:, -15:].mean() for lag in (0, 2, 8)]
    assert 0 < ratios[0] < ratios[1] < ratios[2]


# --- drive ------------------------------------------------------------------------------------------------------------


def test_a_drive_pushes_the_logits_it_is_on_and_no_other():
    on = ("start/answer", "failed/answer")
    still = replace(BASE, optimiser=Sgd(0.0), features=Features(on=on, shared=4, private=0.0))
    got = run(replace(still, drive=Drive(0.25, start=2, duration=5)))
    pushed = 0.25 * np.clip(np.arange(12) - 2, 0, 5)
    for name in on:
        np.testing.assert_allclose(got[f"policy/logit/{name}"], np.tile(-1 + pushed, (3, 1)))
    assert np.all(got["policy/logit/fresh/answer"] == 0)
    np.testing.assert_allclose(got["policy/shared_shift"], np.tile(pushed, (3, 1)))


def test_a_drive_moves_content_and_a_private_update_does_not():
    content = Content(tokens=100, coupling=0.09)
    driven = run(replace(BASE, optimiser=Sgd(0.0), drive=Drive(0.2), content=content))
    shift = 0.2 * np.arange(12)
    expected = 100 * bernoulli_kl(0.3 * shift, np.zeros(12))
    assert expected[-1] > 1
    np.testing.assert_allclose(driven["drift/kl_content"], np.tile(expected, (3, 1)))
    learnt = run(replace(BASE, content=content))
    assert np.abs(learnt[START] + 1).max() > 0.1
    assert np.all(learnt["drift/kl_content"] == 0)
    np.testing.assert_allclose(
        driven["drift/kl_trajectory"], driven["drift/kl_content"] + driven["drift/kl_decisions"], rtol=1e-12
    )


# --- noise ------------------------------------------------------------------------------------------------------------


def logit_steps(**changes):
    """First changes of each logit over 400 seeds, with noise minus without: [seeds]."""
    quiet = replace(BASE, prompts=2, steps=2, optimiser=Sgd(0.5), **{k: v for k, v in changes.items() if k != "noise"})
    a, b = (run(c, tuple(range(400))) for c in (replace(quiet, noise=changes["noise"]), quiet))
    return {n: (a[n] - b[n])[:, 1] for n in a.names if n.startswith("policy/logit/")}


@pytest.mark.parametrize(
    ("features", "noise", "sd"),
    [
        # rate x sd: the shared directions together move a logit as one weight of strength 1 would
        (Features(shared=1, private=0.0), GradientNoise(0.8), 0.4),
        (Features(shared=16, private=0.0), GradientNoise(0.8), 0.4),
        (Features(shared=4, private=2.0), GradientNoise(0.8), 0.4),
        (Features(shared=4, private=1.0), GradientNoise(0.8, shared=False, private=True), 0.4),
        (Features(shared=4, private=2.0), GradientNoise(0.8, shared=True, private=True), 0.4 * np.sqrt(5)),
    ],
)
def test_noise_moves_the_logits_it_is_on_by_rate_times_sd(features, noise, sd):
    steps = logit_steps(features=features, noise=noise)
    moved = steps.pop("policy/logit/start/answer")
    assert np.std(moved) == pytest.approx(sd, rel=4 / np.sqrt(2 * 400))  # four standard errors
    assert abs(moved.mean()) < 4 * sd / np.sqrt(400)
    assert len(np.unique(moved)) == 400  # every seed has its own
    for other in steps.values():
        assert np.all(other == 0)


def test_noise_is_fresh_at_every_update():
    base = replace(BASE, optimiser=Sgd(1.0), noise=GradientNoise(0.5), features=Features(shared=2), prompts=1, steps=2)
    for inner, scale in ((1, 1.0), (4, 2.0)):  # the sum of n independent steps grows as sqrt(n)
        quiet, loud = (run(replace(base, inner_updates=inner, noise=n), tuple(range(400))) for n in (None, base.noise))
        spread = np.std((loud[START] - quiet[START])[:, 1])
        assert spread == pytest.approx(0.5 * scale, rel=0.2)


# --- what does not move -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", [Features(), Features(shared=8, private=0.5)])
def test_a_learner_of_rate_zero_does_not_move(features):
    got = run(
        replace(BASE, optimiser=Sgd(0.0), features=features, noise=GradientNoise(3.0), evaluation=Evaluation(1, 8, 2))
    )
    assert np.all(got[START] == -1)
    for name in got.names:
        if name.startswith("drift/"):
            assert np.all(got[name] == 0), name
    assert np.std(got["train/reward"]) > 0  # it still plays


def test_more_workflows_than_can_be_counted_are_refused():
    config = replace(BASE, world=read_more_world(), habit=(), watch_workflows=True)
    with pytest.raises(ValueError, match=r"watch_workflows: 15625 possible workflows of 6 turns and 4 actions"):
        run(config)


def test_no_steps_make_an_empty_table():
    got = run(replace(BASE, steps=0))
    assert got["train/reward"].shape == (3, 0)


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_evaluation_does_not_touch_the_run():
    plain = run(BASE)
    for evaluation in (Evaluation(1, 16, 4), Evaluation(5, 3, 2)):
        watched = run(replace(BASE, evaluation=evaluation))
        assert same(plain, watched, ("",))
        rows = np.isfinite(watched["eval/reward"]).all(0)
        assert rows.tolist() == [t % evaluation.every == 0 for t in range(12)]


def test_evaluation_has_questions_and_luck_of_its_own():
    got = run(replace(BASE, optimiser=Sgd(0.0), evaluation=Evaluation(1, 16, 4), steps=40))
    a, b = got["train/reward"].ravel(), got["eval/reward"].ravel()
    assert a.mean() == pytest.approx(b.mean(), abs=0.05)  # the same task and policy ...
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(a.size)  # ... other draws
    assert not np.array_equal(a, b)


def test_evaluation_sees_the_policy_before_the_update_without_lag():
    got = run(
        replace(BASE, optimiser=Sgd(0.0), drive=Drive(1.0, duration=12), lag=5, evaluation=Evaluation(1, 4000, 1))
    )
    p = 1 / (1 + np.exp(-got[START]))
    np.testing.assert_allclose(got["eval/answer_share/turn0"], p, atol=4 * 0.5 / np.sqrt(4000))
    assert np.abs(got["behaviour/answer_share/turn0"] - p)[:, 3].min() > 0.3


# --- zero signal ------------------------------------------------------------------------------------------------------


def moves(got):
    """Whether any logit moved in each step but the last, [S, T - 1]."""
    return np.any([np.diff(got[n], axis=1) != 0 for n in got.names if n.startswith("policy/logit/")], axis=0)


ONE_GROUP = replace(BASE, prompts=1, group=2, steps=60, optimiser=Adam(0.1))  # two rollouts: often they agree


@pytest.mark.parametrize("what", ["step", "skip"])
def test_a_batch_without_signal(what):
    """``skip`` keeps the weights; under ``step`` momentum goes on."""
    got = run(replace(ONE_GROUP, on_zero_signal=what), tuple(range(8)))
    silent = got["train/degenerate_share"][:, :-1] == 1
    moved = moves(got)
    began = np.maximum.accumulate(moved, axis=1)
    assert (silent & began).sum() > 50
    assert (~silent & began).sum() > 50
    if what == "skip":
        assert not moved[silent].any()
    else:
        assert moved[began].all()


def test_skipping_keeps_the_optimisers_state_too():
    """Adam's first step has full size 0.1: with ``skip`` that is the first informative batch, however late it comes."""
    for what in ("skip", "step"):
        got = run(replace(ONE_GROUP, on_zero_signal=what), tuple(range(32)))
        first = np.argmax(got["train/degenerate_share"] == 0, axis=1)
        steps = np.abs(np.diff(got[START], axis=1)[np.arange(32), first])
        late = (first > 0) & (steps > 0)  # two rollouts that both guess teach nothing about guessing
        assert late.sum() >= 5
        full = np.isclose(steps[late], 0.1, rtol=1e-3)
        assert full.all() if what == "skip" else not full.any()


def test_noise_is_skipped_with_the_step():
    noisy = replace(BASE, prompts=1, group=2, steps=40, features=Features(shared=2), noise=GradientNoise(1.0))
    for what, moved in (("step", True), ("skip", False)):
        got = run(replace(noisy, on_zero_signal=what), tuple(range(8)))
        silent = got["train/degenerate_share"][:, :-1] == 1
        assert silent.sum() > 50
        assert np.all((np.diff(got[START], axis=1) != 0)[silent] == moved)


# --- inner updates ----------------------------------------------------------------------------------------------------


def test_more_updates_on_a_batch_go_further_until_the_clip():
    def distance(inner, rule):
        config = replace(BASE, steps=2, prompts=64, inner_updates=inner, optimiser=Sgd(1.0), rule=rule)
        return np.abs(np.diff(run(config, tuple(range(8)))[START], axis=1)).sum()

    clipped, free = Rule(weight=ppo_clip(0.03, 0.03)), Rule(weight=Unweighted())
    assert distance(1, clipped) == pytest.approx(distance(1, free), rel=1e-12)
    assert 1.5 * distance(1, clipped) < distance(30, clipped) < 0.5 * distance(30, free)


def test_the_first_of_several_updates_is_the_only_one_of_one():
    """Two steps of one update against one step of two: the same first batch, so the same logits in between."""
    one, two = (run(replace(BASE, steps=3, inner_updates=n)) for n in (1, 2))
    assert np.array_equal(one[START][:, 0], two[START][:, 0])
    assert not np.array_equal(one[START][:, 1], two[START][:, 1])
    assert np.array_equal(one["behaviour/answer_share/turn0"][:, 0], two["behaviour/answer_share/turn0"][:, 0])


# --- blocks and seeds -------------------------------------------------------------------------------------------------


BLOCKS = {
    "plain": BASE,
    "shared weights, noise, Adam": replace(
        BASE, optimiser=Adam(0.3), noise=GradientNoise(0.3), features=Features(shared=16, private=0.0)
    ),
    "natural gradient, several updates": replace(BASE, optimiser=Natural(0.3), inner_updates=2),
    "behind, evaluated, all that can be watched": replace(
        BASE,
        lag=2,
        drive=Drive(0.2),
        evaluation=Evaluation(2, 4, 2),
        watch_workflows=True,
        watch_trajectory_ratio=True,
        features=Features(shared=3),
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_seed_does_not_depend_on_its_company(name):
    """Alone or in blocks of any size, to the last bit of every column."""
    seeds = (0, 1, 2, 3, 2**40, 17, 9, 8, 4)
    alone = [run(replace(BLOCKS[name], steps=20), (seed,)) for seed in seeds]
    for block in (2, 3, 9):
        together = run(replace(BLOCKS[name], steps=20), seeds, block=block)
        assert together.seeds == seeds
        differ = {n for row, a in enumerate(alone) for n in a.names if a[n][0].tobytes() != together[n][row].tobytes()}
        assert differ == set(), f"in blocks of {block}"
        assert all(a.equals(together.select([seed])) for seed, a in zip(seeds, alone, strict=True))


def test_seeds_and_studies_have_different_luck():
    a, b = run(BASE), train(BASE, SEEDS, study="another")
    assert (
        len({a["train/reward"][s].tobytes() for s in range(3)} | {b["train/reward"][s].tobytes() for s in range(3)})
        == 6
    )


def test_arms_of_a_study_share_their_luck():
    """Two arms that play alike until step 5 get the same batches until then."""
    a, b = run(BASE), run(replace(BASE, drive=Drive(0.5, start=5)))
    for name in ("train/reward", START):
        np.testing.assert_allclose(a[name][:, :6], b[name][:, :6], rtol=1e-12)
        assert not np.allclose(a[name][:, 7:], b[name][:, 7:])


def test_the_record_names_its_config():
    got = run(BASE)
    assert (got.study, got.rung, got.seeds) == ("loop", "sim", SEEDS)
    assert difference(got.config, BASE) == {}
    assert got["step"].tolist() == [list(range(12))] * 3
