"""What is lost when every rollout is a group of its own.

Why. A fault in how rollouts were assigned to groups left every rollout alone in its group (Search-R1, issue 88). The
advantage is then the reward itself. On policy, with a mean over rollouts, the expected gradient is the same but for the
factor 1 - 1/G by which a group that counts the rollout itself shrinks it; under a sequence mean its direction changes too.
What changes here is the noise: a baseline replaces the second moment of the reward by its variance among rollouts of one
question. And absence becomes a signal: with a group, advantages add up to 0 and a batch in which an action was not used
says nothing about it; without, everything that was used and rewarded pushes it down.

Design. One world, one rate, on policy; only the credit differs, with and without the group's standard deviation. The
gradient is sampled at fixed policies and held against exact enumeration. Then two trainings: a decision that changes
nothing (guessing and searching succeed alike, question by question), which should stay where it is, and a rare action
that pays (verify, one use in a hundred) under a large natural-gradient step and small batches.

Prediction. Ratios of variances from :mod:`sim.mdp.theory.spread`; both trainings from scalar chains that know only the
success rates: the idle decision takes normal steps of variance eta^2 c p (1 - p) / N with c = E r^2 without a group and
(1 - 1/G) E[Var(r | question)] with one; the rare one draws uses and successes from binomials.
"""

import numpy as np

from sim.learning.credit import GroupCredit, NoBaseline
from sim.learning.lookup import Lookup
from sim.learning.normalisers import BatchMean
from sim.learning.optimisers import Sgd
from sim.learning.presets import null, verify
from sim.learning.rule import Rule
from sim.learning.tabular import draw, gradient, rule_batch
from sim.learning.weights import Unweighted
from sim.mdp.exact import expected_return, policy_gradient
from sim.mdp.policy import SoftmaxPolicy, tables
from sim.mdp.sampling import Sampler
from sim.mdp.theory.drift import Objective
from sim.mdp.theory.spread import gradient_moments
from sim.mdp.worlds import World
from sim.records.config import replace
from sim.records.rng import BlockStream
from studies.kit import Prediction, above, claim, figures, mean, rate_difference, within

CREDITS = {"own group": NoBaseline(), "group": GroupCredit(std=False), "group, std": GroupCredit()}
SEEDS, BATCHES, QUESTIONS, GROUP = 16, 160, 32, 8
IDLE_RUNS, RARE_RUNS = 64, 96
EVEN = (0.0, 4.85, -4.2)
IDLE, VERIFY = "decision/share/start/answer", "decision/share/fresh/verify"
EASY = {"guess_known": 0.95, "hit_known": 0.95, "guess_unknown": 0.75, "hit_unknown": 0.75}
HARD = {"guess_known": 0.1, "hit_known": 0.1, "guess_unknown": 0.02, "hit_unknown": 0.02}
LOST = 0.001


