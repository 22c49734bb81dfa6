"""A tool graph on paper: as text for the terminal and as a figure."""

from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from sim.mdp.graph import Action, ToolGraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["figure", "text"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito


def text(graph: ToolGraph) -> str:
    """Return `graph` as indented text: states by context, each action with its outcomes and their probabilities."""
    lines = [f"{graph.name}: {graph.turn_limit} turns, reward {graph.turn_limit_reward:g} at the limit"]
    lines += [f"  kind {name:<20} share {share:.3f}  starts in {start}" for (name, share), start in _kinds(graph)]
    for context in graph.contexts:
        lines.append(f"context {context}")
        for state in (s for s in graph.states if s.context == context):
            lines.append(f"  {state.name}")
            for i, action in enumerate(state.actions):
                elbow = "`-" if i == len(state.actions) - 1 else "|-"
                lines.append(
                    f"   {elbow} {action.name}{' [evidence]' if action.evidence else ''} -> {_outcomes(graph, action)}"
                )
    lines += [f"end {t.name}: reward {t.reward:g}{', solved' if t.solved else ''}" for t in graph.terminals]
    return "\n".join(lines)


def _kinds(graph: ToolGraph) -> list[tuple[tuple[str, float], str]]:
    return list(zip(graph.kinds, graph.initial, strict=True))


def _outcomes(graph: ToolGraph, action: Action) -> str:
    parts = []
    for outcome in action.outcomes:
        p = graph.per_kind(outcome.probability)
        span = f"{min(p):.2f}" if max(p) - min(p) < 0.005 else f"{min(p):.2f}..{max(p):.2f}"
        parts.append(f"{outcome.to} {span}")
    return " | ".join(parts)


def figure(graph: ToolGraph) -> "Figure":
    """Return a drawing of `graph` by context: one box a context, one arrow an action, width by mean probability.

    States that share a context are drawn as one, as the agent sees them.
    """
    from matplotlib.figure import Figure

    g = _by_context(graph)
    place = _layout(graph, g)
    fig = Figure(figsize=(8.2, 4.6))
    ax = fig.add_axes((0.02, 0.1, 0.96, 0.8))
    colours = dict(zip(graph.actions, _COLOURS, strict=False))
    for u, v, data in g.edges(data=True):
        bend = 0.1 + 0.12 * graph.actions.index(data["action"])
        style = {"arrowstyle": "-|>", "color": colours[data["action"]], "lw": 0.6 + 2.4 * data["probability"]}
        reach = {"shrinkA": 22, "shrinkB": 22, "connectionstyle": f"arc3,rad={bend}", "alpha": 0.85}
        ax.annotate("", place[v], place[u], arrowprops={**style, **reach})
    ends = {t.name for t in graph.terminals}
    for name, (x, y) in place.items():
        box = {"boxstyle": "round,pad=.5", "fc": "#eeeeee" if name in ends else "white", "ec": "#444444"}
        ax.text(x, y, name.replace("_", "\n"), ha="center", va="center", fontsize=9, bbox=box)
    for action, colour in colours.items():
        ax.plot([], [], color=colour, lw=2, label=action)
    ax.legend(frameon=False, ncols=len(colours), loc="upper center", bbox_to_anchor=(0.5, 0.02))
    ax.set_title(f"{graph.name}: what the agent can do in each context", fontsize=11, loc="left")
    x, y = np.array(list(place.values())).T
    ax.set_xlim(x.min() - 0.12 * (np.ptp(x) or 1), x.max() + 0.12 * (np.ptp(x) or 1))
    ax.set_ylim(y.min() - 0.35 * (np.ptp(y) or 1), y.max() + 0.35 * (np.ptp(y) or 1))
    ax.axis("off")
    return fig


def _by_context(graph: ToolGraph) -> nx.MultiDiGraph:
    where = {s.name: s.context for s in graph.states} | {t.name: t.name for t in graph.terminals}
    g = nx.MultiDiGraph()
    g.add_nodes_from(dict.fromkeys(where.values()))
    weight: dict[tuple[str, str, str], list[float]] = {}
    for state in graph.states:
        for action in state.actions:
            for outcome in action.outcomes:
                p = sum(s * q for (_, s), q in zip(graph.kinds, graph.per_kind(outcome.probability), strict=True))
                weight.setdefault((state.context, where[outcome.to], action.name), []).append(p)
    for (u, v, name), seen in weight.items():
        if u != v:
            g.add_edge(u, v, action=name, probability=sum(seen) / len(seen))
    return g


def _layout(graph: ToolGraph, g: nx.MultiDiGraph) -> dict[str, tuple[float, float]]:
    """Return positions: contexts in columns by distance from the start, those of one column staggered, ends last."""
    first = list(dict.fromkeys(s.context for s in graph.states if s.name in graph.initial))
    ends = [t.name for t in graph.terminals]
    columns = [[n for n in layer if n not in ends] for layer in nx.bfs_layers(g, first)]
    columns = [c for c in columns if c] + [ends]
    place = {}
    for x, names in enumerate(columns):
        for i, name in enumerate(names):
            stagger = 0.25 * (-1) ** x  # a straight row would draw arrows through boxes
            place[name] = (float(x), (len(names) - 1) / 2 - i + (stagger if len(names) == 1 else 0.0))
    return place
