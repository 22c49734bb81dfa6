"""The inspector on runs of our own store that kept their rollouts."""

from collections import Counter
from typing import Any

import numpy as np

from sim.records.config import from_dict
from sim.records.run import RunRecord
from studies.kit.episodes import from_rollouts
from studies.kit.inspector.data import Inspected, absent_from, workflow_of

__all__ = ["stored"]


def stored(record: RunRecord) -> Inspected:
    """Return a run of the store for the inspector: every column of its step table, and the rollouts of the step it kept.

    ValueError if it kept none, or its config does not say of which step they are; ConfigError if this program no longer has
    its config.
    """
    config = from_dict(record.manifest["config"])
    kept = getattr(config, "keep_rollouts", None)
    if record.rollouts is None or kept is None:
        raise ValueError(
            f"run {record.key} kept no rollouts: run it again with keep_rollouts, the step whose rollouts are to be read"
        )
    graph, piece = _world(config)
    episodes = list(from_rollouts(record.rollouts, kept, graph.actions, graph.contexts, piece))
    steps = tuple(record.steps["step"].tolist())
    counts = Counter(map(workflow_of, episodes))
    workflows = tuple(each for each, _ in counts.most_common())
    shares = np.full((len(steps), len(workflows)), np.nan)
    shares[steps.index(kept)] = [counts[each] / len(episodes) for each in workflows]
    return Inspected(
        name=f"{record.manifest['study']}, seed {record.seed} ({record.key})",
        actions=graph.actions,
        steps=steps,
        rollouts=(config.prompts * config.group,) * len(steps),
        workflows=workflows,
        shares=shares,
        columns={name: record.steps[name].astype(float) for name in record.steps.names if name != "step"},
        episodes=episodes,
        absent={**absent_from(episodes), "workflows of other steps": f"the run kept the rollouts of step {kept} alone"},
        notes=(f"rung {record.manifest['rung']}, rollouts of step {kept}",),
    )


def _world(config: Any) -> tuple[Any, Any]:
    """Return the tool graph, which names actions and contexts, and what gives a token's text, if there are tokens."""
    task = getattr(config, "task", None)
    if task is None:
        return config.world.graph(), None
    vocabulary = getattr(task, "vocabulary", None)
    if vocabulary is not None:
        return task.world.graph(), lambda token: f" {vocabulary.word(token)}"
    from fullscale.model.network import tokenizer_of

    words = tokenizer_of(config.model.source)
    return task.world.graph(), lambda token: words.decode([token], skip_special_tokens=False)
