import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import solve_ivp
from scipy.special import expit, logit

from sim.learning.credit import GroupCredit
from sim.learning.lookup import Lookup
from sim.learning.loop import draw, gradient, rule_batch
from sim.learning.normalisers import BatchMean, SequenceMean
from sim.learning.rule import Rule
from sim.mdp.exact import expected_return, policy_gradient
from sim.mdp.policy import SoftmaxPolicy, free_logits, tables
from sim.mdp.sampling import Sampler
from sim.mdp.theory import (
    Fold,
    Objective,
    effective_gap,
    expected_advantage,
    expected_gradient,
    first_passage_probability,
    recovery_steps,
)
from sim.mdp.worlds import PRESETS, seed_a
from sim.records.rng import BlockStream

OBJECTIVES = st.builds(
    Objective, group=st.integers(2, 9), std=st.booleans(), ddof=st.sampled_from((0, 1)), by_length=st.booleans()
)


# --- expected advantages ----------------------------------------------------------------------------------------------


@given(st.integers(2, 8), st.floats(0, 1), st.booleans(), st.sampled_from((0, 1)))
def test_expected_advantage_over_all_outcomes_of_the_others(G, p, std, ddof):
    credit = GroupCredit(std=std, ddof=ddof)
    for reward in (0, 1):
        total = 0.0
        for others in itertools.product((0, 1), repeat=G - 1):
            chance = np.prod([p if r else 1 - p for r in others])
            total += chance * credit(np.array([[reward, *others]], float)).value[0, 0]
        objective = Objective(G, std, ddof)
        assert expected_advantage(reward, p, objective) == pytest.approx(total, rel=1e-9, abs=1e-12)


@given(st.integers(2, 12), st.floats(0, 1))
def test_without_std_the_expected_advantage_is_one_minus_one_over_g_times_the_surprise(G, p):
    for reward in (0, 1):
        assert expected_advantage(reward, p, Objective(G, std=False)) == pytest.approx((1 - 1 / G) * (reward - p))


# --- expected gradients -----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.data(), st.integers(2, 9))
def test_without_std_and_length_it_is_the_policy_gradient_times_one_minus_one_over_g(binary_graphs, data, G):
    graph = data.draw(binary_graphs).compiled()
    D = len(graph.free_names)
    policy = tables(graph, np.array(data.draw(st.lists(st.floats(-4, 4), min_size=D, max_size=D))))
    found = expected_gradient(graph, policy, Objective(G, std=False))
    np.testing.assert_allclose(found, (1 - 1 / G) * policy_gradient(graph, policy), atol=1e-12)


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize(("std", "ddof"), [(False, 1), (True, 1), (True, 0)])
def test_the_loop_samples_it(std, ddof, by_length):
    """Seed A's world near the middle: the mean sampled gradient over 6,000 batches is the expected one."""
    graph = seed_a().graph().compiled()
    policy = SoftmaxPolicy(
        graph, free_logits(graph, start__answer=-0.5, fresh__answer=2.0, failed__answer=-1.0), np.eye(3)
    )
    seeds = tuple(range(6000))
    now = policy.tables(np.zeros((len(seeds), 3)))
    streams = BlockStream(seeds, "theory/question"), BlockStream(seeds, "theory/turn")
    sampler = Sampler(graph)
    sample = draw(sampler, now, streams, step=0, prompts=4, group=4)
    lookup = Lookup.of(sample, sampler.decisions)
    batch = rule_batch(sampler, sample, lookup, now, "turn")
    rule = Rule(GroupCredit(std=std, ddof=ddof), normaliser=SequenceMean() if by_length else BatchMean())
    found = gradient(policy, now, now, lookup, rule.coefficients(rule.prepare(batch), batch.behaviour))

    def p_value(objective):
        exact = expected_gradient(graph, policy.tables(np.zeros(3)), objective)
        off = found.mean(0) - exact
        return stats.chi2.sf(off @ np.linalg.solve(np.cov(found.T) / len(found), off), 3)

    objective = Objective(4, std, ddof, by_length)
    assert p_value(objective) > 1e-3
    assert p_value(replace(objective, by_length=not by_length)) < 1e-6  # the check can tell objectives apart
    assert p_value(replace(objective, std=not std)) < 1e-6
    assert p_value(replace(objective, group=3)) < 1e-3


def test_rewards_other_than_0_and_1_are_refused(tiny):
    with pytest.raises(ValueError, match=r"rewards must be 0 or 1 .*; got -1"):
        expected_gradient(tiny.compiled(), tables(tiny.compiled(), np.zeros(2)), Objective())


# --- the effective gap ------------------------------------------------------------------------------------------------


@given(st.sampled_from(["seed-a", "seed-a-final"]), st.integers(2, 9), *[st.floats(-4, 4)] * 3)
def test_the_gap_is_the_difference_of_values_times_one_minus_one_over_g(name, G, start, fresh, failed):
    graph = PRESETS[name]().graph().compiled()
    others = {"fresh__answer": fresh} | ({"failed__answer": failed} if name == "seed-a" else {})

    def policy(start):
        return tables(graph, free_logits(graph, start__answer=start, **others))

    gap = effective_gap(graph, policy(start), Objective(G, std=False))
    search, guess = (expected_return(graph, policy(z)) for z in (-800.0, 800.0))
    assert gap == pytest.approx((1 - 1 / G) * (search - guess), abs=1e-10)


