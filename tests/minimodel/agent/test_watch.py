import math
from dataclasses import replace

import numpy as np
import pytest

from minimodel.agent import watch
from minimodel.agent.collect import Collected
from minimodel.tasks.layout import PROMPT
from sim.learning.loop import train as simulate
from sim.learning.setup import Evaluation
from sim.learning.setup import Training as Simulation
from sim.signals.behaviour import workflow_shares
from sim.signals.drift import trajectory_ratio
from tests.minimodel.agent.small import TASK, VERIFY_TASK, WORLD, environment_of, facts_of, moved, play, policy_of

LAYOUT, T, K = TASK.layout, TASK.layout.length(), TASK.layout.turns
ENVIRONMENT = environment_of(TASK)
S, A = (ENVIRONMENT.graph.actions.index(name) for name in ("search", "answer"))
START, FRESH, FAILED = (ENVIRONMENT.graph.contexts.index(name) for name in ("start", "fresh", "failed"))


@pytest.fixture(scope="module")
def made_up():
    """Four episodes, two of a known question and two of an unknown one: answered at once; searched, said nonsense and
    answered wrongly; searched and answered; searched three times."""
    facts = facts_of(TASK)
    question = np.array([facts.train[facts.known[facts.train]][0], facts.train[~facts.known[facts.train]][0]])
    action = np.array([[[A, -1, -1], [S, -1, A]], [[S, A, -1], [S, S, S]]])
    correct = np.zeros((2, 2, 3), bool)
    correct[0, 0, 0] = correct[1, 0, 1] = True
    context = np.array([[[START, 0, 0], [START, FRESH, FRESH]], [[START, FRESH, 0], [START, FRESH, FRESH]]])
    taken = np.array([[1, 3], [2, 3]])
    sampled = LAYOUT.sampled(taken)
    share = np.full((2, 2, 3, 2), 0.5)
    share[..., A] = np.array([[[0.1, 0, 0], [0.3, 0.6, 0.7]], [[0.2, 0.8, 0], [0.6, 0.9, 0.4]]])
    version = np.where(sampled, LAYOUT.turn_of + np.array([[4, 5], [5, 5]])[..., None], -1)
    return Collected(
        question=question,
        ids=np.zeros((2, 2, T), np.int64),
        sampled=sampled,
        logp=np.zeros((2, 2, T), np.float32),
        entropy=np.zeros((2, 2, T), np.float32),
        version=version,
        taken=taken,
        action=action,
        node=np.zeros((2, 2, 3), np.int64),
        context=context,
        correct=correct,
        decision=np.log(np.maximum(share, 1e-30)).astype(np.float32),
        latency_s=np.array([[[0.0, 0, 0], [1.0, 0, 0.5]], [[2.0, 0, 0], [1.0, 1.0, 1.5]]]),
        tool_tokens=np.array([[[10, 0, 0], [500, 0, 10]], [[500, 10, 0], [500, 500, 500]]]),
        reward=np.array([[1.0, 0], [1.0, 0]]),
        outcome=np.zeros((2, 2), np.int64),
        guessed=np.array([[True, False], [False, False]]),
    )


# --- behaviour, by hand -----------------------------------------------------------------------------------------------


def test_shares_are_of_all_episodes_and_accuracy_adds_up(made_up):
    assert watch.behaviour("x", made_up, ENVIRONMENT) == {
        "x/accuracy/turn0": 0.25, "x/accuracy/turn1": 0.5, "x/accuracy/turn2": 0.5,
        "x/search_share/turn0": 0.75, "x/search_share/turn1": 0.25, "x/search_share/turn2": 0.25,
        "x/answer_share/turn0": 0.25, "x/answer_share/turn1": 0.25, "x/answer_share/turn2": 0.25,
    }  # fmt: skip


def test_what_a_batch_was_worth_and_cost(made_up):
    arrived = np.array([[True, True], [True, False]])
    found = watch.training(made_up, np.array([[0.0, 0], [1, 0]]), ENVIRONMENT, arrived, 0.5)
    assert found == pytest.approx(
        {
            "train/reward": 0.5,
            "train/shaped_reward": 0.25,
            "train/turns": 9 / 4,
            "train/degenerate_share": 0.5,
            "train/invalid_share": 1 / 9,
            "train/arrived_share": 0.75,
            "train/tool_tokens": (10 + 510 + 510 + 1500) / 4,
            "train/latency_s": (0 + 1.5 + 2 + 3.5) / 4,
            "behaviour/effective_workflows": 4,
            "behaviour/no_search_share": 0.25,
        }
    )


