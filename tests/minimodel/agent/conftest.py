"""A look at what a run collects."""

import pytest

from minimodel.agent import run as run_module
from minimodel.agent.collect import collect


@pytest.fixture
def batches(monkeypatch):
    """Every batch a run collects, with the purpose of its draws and the policies that were published for it."""
    kept = []

    def listening(engine, environment, question, group, versions, publish, draws, step, **how):
        used = {}

        def noted(version):
            publish(version)
            used[version] = engine.policy.frozen()

        found = collect(engine, environment, question, group, versions, noted, draws, step, **how)
        kept.append((draws.purpose, step, found, used))
        return found

    monkeypatch.setattr(run_module, "collect", listening)
    return kept