@claim(
    "ungrouped-gradient-is-noisier",
    says="Without groups the gradient's relative variance is well above that with groups.",
    kind=mean(scale="log"),
    region=above(1.5),
    predicts=Prediction(2.14, source="exact second moments by enumeration, seed A's world, guessing at one half"),
    unit="ratio of E|g - E g|^2 / |E g|^2, own group to group",
    seeds=SEEDS,
    expect="supported",
    source="Search-R1, issue 88",
    reverses="the success rate: where few questions are solved the second moment is the variance, ratio .96",
)
@claim(
    "ungrouped-gradient-points-the-same-way",
    says="With a mean over rollouts the two differ along the exact gradient by the factor 1 - 1/G and by nothing else.",
    kind=mean(symmetric=True),
    region=within(0.075, 0.175),
    predicts=Prediction(0.125, source="1/G: the mean of a group holds the rollout itself"),
    unit="projection on the exact gradient, own group minus group, in units of its length",
    seeds=SEEDS,
    expect="supported",
    source="exact enumeration",
    reverses="the group: at G = 2 the difference is one half",
)
@claim(
    "ungrouped-idle-decisions-saturate",
    says="Without groups a decision that changes nothing is soon decided by chance; with groups (no std) it is not.",
    kind=rate_difference(),
    region=above(0.2),
    predicts=Prediction(0.455, source="scalar chain with normal steps: .465 against .010"),
    unit="share of seeds that end outside .1 to .9, own group minus group",
    seeds=IDLE_RUNS,
    expect="supported",
    source="ours",
    reverses="the success rate: at .06 neither moves far",
)
@claim(
    "ungrouped-training-loses-rare-actions",
    says="Without groups a rare action that pays dies out in more seeds than with groups.",
    kind=rate_difference(),
    region=above(0.1),
    predicts=Prediction(0.32, source="chain of the verify logit with binomial draws: .385 against .066"),
    unit="share of seeds that end below one use in a thousand, own group minus group",
    seeds=RARE_RUNS,
    expect="supported",
    source="committal behaviour of the natural gradient: Chung et al., arXiv 2008.13773",
    reverses="rate and batch: at a rate of .3 and 32 questions neither loses it",
)
def study_group_baseline(study):
    sampled = {label: gradients(credit, study.seeds(SEEDS), study.name) for label, credit in CREDITS.items()}
    exact = exact_gradient()
    noise = {label: relative_noise(g) for label, g in sampled.items()}
    study.conclude("ungrouped-gradient-is-noisier", treated=noise["own group"], control=noise["group"])
    along = {label: g.mean(0) @ exact / (exact @ exact) for label, g in sampled.items()}
    study.conclude("ungrouped-gradient-points-the-same-way", treated=along["own group"], control=along["group"])
    study.table(
        "ungrouped-gradient-is-noisier",
        ("credit", "relative variance", "exact", "projection", "exact"),
        [
            (label, float(noise[label].mean()), expected[0], float(along[label].mean()), expected[1])
            for label, expected in ((label, _expected(credit)) for label, credit in CREDITS.items())
        ],
        caption=f"{SEEDS} seeds x {BATCHES} batches of {QUESTIONS} x {GROUP}; guessing at one half.",
    )
    study.table(
        "ungrouped-gradient-is-noisier",
        ("world and policy", "return", "own group / group", "std / group"),
        _ratios(),
        caption="Exact ratios of relative variances elsewhere: a baseline may help little, or not at all.",
    )

    idle = _train(study, idle_world, IDLE_RUNS)
    apart = {label: np.abs(r[IDLE][:, -1] - 0.5) > 0.4 for label, r in idle.items()}
    study.conclude("ungrouped-idle-decisions-saturate", treated=apart["own group"], control=apart["group"])
    rare = _train(study, rare_action, RARE_RUNS)
    lost = {label: r[VERIFY][:, -1] < LOST for label, r in rare.items()}
    study.conclude("ungrouped-training-loses-rare-actions", treated=lost["own group"], control=lost["group"])
    _show(study, idle, rare, apart, lost)


def gradients(credit, seeds, study, world=None, logits=EVEN, group=GROUP, batches=BATCHES):
    """The gradient of each batch with respect to the free logits, [batches, seeds, D], on policy at `logits`."""
    graph = (null().world if world is None else world).graph().compiled()
    policy = SoftmaxPolicy(graph, np.array(logits), np.eye(len(logits)))
    now = policy.tables(np.zeros((len(seeds), len(logits))))
    sampler, rule = Sampler(graph), Rule(credit, Unweighted(), BatchMean())
    streams = tuple(BlockStream(tuple(seeds), f"{study}/gradient/{name}") for name in ("question", "turn"))
    found = []
    for batch in range(batches):
        sample = draw(sampler, now, streams, batch, QUESTIONS, group)
        lookup = Lookup.of(sample, sampler.decisions)
        seen = rule_batch(sampler, sample, lookup, now)
        coefficients = rule.coefficients(rule.prepare(seen), seen.behaviour)
        found.append(gradient(policy, now, now, lookup, coefficients))
    return np.array(found)


def relative_noise(sampled):
    """E|g - E g|^2 / |E g|^2 of each seed, [seeds]; the mean is that of all seeds."""
    centre = sampled.mean((0, 1))
    return sampled.var(0, ddof=1).sum(-1) / (centre @ centre)


def exact_gradient():
    graph = null().graph()
    return policy_gradient(graph, tables(graph, np.array(EVEN)))