def test_the_effective_number_of_workflows(made_up):
    """A half, a quarter and a quarter: exp(1.5 ln 2). An invalid turn is a step of a workflow, an absent one is not."""
    every, made = np.ones((2, 2), bool), replace(made_up, action=made_up.action.copy(), taken=made_up.taken.copy())
    made.action[1, 0], made.taken[1, 0] = [S, -1, A], 3

    def kinds():
        return watch.training(made, made.reward, ENVIRONMENT, every, 0.0)["behaviour/effective_workflows"]

    assert kinds() == pytest.approx(2**1.5)
    made.action[1] = [[A, -1, -1], [A, -1, -1]]
    made.taken[1] = [1, 2]  # what stands beyond the end counts for nothing; a slip is a turn
    assert kinds() == pytest.approx(2**1.5)
    made.taken[1] = [2, 2]
    assert kinds() == pytest.approx(2**1.5)
    made.action[1, 1, 1] = S
    assert kinds() == pytest.approx(4)


def test_decision_shares_are_means_over_visits(made_up):
    every = np.ones((2, 2), bool)
    found = watch.decisions(made_up, ENVIRONMENT, made_up.decision, every)
    assert found["decision/share/start/answer"] == pytest.approx((0.1 + 0.3 + 0.2 + 0.6) / 4)
    assert found["decision/share/start/answer/known"] == pytest.approx(0.2)
    assert found["decision/share/start/answer/unknown"] == pytest.approx(0.4)
    assert found["decision/share/start/search"] == pytest.approx(0.5)
    assert found["decision/share/fresh/answer"] == pytest.approx((0.6 + 0.7 + 0.8 + 0.9 + 0.4) / 5)
    assert math.isnan(found["decision/share/failed/answer"])  # nobody was there
    part = watch.decisions(made_up, ENVIRONMENT, made_up.decision, np.array([[True, False], [True, False]]))
    assert part["decision/share/start/answer"] == pytest.approx(0.15)
    assert part["decision/share/fresh/answer"] == pytest.approx(0.8)


def test_staleness_by_hand(made_up):
    """Written by versions 4; 5, 6, 7; 5, 6; 5, 6, 7, as many tokens each; the learner is at 8."""
    found = watch.staleness(made_up, 8)
    assert found["staleness/oldest"] == 4
    assert found["staleness/newest"] == 1
    assert found["staleness/token_mean"] == pytest.approx((4 + 3 + 2 + 1 + 3 + 2 + 3 + 2 + 1) / 9)


def test_counts_are_the_records_of_the_other_rung(made_up):
    counts = watch.counts(made_up, ENVIRONMENT)
    row = watch.behaviour("x", made_up, ENVIRONMENT)
    for t in range(K):
        assert row[f"x/accuracy/turn{t}"] == counts.accuracy()[t]
        assert row[f"x/search_share/turn{t}"] == counts.action_share(S)[t]
        assert row[f"x/answer_share/turn{t}"] == counts.action_share(A)[t]
    assert counts.turns() == 2  # nine turns, one of them invalid, of four episodes
    assert counts.decision[:, START].sum() == 4
    assert counts.decision[1, FRESH].tolist() == [1, 1]


# --- drift ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probed():
    """A batch of which two members a group are watched, the policy that wrote it and one that has moved."""
    policy, other = policy_of(), moved(policy_of(), 0.4)
    batch = play(policy, step=1)
    return batch, watch.Probe(batch, ENVIRONMENT, 2), policy, other


def tokens(batch):
    """(row, turn, offset in the turn, position) of every sampled token of the watched episodes."""
    for row, sampled in enumerate(batch.sampled[:, :2].reshape(-1, T)):
        for t in np.flatnonzero(sampled):
            yield row, (t - PROMPT) // LAYOUT.turn, (t - PROMPT) % LAYOUT.turn, t


def by_hand(batch, values, where):
    """Mean over sampled tokens by turn, as dictionaries; and the mean over episodes of the sum."""
    turns, total = [[] for _ in range(K)], 0.0
    for row, k, offset, t in tokens(batch):
        if where(row, k, offset):
            turns[k].append(values[row, t - 1])
            total += values[row, t - 1]
    return [np.mean(x) if x else math.nan for x in turns], total / (2 * len(batch.question))


