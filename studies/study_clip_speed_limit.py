"""Under stale data PPO's clip is a speed limit on rare behaviours: it delays what emerges and does not stop it (H5).

Why. Data that is k steps old was sampled by a policy in which the rare action was rarer. Its ratio is above 1 as soon as it
grows, and it is the first of all tokens to reach 1 + clip; from there on the clip takes its winners out of the gradient
until the sampler has caught up. So its log-odds can grow by about ln(1 + clip) in k + 1 steps, whatever the gradient says.
A weight that truncates the ratio keeps the gradient, and so does one without a bound; a mask on both sides loses it as well.

Design. The world in which verify emerges, with a lag of four steps, under weights that differ in nothing but what they do
outside their bounds; and one clip at lags of two and eight. All arms share credit, normaliser, optimiser, starts and random
numbers.

Prediction. At ln(1 + clip) / (k + 1) a share of one half is reached from one in a hundred in 4.6 (k + 1) / ln(1 + clip)
steps: 126 at .2 and four steps. Truncation and no bound are as quick as without a lag.
"""

import numpy as np
from scipy.special import logit

from minimodel import presets
from minimodel.agent.schedule import Lag
from sim.learning.weights import Bounded, Region, ppo_clip, truncated
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Prediction, above, below, claim, figures, median, rate, within
from studies.kit.slopes import power

VERIFY = "decision/share/fresh/verify"
STEPS, LAG = 150, 4
WAIT = 15  # about what the same world takes without a lag, in study_verify_emerges
SEEDS = 8


def arms():
    """Return the runs: one clip without a lag, seven weights with one of four steps, and the clip at two other lags."""
    plain = replace(presets.verify(), {"steps": STEPS, "evaluation": None, "watched": 1})
    stale = replace(plain, {"schedule": Lag(LAG)})
    weights = {f"clip {c}": ppo_clip(c, c) for c in (0.1, 0.2, 0.4)} | {
        "clip .2, .28": ppo_clip(0.2, 0.28),
        "mask on both sides": Bounded(positive=Region(low=0.8, high=1.2)),
        "truncated at 5": truncated(5.0),
        "no bound": Bounded(),
    }
    found = {"no lag, clip 0.2": plain}
    found |= {label: replace(stale, {"rule.weight": weight}) for label, weight in weights.items()}
    return found | {lagging(k): replace(plain, {"schedule": Lag(k), "rule.weight": ppo_clip(0.2, 0.2)}) for k in (2, 8)}


def lagging(lag):
    """Return the label of the clip at .2 under a lag."""
    return "clip 0.2" if lag == LAG else f"clip 0.2, lag {lag}"


def limit(clip):
    """Return the steps from .01 to one half at ln(1 + clip) / (lag + 1) a step."""
    return float(np.log(99) * (LAG + 1) / np.log1p(clip))


