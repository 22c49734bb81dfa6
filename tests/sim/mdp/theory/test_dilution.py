import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from sim.learning.lookup import Lookup
from sim.learning.loop import draw, rule_batch, train
from sim.learning.presets import drive
from sim.learning.rule import Rule
from sim.mdp.policy import SoftmaxPolicy, free_logits, tables
from sim.mdp.sampling import Sampler
from sim.mdp.theory.dilution import (
    PER_TOKEN,
    content_distance,
    content_kl_near,
    content_log_ratio,
    content_noise,
    decision_distance,
    length_normalised_ratio,
    restoring_snr,
    token_mean,
    tokens_for_noise,
)
from sim.mdp.worlds import seed_a
from sim.records.config import replace
from sim.records.rng import BlockStream
from sim.signals.drift import content_kl, ratio_levels

COUNT = st.floats(0.1, 1e4)
SHARE = st.floats(0, 1)
BAND = 0.2


# --- means over tokens ------------------------------------------------------------------------------------------------


def test_token_mean_by_hand():
    # 2 decisions of which half are clipped beside 98 content tokens of which 1 in 49 is: (1 + 2) / 100
    assert token_mean(2, 98, 0.5, 1 / 49) == pytest.approx(0.03)
    assert token_mean(2, 0, 0.5, 0.9) == 0.5  # no content: the decisions' own
    assert token_mean(0, 98, 0.5, 0.9) == pytest.approx(0.9)  # no decisions: content's own
    with pytest.raises(ValueError, match="needs a token"):
        token_mean(0, 0, 0.5)
    with pytest.raises(ValueError, match=r"content = -1.0 tokens must be at least 0"):
        token_mean(3, -1, 0.5)


@given(COUNT, COUNT, SHARE, SHARE)
def test_the_token_mean_lies_between_and_depends_on_the_mixture_alone(n, L, at_decisions, at_content):
    found = token_mean(n, L, at_decisions, at_content)
    low, high = sorted((at_decisions, at_content))
    assert low - 1e-12 <= found <= high + 1e-12
    assert token_mean(7 * n, 7 * L, at_decisions, at_content) == pytest.approx(found, abs=1e-12)
    assert token_mean(L, n, at_content, at_decisions) == pytest.approx(found, abs=1e-12)


@given(st.floats(1, 5), st.floats(0.01, 1))
def test_far_out_ten_times_the_content_divides_what_decisions_do_by_ten(n, at_decisions):
    few, many = token_mean(n, [1e5, 1e6], at_decisions)
    assert few / many == pytest.approx(10, rel=1e-3)
    assert token_mean(n, 1e9, at_decisions, 0.3) == pytest.approx(0.3, rel=1e-6)


@given(SHARE, SHARE)
def test_the_distance_of_a_decision_is_the_expected_ratio_s(p, q):
    if 0.01 < p < 0.99:
        assert decision_distance(p, q) == pytest.approx(p * abs(q / p - 1) + (1 - p) * abs((1 - q) / (1 - p) - 1))
    assert decision_distance(p, q) == pytest.approx(decision_distance(1 - p, 1 - q))


# --- content alone ----------------------------------------------------------------------------------------------------


def test_content_by_hand():
    assert content_distance(-0.4, 0.25) == pytest.approx(0.1)  # .5 x .4 / 2
    assert content_kl_near(2.0, 250, 0.01) == pytest.approx(1.25)
    assert content_log_ratio(2.0, 250, 0.01) == pytest.approx((-1.25, np.sqrt(2.5)))
    assert content_kl_near(2.0, 0, 0.01) == 0
    with pytest.raises(ValueError, match=r"coupling = -0.1 must be at least 0"):
        content_distance(1.0, -0.1)


@given(st.floats(-0.2, 0.2), st.floats(-4, 4))
def test_a_content_token_moves_less_than_its_bound_and_as_much_at_zero(x, away):
    exact = 2 * abs(expit(x) - expit(0))
    assert content_distance(x, 1.0) == pytest.approx(exact, rel=0.01, abs=1e-12)
    assert 2 * abs(expit(away + x) - expit(away)) <= content_distance(x, 1.0) + 1e-12


@given(st.floats(0.1, 1), st.integers(1, 1000), st.floats(1e-4, 0.1))
def test_content_kl_for_small_shifts_is_the_measured_one(shift, tokens, coupling):
    assert content_kl_near(shift, tokens, coupling) == pytest.approx(content_kl(shift, tokens, coupling), rel=0.05)


