"""The schedule of a simulated cluster, followed by a real network: it delays a transition and makes none (H5).

Why. In theory and in the simulator old data makes no flip, and with PPO's clip it holds growth back. There the lag was a
number. Here it is what AReaL's capacity rule makes of heavy-tailed tools: every turn of every rollout is written by the
version that the simulated cluster had on its engine then, so that a rollout may mix versions and some are older than eta.

Design. A cluster of eight engines plays a chain of four turns under the capacity rule with eta = 4, taken as completed; the
network is trained on batches whose turns are written by those versions, turn by turn. One schedule, the same for all seeds.
World, losses, starts and random numbers are those of the studies without a schedule. The arm that must flip is the
length-weighted loss inside its window, under the schedule of eta = 0, which is synchronous.

Prediction. No flips where the enumerated push is towards searching. The mean lag of the schedule is that of a constant lag
of four steps, for which another study has on record that verify waits 66 steps at a clip of .2, and 14 without a lag.

After a look. The arm that must flip was the length-weighted loss at eta = 4. On the seeds of the record it flipped none of
eight in 45 steps, and none of three pilot seeds in 200: under this lag the clip holds that flip back as well. It is shown,
without a claim, since it was seen before it was thought of.
"""

import numpy as np

from minimodel import presets
from minimodel.agent.schedule import OnCluster
from sim.cluster.presets import areal
from sim.cluster.workload import Chain
from sim.learning.normalisers import TokenMean
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Prediction, above, below, claim, figures, median, rate

GUESS, VERIFY = "decision/share/start/answer", "decision/share/fresh/verify"
SEEDS, FLIP_STEPS, VERIFY_STEPS, ETA = 8, 45, 100, 4
ON_RECORD = 66 / 14  # wait of verify at a constant lag of four steps over that without, study_clip_speed_limit


def schedule(steps, eta=ETA):
    """Return the schedule: batches of 32 x 8 rollouts of four turns, as the network's."""
    chain = Chain(turns=4, tools=("search",), observed=200)
    return OnCluster(replace(areal(eta=eta), {"workload.task": chain, "engines.count": 8, "steps": steps}))


def arms():
    """Return the runs: two losses under the schedule, and the emergence of verify with and without it."""
    plain = {"start.script.guess": 0.06, "steps": FLIP_STEPS, "evaluation": None, "watched": 1}
    inside = replace(presets.retry(), plain | {"schedule": schedule(FLIP_STEPS)})
    emerge = replace(presets.verify(), {"steps": VERIFY_STEPS, "evaluation": None, "watched": 1})
    return {
        "token mean": replace(inside, {"rule.normaliser": TokenMean()}),
        "sequence mean": inside,
        "sequence mean, eta 0": replace(inside, {"schedule": schedule(FLIP_STEPS, eta=0)}),
        "verify, synchronous": emerge,
        "verify, on the cluster": replace(emerge, {"schedule": schedule(VERIFY_STEPS)}),
    }


@claim(
    "a-real-schedule-flips-no-network",
    says="On the cluster's schedule a token mean flips few runs or none.",
    kind=rate(),
    region=below(0.5),
    predicts=Prediction(
        0.0, source="the enumerated push is towards searching, and a lag makes no flip in the simulator"
    ),
    unit="share of seeds whose P(answer | start) passes one half at some step before 45",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H5",
    reverses="the average and the lag: a sequence mean, inside its window, at eta 0",
)
@claim(
    "a-real-schedule-delays-verify",
    says="On the cluster's schedule, with PPO's clip, verify waits more than half as long again as in synchronous training.",
    kind=median(),
    region=above(1.5),
    predicts=Prediction(ON_RECORD, source="a constant lag of four steps, study_clip_speed_limit"),
    unit="step of one half on the cluster (at least the steps run), over that of the synchronous run",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H5",
    reverses="eta: at 0 the schedule is synchronous",
)
def study_schedule_in_a_network(study):
    runs = study.sweep(arms())
    moved = {label: r["update/moved"][:, -1] > 0 for label, r in runs.items()}
    flips = {label: np.isfinite(first_passages(runs[label][GUESS], 0.5)) for label in list(runs)[:3]}
    study.conclude("a-real-schedule-flips-no-network", outcomes=flips["token mean"], moved=moved["token mean"])
    study.control(
        "a-real-schedule-flips-no-network",
        "under a sequence mean without a lag they do",
        region=above(0.5),
        outcomes=flips["sequence mean, eta 0"],
    )
    rows = [(label, int(x.sum()), len(x), float(runs[label][GUESS][:, -1].mean())) for label, x in flips.items()]
    study.table("a-real-schedule-flips-no-network", ("arm", "flipped", "seeds", "share at the end, mean"), rows)
    waits = {label: _wait(runs[label]) for label in ("verify, synchronous", "verify, on the cluster")}
    study.conclude(
        "a-real-schedule-delays-verify",
        values=waits["verify, on the cluster"] / waits["verify, synchronous"],
        moved=moved["verify, on the cluster"],
    )
    study.figure(
        "a-real-schedule-delays-verify",
        figures.bands(
            {label: runs[label] for label in waits},
            VERIFY,
            title="The schedule of a cluster delays what emerges",
            ylabel="P(verify | a document in hand)",
        ),
        caption=f"Mean and 10-90 % band over {SEEDS} seeds an arm; AReaL's rule with eta = {ETA}, PPO's clip at .2.",
    )
    lag = _lags(VERIFY_STEPS)
    rows = [(turn, float(lag[..., turn].mean()), int(lag[..., turn].max())) for turn in range(lag.shape[-1])]
    study.table(
        "a-real-schedule-delays-verify", ("turn", "mean lag, versions", "largest"), rows, "What the schedule is."
    )


def _wait(runs):
    """Return the step of one half, or the number of steps where it is not reached."""
    at = first_passages(runs[VERIFY], 0.5)
    return np.where(np.isfinite(at), at, VERIFY_STEPS)


def _lags(steps):
    """Return the lag of every turn the schedule has, [steps, Q, G, K]."""
    made, shape = schedule(steps), (32, 8, 4)
    return np.stack([step - made.versions(step, shape) for step in range(steps)])