@given(OBJECTIVES, st.floats(-6, 6))
def test_the_gap_is_minus_the_gradient_over_its_variance(objective, start):
    graph = seed_a().graph().compiled()
    policy = tables(graph, free_logits(graph, start__answer=start, fresh__answer=2.0))
    gap, p = effective_gap(graph, policy, objective), expit(start)
    assert -gap * p * (1 - p) == pytest.approx(expected_gradient(graph, policy, objective)[0])


def test_seed_as_gap_with_and_without_std():
    """Where nearly all rollouts search, std multiplies the gap by 2.2 to 2.6; by length it shrinks but keeps its sign."""
    graph = seed_a().graph().compiled()
    policy = tables(graph, free_logits(graph, start__answer=-4.14, fresh__answer=4.85, failed__answer=-4.2))
    plain, std, short, both = (
        effective_gap(graph, policy, Objective(8, std, 1, length)) for length in (False, True) for std in (False, True)
    )
    assert plain == pytest.approx(0.1903, abs=5e-4)
    assert 2.2 < std / plain < 2.6
    assert 0 < short < both < plain


def test_an_unknown_logit_names_its_neighbours():
    graph = seed_a().graph().compiled()
    with pytest.raises(ValueError, match="start/answer"):
        effective_gap(graph, tables(graph, np.zeros(3)), Objective(), logit="start/anwser")


# --- fold -------------------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 5), st.floats(0.05, 1), st.floats(0, 1))
def test_at_the_fixed_point_drive_and_drift_cancel(rate, gap, part):
    fold = Fold(rate, gap)
    drive = part * fold.critical_drive
    g = fold.fixed_point(drive)
    assert rate * gap * g * (1 - g) == pytest.approx(drive, abs=1e-12)
    assert 0 <= g <= 0.5
    if 0.01 < part < 0.99:  # the stable one: a little more guessing is pushed back
        assert drive - rate * gap * (g + 1e-3) * (1 - g - 1e-3) < 0


def test_the_fold_by_hand():
    fold = Fold(2.0, 0.5)
    assert fold.critical_drive == 0.25
    assert [fold.fixed_point(v) for v in (0.0, 0.1875, 0.25)] == pytest.approx([0, 0.25, 0.5])
    with pytest.raises(ValueError, match=r"drive 0.3 is above v_c = 0.25"):
        fold.fixed_point(0.3)
    with pytest.raises(ValueError, match=r"drive 0.25 is not above v_c = 0.25"):
        fold.passage_steps(0.25, -4.0)


@given(st.floats(1.05, 6), st.floats(-8, -1), st.floats(-0.5, 3))
def test_passage_under_a_drive_is_that_of_the_differential_equation(times_critical, start, end):
    fold = Fold(2.4, 0.2)
    drive = times_critical * fold.critical_drive
    reached = lambda t, z: z[0] - end  # noqa: E731
    reached.terminal = True
    solved = solve_ivp(
        lambda t, z: drive - fold.rate * fold.gap * expit(z) * expit(-z), (0, 1e5), [start],
        events=reached, rtol=1e-9, atol=1e-9,
    )  # fmt: skip
    assert fold.passage_steps(drive, start, end) == pytest.approx(solved.t_events[0][0], rel=1e-5)


def test_passage_under_a_strong_drive_is_distance_over_speed():
    fold = Fold(2.4, 0.2)
    for drive in (1e3, 1e5):
        assert fold.passage_steps(drive, -4.14) == pytest.approx(4.14 / drive, rel=fold.critical_drive * 4 / drive)


def test_passage_near_the_fold_slows_as_the_root_of_the_distance():
    """Close to the fold T ~ pi / sqrt(curvature x (v - v_c)): four times closer, twice as long."""
    fold = Fold(2.4, 0.2)
    near, nearer = (fold.passage_steps(fold.critical_drive * (1 + e), -30.0, 30.0) for e in (4e-4, 1e-4))
    assert nearer / near == pytest.approx(2, rel=0.1)


# --- recovery ---------------------------------------------------------------------------------------------------------


@given(st.floats(0.3, 5), st.floats(0.05, 1), st.floats(-1, 6), st.floats(-6, -1.2))
def test_recovery_is_that_of_the_differential_equation(rate, gap, start, end):
    reached = lambda t, z: z[0] - end  # noqa: E731
    reached.terminal = True
    solved = solve_ivp(
        lambda t, z: -rate * gap * expit(z) * expit(-z), (0, 1e7), [start], events=reached, rtol=1e-9, atol=1e-9
    )
    assert recovery_steps(rate, gap, start, end) == pytest.approx(solved.t_events[0][0], rel=1e-5)