def test_the_log_ratio_of_content_over_sampled_tokens():
    """20,000 trajectories of 400 fair coins whose log-odds move by .06: the sum of log-ratios and its spread."""
    tokens, step = 400, 0.06
    heads = np.random.default_rng(0).binomial(tokens, 0.5, 20_000)
    log_rho = heads * np.log(2 * expit(step)) + (tokens - heads) * np.log(2 * expit(-step))
    mean, sd = content_log_ratio(step / 0.1, tokens, 0.01)
    assert log_rho.mean() == pytest.approx(mean, abs=4 * sd / np.sqrt(20_000))
    assert log_rho.std() == pytest.approx(sd, rel=0.02)
    assert np.exp(log_rho).mean() == pytest.approx(1, abs=0.02)


def test_the_length_normalised_ratio_is_diluted_and_the_product_is_not():
    log_ratio = np.log(1.45)  # one decision moved, content stood still
    assert length_normalised_ratio(log_ratio, 1) == pytest.approx(1.45)
    assert length_normalised_ratio(log_ratio, 2) == pytest.approx(np.sqrt(1.45))
    few, many = length_normalised_ratio(log_ratio, np.array([250, 2500])) - 1
    assert few / many == pytest.approx(10, rel=0.01)
    with pytest.raises(ValueError, match=r"tokens = 0.0: a trajectory has at least 1"):
        length_normalised_ratio(0.1, 0)


# --- agreement with the measured side ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch():
    """(graph, tables before and after a step of .3 in the start logit, counts of 512 rollouts, their number)."""
    graph = seed_a().graph().compiled()
    z = free_logits(graph, start__answer=-1.5, fresh__answer=2.0, failed__answer=-1.0)
    before, after = tables(graph, z[None]), tables(graph, z[None] + np.array([0.3, 0, 0]))
    sampler = Sampler(graph)
    sample = draw(sampler, before, (BlockStream((0,), "d/q"), BlockStream((0,), "d/t")), 0, prompts=64, group=8)
    counts, _ = Lookup.of(sample, sampler.decisions).count((1, *graph.offered.shape))
    return graph, before, after, counts.sum(1), 512


@pytest.mark.parametrize("coupling", [0.0, 5e-4, 0.01, 1.0])
@pytest.mark.parametrize("tokens", [0, 1, 250, 6250])
def test_both_token_statistics_are_those_of_the_signals(batch, tokens, coupling):
    _, before, after, counts, rollouts = batch
    shift, step = 0.4, 0.3
    x = np.sqrt(coupling) * np.array([[shift], [shift + step]])
    log_ratio = after.log_probability - before.log_probability
    found = ratio_levels(log_ratio, counts, rollouts, BAND, tuple(x), tokens)
    n = counts.sum((1, 2)) / rollouts
    assert 2 < n[0] < 4
    p = expit(x[:, 0])
    # what one content token does, from its two values
    ratios = np.array([p[1] / p[0], (1 - p[1]) / (1 - p[0])])
    outside = np.array([p[0], 1 - p[0]]) @ (np.abs(ratios - 1) > BAND)
    exact = 2 * abs(p[1] - p[0])
    assert found.token_outside == pytest.approx(token_mean(n, tokens, found.decision_outside, outside))
    assert found.token_distance == pytest.approx(token_mean(n, tokens, found.decision_distance, exact))
    assert exact == pytest.approx(content_distance(step, coupling), rel=0.1, abs=1e-12)
    assert found.decision_outside > 0.03  # the start decision's ratio did leave the band


def test_the_decision_distance_is_that_of_the_signals_where_all_rollouts_decide_once(batch):
    """Counts in the policy's own proportions at the start, no other decision: the mean over samples is the expectation."""
    graph, before, after, counts, _ = batch
    c = graph.contexts.index("start")
    own = np.zeros_like(counts)
    own[0, c] = 1e6 * before.probability[0, c]
    found = ratio_levels(after.log_probability - before.log_probability, own, 10**6, BAND)
    a = int(graph.free_action[0])
    p, q = before.probability[0, c, a], after.probability[0, c, a]
    assert found.token_distance == pytest.approx(decision_distance(p, q))
    assert decision_distance(p, q) > 0.09


