"""What all tests share: Hypothesis profiles, a fresh interpreter, and two small tasks worked by hand."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph

ROOT = Path(__file__).resolve().parents[1]

# Triton decides when it is first imported whether its kernels run in its interpreter, which is how they run without a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

pytest_plugins = ["pytester"]  # pytest takes this from a top-level conftest only; the study kit's tests use it

# `ci` draws the same examples every time, so that a red test is red for everyone; `search` looks for new ones. How long
# an example takes says more about the machine than about the code, so nothing here depends on it.
UNTIMED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, max_examples=50, **UNTIMED)
settings.register_profile("search", derandomize=False, max_examples=1000, **UNTIMED)
settings.load_profile("ci")


@pytest.fixture(scope="session")
def fresh_python() -> Callable[..., str]:
    """Run a program in a new interpreter that sees only the project; return what it prints."""

    def run(program: str, *, hash_seed: int = 0, **environment: str) -> str:
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)} | environment
        done = subprocess.run(
            [sys.executable, "-c", program], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def tiny_graph(
    guess: tuple[float, float] = (0.05, 0.15),
    found: tuple[float, float] = (0.97, 0.9),
    shares: tuple[float, float] = (0.4, 0.6),
    limit_reward: float = -1.0,
) -> ToolGraph:
    """Two turns: answer at once, or search and then answer; searching twice runs into the limit. Two kinds of question."""

    def answer(p: tuple[float, float]) -> Action:
        lose = tuple(1 - q for q in p)
        return Action("answer", (Outcome("right", p), Outcome("wrong", lose)), generated_tokens=2)

    search = Action("search", (Outcome("found", 1.0, observed_tokens=7),), generated_tokens=3, evidence=True)
    return ToolGraph(
        name="tiny",
        kinds=(("hard", shares[0]), ("easy", shares[1])),
        initial=("start", "start"),
        states=(State("start", "start", (answer(guess), search)), State("found", "found", (answer(found), search))),
        terminals=(Terminal("right", 1.0, solved=True), Terminal("wrong", 0.0)),
        actions=("answer", "search"),
        turn_limit=2,
        turn_limit_reward=limit_reward,
    )


@pytest.fixture(scope="session")
def tiny() -> ToolGraph:
    """The two-turn task of `tiny_graph`."""
    return tiny_graph()


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., ToolGraph]:
    """Build a two-turn task with other numbers."""
    return tiny_graph
