"""Verify emerges in a real network: suddenly, and only where the verifier is worth asking (A3, T5, H12).

Why. An answer is final, a search finds it half of the time, and a verify tool that is right nineteen times in twenty lets a
rejected answer be searched for once more: .73 instead of .5. The start verifies once in a hundred. The gradient of a rare
action is proportional to its probability, so its share first stands and then rises as an S. A verifier that is wrong seven
times in ten is worth less than none, and the enumerated update points away from it.

Design. The same decoder and the same GRPO as for the guess-first flip, AdamW at 2e-4, on 32 questions x 8 episodes. Two arms
that differ in the verifier alone and share their starts; every seed has a fact base, a start and a stream of its own.

Prediction. The signs of the enumerated gaps and the values of the two habits. For the rise there is none: twenty steps is
what the published run took for its other change, to guessing first. At constant speed in log-odds the wait to one half is
ln(1/p0) / 4.39 = 1.05 times the rise from .1 to .9: the table compares. A first look at seeds 0 to 7 at a rate of 5e-4 had
all of them there by step 15, too soon for a plateau to be seen; four pilot seeds, used for nothing else, then chose the rate
and the length.
"""

import numpy as np

from minimodel import presets
from minimodel.forecast import drawn_gap
from sim.mdp.worlds import Verify
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Prediction, above, below, claim, figures, median, rate, time

VERIFY = "decision/share/fresh/verify"
STEPS = 50
SEEDS = 8


def arms():
    """Return the runs: a verifier worth asking, and one worth less than none."""
    useful = replace(presets.verify(), {"steps": STEPS, "evaluation": None, "watched": 1})
    misleading = Verify(sensitivity=0.3, specificity=0.3, hit_after_reject=0.5)
    return {"useful verifier": useful, "misleading verifier": replace(useful, {"task.world.verify": misleading})}


@claim(
    "verify-emerges-in-a-network",
    says="A useful verifier that is used once in a hundred comes to be used in most episodes.",
    kind=rate(),
    region=above(0.5),
    predicts=Prediction(1.0, source="enumerated gap of the drawn world, -.13"),
    unit="share of seeds that verify more than half of the documents, by step 50",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    source="H11",
    reverses="the verifier: wrong more often than right, it is dropped",
)
@claim(
    "a-misleading-verifier-does-not-emerge",
    says="A verifier that is wrong seven times in ten comes to be used in most episodes in few runs or none.",
    kind=rate(),
    region=below(0.5),
    predicts=Prediction(0.0, source="enumerated gap of the drawn world, +.06"),
    unit="share of seeds",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    source="H12",
    reverses="the verifier",
)
@claim(
    "verify-rises-within-twenty-steps",
    says="Once it takes off, verify goes from one in ten documents to nine in ten within twenty steps at this rate.",
    kind=time(),
    region=below(20),
    unit="steps (of two updates) from .1 to .9",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    source="A3",
    reverses="the learning rate",
)
@claim(
    "verify-raises-the-reward",
    says="Once verify has emerged, runs earn more than at their start.",
    kind=median(),
    region=above(0.1),
    predicts=Prediction(0.225, source="values of the two habits in the drawn world, .725 and .5"),
    unit="mean reward of the last ten steps minus that of the first five",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    source="A3",
    reverses="the verifier",
)
def study_verify_emerges(study):
    points = arms()
    gaps = {label: drawn_gap(config, 0, "fresh/verify") for label, config in points.items()}
    if not gaps["useful verifier"] < 0 < gaps["misleading verifier"]:
        raise ValueError(f"the drawn world's gaps are {gaps}; they must differ in sign")
    runs = study.sweep(points)
    passed = {label: first_passages(r[VERIFY], 0.5) for label, r in runs.items()}
    adopted = {label: np.isfinite(at) for label, at in passed.items()}
    moved = {label: r["update/moved"][:, -1] > 0 for label, r in runs.items()}
    emerges, misled = "verify-emerges-in-a-network", "a-misleading-verifier-does-not-emerge"
    study.conclude(emerges, outcomes=adopted["useful verifier"], moved=moved["useful verifier"])
    study.control(emerges, "a misleading one does not", region=below(0.5), outcomes=adopted["misleading verifier"])
    study.conclude(misled, outcomes=adopted["misleading verifier"], moved=moved["misleading verifier"])
    study.control(misled, "a useful one does", region=above(0.5), outcomes=adopted["useful verifier"])
    r = runs["useful verifier"]
    low, high = (first_passages(r[VERIFY], level) for level in (0.1, 0.9))
    rise = high - low  # NaN without a take-off, and where it is not over by the end
    moves = moved["useful verifier"]
    study.conclude("verify-rises-within-twenty-steps", times=rise, censored_at=STEPS, moved=moves)
    reward = r["train/reward"]
    gain = {label: _gain(x["train/reward"]) for label, x in runs.items()}
    study.conclude("verify-raises-the-reward", values=gain["useful verifier"], moved=moves)
    study.control(
        "verify-raises-the-reward", "a misleading one does not", region=below(0.1), values=gain["misleading verifier"]
    )
    study.figure(
        emerges,
        figures.bands(
            runs, VERIFY, title="Verify emerges by itself, where it is worth it", ylabel="P(verify | document in hand)"
        ),
        caption=f"Exact probability; {SEEDS} seeds an arm, mean and 10-90 % band.",
        headline=True,
    )
    header = ("seed", "start", "lowest", "step of .1", "of .5", "of .9", "wait / rise", "reward first 5", "last 10")
    half = passed["useful verifier"]
    rows = [
        (
            s,
            float(r[VERIFY][i, 0]),
            float(r[VERIFY][i].min()),
            *(float(x[i]) if np.isfinite(x[i]) else "-" for x in (low, half, high)),
            float(half[i] / rise[i]) if np.isfinite(rise[i]) else "-",
            float(reward[i, :5].mean()),
            float(reward[i, -10:].mean()),
        )
        for i, s in enumerate(r.seeds)
    ]
    study.table(
        emerges,
        header,
        rows,
        caption="Enumerated gaps: {:+.3f} (useful) and {:+.3f} (misleading).".format(*gaps.values()),
    )


def _gain(reward):
    """Return the mean of the last ten steps minus that of the first five, by seed."""
    return reward[:, -10:].mean(1) - reward[:, :5].mean(1)
