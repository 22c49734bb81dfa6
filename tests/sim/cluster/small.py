"""Small clusters with draws given by hand, and what happened on them as short rows."""

from dataclasses import replace as changed

import numpy as np

from sim.cluster.draws import Draws
from sim.cluster.events import Kind
from sim.cluster.plan import plan
from sim.cluster.run import run_plan
from sim.cluster.scheduling import Capacity, greedy
from sim.cluster.spec import Cluster, Engines, Learner, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Capped, Exponential
from sim.records.config import replace

__all__ = ["GIVEN", "GivenDraws", "a_tool", "chunks_of", "played", "rows", "small", "takes"]

GIVEN = Exponential(1.0)
"""A law of scale 1: a run with given draws has just these durations, or numbers of tokens."""
AT_MOST = 1000.0


def small(changes=None, batch=1, turns=1, most=AT_MOST):
    """A rollout is a group; a token takes 1 s however many are written; training takes no time, and loading none.

    No batch may be ahead, groups are taken as they are completed, and one version is made.
    """
    law = Capped(GIVEN, most)
    base = Cluster(
        workload=Workload(
            task=Chain(turns=turns),
            group=1,
            tokens=(("answer", law), *((("tool", law),) if turns > 1 else ())),
        ),
        engines=Engines(base_s=1.0),
        admission=Capacity(0),
        order=greedy(),
        learner=Learner(batch=batch),
        steps=1,
    )
    return replace(base, changes or {})


def a_tool(**options):
    """One tool pool whose times are given."""
    return (ToolPool("tool", ("tool",), GIVEN, **options),)


class GivenDraws(Draws):
    """Draws of which some are given: tokens by rollout and turn, tool times and luck by rollout, turn and attempt.

    Prompts follow each other, members within; one after the last that is given has the draws of the last. `again` holds the
    tokens of prompts that are played again, by (prompt, play).
    """

    def __init__(self, made, tokens, tools=None, failures=None, again=None, series=None):
        super().__init__(made, 0, "given")
        self.tokens, self.tools, self.failures = tokens, tools, failures
        self.plays, self.given = again or {}, series or {}

    def _filled(self, block, tokens):
        def laid(values, shape):
            found = np.zeros(shape)
            for row in range(shape[0]):
                value = np.asarray(values[min(row, len(values) - 1)], float)
                found[row][tuple(slice(n) for n in value.shape)] = value
            return found

        found = changed(block, length=laid(tokens, block.length.shape[:2])[..., None])
        if self.tools is not None:
            found = changed(found, latency=laid(self.tools, block.latency.shape[:3])[..., None])
        return found if self.failures is None else changed(found, failure=laid(self.failures, block.failure.shape))

    def block(self, block):
        assert block == 0, "a case by hand has less than 64 prompts"
        return self._filled(super().block(block), self.tokens)

    def again(self, prompt, play):
        return self._filled(super().again(prompt, play), self.plays[prompt, play])

    def series(self, name, index, law, number):
        values = self.given.get((name, index))
        return super().series(name, index, law, number) if values is None else ([*values, 1e9])[number]


def played(cluster, tokens, processes=(), **given):
    """The run of a cluster with these draws, and its log. One number stands for a rollout of one turn.

    The source holds no more prompts than have draws, unless the cluster says how many.
    """
    if cluster.workload.prompts is None:
        cluster = replace(cluster, {"workload.prompts": len(tokens) // cluster.workload.members})
    made = plan(cluster)
    tokens = [[x] if isinstance(x, int | float) else x for x in tokens]
    return run_plan(made, GivenDraws(made, tokens, **given), "simpy", record=True, processes=processes)


def rows(run, *kinds, show=("t_s", "kind", "traj")):
    """The events of these kinds as tuples of the columns to show; kinds by name."""
    return [
        tuple(Kind(event.kind).name if name == "kind" else getattr(event, name) for name in show)
        for event in run.log
        if event.kind in kinds
    ]


def chunks_of(run, traj):
    """How one rollout was written: (start, end, how it ended, version, tokens) of each chunk."""
    found, start = [], 0.0
    for event in run.log:
        if event.traj == traj and event.kind == Kind.GEN_START:
            start = event.t_s
        elif event.traj == traj and event.kind in (Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT, Kind.GEN_ABORT):
            found.append((start, event.t_s, Kind(event.kind).name[4:], event.version, event.value))
    return found


def takes(run):
    """When which group was taken: (t, group)."""
    return rows(run, Kind.TRAIN_TAKE, show=("t_s", "entity"))
