from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.mdp.building import places
from sim.mdp.exact import expected_return, occupancy, policy_gradient
from sim.mdp.policy import free_logits, tables
from sim.mdp.worlds import PRESETS, ReadMore, Verify, World, beta_quadrature, read_more_world, seed_a, verify_world
from sim.records.config import ConfigError

INSIDE = st.floats(0.02, 0.98)
ANY = st.floats(0, 1)


def worlds(p):
    """Worlds of every structure, with probabilities from `p`."""
    return st.builds(
        World,
        known=p, guess_known=p, guess_unknown=p, hit_known=p, retry_known=p, hit_unknown=p, anchoring=p, stale=p,
        icc=st.floats(0.05, 0.95), unknown_kinds=st.integers(1, 4),
        wrong_answer_ends=st.booleans(), may_guess=st.booleans(), known_visible=st.booleans(), turns=st.integers(1, 4),
        verify=st.none() | st.builds(Verify, sensitivity=p, specificity=p, hit_after_reject=p),
        read_more=st.none() | st.builds(ReadMore, hit=p),
    )  # fmt: skip


def forced(graph, **choices):
    """The policy that takes these actions for certain: context=log odds."""
    return tables(graph, free_logits(graph, **choices))


# --- what the presets say, by hand ------------------------------------------------------------------------------------


def test_seed_a_one_turn_at_a_time():
    graph = seed_a().graph().compiled()
    assert graph.contexts == ("start", "fresh", "failed")
    assert graph.free_names == ("start/answer", "fresh/answer", "failed/answer")
    guess = occupancy(graph, forced(graph, start__answer=800.0))
    assert guess.solved[0] == pytest.approx(0.21 * 0.97 + 0.79 * 0.005)
    search = occupancy(graph, forced(graph, start__answer=-800.0, fresh__answer=800.0))
    assert search.solved[0] == 0
    assert search.solved[1] == pytest.approx(0.21 * 0.8 + 0.79 * 0.385)


def test_hit_rates_of_one_question_are_correlated_by_icc():
    """P(both of two searches hit | unknown) = a^2 + icc a (1 - a): with one search answered wrongly in between."""
    world = replace(seed_a(), known=0.0)
    graph = world.graph().compiled()
    # search, answer, search, answer; a miss is known to be wrong only after the answer has failed
    policy = forced(graph, start__answer=-800.0, fresh__answer=800.0, failed__answer=-800.0)
    solved = occupancy(graph, policy).solved
    a, both = 0.385, 0.385**2 + 0.5 * 0.385 * 0.615
    assert solved[1] == pytest.approx(a)
    assert solved[3] - solved[1] == pytest.approx(a - both)  # a miss, then a hit


def test_a_failed_guess_anchors_the_search_after_it():
    """Guess, search, answer: the hit rate of unknown questions is halved, and so is that of known ones."""
    for known, first, hit in ((0.0, 0.005, 0.385 * 0.5), (1.0, 0.97, 0.8 * 0.5)):
        graph = replace(seed_a(), known=known).graph().compiled()
        solved = occupancy(graph, forced(graph, start__answer=800.0, failed__answer=-800.0, fresh__answer=800.0)).solved
        np.testing.assert_allclose(solved[:3], [first, first, first + (1 - first) * hit])


def test_verify_world_by_hand():
    """Answering at once is right with .47. Verifying first: .47 x .95 pass and are right, rejected ones search again."""
    graph = verify_world().graph().compiled()
    answer = expected_return(graph, forced(graph, fresh__verify=-800.0))
    assert answer == pytest.approx(0.47)
    verify = expected_return(graph, forced(graph, fresh__verify=800.0, rejected__answer=-800.0))
    rejected = 0.47 * 0.05 + 0.53 * 0.9
    assert graph.turns == 4  # search, verify, search again: one turn is left to answer
    assert verify == pytest.approx(0.47 * 0.95 + rejected * 0.45)


def test_read_more_world_by_hand():
    """Reading on turns .4 of the misses into hits: search, read, answer, in three turns."""
    world = replace(read_more_world(), known=0.0, turns=3)
    graph = world.graph().compiled()
    read = expected_return(graph, forced(graph, start__answer=-800.0, fresh__read=800.0, read__verify=-800.0))
    assert read == pytest.approx(0.385 + 0.615 * 0.4)


