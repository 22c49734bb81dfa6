"""Where a step of a run spends its CPU time: collecting, environment, scoring, backward, optimiser, evaluation, watching.

The run is `retry`, 32 questions x 8 episodes of four turns and two updates a step, with a penalty on k3 of the reference,
so that every episode is scored by both networks. Its network is untrained, so that all episodes go on to the last turn; a
run whose agent answers spends less on each part, the optimiser apart.
"""

import inspect
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from minimodel.agent import run as running
from minimodel.agent import watch
from minimodel.agent.engine import LocalEngine
from minimodel.model.compiled import why_not
from minimodel.presets import retry
from minimodel.pretrain.start import untrained
from minimodel.tasks.environment import Environment
from minimodel.tasks.facts import draw_facts
from sim.learning.family import grpo
from sim.records.config import replace

CONFIG = replace(retry(), {"rule": grpo(kl=0.001)})
WARM, STEPS = 2, 20
EVERYONE = ("collecting", "environment", "scoring", "backward", "optimiser")
"""Parts that any trainer has."""


class Parts:
    """Clocks of which one runs at a time: a part within another stops its clock, and one within evaluation does not."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.inside = ["rest"]
        self.since = time.process_time()

    def switch(self) -> None:
        now = time.process_time()
        self.seconds[self.inside[-1]] += now - self.since
        self.since = now

    def part(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **more: Any) -> Any:
            self.switch()
            self.inside.append("evaluation" if "evaluation" in self.inside else name)
            try:
                return work(*args, **more)
            finally:
                self.switch()
                self.inside.pop()

        return timed


def put_clocks(patch: pytest.MonkeyPatch, parts: Parts) -> None:
    places: list[tuple[Any, str, str]] = [
        (running, "collect", "collecting"),
        (running, "score", "scoring"),
        (running, "backward", "backward"),
        (running.Run, "_update", "optimiser"),
        (running.Run, "_evaluation", "evaluation"),
        (running.Run, "_moved", "watching"),
        (watch.Probe, "__init__", "watching"),
        (watch.Probe, "log_probs", "watching"),
        *((Environment, name, "environment") for name in ("prompts", "begin", "act")),
        *((watch, name, "watching") for name in watch.__all__ if inspect.isfunction(getattr(watch, name))),
    ]
    for place, name, part in places:
        patch.setattr(place, name, parts.part(part, getattr(place, name)))


@pytest.mark.parametrize("compiled", [False, True], ids=["torch", "compiled"])
def bench_shares(benchmark, compiled, monkeypatch, tmp_path):
    if compiled and why_not():
        pytest.skip(why_not())
    parts = Parts()
    task = CONFIG.task
    facts = draw_facts(task.world, task.vocabulary, task.held_out, 0)
    monkeypatch.setattr(running, "obtain", lambda *_, **__: (untrained(task, CONFIG.size, 0), None, facts))
    run = running.Run(CONFIG, 0, "bench", tmp_path)
    run.engine = LocalEngine(compiled=compiled)
    for _ in range(WARM):
        run.advance()
    put_clocks(monkeypatch, parts)
    parts.since = time.process_time()
    benchmark.pedantic(run.advance, rounds=STEPS)
    parts.switch()
    total = sum(parts.seconds.values())
    assert set(parts.seconds) == {*EVERYONE, "evaluation", "watching", "rest"}
    needed = sum(parts.seconds[name] for name in EVERYONE)
    benchmark.extra_info |= {
        "peer": f"the parts any trainer has: {', '.join(EVERYONE)}", "ratio": round(total / needed, 3), "target": None,
        "met": None, "cpu_ms_per_step": round(1e3 * total / STEPS, 1),
        "shares": {name: round(seconds / total, 3) for name, seconds in sorted(parts.seconds.items())},
    }  # fmt: skip