def test_recovery_by_hand():
    # to g = .2: z = -ln 4, where z + sinh z = -1.3863 - 1.875
    assert recovery_steps(2.0, 0.5, 0.0) == pytest.approx(2 * (np.log(4) + 1.875))
    assert recovery_steps(2.0, 0.5, 0.0, logit(0.2)) == recovery_steps(2.0, 0.5, 0.0)
    assert recovery_steps(2.0, 0.5, 6.0) > 2.5 * recovery_steps(2.0, 0.5, 5.0)  # exponential in the overshoot
    with pytest.raises(ValueError, match=r"end 1.0 must lie below start 0.0"):
        recovery_steps(1.0, 1.0, 0.0, 1.0)


# --- first passage ----------------------------------------------------------------------------------------------------

START, SD = -4.14, 0.6


def monte_carlo(drift, steps, n=20_000):
    """The share of n chains z' = z + drift(z) + sd x N(0, 1) that reach 0 within the steps."""
    rng = np.random.default_rng(0)
    z = np.full(n, START)
    passed = np.zeros(n, bool)
    for _ in range(steps):
        z = z + drift(z) + SD * rng.normal(size=n)
        passed |= z >= 0
    return passed.mean(), 4 * np.sqrt(passed.mean() * (1 - passed.mean()) / n)


@pytest.mark.parametrize(
    ("drift", "steps"),
    [(np.zeros_like, 40), (lambda z: -0.48 * expit(z) * expit(-z), 80), (lambda z: np.full_like(z, 0.05), 30)],
    ids=["noise", "noise and restoring drift", "noise and drive"],
)
def test_first_passage_is_that_of_the_same_chain(drift, steps):
    grid = np.linspace(-20, 0, 1001)
    share, tolerance = monte_carlo(drift, steps)
    assert share > 0.05
    assert first_passage_probability(START, SD, drift(grid), steps, grid=grid) == pytest.approx(share, abs=tolerance)
    # the mutation: twenty per cent more steps are told apart
    assert abs(first_passage_probability(START, SD, drift(grid), steps * 6 // 5, grid=grid) - share) > tolerance


def test_first_passage_of_pure_noise_is_the_reflection_principle():
    """P(max of Brownian motion > a) = 2 Phi(-a / sqrt T), at fine steps; watched at steps of sd, a is longer by .5826 sd."""
    grid = np.linspace(-5, 0, 1001)
    for sd, steps in ((0.1, 100), (0.05, 400)):
        a = 1.0 + 0.5826 * sd
        found = first_passage_probability(-1.0, sd, None, steps, grid=grid)
        assert found == pytest.approx(2 * stats.norm.cdf(-a / (sd * np.sqrt(steps))), abs=2e-3)
        assert abs(found - 2 * stats.norm.cdf(-1.0 / (sd * np.sqrt(steps)))) > 6e-3  # without the correction it is off


def test_one_step_is_one_normal():
    grid = np.linspace(-10, 0, 2001)
    assert first_passage_probability(-1.0, 0.8, None, 1, grid=grid) == pytest.approx(stats.norm.sf(1 / 0.8), abs=1e-6)
    spread = np.full(2001, 0.8)  # a spread at each point of the grid
    assert first_passage_probability(-1.0, spread, None, 1, grid=grid) == pytest.approx(
        stats.norm.sf(1 / 0.8), abs=1e-6
    )
    assert first_passage_probability(-1.0, 0.8, None, 0, grid=grid) == pytest.approx(0, abs=1e-12)


def test_what_would_leave_at_the_lower_end_stays():
    """A grid that ends just below the start: one step up is as likely as on a long one, and in the end all pass."""
    short = np.linspace(-1.5, 0, 1501)
    assert first_passage_probability(-1.0, 0.8, None, 1, grid=short) == pytest.approx(stats.norm.sf(1 / 0.8), abs=1e-3)
    few, many = (first_passage_probability(-1.0, 0.2, None, n, grid=short[::10]) for n in (5, 2000))
    assert few < 0.05
    assert many == pytest.approx(1, abs=1e-3)


@given(st.floats(-3, -0.5), st.floats(0.2, 1), st.integers(1, 30))
def test_more_time_noise_or_nearness_makes_passage_likelier(start, sd, steps):
    grid = np.linspace(-9, 0, 181)
    p = first_passage_probability(start, sd, None, steps, grid=grid)
    assert 0 <= p <= 1
    assert first_passage_probability(start, sd, None, steps + 5, grid=grid) >= p - 1e-12
    assert first_passage_probability(start + 0.2, sd, None, steps, grid=grid) >= p - 1e-12
    assert first_passage_probability(start, sd * 1.2, None, steps, grid=grid) >= p - 1e-12


def test_first_passage_refuses():
    grid = np.linspace(-5, 0, 51)
    with pytest.raises(ValueError, match=r"sd = 0.0 must be positive: without noise use passage_steps"):
        first_passage_probability(-1.0, 0.0, None, 5, grid=grid)
    with pytest.raises(ValueError, match=r"the grid ends at 0.0, not at the level 1.0"):
        first_passage_probability(-1.0, 0.1, None, 5, grid=grid, level=1.0)
