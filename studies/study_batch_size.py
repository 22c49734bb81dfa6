"""Larger batches flip less, and only because the noise falls (H6).

Why. The mean gradient of Q questions carries noise of order Q^(-1/2): that of other tokens, which reaches the start decision
through shared weights. Under Adam a step of the walk keeps its size while the pull back grows as one over the noise: the
quasi-potential, 2 Delta g / (alpha s), rises as the root of Q. The decision's own sampling noise is small beside that.

Design. In this simulator the noise is injected and does not know Q. Each config therefore scales it openly:
sd = .1 (Q / 128)^(-1/2), on batches small enough for a study to afford. That the real noise scales so is an assumption
here and not a finding; what is measured is what such noise does and that, with the noise held at its dose, the batch alone
does nothing.

Prediction. Walks of the start logit under Adam's first moment and the mean pull, which know nothing of the loop: .40, .25
and .07 of seeds flip in 250 steps at noise .8, .4 and .2, which 2, 8 and 32 questions get.
"""

import numpy as np

from sim.learning.presets import noise
from sim.mdp.theory.drift import gap_along
from sim.mdp.theory.escape import adam_diffusion, momentum_walks
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Prediction, below, claim, figures, rate_difference, trend, within

GUESS = "decision/share/start/answer"
SEEDS = 96
BATCHES, STEPS = (2, 8, 32), 250
AT_128 = 0.1
"""Noise on each shared direction that a batch of 128 questions would have."""


@claim(
    "larger-batches-flip-less",
    says="With gradient noise that falls as the root of the batch, flips become rarer from 2 to 32 questions a batch.",
    kind=trend(),
    region=below(-0.1),
    predicts=Prediction(
        -0.33, source="walks with Adam's first moment at noise .8 and .2; 13 and 1 of 24 in a prototype"
    ),
    unit="share of seeds that flip in 250 steps, 32 questions minus 2",
    seeds=SEEDS,
    expect="supported",
    source="H6",
    reverses="noise held at its dose: flips do not depend on the batch",
)
@claim(
    "batch-size-alone-does-nothing",
    says="With the noise held at its dose, sixteen times more questions flip no fewer seeds.",
    kind=rate_difference(),
    region=within(-0.2, 0.2),
    predicts=Prediction(
        0.0, source="the sampling noise of 2 questions is below .04 on a direction, a twentieth of the dose"
    ),
    unit="share of seeds that flip in 250 steps, 32 questions minus 2, noise .8 at both",
    seeds=SEEDS,
    expect="supported",
    source="H6",
    reverses="noise.sd: scaled with the batch, to .2 at 32 questions, fewer seeds flip",
)
def study_batch_size(study):
    points = {f"{Q} questions": batch(Q) for Q in BATCHES} | {"32 questions, noise .8": batch(32, 0.8)}
    runs = study.sweep(points, block=SEEDS)
    flips = {label: np.isfinite(first_passages(r[GUESS], 0.5)) for label, r in runs.items()}
    scaled = {Q: flips[f"{Q} questions"] for Q in BATCHES}
    study.conclude("larger-batches-flip-less", arms=scaled)
    study.conclude("batch-size-alone-does-nothing", treated=flips["32 questions, noise .8"], control=scaled[2])
    study.control(
        "batch-size-alone-does-nothing",
        "32 questions with their own noise",
        region=below(-0.1),
        treated=scaled[32],
        control=scaled[2],
    )
    fine = np.geomspace(1.6, 40, 7)
    study.figure(
        "larger-batches-flip-less",
        figures.dose(
            BATCHES,
            list(scaled.values()),
            predicted=(fine, [predicted_flips(batch(8, noise_of(Q))) for Q in fine]),
            log=True,
            title="Larger batches flip less where the noise falls with them",
            xlabel="questions a batch",
            ylabel=f"share of seeds that flip in {STEPS} steps",
        ),
        caption="Noise .1 (Q / 128)^(-1/2) on each shared direction. Line: walks of the reduced model, which see the noise "
        "and not the batch.",
    )
    study.table(
        "batch-size-alone-does-nothing",
        ("arm", "noise", "flips", "seeds", "predicted share"),
        [
            (
                label,
                config.noise.sd,
                int(flips[label].sum()),
                len(flips[label]),
                predicted_flips(config),
            )
            for label, config in points.items()
        ],
    )


def noise_of(questions):
    """Noise on each direction for a batch of so many questions."""
    return AT_128 * (questions / 128) ** -0.5


def batch(questions, sd=None):
    """NOISE-E with so many questions a batch, and the noise that goes with them unless given."""
    return replace(noise(noise_of(questions) if sd is None else sd), {"prompts": questions, "steps": STEPS})


def predicted_flips(config, walks=2048):
    """Share of walks of the start logit that reach 0, under noise, Adam's first moment and the mean pull."""
    grid, o = np.linspace(-60, 60, 1201), config.optimiser
    field = adam_diffusion(grid, gap(config, grid), o.rate, config.noise.sd, config.features.shared).field
    start = dict(config.habit)["start/answer"]
    paths = momentum_walks(field, start, o.b1, config.steps, walks, np.random.default_rng(0))
    return float((paths >= 0).any(1).mean())


def gap(config, grid):
    """Delta at each log-odds of guessing, the other decisions at their habits."""
    at = np.linspace(-8, 8, 9)
    return np.interp(grid, at, gap_along(config.graph(), config.policy().z0, at))
