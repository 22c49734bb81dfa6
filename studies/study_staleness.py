"""Staleness does not drive the flips; with a clip it holds them back (H5).

Why. With lag k an older policy samples. Without a clip the importance ratio undoes that: the mean pull is that of the
present policy but for the group's baseline. PPO's clip drops, of what is left, the terms that would carry the policy
further from the one that sampled. Where noise lifts guessing, these are the terms that favour it, so the return pulls back
harder; where guessing falls, those that disfavour it. A lag with a clip is a drag: fewer flips, not more.

Prediction. Walks of the start logit under Adam, noise and the lagged, clipped pull (sim.mdp.theory.lag), which know
nothing of the loop: .32, .29 and .24 of seeds flip in 300 steps at lags 0, 4 and 16, and .30 at lag 32 without a clip.
"""

import numpy as np
from scipy.special import expit

from sim.learning.presets import noise
from sim.learning.weights import Bounded
from sim.mdp.exact import trajectories
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, expected_advantage
from sim.mdp.theory.escape import adam_step, momentum_walks
from sim.mdp.theory.lag import lagged_pull
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Control, Prediction, above, below, claim, figures, trend
from studies.kit.intervals import wilson

GUESS, LOGIT = "decision/share/start/answer", "start/answer"
SEEDS, DOSE_SEEDS = 96, 64
LAGS, DOSES = (0, 4, 16), (0.1, 0.5, 1.0)
DOSE = "gradient noise .1 to 1 at lag 0"
NO_CLIP = Bounded()  # the ratio as it is


@claim(
    "staleness-does-not-raise-flips",
    says="With PPO's clip, flips do not become more frequent as the policy that samples falls behind.",
    kind=trend(),
    region=below(0.1),
    predicts=Prediction(-0.08, source="walks with the lagged, clipped pull; 29, 22, 16 of 64 in a prototype"),
    unit="share of seeds that flip in 300 steps, lag 16 minus lag 0",
    seeds=SEEDS,
    expect="supported",
    source="H5",
    reverses="noise.sd: a dose of 1 in place of .1 raises them",
    controls=(Control(DOSE, above(0.1)),),
)
@claim(
    "nor-without-a-clip",
    says="Without a clip flips do not become more frequent with lag either, up to 32 steps.",
    kind=trend(),
    region=below(0.1),
    predicts=Prediction(-0.02, source="walks with the lagged pull: the importance ratio undoes the lag"),
    unit="share of seeds that flip in 300 steps, lag 32 minus lag 0",
    seeds=SEEDS,
    expect="supported",
    source="H5",
    reverses="noise.sd: a dose of 1 in place of .1 raises them",
    controls=(Control(DOSE, above(0.1)),),
)
def study_staleness(study):
    runs = study.sweep(arms(), seeds=study.seeds(SEEDS), block=SEEDS)
    runs |= study.sweep({f"noise {s}": noisy(s) for s in DOSES if s != 0.5}, seeds=study.seeds(DOSE_SEEDS), block=SEEDS)
    flips = {label: np.isfinite(first_passages(r[GUESS], 0.5)) for label, r in runs.items()}
    study.conclude("staleness-does-not-raise-flips", arms={lag: flips[f"lag {lag}"] for lag in LAGS})
    study.conclude("nor-without-a-clip", arms={0: flips["lag 0"], 32: flips["lag 32, no clip"]})
    few = len(flips[f"noise {DOSES[0]}"])
    flips["noise 0.5"] = flips["lag 0"][:few]
    for name in ("staleness-does-not-raise-flips", "nor-without-a-clip"):
        study.control(name, DOSE, arms={s: flips[f"noise {s}"] for s in DOSES})
    _show(study, runs, flips)


def noisy(sd=0.5, lag=0, weight=None):
    """NOISE-E for 300 steps; few questions a batch, since the injected noise dominates that of sampling."""
    changed = {} if weight is None else {"rule.weight": weight}
    return replace(noise(sd), {"prompts": 16, "steps": 300, "lag": lag, **changed})


def arms():
    """The three lags with a clip, and twice the longest without."""
    return {f"lag {lag}": noisy(lag=lag) for lag in LAGS} | {"lag 32, no clip": noisy(lag=32, weight=NO_CLIP)}


def predicted_flips(config, walks=2048):
    """Share of walks of the start logit that reach 0, under noise and the lagged, clipped pull."""
    pull, o, m = mean_pull(config), config.optimiser, config.features.shared

    def field(z, behaviour):
        return adam_step(pull(z, behaviour), o.rate, config.noise.sd, m)

    start = dict(config.habit)[LOGIT]
    paths = momentum_walks(field, start, o.b1, config.steps, walks, np.random.default_rng(0), config.lag)
    return float((paths >= 0).any(1).mean())


def mean_pull(config):
    """The expected gradient of the start logit, with the other decisions at their habits."""
    graph, others = config.graph(), config.policy().z0[1:]
    success = np.zeros((2, len(graph.share)))
    for row, z in enumerate((40.0, -40.0)):  # guess first, search first
        for t in trajectories(graph, tables(graph, np.array([z, *others]))):
            success[row, t.kind] += t.probability * t.reward
    bound = config.rule.weight.positive.high
    clip = None if bound is None else bound - 1
    return lagged_pull(graph.share, *success, lambda r, p: expected_advantage(r, p, Objective()), clip)


def _show(study, runs, flips):
    configs = arms() | {f"noise {s}": noisy(s) for s in DOSES}
    foreseen = {label: predicted_flips(config) for label, config in configs.items()}
    shares = [float(flips[label].mean()) for label in configs]
    ends = np.array([wilson(int(flips[label].sum()), len(flips[label])) for label in configs])
    study.figure(
        "staleness-does-not-raise-flips",
        figures.dots(
            [f"{label} (n={len(flips[label])})" for label in configs],
            shares,
            *ends.T,
            predicted=list(foreseen.values()),
            title="Noise makes flips; lag does not",
            unit="share of seeds that flip in 300 steps",
            interval="95 % Wilson interval",
        ),
        caption="Lags at noise .5, doses at lag 0. Diamonds: 2,048 walks of the reduced model.",
    )
    rows = [
        (
            label,
            int(flips[label].sum()),
            len(flips[label]),
            foreseen[label],
            float((runs[label][GUESS] > 0.5).sum() / max(flips[label].sum(), 1)) if label in runs else "as lag 0",
        )
        for label in configs
    ]
    study.table(
        "nor-without-a-clip", ("arm", "flips", "seeds", "predicted share", "steps above one half per flipped run"), rows
    )
    pull = mean_pull(noisy())
    gap = [
        float(-pull(np.array([z]), np.array([q]))[0] / (expit(z) * expit(-z)))
        for z, q in ((-2, -2), (-2, -3), (-3, -2))
    ]
    study.note(
        "staleness-does-not-raise-flips",
        f"What the clip does, exactly: at log-odds -2 the effective gap is {gap[0]:.2f} on policy and {gap[1]:.2f} for a "
        f"batch sampled at -3, while guessing rises. At -3 for a batch sampled at -2, while it falls, it is {gap[2]:.2f}.",
    )
