"""Random tool graphs."""

import pytest
from hypothesis import strategies as st

from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.latency import Constant, Exponential, LogNormal

VOCABULARY = ("search", "answer", "verify")
LAWS = st.one_of(
    st.builds(Constant, st.floats(0, 5)),
    st.builds(Exponential, st.floats(0, 5)),
    st.builds(LogNormal, st.floats(0, 5), st.floats(0, 2)),
)


def _probabilities(weights: list[list[int]]) -> list[tuple[float, ...]]:
    """[outcomes][kinds] of integers to probabilities that sum to 1 over the outcomes."""
    totals = [sum(column) for column in zip(*weights, strict=True)]
    return [tuple(w / t for w, t in zip(row, totals, strict=True)) for row in weights]


@st.composite
def tool_graphs(draw: st.DrawFn, binary: bool = False) -> ToolGraph:
    """A small graph: 1 to 3 kinds, 1 to 4 states in 1 to 3 contexts, 2 terminals; state i leads to state i + 1."""
    H, n, turns = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    offers = {
        f"c{i}": draw(st.permutations(VOCABULARY))[: draw(st.integers(1, 3))] for i in range(draw(st.integers(1, 3)))
    }
    names = [f"s{i}" for i in range(n)]
    rewards = st.sampled_from((0.0, 1.0)) if binary else st.sampled_from((-1.0, 0.0, 0.5, 1.0))
    states = []
    for i, name in enumerate(names):
        context = draw(st.sampled_from(sorted(offers)))
        actions = []
        for j, action in enumerate(offers[context]):
            targets = draw(st.lists(st.sampled_from([*names, "won", "lost"]), min_size=1, max_size=3, unique=True))
            if j == 0 and i + 1 < n and names[i + 1] not in targets:
                targets.append(names[i + 1])
            weights = [[draw(st.integers(1, 5)) for _ in range(H)] for _ in targets]
            outcomes = tuple(
                Outcome(t, p if draw(st.booleans()) or len(set(p)) > 1 else p[0], draw(st.integers(0, 9)))
                for t, p in zip(targets, _probabilities(weights), strict=True)
            )
            actions.append(Action(action, outcomes, draw(st.integers(1, 9)), draw(LAWS), draw(st.booleans())))
        states.append(State(name, context, tuple(actions)))
    shares = _probabilities([[draw(st.integers(1, 5))] for _ in range(H)])
    return ToolGraph(
        name="random",
        kinds=tuple((f"k{i}", share) for i, (share,) in enumerate(shares)),
        initial=("s0", *(draw(st.sampled_from(names)) for _ in range(H - 1))),
        states=tuple(states),
        terminals=(Terminal("won", 1.0, solved=True), Terminal("lost", draw(rewards))),
        actions=VOCABULARY,
        turn_limit=turns,
        turn_limit_reward=draw(rewards),
    )


@pytest.fixture(scope="session")
def graphs() -> st.SearchStrategy[ToolGraph]:
    """Small graphs with any rewards."""
    return tool_graphs()


@pytest.fixture(scope="session")
def binary_graphs() -> st.SearchStrategy[ToolGraph]:
    """Small graphs with rewards 0 and 1."""
    return tool_graphs(binary=True)
