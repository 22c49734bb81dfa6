from dataclasses import replace as with_fields

import numpy as np
import pytest
import torch

from minimodel.agent import run as run_module
from minimodel.agent.collect import collect
from minimodel.agent.optimiser import AdamW, Sgd
from minimodel.agent.policy import TinyPolicy
from minimodel.agent.schedule import InFlight, Lag
from minimodel.agent.setup import Evaluation
from minimodel.model.compiled import available
from sim.learning import family
from sim.records.config import replace
from tests.minimodel.agent.small import (
    PRIVATE,
    TASK,
    VERIFY_TASK,
    begin,
    facts_of,
    of,
    parameters,
    same_columns,
    taught,
    training,
)

EVALUATED = Evaluation(every=4, prompts=6, group=2)


# --- how far a learner moves ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimiser", "schedule"),
    [(AdamW(0.0, decay=0.1), Lag()), (AdamW(0.0), Lag(2)), (AdamW(0.0), InFlight(2)), (Sgd(0.0), Lag())],
)
def test_a_rate_of_zero_moves_nothing(optimiser, schedule):
    columns = begin(training(optimiser=optimiser, schedule=schedule)).go()
    assert (columns["update/moved"] == 0).all()
    for name in ("drift/kl_trajectory", "update/clip/binding", "update/clip/outside"):
        assert (columns[name] == 0).all()
    assert columns["drift/ratio/token/distance"].max() < 1e-5
    assert (columns["update/gradient_norm"] > 1e-3).all()  # there was something to move by


def test_a_rate_above_zero_moves():
    columns = begin(training(steps=4)).go()
    moved = columns["update/moved"]
    assert (np.diff([0, *moved]) > 1e-4).all()
    assert columns["drift/kl_trajectory"][0] == 0
    assert (columns["drift/kl_trajectory"][1:] > 0).all()
    assert (columns["drift/ratio/token/distance"] > 1e-3).all()


def test_how_far_by_hand():
    """One update a step of plain gradients, bounded: every step is rate x bound long."""
    run = begin(training(optimiser=Sgd(0.5, clip=0.01), steps=3))
    start = parameters(run).double()
    for u in range(3):
        before = parameters(run).double()
        run.advance()
        assert run.rows[u]["update/gradient_norm"] > 0.01
        assert (parameters(run).double() - before).norm().item() == pytest.approx(0.005, rel=1e-3)
        moved = (parameters(run).double() - start).norm() / start.norm()
        assert run.rows[u]["update/moved"] == pytest.approx(moved.item(), rel=1e-6)


def test_the_rate_warms_up_update_by_update():
    """Two updates a step, four of warm-up: a quarter, a half, three quarters, all."""
    run = begin(training(optimiser=Sgd(0.4, clip=0.01, warmup=4), steps=3, minibatches=2))
    rates = []
    step = run.optimiser.step
    run.optimiser.step = lambda: (rates.append(run.optimiser.param_groups[0]["lr"]), step())
    run.go()
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])


def test_epochs_and_minibatches_are_updates():
    for more, updates in (({"minibatches": 3}, 3), ({"minibatches": 2, "epochs": 3}, 6)):
        run = begin(training(steps=2, **more))
        run.go()
        assert run.updates_made == 2 * updates


def test_micro_batches_change_nothing_but_roundings():
    whole, cut = (begin(training(optimiser=Sgd(0.1), micro=m, steps=2)) for m in (1, 3))
    one, three = whole.go(), cut.go()
    torch.testing.assert_close(parameters(whole), parameters(cut), rtol=0, atol=1e-5)
    for name in ("update/clip/outside", "update/logp_positive", "update/gradient_norm"):
        np.testing.assert_allclose(one[name], three[name], rtol=1e-4)


# --- seeds, studies, arms ---------------------------------------------------------------------------------------------


def test_a_seed_is_a_run_and_two_seeds_are_two():
    config = training(steps=2)
    a, again, other, study = begin(config), begin(config), begin(config, seed=1), begin(config, study="else")
    columns = a.go()
    assert same_columns(again.go(), columns)
    assert torch.equal(parameters(a), parameters(again))
    for another in (other, study):
        assert not np.array_equal(another.go()["train/turns"], columns["train/turns"])


def test_arms_of_a_study_are_asked_the_same(batches):
    """Another loss, another lag, no evaluation, twice the epochs: the same questions at every step."""
    for config in (
        training(),
        training(rule=family.cispo(), schedule=Lag(2), evaluation=EVALUATED, epochs=2),
    ):
        begin(config).go()
    first, second = np.split(np.array([b.question for _, b, _ in of(batches, "train")]), 2)
    assert np.array_equal(first, second)
    assert len(np.unique(first, axis=0)) == 3
    assert np.isin(first, facts_of(TASK).train).all()


