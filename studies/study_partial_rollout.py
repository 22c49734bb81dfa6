"""Partial rollout trades step time against age, one curve of the token cap (Kimi K1.5).

Why. A round ends for everybody after a cap of c tokens a rollout; what is not done goes on in the next under newer weights.
So a step lasts min(c, longest) instead of the longest of 64, and a rollout of length l lives for ceil(l / c) rounds, of
which only the last is on policy.

Calculation, before the first run. Each slot is a renewal process: with R = ceil(L / c) rounds a rollout, E[L] / E[R] tokens
a slot are trained on in a round, and a slot is j rounds into its rollout with probability P(R > j) / E[R], which gives the
longest segment of 64. A group of G goes on until its longest member is done, and a token is old when a version was made
after it: for m rounds before the last, unless in each of them none of the other groups was complete. In units of the
median length, with log-normal lengths of sigma 1, this gives the numbers of a prototype: steps of 11.7 / 7.6 / 4.0 / 2.0 /
1.0, tokens a worker and unit of time .14 / .21 / .37 / .58 / .76, old share 0 / .11 / .27 / .50 / .71.

Design. One turn, engines whose speed does not depend on load and a learner that takes no time, so that the trade-off is that
of the cap alone. The first third of each run, while the slots are still in step, is left out.

After a first pilot the tolerances and regions were set. A run has 30 steps in place of 36, and the region of the rate begins
at .5 in place of .6. Agreement of step times is claimed of finite caps only: the longest of 64 varies too much to be held to
one twentieth.
"""

import functools
import math

import numpy as np
from scipy.special import ndtr

from sim.cluster.measures import measure, off_policy_tokens
from sim.cluster.scheduling import Rounds, greedy
from sim.cluster.spec import Cluster, Engines, Learner
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import LogNormal
from studies.kit import Prediction, above, agreement, claim, figures, mean, rate

CAPS, BATCH, GROUP, STEPS = (math.inf, 8.0, 4.0, 2.0, 1.0), 64, 8, 30
CAPPED = CAPS[1:]
MEDIAN = 1000.0  # tokens, one unit of time
SCORES = np.linspace(-6, 6, 4001)
MASS = np.exp(-(SCORES**2) / 2) / np.exp(-(SCORES**2) / 2).sum()
SOURCE = "Kimi K1.5, section 2.6.2; ours where no number is printed there"
RENEWAL = "renewal of slots, and a prototype"
RESULTS = ("step", "use", "old", "fresh")