def test_a_wrong_answer_may_end_the_episode():
    retry, final = (PRESETS[n]().graph() for n in ("seed-a", "seed-a-final"))
    assert [t.name for t in retry.terminals] == ["solved"]
    assert [t.name for t in final.terminals] == ["solved", "wrong"]
    a, b = (occupancy(g.compiled(), forced(g.compiled(), start__answer=800.0)) for g in (retry, final))
    assert a.solved[-1] > b.solved[-1] == pytest.approx(b.solved[0])


def test_known_questions_may_be_visible_at_the_start():
    graph = replace(seed_a(), known_visible=True).graph()
    assert graph.contexts[:2] == ("start_known", "start_unknown")
    told = tables(
        graph.compiled(), free_logits(graph.compiled(), start_known__answer=800.0, start_unknown__answer=-800.0)
    )
    blind = seed_a().graph().compiled()
    best = max(expected_return(blind, forced(blind, start__answer=z, fresh__answer=800.0)) for z in (-800.0, 800.0))
    assert expected_return(graph.compiled(), told) > best - 0.05


@pytest.mark.parametrize("name", PRESETS)
def test_presets_stand(name):
    world = PRESETS[name]()
    shares = [share for _, share, _ in world.kinds()]
    assert sum(shares) == pytest.approx(1)
    rates = np.array([hit for kind, _, hit in world.kinds() if kind != "known"])
    weights = np.array([share for kind, share, _ in world.kinds() if kind != "known"])
    assert (rates * weights).sum() / weights.sum() == pytest.approx(world.hit_unknown)
    J = expected_return(
        world.graph().compiled(), tables(world.graph().compiled(), np.zeros(len(world.graph().compiled().free_names)))
    )
    assert 0.1 < J < 0.9


@settings(max_examples=20)
@given(worlds(ANY))
def test_places_stand_in_the_order_of_the_states(world):
    graph, found = world.graph(), places(world)
    assert [p.at for p in found] == [s.name.split()[0] for s in graph.states]
    assert ["hit" in s.name.split() for s in graph.states] == [p.hit and p.at != "start" for p in found]
    assert ["checked" in s.name for s in graph.states] == [p.checked for p in found]


@settings(max_examples=40)
@given(worlds(ANY))
def test_every_world_is_a_task_that_can_be_played(world):
    graph = world.graph().compiled()
    policy = tables(graph, np.zeros(len(graph.free_names)))
    assert 0 <= expected_return(graph, policy) <= 1
    np.testing.assert_allclose(occupancy(graph, policy).state.sum(-1), 1)
    evidence = {a.name for s in graph.source.states for a in s.actions if a.evidence}
    assert evidence == {a.name for s in graph.source.states for a in s.actions} - {"answer"}


# --- refilled ---------------------------------------------------------------------------------------------------------


@given(worlds(INSIDE), worlds(INSIDE))
def test_refilled_is_the_full_build(world, other):
    """Probabilities of one world on the structure of another that differs in its probabilities only: every array."""
    same = ("wrong_answer_ends", "may_guess", "known_visible", "turns", "unknown_kinds")
    verify, read = world.verify and (other.verify or Verify()), world.read_more and (other.read_more or ReadMore())
    like = replace(other, **{name: getattr(world, name) for name in same}, verify=verify, read_more=read)
    quick, full = world.refilled(like), world.graph().compiled()
    for name in full.__dataclass_fields__:
        if name != "source":
            np.testing.assert_allclose(getattr(quick, name), getattr(full, name), rtol=1e-12, atol=1e-15, err_msg=name)


EDGES = st.sampled_from((0.0, 0.3, 1.0))
CHANGES = {
    **dict.fromkeys(("known", "guess_known", "hit_known", "retry_known", "hit_unknown", "anchoring", "stale"), EDGES),
    **dict.fromkeys(("wrong_answer_ends", "may_guess", "known_visible"), st.booleans()),
    "turns": st.integers(1, 4),
    "unknown_kinds": st.integers(1, 3),
    "verify": st.none() | st.builds(Verify, sensitivity=EDGES, specificity=EDGES),
    "read_more": st.none() | st.builds(ReadMore, hit=EDGES),
}