def test_a_training_run_is_diluted_as_said():
    config = replace(drive(), {"prompts": 16, "steps": 30, "content.tokens": 250, "content.coupling": 5e-4})
    runs = train(config, (0, 1), study="dilution")
    n = runs["train/turns"]
    h = np.diff(runs["policy/shared_shift"], axis=1)
    assert np.abs(h).max() == pytest.approx(0.38)
    at = np.s_[:, :-1]
    predicted = token_mean(n[at], 250, runs["drift/ratio/turn/distance"][at], content_distance(h, 5e-4))
    np.testing.assert_allclose(runs["drift/ratio/token/distance"][at], predicted, rtol=0.02, atol=1e-12)
    outside = runs["drift/ratio/turn/outside"]
    assert outside.max() > 0.03
    np.testing.assert_allclose(runs["drift/ratio/token/outside"], token_mean(n, 250, outside), rtol=1e-9)


# --- noise that content brings ----------------------------------------------------------------------------------------


def test_noise_by_hand():
    assert content_noise(1024, 1024) == pytest.approx(0.35)
    assert content_noise(4 * 256, 256) == pytest.approx(0.7)
    assert content_noise(0, 256) == 0
    assert tokens_for_noise(0.7, 256) == pytest.approx(1024)
    # one of 16 directions loads 1/4: .25 x .4 x .25 over .43 sqrt(500 / 1024)
    assert restoring_snr(0.25, 0.4, 0.5, 500, 1024, 0.43) == pytest.approx(0.025 / (0.43 * np.sqrt(500 / 1024)))
    assert restoring_snr(0.25, 0.4, 0.5, 0, 1024) == np.inf
    assert restoring_snr(0.25, 0.4, [0.0, 1.0], 500, 1024).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"rollouts = 0.0 positive"):
        content_noise(10, 0)
    with pytest.raises(ValueError, match=r"share = 1.2"):
        restoring_snr(1, 1, 1.2, 1, 1)


@given(st.floats(0.01, 2), st.integers(1, 4096), st.floats(0.1, 1))
def test_the_dose_and_the_length_are_inverse(sd, rollouts, per_token):
    assert content_noise(tokens_for_noise(sd, rollouts, per_token), rollouts, per_token) == pytest.approx(sd)


@given(st.floats(0.01, 0.99), st.integers(1, 2000), st.integers(8, 4096))
def test_four_times_the_content_halves_the_snr_and_four_times_the_batch_doubles_it(g, tokens, rollouts):
    snr = restoring_snr(0.25, 0.4, g, tokens, rollouts)
    assert restoring_snr(0.25, 0.4, g, 4 * tokens, rollouts) == pytest.approx(snr / 2)
    assert restoring_snr(0.25, 0.4, g, tokens, 4 * rollouts) == pytest.approx(2 * snr)
    assert restoring_snr(0.25, 0.4, 1 - g, tokens, rollouts) == pytest.approx(snr)


def advantages(seeds=200, prompts=16):
    """Advantages of rollouts of seed A's world at its habit, [S, Q, G]."""
    graph = seed_a().graph().compiled()
    z = free_logits(graph, start__answer=-4.14, fresh__answer=4.85, failed__answer=-4.2)
    policy = SoftmaxPolicy(graph, z, np.eye(3)).tables(np.zeros((seeds, 3)))
    streams = BlockStream(tuple(range(seeds)), "d/q"), BlockStream(tuple(range(seeds)), "d/t")
    sampler = Sampler(graph)
    sample = draw(sampler, policy, streams, 0, prompts, 8)
    drawn = rule_batch(sampler, sample, Lookup.of(sample, sampler.decisions), policy, "turn")
    return Rule().prepare(drawn).advantage.value


def test_the_noise_of_sampled_content():
    """Fair coins beside real advantages: the spread of the mean of A x sum of scores over batches is per_token sqrt(L/N)."""
    A = advantages()
    A = A[..., 0]  # one for a rollout
    S, Q, G = A.shape
    tokens = 60
    scores = np.random.default_rng(0).binomial(tokens, 0.5, A.shape) - tokens / 2
    found = (A * scores).mean((1, 2)).std()
    per_token = 0.5 * np.sqrt((A**2).mean())
    assert found == pytest.approx(content_noise(tokens, Q * G, per_token), rel=4 / np.sqrt(2 * S))
    assert per_token == pytest.approx(PER_TOKEN, rel=0.03)