@claim(
    "cap-trades-time-for-age",
    says="With every halving of the cap a step gets shorter and the share of tokens from older policies larger.",
    kind=rate(),
    region=above(0.5),
    predicts=Prediction(1.0, source=RENEWAL),
    unit="share of seeds on which both hold at all five caps",
    expect="supported",
    source=SOURCE,
    reverses="length sigma 0: all are done at once, and no cap changes anything",
)
@claim(
    "cap-sets-step-time",
    says="The time of a step is the mean longest segment of 64 at each of four caps.",
    kind=agreement(0.05, relative=True),
    predicts=Prediction(0.0, source=RENEWAL),
    unit="mean time of a step over its calculation, minus 1, largest of four caps",
    seeds=8,
    expect="supported",
    source=SOURCE,
    reverses="engines slowed by load, or a learner that takes time",
)
@claim(
    "cap-sets-use",
    says="Tokens trained on a worker and unit of time are E[L] / E[R] over the time of a step at every cap.",
    kind=agreement(0.03),
    predicts=Prediction(0.0, source=RENEWAL),
    unit="share of a worker's time whose tokens are trained on, minus its calculation, largest of five caps",
    seeds=8,
    expect="supported",
    source=SOURCE,
    reverses="a learner that takes time",
)
@claim(
    "cap-sets-old-share",
    says="The share of tokens from older policies is c E[R - 1] / E[L] at every cap.",
    kind=agreement(0.03),
    predicts=Prediction(0.0, source=RENEWAL),
    unit="share of trained tokens from an older policy, minus its calculation, largest of five caps",
    seeds=8,
    expect="supported",
    source=SOURCE,
    reverses="group: a group of 8 waits for its longest",
)
@claim(
    "groups-make-tokens-older",
    says="In groups of 8, which are trained on when the longest is done, more of the tokens are old.",
    kind=mean(symmetric=True),
    region=above(0.15),
    predicts=Prediction(0.30, source="the longest of 8 lives for 1.74 rounds, a rollout for 1.11"),
    unit="share of trained tokens from an older policy at a cap of 4, groups of 8 minus single rollouts",
    expect="supported",
    source="ours",
    reverses="token_cap: none, where no token is old in either",
)
@claim(
    "cap-sets-old-share-of-groups",
    says="In groups of 8 the share of old tokens follows from the rounds that a group lives.",
    kind=agreement(0.06),
    predicts=Prediction(0.0, source="renewal of groups"),
    unit="share of trained tokens from an older policy, minus its calculation, largest of four caps",
    seeds=8,
    expect="supported",
    source="ours",
    reverses="group: 1",
)
@claim(
    "fresh-tokens-peak-in-between",
    says="Tokens of the present policy alone, which is all that enters the loss where old segments are left out, are made "
    "fastest at a cap in between: at 2 faster than at 1.",
    kind=mean(scale="log"),
    region=above(1.1),
    predicts=Prediction(1.31, source=RENEWAL),
    unit="fresh tokens a worker and unit of time, cap 2 over cap 1",
    expect="supported",
    source="ours",
    reverses="token_cap: 4 in place of 1 is within a tenth of 2",
)
def study_partial_rollout(study):
    points = [(1, c) for c in CAPS] + [(GROUP, c) for c in CAPPED]
    runs = study.sweep({label(*p): partial(*p) for p in points}, run=recorded)
    found = {p: results(runs[label(*p)]) for p in points}
    foreseen = {p: calculated(*p) for p in points}
    one = {name: np.array([found[1, c][name] for c in CAPS]) for name in RESULTS}  # [caps, seeds]
    falls, rises = (np.diff(one["step"], axis=0) < 0).all(0), (np.diff(one["old"], axis=0) > 0).all(0)
    study.conclude("cap-trades-time-for-age", outcomes=falls & rises)
    for claimed, name, group, caps in (
        ("cap-sets-step-time", "step", 1, CAPPED),
        ("cap-sets-use", "use", 1, CAPS),
        ("cap-sets-old-share", "old", 1, CAPS),
        ("cap-sets-old-share-of-groups", "old", GROUP, CAPPED),
    ):
        study.conclude(
            claimed,
            value=[found[group, c][name].mean() for c in caps],
            reference=[foreseen[group, c][name] for c in caps],
        )
    study.conclude("groups-make-tokens-older", differences=found[GROUP, 4.0]["old"] - found[1, 4.0]["old"])
    study.conclude("fresh-tokens-peak-in-between", treated=found[1, 2.0]["fresh"], control=found[1, 1.0]["fresh"])
    _show(study, found, foreseen)


def label(group, cap):
    return f"groups of {group}, cap {cap:g}"


def partial(group, cap, sigma=1.0):
    """64 rollouts of one turn in play; a round ends when each is done or has written `cap` medians."""
    tokens = (("answer", LogNormal(MEDIAN, sigma)),)
    return Cluster(
        workload=Workload(Chain(1), group=group, tokens=tokens),
        engines=Engines(base_s=1 / MEDIAN),
        admission=Rounds(token_cap=None if cap == math.inf else cap * MEDIAN),
        order=greedy(),
        learner=Learner(batch=BATCH, whatever_is_complete=True),
        steps=STEPS,
    )


def tokens_by_age(run):
    """Return time, tokens and old tokens of every version."""
    steps = run.books.steps
    return {"time_s": steps.ended_s, "tokens": steps.tokens, "old": steps.tokens * off_policy_tokens(run)}


recorded = functools.partial(measure, columns=tokens_by_age, record=True)


def results(runs):
    """Return, for each seed, time of a step, share of worker time trained on, old share of it, and the fresh rest."""
    first = STEPS // 3
    time = runs["time_s"][:, -1] - runs["time_s"][:, first - 1]
    tokens, old = (runs[name][:, first:].sum(1) / MEDIAN for name in ("tokens", "old"))
    use = tokens / (BATCH * time)
    return {"step": time / (STEPS - first), "use": use, "old": old / tokens, "fresh": use * (1 - old / tokens)}