def test_drift_by_brute_force_over_the_vocabulary(probed):
    batch, probe, policy, other = probed
    now, there = probe.log_probs(policy), probe.log_probs(other)
    found = watch.drift(probe, now, there)
    p, q = now.double().exp().numpy(), there.double().exp().numpy()
    kl = sum(p[..., v] * np.log(p[..., v] / q[..., v]) for v in range(p.shape[-1]))
    entropy = sum(-p[..., v] * np.log(p[..., v]) for v in range(p.shape[-1]))
    F, action = LAYOUT.thinking, batch.action[:, :2].reshape(-1, K)
    expected = {}
    for name, values, where in (
        ("drift/kl_decision/turn", kl, lambda row, k, i: i == F),
        ("drift/kl_content/turn", kl, lambda row, k, i: i != F),
        ("entropy/decision/turn", entropy, lambda row, k, i: i == F),
        ("entropy/thinking/turn", entropy, lambda row, k, i: i < F),
        ("entropy/argument/turn", entropy, lambda row, k, i: i > F),
    ):
        turns, total = by_hand(batch, values, where)
        expected |= {f"{name}{k}": value for k, value in enumerate(turns)}
        expected |= {"drift/kl_decisions": total} if name == "drift/kl_decision/turn" else {}
        expected |= {"drift/kl_content": total} if name == "drift/kl_content/turn" else {}
    for a, name in enumerate(ENVIRONMENT.graph.actions):
        turns, _ = by_hand(batch, entropy, lambda row, k, i, a=a: i == F + 1 and action[row, k] == a)
        expected |= {f"entropy/argument/turn{k}/{name}": value for k, value in enumerate(turns)}
    expected["drift/kl_trajectory"] = expected["drift/kl_decisions"] + expected["drift/kl_content"]
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)
    assert found["drift/kl_trajectory"] == found["drift/kl_decisions"] + found["drift/kl_content"]
    assert min(found["drift/kl_decisions"], found["drift/kl_content"]) > 0.02


def test_a_policy_has_not_drifted_from_itself(probed):
    _, probe, policy, _ = probed
    found = watch.drift(probe, probe.log_probs(policy), probe.log_probs(policy.frozen()))
    assert all(value == 0 for name, value in found.items() if name.startswith("drift/"))
    assert found["entropy/decision/turn0"] > 0.1


def test_entropies_are_those_that_were_sampled_with(probed):
    batch, probe, policy, _ = probed
    found = watch.drift(probe, probe.log_probs(policy), probe.log_probs(policy))
    watched = batch.entropy[:, :2]
    for k, at in enumerate(LAYOUT.decisions):
        here = batch.sampled[:, :2, at]
        assert found[f"entropy/decision/turn{k}"] == pytest.approx(watched[..., at][here].mean(), rel=1e-4)


def test_ratios_by_hand(probed):
    batch, probe, _, other = probed
    after = probe.log_probs(other)
    found = watch.ratios(probe, after)
    mu, logp = batch.logp[:, :2].reshape(-1, T), after.double().numpy()
    ids, gaps = batch.ids[:, :2].reshape(-1, T), {"token": [], "decision": [], "content": []}
    whole = np.zeros(len(ids))
    for row, _, offset, t in tokens(batch):
        gap = logp[row, t - 1, ids[row, t]] - mu[row, t]
        whole[row] += gap
        gaps["token"].append(gap)
        gaps["decision" if offset == LAYOUT.thinking else "content"].append(gap)
    for name, gap in (*gaps.items(), ("episode", whole)):
        distance = np.abs(np.exp(gap) - 1)
        assert found[f"drift/ratio/{name}/distance"] == pytest.approx(distance.mean(), rel=1e-4)
        assert found[f"drift/ratio/{name}/outside"] == pytest.approx((distance > 0.2).mean(), abs=1e-6)
        assert found[f"drift/ratio/{name}/clamped"] == pytest.approx(np.minimum(distance, 0.2).mean(), rel=1e-4)
        assert distance.mean() > 0.02
    per_token = np.zeros((T, len(ids)))
    for row, _, _, t in tokens(batch):
        per_token[t, row] = logp[row, t - 1, ids[row, t]] - mu[row, t]
    for name, where in (
        ("decision", lambda row, k, i: i == LAYOUT.thinking),
        ("content", lambda row, k, i: i != LAYOUT.thinking),
    ):
        turns, _ = by_hand(batch, np.abs(np.expm1(per_token[1:].T)), where)
        for k, value in enumerate(turns):
            assert found[f"drift/ratio/{name}/distance/turn{k}"] == pytest.approx(value, rel=1e-3, abs=1e-6)
    distance, outside = trajectory_ratio(per_token, watch.CLIP_BAND)
    assert found["drift/ratio/episode/distance"] == pytest.approx(distance, rel=1e-4)
    assert found["drift/ratio/episode/outside"] == pytest.approx(outside)


