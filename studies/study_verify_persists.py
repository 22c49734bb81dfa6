"""The same push, two fates: verify stays where guessing returns (H12).

Why. The return decides what happens after a push ends. Verifying raises it, so its field holds the new behaviour; guessing
lowers it, so its field takes the old one back, after a time exponential in how far the push went.

Design. One drive (.38 logits a step for 30 steps from log-odds -4.14, SGD 2.4) on the verify decision of a world where
verifying pays, and on the start decision of seed A's. After 200 further steps a behaviour *persists* if its share is above
.9. Verify also emerges without any push, under the natural gradient.
"""

import numpy as np

from sim.learning.presets import drive, verify, verify_driven
from sim.mdp.policy import tables
from sim.mdp.theory import Objective, effective_gap, recovery_steps
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Prediction, above, below, claim, figures, median, rate, rate_difference, time, within

SEEDS = 32
STEPS = 300
VERIFY, GUESS = "decision/share/fresh/verify", "decision/share/start/answer"


@claim(
    "verify-persists-where-guessing-returns",
    says="After the same push, verifying persists and guessing does not.",
    kind=rate_difference(),
    region=above(0.8),
    predicts=Prediction(1.0, source="sign of the effective gap; recovery in about 25 steps"),
    unit="share of seeds in which it persists, verify minus guess",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A2 and A3; H12",
    reverses="the verifier: one that lowers the return (sensitivity .6, specificity .5, hit .2) is given up as well",
)
@claim(
    "guessing-returns-on-schedule",
    says="Guessing falls back below one half about as fast as the fall of a particle in its exact field.",
    kind=median(),
    region=within(-15, 15),
    predicts=Prediction(0.0, source="recovery law T_rec = 2 (s(z_m) - s(z)) / (eta Delta), s(z) = z + sinh z"),
    unit="steps late",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A2; theory T4",
    reverses="the push: after 45 steps of it guessing does not come back within 400",
)
@claim(
    "verify-emerges-by-itself",
    says="Verify emerges from one use in a hundred without a push, and its S-curve has the predicted midpoint.",
    kind=time(),
    region=within(75, 105),
    predicts=Prediction(
        91, low=86, high=97, source="ln(1/p0 - 1) / (eta Delta), Delta .159 at the start, .177 once pr = 1"
    ),
    unit="steps to one half",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A3; theory T5",
    reverses="the optimiser: SGD waits 1 / p0",
)
def study_verify_persists(study):
    push = {"drive.duration": 30, "steps": STEPS}
    driven = {"verify, pushed": replace(verify_driven(), push), "guess, pushed": replace(drive(), push)}
    runs = study.sweep(driven | {"verify, by itself": replace(verify(), {"steps": STEPS})})
    harmful = {"world.verify.sensitivity": 0.6, "world.verify.specificity": 0.5, "world.verify.hit_after_reject": 0.2}
    short = harmful | {"drive.duration": 14}  # to log-odds of about 1: nothing restores search while verify is rare
    bad = study.sweep({"harmful verifier": replace(driven["verify, pushed"], short)}, seeds=study.seeds(16))
    share = {"verify, pushed": VERIFY, "guess, pushed": GUESS, "verify, by itself": VERIFY}
    persists = {label: _persists(runs[label], column) for label, column in share.items()}
    study.conclude(
        "verify-persists-where-guessing-returns", treated=persists["verify, pushed"], control=persists["guess, pushed"]
    )
    study.control(
        "verify-persists-where-guessing-returns",
        "a harmful verifier is given up",
        kind=rate(),
        region=below(0.25),
        outcomes=_persists(bad["harmful verifier"], VERIFY),
    )
    study.conclude("guessing-returns-on-schedule", values=_lateness(runs["guess, pushed"], driven["guess, pushed"]))
    emerged = first_passages(runs["verify, by itself"][VERIFY], 0.5)
    study.conclude("verify-emerges-by-itself", times=emerged, censored_at=STEPS - 1)
    study.figure(
        "verify-persists-where-guessing-returns",
        _figure(runs, share),
        caption=f"Exact shares, {SEEDS} seeds, mean and 10-90 % band; pushes from step 20 to 50.",
    )
    study.table(
        "verify-persists-where-guessing-returns",
        ("arm", "persists", "share at the end, mean", "reward before the push", "reward at the end"),
        [
            (
                label,
                f"{int(persists[label].sum())} of {SEEDS}",
                float(runs[label][column][:, -1].mean()),
                float(runs[label]["train/reward"][:, :20].mean()),
                float(runs[label]["train/reward"][:, -20:].mean()),
            )
            for label, column in share.items()
        ],
    )


def _persists(runs, column):
    """Whether the share is above .9 two hundred steps after it first passed one half (or at the end)."""
    share = runs[column]
    first = first_passages(share, 0.5)
    later = np.where(np.isfinite(first), np.minimum(first + 200, share.shape[1] - 1), 0).astype(int)
    return np.isfinite(first) & (share[np.arange(len(share)), later] > 0.9)


def _lateness(runs, config):
    """Steps from the end of the push to a share below .5, minus the exact field's."""
    end = config.drive.start + config.drive.duration
    back = first_passages(1 - runs[GUESS][:, end:], 0.5)
    graph = config.graph()
    gap = effective_gap(graph, tables(graph, np.array([0.0, 4.85, -4.2])), Objective())
    predicted = [recovery_steps(config.optimiser.rate, gap, z, 0.0) for z in runs["policy/logit/start/answer"][:, end]]
    return back - np.array(predicted)


def _figure(runs, share):
    made, axes = figures.figure(rows=1, columns=2, title="The same push: verify stays", size=(8.2, 3.8))
    figures.bands(
        {"verify, pushed": runs["verify, pushed"]},
        share["verify, pushed"],
        ylabel="P(verify | fresh evidence)",
        onset=20,
        axes=axes[0],
    )
    figures.bands(
        {"guess, pushed": runs["guess, pushed"]},
        share["guess, pushed"],
        ylabel="P(answer | start)",
        title="guessing returns",
        onset=20,
        axes=axes[1],
    )
    return made