def calculated(group, cap):
    """Return the same from the renewal of slots, in units of the median length.

    For groups the time of a step is not calculated: NaN.
    """
    length = np.exp(SCORES)
    total, c = MASS @ length, min(cap, 4 * length[-1])
    rounds = np.ceil(length / c)
    below = np.cumsum(MASS) ** group  # P(the group's longest <= length)
    longest = np.diff(below, prepend=0.0) @ rounds  # E[rounds of a group]
    others = BATCH // group - 1
    quiet = (1 - 1 / longest) ** others  # P(no other group is complete at the end of a round)
    old = _old_share(length, rounds, c, group, quiet) / total
    step = float("nan")
    if group == 1:
        x = np.linspace(0, min(c, length[-1]), 4001)
        ages = np.arange(int(rounds[-1]))[:, None]
        with np.errstate(divide="ignore"):
            above_x = ndtr(-np.log(ages * c + x)).sum(0) / longest  # P(segment > x)
        step = np.trapezoid(1 - (1 - np.minimum(above_x, 1)) ** BATCH, x)
    use = total / longest / step
    return {"step": step, "use": use, "old": old, "fresh": use * (1 - old)}


def _old_share(length, rounds, c, group, quiet):
    """E[old tokens of a rollout]: those written m rounds before its group's last one are old with 1 - quiet^m.

    With K the rounds of the longest of the others, all but E[quiet^(max(K, r) - r)] of the r-th and last round of a rollout
    is old, and of the rounds before that m = 1 .. r - 1 more.
    """
    last = np.arange(1, int(rounds[-1]) + 1)
    alone = np.bincount(rounds.astype(int), MASS)[1:]
    cdf = np.cumsum(alone) ** (group - 1)  # P(K <= r)
    later = np.zeros(len(last))  # E[quiet^(K - r); K > r]
    for r in last[:0:-1]:
        later[r - 2] = quiet * (cdf[r - 1] - cdf[r - 2] + later[r - 1])
    fresh = cdf + later
    rest = np.bincount(rounds.astype(int), MASS * (length - (rounds - 1) * c))[1:]
    before = last - 1 - fresh * (quiet - quiet**last) / (1 - quiet)
    return alone @ (c * before) + rest @ (1 - fresh)


def _show(study, found, foreseen):
    fine = np.geomspace(1, 30, 16)
    curve = {group: [calculated(group, c) for c in fine] for group in (1, GROUP)}
    names = {1: "single rollouts", GROUP: f"groups of {GROUP}"}

    def dots(group, key):
        return {min(c, 30.0): found[g, c][key] for g, c in found if g == group}

    def line(group, key):
        return fine, [r[key] for r in curve[group]]

    made, axes = figures.figure(1, 2)
    cap = "cap, median lengths; 30 stands for none"
    figures.points(
        {names[1]: dots(1, "step")},
        curves={names[1]: line(1, "step")},
        title="A cap makes steps shorter",
        xlabel=cap,
        ylabel="time of a step, median lengths",
        log="xy",
        axes=axes[0],
    )
    figures.points(
        {name: dots(group, "old") for group, name in names.items()},
        curves={name: line(group, "old") for group, name in names.items()},
        title="and tokens older",
        xlabel=cap,
        ylabel="share of tokens trained on that is old",
        log="x",
        axes=axes[1],
    )
    study.figure("cap-trades-time-for-age", made, caption="64 rollouts in play; log-normal lengths, sigma 1.")
    both = {"all": "use", "of the present policy": "fresh"}
    study.figure(
        "fresh-tokens-peak-in-between",
        figures.points(
            {name: dots(1, key) for name, key in both.items()},
            curves={name: line(1, key) for name, key in both.items()},
            title="Tokens of the present policy are made fastest at a cap in between",
            xlabel=cap,
            ylabel="tokens trained on, share of a worker's time",
            log="x",
        ),
        caption="Single rollouts, 64 in play.",
    )
    header = ("groups of", "cap", "step", "calculated", "use", "calculated", "old share", "calculated")
    rows = [
        (g, f"{c:g}", *(x for key in RESULTS[:3] for x in (found[g, c][key].mean(), _known(foreseen[g, c][key]))))
        for g, c in found
    ]
    n = len(found[1, 2.0]["step"])
    study.table("cap-trades-time-for-age", header, rows, caption=f"Means of n={n} seeds, from version {STEPS // 3} on.")


def _known(value):
    return "not calculated" if math.isnan(value) else float(value)