def test_decision_shares_of_the_learner_are_those_of_the_sampler_on_policy(probed):
    batch, probe, policy, other = probed
    again = probe.decision_logp(probe.log_probs(policy))
    here = batch.running & probe.rows[..., None]
    assert np.abs(again - batch.decision)[here].max() < 1e-5
    assert (again[~probe.rows] == 0).all()
    ahead = watch.decisions(batch, ENVIRONMENT, probe.decision_logp(probe.log_probs(other)), probe.rows)
    noted = watch.decisions(batch, ENVIRONMENT, batch.decision, probe.rows)
    assert abs(ahead["decision/share/start/answer"] - noted["decision/share/start/answer"]) > 1e-3


def test_a_counted_share_is_about_the_exact_one():
    """Decisions, counted by their token, whatever was made of their arguments."""
    batch = play(policy_of(), questions=18, group=64)
    exact = watch.decisions(batch, ENVIRONMENT, batch.decision, np.ones_like(batch.guessed))
    said = batch.ids[..., LAYOUT.decisions] == TASK.decisions[A]
    for context, name in ((START, "start"), (FRESH, "fresh")):
        here = batch.running & (batch.context == context)
        p, n = exact[f"decision/share/{name}/answer"], here.sum()
        assert abs(said[here].mean() - p) < 4 * math.sqrt(p * (1 - p) / n)
        assert 0.05 < p < 0.995


# --- names ------------------------------------------------------------------------------------------------------------

SHARED = {
    "train/reward", "train/turns", "train/degenerate_share", "behaviour/effective_workflows", "behaviour/no_search_share",
    "drift/kl_decisions", "drift/kl_content", "drift/kl_trajectory",
    "drift/ratio/token/distance", "drift/ratio/token/outside",
    "decision/share/start/answer", "decision/share/fresh/answer", "decision/share/failed/answer",
}  # fmt: skip
SHARED |= {
    f"{p}/{x}/turn{t}" for p in ("behaviour",) for x in ("accuracy", "search_share", "answer_share") for t in range(3)
}


def every_column(batch, probe, policy):
    row = watch.training(batch, batch.reward, ENVIRONMENT, np.ones_like(batch.guessed), 0.0)
    row |= watch.behaviour("behaviour", batch, ENVIRONMENT) | watch.staleness(batch, 0)
    row |= watch.decisions(batch, ENVIRONMENT, batch.decision, np.ones_like(batch.guessed))
    now = probe.log_probs(policy)
    return row | watch.drift(probe, now, now) | watch.ratios(probe, now) | watch.updates([], [], probe.decision)


def test_what_both_rungs_measure_has_one_name(probed):
    batch, probe, policy, _ = probed
    here = every_column(batch, probe, policy)
    assert all(type(value) is float for value in here.values())  # plain numbers, as a checkpoint keeps them
    config = Simulation(
        world=WORLD, habit=(), prompts=4, group=2, steps=1, evaluation=Evaluation(prompts=4),
        watch_trajectory_ratio=True, watch_workflows=True,
    )  # fmt: skip
    there = set(simulate(config, (0,), study="names").columns)
    assert set(here) & there == SHARED


def test_workflows_are_counted_as_in_the_simulator():
    """Where every turn is valid the two codings agree."""
    batch = play(policy_of(VERIFY_TASK), VERIFY_TASK, group=8)
    valid = replace(batch, action=np.maximum(batch.action, 0))  # count a slip as a search
    environment = environment_of(VERIFY_TASK)
    row = watch.training(valid, valid.reward, environment, np.ones_like(valid.guessed), 0.0)
    digit = np.where(valid.running, valid.action + 1, 0)
    shares = workflow_shares((digit * 4 ** np.arange(3)).sum(-1).reshape(1, -1), 4**3)[0]
    shares = shares[shares > 0]
    assert row["behaviour/effective_workflows"] == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert row["behaviour/effective_workflows"] > 2