def test_evaluation_is_on_held_out_questions_and_disturbs_nothing(batches):
    columns = begin(training(steps=5, evaluation=EVALUATED)).go()
    without = begin(training(steps=5)).go()
    assert same_columns({n: x for n, x in columns.items() if not n.startswith("eval/")}, without)
    held_out = of(batches, "eval")
    assert [step for step, *_ in held_out] == [0, 4]
    for step, batch, used in held_out:
        assert set(batch.question) == set(facts_of(TASK).held_out)
        assert list(used) == [step]  # the policy as it is before the update
        assert columns["eval/reward"][step] == batch.reward.mean()
        assert columns["eval/turns"][step] == batch.taken.mean()
    names = [n for n in columns if n.startswith("eval/")]
    assert {"eval/accuracy/turn0", "eval/search_share/turn2", "eval/decision/share/start/answer"} <= set(names)
    for name in names:
        assert np.isnan(columns[name][[1, 2, 3]]).all()
    assert not np.isnan(columns["eval/accuracy/turn2"][[0, 4]]).any()


# --- updates ----------------------------------------------------------------------------------------------------------


def test_recomputed_log_probs_make_the_first_update_on_policy():
    """With a lag and one update, ratios to the sampler are off and the clip, about the learner's own, meets nothing."""
    late = {"schedule": Lag(2), "steps": 4, "optimiser": AdamW(5e-3)}
    sampler, learner = (begin(training(proximal=p, **late)).go() for p in ("sampler", "learner"))
    assert sampler["update/clip/outside"][2:].min() > 0
    assert (learner["update/clip/outside"] == 0).all()
    assert learner["update/ratio/distance"][2:].min() > 1e-3


def test_both_ways_of_decoding_train_alike():
    ways = [begin(training(decode=d, steps=1)) for d in ("compiled", "torch")]
    columns = [run.go() for run in ways]
    for name in ("train/turns", "behaviour/accuracy/turn2"):
        assert columns[0][name] == columns[1][name]
    torch.testing.assert_close(*(parameters(run) for run in ways), rtol=0, atol=1e-4)
    assert [run.engine.compiled for run in ways] == [available(), False]


def test_bfloat16_is_a_small_mismatch():
    exact, rough = (begin(training(precision=p, steps=3)).go() for p in ("float32", "bfloat16"))
    assert exact["update/ratio/distance"].max() < 1e-5
    assert 1e-4 < rough["update/ratio/distance"].mean() < 2e-2
    assert not np.array_equal(exact["update/moved"], rough["update/moved"])


def test_a_private_decider_trains():
    run = begin(training(size=PRIVATE, steps=2))
    run.go()
    start = TinyPolicy(taught(TASK, PRIVATE)).model
    for part in ("trunk", "decider"):
        now, before = (getattr(m, part).state_dict() for m in (run.now.model, start))
        assert max((now[n] - before[n]).abs().max().item() for n in now) > 1e-4


@pytest.mark.parametrize("choice", ["step", "skip"])
def test_a_batch_without_signal(choice, monkeypatch):
    """Rewards are all 0 from step 2 on: momentum goes on, or nothing moves at all."""

    def silent(*given, **how):
        found = collect(*given, **how)
        return with_fields(found, reward=found.reward * 0) if given[-1] >= 2 else found

    monkeypatch.setattr(run_module, "collect", silent)
    run = begin(training(on_zero_signal=choice, steps=5))
    columns = run.go()
    moved = columns["update/moved"]
    assert moved[0] < moved[1]
    assert (moved[2:] == moved[1]).all() == (choice == "skip")
    assert run.updates_made == (2 if choice == "skip" else 5)
    assert (columns["train/degenerate_share"][2:] == 1).all()
    assert np.isnan(columns["update/ratio/distance"][2:]).all()
    if choice == "step":
        assert (columns["update/gradient_norm"][2:] == 0).all()


def test_shorter_and_longer_worlds_run():
    columns = begin(training(task=VERIFY_TASK, steps=2)).go()
    assert 0 < columns["behaviour/verify_share/turn1"].max() < 1
    assert "decision/share/fresh/verify" in columns
    nothing = begin(training(steps=0)).go()
    assert list(nothing) == ["step"]
    assert len(nothing["step"]) == 0


def test_columns_are_numbers_of_one_length():
    columns = begin(training(steps=3)).go()
    assert columns["step"].tolist() == [0, 1, 2]
    assert {len(x) for x in columns.values()} == {3}
    assert {x.dtype for n, x in columns.items() if n != "step"} == {np.dtype(float)}
    assert replace(training(), {"steps": 3}) == training(steps=3)