def idle_world(credit, success=EASY):
    """Half the questions are easy, half less so; guessing and searching succeed alike on each."""
    world = World(known=0.5, icc=0.0, unknown_kinds=1, wrong_answer_ends=True, turns=2, **success)
    return replace(
        null(),
        {
            "world": world,
            "habit": (("start/answer", 0.0), ("fresh/answer", 30.0)),
            "rule.credit": credit,
            "optimiser": Sgd(5.0),
            "prompts": 16,
            "steps": 200,
        },
    )


def rare_action(credit):
    return replace(verify(0.01), {"rule.credit": credit, "optimiser.rate": 1.0, "prompts": 8, "steps": 80})


def _train(study, make, seeds):
    """Runs of the three arms; the third, about which nothing is claimed, has a quarter of the seeds."""
    runs = study.sweep({label: make(CREDITS[label]) for label in ("own group", "group")}, seeds=study.seeds(seeds))
    return runs | study.sweep({"group, std": make(CREDITS["group, std"])}, seeds=study.seeds(seeds // 4))


def _expected(credit, world=None, logits=EVEN):
    graph = (null().world if world is None else world).graph().compiled()
    policy = tables(graph, np.array(logits))
    found = gradient_moments(graph, policy, Objective(credit, group=GROUP, prompts=QUESTIONS))
    exact = policy_gradient(graph, policy)
    return found.variance / (found.mean @ found.mean), found.mean @ exact / (exact @ exact)


def _ratios():
    places = {
        "seed A, guessing 1.6 %": (null().world, (-4.14, 4.85, -4.2)),
        "seed A, guessing at one half": (null().world, EVEN),
        "seed A, every decision even": (null().world, (0.0, 0.0, 0.0)),
        "verify, one use in a hundred": (verify().world, tuple(verify().policy().z0)),
    }
    rows = []
    for name, (world, logits) in places.items():
        alone, grouped, scaled = (_expected(credit, world, logits)[0] for credit in CREDITS.values())
        graph = world.graph().compiled()
        value = expected_return(graph, tables(graph, np.array(logits)))
        rows.append((name, value, alone / grouped, scaled / grouped))
    return rows


def _show(study, idle, rare, apart, lost):
    made, axes = figures.figure(1, 2, title="An idle decision drifts without groups", size=(9.4, 4.2))
    two = ("own group", "group")
    figures.bands(
        {label: idle[label] for label in two},
        IDLE,
        ylabel="P(answer | start), which changes nothing",
        limits=(-0.02, 1.02),
        axes=axes[0],
    )
    figures.bands(
        {label: rare[label] for label in two},
        VERIFY,
        title="and a rare action that pays may be lost",
        ylabel="P(verify | fresh evidence)",
        limits=(-0.3, 1.02),
        axes=axes[1],
    )
    axes[1].set_yticks(np.linspace(0, 1, 6))
    study.figure(
        "ungrouped-training-loses-rare-actions",
        made,
        caption="Exact shares; only the credit differs. Left: 16 x 8 rollouts, SGD 5. Right: 8 x 8, natural gradient, "
        "rate 1.",
    )
    study.note(
        "ungrouped-idle-decisions-saturate",
        "At one rate a group divided by its spread drifts as well: on questions that are mostly solved the spread is small, "
        "so its steps are larger. Seen after the first run; nothing was claimed about it.",
    )
    study.table(
        "ungrouped-idle-decisions-saturate",
        ("credit", "end outside .1 to .9", "sd of the logit at the end"),
        [
            (label, f"{int(apart[label].sum())} of {len(r)}", float(r["policy/logit/start/answer"][:, -1].std()))
            for label, r in idle.items()
        ],
    )
    study.table(
        "ungrouped-training-loses-rare-actions",
        (
            "credit",
            "lost",
            "of these after it had been above one half",
            "adopted at the end",
            "median steps to one half",
        ),
        [
            (
                label,
                f"{int(lost[label].sum())} of {len(r)}",
                int((lost[label] & (r[VERIFY] > 0.5).any(1)).sum()),
                int((r[VERIFY][:, -1] > 0.5).sum()),
                float(np.median([np.argmax(row > 0.5) for row in r[VERIFY] if (row > 0.5).any()])),
            )
            for label, r in rare.items()
        ],
    )
