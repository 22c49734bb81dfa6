from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.mdp.drawing import figure, text
from sim.mdp.worlds import PRESETS, seed_a


def names(ax):
    """The names in the boxes, which may be broken at an underscore."""
    return {t.get_text().replace("\n", "_") for t in ax.texts}


@given(st.data())
def test_the_text_names_every_context_state_action_kind_and_end(graphs, data):
    graph = data.draw(graphs)
    drawn = text(graph)
    lines = drawn.splitlines()
    for context in graph.contexts:
        assert f"context {context}" in lines
    for kind, _ in graph.kinds:
        assert any(line.strip().startswith(f"kind {kind} ") for line in lines)
    for terminal in graph.terminals:
        assert any(line.startswith(f"end {terminal.name}: reward {terminal.reward:g}") for line in lines)
    for state in graph.states:
        at = lines.index(f"  {state.name}")
        for i, action in enumerate(state.actions):
            line = lines[at + 1 + i]
            assert action.name in line
            assert all(outcome.to in line for outcome in action.outcomes)
            assert ("[evidence]" in line) == action.evidence


@pytest.mark.parametrize("name", PRESETS)
def test_presets_as_text(name):
    graph = PRESETS[name]().graph()
    assert graph.text() == text(graph)
    assert f"{graph.turn_limit} turns" in graph.text().splitlines()[0]


def test_the_tiny_graph_in_full(tiny):
    assert text(tiny).splitlines() == [
        "tiny: 2 turns, reward -1 at the limit",
        "  kind hard                 share 0.400  starts in start",
        "  kind easy                 share 0.600  starts in start",
        "context start",
        "  start",
        "   |- answer -> right 0.05..0.15 | wrong 0.85..0.95",
        "   `- search [evidence] -> found 1.00",
        "context found",
        "  found",
        "   |- answer -> right 0.90..0.97 | wrong 0.03..0.10",
        "   `- search [evidence] -> found 1.00",
        "end right: reward 1, solved",
        "end wrong: reward 0",
    ]


@pytest.mark.parametrize("name", PRESETS)
def test_the_figure_shows_every_context_end_and_action(name):
    matplotlib = pytest.importorskip("matplotlib.figure")
    graph = PRESETS[name]().graph()
    drawn = figure(graph)
    assert isinstance(drawn, matplotlib.Figure)
    (ax,) = drawn.axes
    shown = names(ax)
    assert set(graph.contexts) <= shown
    assert {t.name for t in graph.terminals} <= shown
    assert [t.get_text() for t in ax.get_legend().get_texts()] == list(graph.actions)


def test_kinds_that_begin_in_different_contexts_can_be_drawn():
    graph = replace(seed_a(), known_visible=True).graph()
    (ax,) = figure(graph).axes
    assert {"start_known", "start_unknown"} <= names(ax)


@settings(max_examples=15)
@given(st.data())
def test_any_graph_can_be_drawn(graphs, data):
    graph = data.draw(graphs)
    (ax,) = figure(graph).axes
    assert set(graph.contexts) <= names(ax)
