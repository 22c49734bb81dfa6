import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.mdp.graph import Action, GraphError, Outcome, State, Terminal, ToolGraph
from sim.mdp.latency import (
    Capped,
    CappedPareto,
    Constant,
    Empirical,
    Exponential,
    LogNormal,
    Mixture,
)
from sim.mdp.worlds import PRESETS


def action(name="answer", *outcomes, **options):
    return Action(name, outcomes or (Outcome("right", (0.25, 0.5)), Outcome("wrong", (0.75, 0.5))), **options)


def with_action(graph, *actions, state=0):
    """`graph` with other actions in one of its states."""
    states = list(graph.states)
    states[state] = replace(states[state], actions=actions)
    return replace(graph, states=tuple(states))


def to_found():
    return Action("search", (Outcome("found", 1.0),))


# --- what it refuses: the message names the node, the number and the way out -------------------------------------------

REFUSALS = {
    "shares do not sum to 1": (
        lambda g: replace(g, kinds=(("hard", 0.5), ("easy", 0.4))),
        ["tiny", "sum to 0.9, not 1"],
    ),
    "negative share": (lambda g: replace(g, kinds=(("hard", -0.5), ("easy", 1.5))), ["'hard'", "-0.5", r"[0, 1]"]),
    "NaN share": (lambda g: replace(g, kinds=(("hard", math.nan), ("easy", 1.0))), ["'hard'", "nan"]),
    "a start for each kind": (lambda g: replace(g, initial=("start",)), ["1 initial", "2 kinds", "one for each kind"]),
    "unknown start": (lambda g: replace(g, initial=("start", "stat")), ["'stat'", "did you mean start"]),
    "no turns": (lambda g: replace(g, turn_limit=0), ["turn limit 0", "at least 1"]),
    "NaN at the limit": (lambda g: replace(g, turn_limit_reward=math.nan), ["turn limit", "NaN"]),
    "a node twice": (
        lambda g: replace(g, terminals=(*g.terminals, Terminal("found", 0.0))),
        ["'found' is defined 2 times"],
    ),
    "NaN reward": (lambda g: replace(g, terminals=(*g.terminals, Terminal("x", math.nan))), ["'x'", "nan", "finite"]),
    "infinite reward": (lambda g: replace(g, terminals=(*g.terminals, Terminal("x", math.inf))), ["'x'", "inf"]),
    "dead end": (lambda g: with_action(g, state=1), ["'found' is a dead end", "0 actions", "make it terminal"]),
    "an action twice": (lambda g: with_action(g, action(), action(), to_found()), ["'start'", "twice: answer, answer"]),
    "unknown action": (
        lambda g: with_action(g, action("anwser"), to_found()),
        ["'start', action 'anwser' is unknown", "did you mean answer"],
    ),
    "negative latency": (
        lambda g: with_action(g, action(latency=Constant(-2.0)), to_found()),
        ["'start', action 'answer'", "seconds = -2.0", "at least 0"],
    ),
    "infinite mean latency": (
        lambda g: with_action(g, action(latency=CappedPareto(1.0, 0.8, None)), to_found()),
        ["'start', action 'answer'", "alpha = 0.8", "infinite mean", "give a finite cap"],
    ),
    "no tokens": (
        lambda g: with_action(g, action(generated_tokens=0), to_found()),
        ["'start', action 'answer' generates 0 tokens", "at least 1"],
    ),
    "unknown target": (
        lambda g: with_action(g, action("answer", Outcome("wrnog", 1.0)), to_found()),
        ["'start', action 'answer' leads to 'wrnog'", "did you mean wrong"],
    ),
    "negative observation": (
        lambda g: with_action(g, action("answer", Outcome("wrong", 1.0, -3)), to_found()),
        ["-> 'wrong' observes -3 tokens", "least is 0"],
    ),
    "one probability per kind": (
        lambda g: with_action(g, action("answer", Outcome("wrong", (1.0, 1.0, 1.0))), to_found()),
        ["-> 'wrong' has 3 probabilities for 2 kinds"],
    ),
    "a probability above 1": (
        lambda g: with_action(g, action("answer", Outcome("wrong", (1.0, 1.5))), to_found()),
        ["-> 'wrong' has probability 1.5 for kind 'easy'", "[0, 1]"],
    ),
    "a NaN probability": (
        lambda g: with_action(g, action("answer", Outcome("wrong", math.nan)), to_found()),
        ["-> 'wrong' has probability nan for kind 'hard'"],
    ),
    "probabilities that do not sum to 1": (
        lambda g: with_action(
            g, action("answer", Outcome("right", (0.5, 0.5)), Outcome("wrong", (0.5, 0.25))), to_found()
        ),
        ["'start', action 'answer'", "sum to 0.75 for kind 'easy', not 1"],
    ),
    "no outcomes": (
        lambda g: with_action(g, Action("answer", ()), to_found()),
        ["'start', action 'answer'", "sum to 0 for kind 'hard', not 1"],
    ),
    "one context, two offers": (
        lambda g: replace(g, states=(g.states[0], replace(g.states[1], context="start", actions=(action(),)))),
        ["context 'start' offers ['answer', 'search'] in state 'start' but ['answer'] in 'found'", "two contexts"],
    ),
    "one context, two orders": (
        lambda g: replace(
            g, states=(g.states[0], replace(g.states[1], context="start", actions=g.states[1].actions[::-1]))
        ),
        ["['search', 'answer'] in 'found'"],
    ),
    "unreachable": (
        lambda g: replace(g, states=(*g.states, State("island", "island", (action(),)))),
        ["state 'island' (context 'island') is unreachable", "0 paths", "from start"],
    ),
    "reachable with probability 0 only": (
        lambda g: with_action(
            g, action(), Action("search", (Outcome("found", 0.0), Outcome("wrong", 1.0)))
        ),
        ["'found'", "unreachable"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_it_refuses(tiny, name):
    build, words = REFUSALS[name]
    with pytest.raises(GraphError) as error:
        build(tiny)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_the_reward_at_the_limit_is_finite_like_every_reward(tiny):
    with pytest.raises(GraphError, match="inf"):
        replace(tiny, turn_limit_reward=math.inf)


def test_a_rounding_of_the_probabilities_is_allowed(tiny):
    thirds = tuple(Outcome(to, 1 / 3) for to in ("right", "wrong", "found"))
    assert with_action(tiny, Action("answer", thirds), to_found()).compiled().probability[0, 0, 0] == pytest.approx(
        1 / 3
    )


# --- what it offers ---------------------------------------------------------------------------------------------------


def test_contexts_and_their_actions(tiny):
    assert tiny.contexts == ("start", "found")
    assert tiny.actions_in("found") == ("answer", "search")
    with pytest.raises(GraphError, match="tiny has no context 'fuond'; did you mean found"):
        tiny.actions_in("fuond")


def test_probabilities_once_per_kind(tiny):
    assert tiny.per_kind(1) == (1.0, 1.0)
    assert tiny.per_kind((0.25, 0.5)) == (0.25, 0.5)


def test_the_networkx_graph(tiny):
    g = tiny.graph
    assert dict(g.nodes(data="role")) == {"right": "terminal", "wrong": "terminal", "start": "state", "found": "state"}
    assert g.nodes["right"] == {"role": "terminal", "reward": 1.0, "solved": True}
    assert g.edges["start", "right", "answer#0"]["probability"] == [0.05, 0.15]
    assert g.edges["found", "found", "search#0"]["evidence"]
    assert g.number_of_edges() == 6
    with pytest.raises(Exception, match=r"[Ff]rozen"):
        g.add_node("more")


def test_compiled_by_hand(tiny):
    c = tiny.compiled()
    assert c is tiny.compiled()
    assert (c.turns, c.states, c.contexts, c.actions) == (2, 2, ("start", "found"), ("answer", "search"))
    assert c.free_names == ("start/search", "found/search")
    assert c.context.tolist() == [0, 1, -1, -1]
    assert c.reward.tolist() == [-1, -1, 1, 0]
    assert c.solved.tolist() == [False, False, True, False]
    assert c.share.tolist() == [0.4, 0.6]
    assert c.initial.tolist() == [0, 0]
    assert c.probability[1, 0, 0] == pytest.approx([0.15, 0.85])
    assert c.target[0].tolist() == [[2, 3], [1, 0]]  # searching leads to `found`; the padding stays put
    assert c.probability[:, 2:, :, 0].min() == 1  # terminals stay put
    assert c.generated[0].tolist() == [2, 3]
    assert c.observed[0, 1].tolist() == [7, 0]
    assert c.evidence[:2].tolist() == [[False, True]] * 2


@given(st.data())
def test_compiled_rows_are_distributions_over_what_is_offered(graphs, data):
    graph = data.draw(graphs)
    c = graph.compiled()
    np.testing.assert_allclose(c.probability.sum(-1), 1)
    for i, context in enumerate(graph.contexts):
        assert [c.actions[a] for a in np.flatnonzero(c.offered[i])] == sorted(
            graph.actions_in(context), key=c.actions.index
        )
        assert c.actions[c.reference[i]] == graph.actions_in(context)[0]
    assert len(c.free_names) == c.offered.sum() - len(graph.contexts)
    for n, state in enumerate(graph.states):  # every outcome is where the graph says, for every kind
        for action in state.actions:
            a = c.actions.index(action.name)
            for kind in range(len(graph.kinds)):
                found = {}
                for target, p in zip(c.target[n, a], c.probability[kind, n, a], strict=True):
                    found[int(target)] = found.get(int(target), 0.0) + p
                names = [s.name for s in graph.states] + [t.name for t in graph.terminals]
                for outcome in action.outcomes:
                    assert found[names.index(outcome.to)] == pytest.approx(graph.per_kind(outcome.probability)[kind])


# --- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    graph = PRESETS[name]().graph()
    assert ToolGraph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    "law",
    [
        CappedPareto(1.0, 1.5, None),
        CappedPareto(1.0, 0.8, 30.0),
        Empirical((0.5, 0.25, 8.0)),
        Mixture(((0.75, LogNormal(0.8, 0.6)), (0.25, Capped(Mixture(((1.0, Exponential(3.0)),)), 9.0)))),
    ],
    ids=lambda law: type(law).__name__,
)
def test_a_graph_with_a_law_of_laws_survives_json(tiny, law):
    graph = with_action(tiny, action(latency=law), to_found())
    again = ToolGraph.from_json(graph.to_json())
    assert again == graph
    assert again.states[0].actions[0].latency == law
    assert 0 < again.graph.edges["start", "right", "answer#0"]["latency_s"] == law.mean_s() < math.inf


@given(st.data())
def test_any_graph_survives_json(graphs, data):
    graph = data.draw(graphs)
    again = ToolGraph.from_json(graph.to_json())
    assert again == graph
    assert again.to_json() == graph.to_json()


def edited(graph, edit):
    data = json.loads(graph.to_json())
    edit(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: d.pop("kinds"), "the key 'kinds' is missing; write one with to_json()"),
        (lambda d: d["states"][0].pop("context"), "the key 'context' is missing"),
        (lambda d: d["states"][0]["actions"][0].pop("latency"), "the key 'latency' is missing"),
        (lambda d: d["terminals"][0].update(colour="red"), "colour"),
        (lambda d: d["states"][0]["actions"][0]["latency"].update(law="Constnat"), "did you mean Constant"),
        (lambda d: d["states"][0]["actions"][0]["latency"].update(sigma=1.0), "sigma"),
        (lambda d: d["states"][0]["actions"][0]["outcomes"][0].update(to="rihgt"), "did you mean right"),
        (lambda d: d["kinds"].append(["third"]), "kinds"),
    ],
)
def test_text_that_is_no_graph_is_refused(tiny, edit, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        ToolGraph.from_json(edited(tiny, edit))


@pytest.mark.parametrize("text", ["no JSON at all", "[1, 2]", "3"])
def test_text_that_is_no_json_object_is_refused(text):
    with pytest.raises(GraphError, match="not a tool graph"):
        ToolGraph.from_json(text)