@claim(
    "the-clip-delays-what-emerges-under-a-lag",
    says="With PPO's clip at .2 a lag of four steps makes verify wait more than twice as long.",
    kind=median(),
    region=above(2.0),
    predicts=Prediction(limit(0.2) / WAIT, source="the speed limit, over the wait without a lag"),
    unit="step of one half under the lag, over that without",
    seeds=SEEDS,
    expect="undecided",
    rungs=("minimodel",),
    long=True,
    source="H5",
    reverses="the clip: truncated ratios are delayed by little",
)
@claim(
    "the-clip-does-not-suppress-for-good",
    says="Under that lag and clip verify emerges all the same.",
    kind=rate(),
    region=above(0.5),
    predicts=Prediction(1.0, source="the speed limit: 126 steps of 150"),
    unit="share of seeds, by step 150",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H5",
    reverses="the clip: at .1 the limit is 241 steps",
)
@claim(
    "truncation-is-not-delayed-by-a-lag",
    says="Under the same lag, ratios truncated at 5 let verify emerge before the clip does.",
    kind=median(),
    region=below(0.7),
    predicts=Prediction(WAIT / limit(0.2), source="the wait without a lag, over the speed limit"),
    unit="step of one half under truncation, over that under the clip",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H5; CISPO",
    reverses="the weight",
)
@claim(
    "the-speed-limit-is-the-logarithm-of-the-clip",
    says="Between clips of .1 and .4 the fastest growth of log-odds is in proportion to ln(1 + clip).",
    kind=median(),
    region=within(0.6, 1.4),
    predicts=Prediction(1.0, source="ln(1 + clip) / (lag + 1)"),
    unit="slope of log speed on log of ln(1 + clip)",
    seeds=SEEDS,
    expect="undecided",
    rungs=("minimodel",),
    long=True,
    source="H5",
    reverses="the lag: without one the first minibatch has ratio 1 and no clip binds",
)
@claim(
    "the-speed-limit-falls-as-the-lag",
    says="Between lags of two and eight steps the fastest growth of log-odds is in inverse proportion to the lag plus one.",
    kind=median(),
    region=within(-1.4, -0.6),
    predicts=Prediction(-1.0, source="ln(1 + clip) / (lag + 1)"),
    unit="slope of log speed on log of the lag plus one",
    seeds=SEEDS,
    expect="refuted",
    rungs=("minimodel",),
    long=True,
    source="H5",
    reverses="the clip: without a bound the lag costs little",
)
def study_clip_speed_limit(study):
    points = arms()
    runs = study.sweep(points)
    half = {label: first_passages(r[VERIFY], 0.5) for label, r in runs.items()}
    seen = {label: np.where(np.isfinite(at), at, STEPS) for label, at in half.items()}  # at least so many steps
    moved = {label: r["update/moved"][:, -1] > 0 for label, r in runs.items()}
    clip = "clip 0.2"
    study.conclude(
        "the-clip-delays-what-emerges-under-a-lag", values=seen[clip] / seen["no lag, clip 0.2"], moved=moved[clip]
    )
    study.control(
        "the-clip-delays-what-emerges-under-a-lag",
        "ratios truncated at 5 are not delayed",
        region=below(2.0),
        values=seen["truncated at 5"] / seen["no lag, clip 0.2"],
    )
    study.conclude("the-clip-does-not-suppress-for-good", outcomes=np.isfinite(half[clip]), moved=moved[clip])
    study.control(
        "the-clip-does-not-suppress-for-good",
        "by step 30 it has emerged in few",
        region=below(0.5),
        outcomes=half[clip] < 30,
    )
    study.conclude("truncation-is-not-delayed-by-a-lag", values=seen["truncated at 5"] / seen[clip])
    speed = {label: fastest(r[VERIFY]) for label, r in runs.items()}
    study.conclude(
        "the-speed-limit-is-the-logarithm-of-the-clip",
        values=power({float(np.log1p(c)): speed[f"clip {c}"] for c in (0.1, 0.2, 0.4)}),
    )
    study.conclude(
        "the-speed-limit-falls-as-the-lag", values=power({float(k + 1): speed[lagging(k)] for k in (2, LAG, 8)})
    )
    study.figure(
        "the-clip-delays-what-emerges-under-a-lag",
        figures.bands(
            {label: runs[label] for label in ("no lag, clip 0.2", "clip 0.2", "mask on both sides", "truncated at 5")},
            VERIFY,
            title="Under a lag of four steps the clip delays what emerges; truncation does not",
            ylabel="P(verify | document in hand)",
        ),
        caption=f"Exact probability; {SEEDS} seeds an arm, mean and 10-90 % band.",
    )
    header = (
        "weight",
        "emerged",
        "step of .5, median",
        "fastest, log-odds a step",
        "limit ln(1 + clip) / (lag + 1)",
        "step of .5 over the limit's",
        "clip fraction, largest",
        "share at the end, lowest",
    )
    limits = {f"clip {c}": float(np.log1p(c) / (LAG + 1)) for c in (0.1, 0.2, 0.4)}
    limits |= {lagging(k): float(np.log1p(0.2) / (k + 1)) for k in (2, 8)}
    rows = [
        (
            label,
            f"{int(np.isfinite(half[label]).sum())} of {len(half[label])}",
            float(np.median(seen[label])),
            float(np.median(speed[label])),
            limits.get(label, "-"),
            float(np.median(seen[label])) * limits[label] / np.log(99) if label in limits else "-",
            float(np.nanmax(r["update/clip/outside"])),
            float(r[VERIFY][:, -10:].mean(1).min()),
        )
        for label, r in runs.items()
    ]
    study.table("the-clip-delays-what-emerges-under-a-lag", header, rows)
    wait = {
        "clip": power({float(np.log1p(c)): seen[f"clip {c}"] for c in (0.1, 0.2, 0.4)}),
        "lag": power({float(k + 1): seen[lagging(k)] for k in (2, LAG, 8)}),
    }
    study.note(
        "the-speed-limit-falls-as-the-lag",
        "Growth comes in spurts that are several times as fast as the limit allows, so it is none. What was found only "
        "afterwards, and is no claim: the whole wait behaves nearly as the law says, with a median slope of "
        f"{np.median(wait['lag']):.2f} on the log of the lag plus one (1 by the law) and {np.median(wait['clip']):.2f} on "
        f"that of ln(1 + clip) (-1), at about half of the law's length. Runs that had not come to one half count as "
        f"{STEPS} steps.",
    )


def fastest(share):
    """Return the largest growth of log-odds over ten steps, a step, by seed; while the share is below .9."""
    odds = logit(share)
    growth = (odds[:, 10:] - odds[:, :-10]) / 10
    return np.where(share[:, 10:] < 0.9, growth, -np.inf).max(1)