@settings(max_examples=100)
@given(worlds(EDGES), st.data())
def test_refilled_is_right_or_refuses(world, data):
    """Whatever differs: the same task as the full build, to the last policy gradient, or a ValueError."""
    fields = data.draw(st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=2, unique=True))
    like = replace(world, **{name: data.draw(CHANGES[name], label=name) for name in fields})
    full = world.graph().compiled()
    try:
        quick = world.refilled(like)
    except ValueError:
        return
    assert quick.turns == full.turns
    # The structure may hold contexts that are out of reach in this world: their logits have no gradient.
    z = dict(zip(quick.free_names, np.linspace(-1, 1.5, len(quick.free_names)), strict=True))
    assert set(full.free_names) <= set(z)
    mine, theirs = ((g, tables(g, np.array([z[name] for name in g.free_names]))) for g in (quick, full))
    expected = dict.fromkeys(z, 0.0) | dict(zip(full.free_names, policy_gradient(*theirs), strict=True))
    assert dict(zip(quick.free_names, policy_gradient(*mine), strict=True)) == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(occupancy(*mine).solved, occupancy(*theirs).solved, atol=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"turns": 6},
        {"may_guess": False},
        {"known_visible": True},
        {"wrong_answer_ends": True},
        {"verify": Verify()},
        {"read_more": ReadMore()},
        {"unknown_kinds": 5},
        {"known": 0.0},
        {"document_tokens": 5},
        {"search_median_s": 3.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("turned", [False, True])
def test_another_structure_is_refused(change, turned):
    pair = seed_a(), replace(seed_a(), **change)
    world, like = pair[::-1] if turned else pair
    with pytest.raises(ValueError, match="structure"):
        world.refilled(like)


# --- the quadrature ---------------------------------------------------------------------------------------------------


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.integers(1, 9))
def test_moments_are_exact_up_to_twice_the_points(mean, icc, points):
    rates, weights = (np.array(x) for x in beta_quadrature(mean, icc, points))
    alpha, size = mean * (1 / icc - 1), 1 / icc - 1
    assert len(rates) == points
    assert np.all((rates >= 0) & (rates <= 1))
    assert weights.sum() == pytest.approx(1)
    moment = 1.0
    for order in range(1, 2 * points):
        moment *= (alpha + order - 1) / (size + order - 1)
        assert (weights * rates**order).sum() == pytest.approx(moment, rel=1e-9)


def test_the_intra_class_correlation_is_that_of_two_draws():
    rates, weights = (np.array(x) for x in beta_quadrature(0.3, 0.25, 4))
    both = (weights * rates**2).sum()
    assert (both - 0.3**2) / (0.3 * 0.7) == pytest.approx(0.25)


@pytest.mark.parametrize(("mean", "icc"), [(0.4, 0.0), (0.0, 0.5), (1.0, 0.5)])
def test_without_variation_there_is_one_rate(mean, icc):
    assert beta_quadrature(mean, icc, 9) == ((mean,), (1.0,))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *((
            {name: 1.5}, rf"{name} = 1.5 must lie in \[0, 1\]") for name in
            ("known", "guess_known", "guess_unknown", "hit_known", "retry_known", "hit_unknown", "icc", "anchoring", "stale")
        ),
        ({"turns": 0}, "turns = 0; an episode needs at least 1"),
        ({"icc": 1.0}, "icc = 1 leaves nothing to chance"),
        ({"icc": 0.0}, "unknown_kinds = 9 with icc = 0.0; use 1 where icc is 0"),
        ({"unknown_kinds": 0}, "unknown_kinds = 0"),
        ({"knwon": 0.5}, "World has no field 'knwon'; did you mean known"),
    ],
)  # fmt: skip
def test_refusals_name_the_value_and_the_bound(change, message):
    with pytest.raises(ConfigError, match=message):
        World(**change)


@pytest.mark.parametrize("build", [lambda: Verify(sensitivity=-0.1), lambda: ReadMore(hit=2.0)])
def test_tools_refuse_too(build):
    with pytest.raises(ConfigError, match=r"must lie in \[0, 1\]"):
        build()
