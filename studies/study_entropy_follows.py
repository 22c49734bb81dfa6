"""Entropy rises where answers come to be given without evidence: it is the new mixture of actions, not new doubt (A4).

Why. At the flip a published run saw entropy jump at some turns. Here a search writes its question, which leaves no choice,
and an answer out of nothing to a question that is not known is uniform over 64 by construction: the start is taught so. So a
first turn in which guesses take the place of searches must show more entropy even if no single distribution moves: half of
.75 ln 64 nats, in the mean over two arguments, for every search that becomes a guess. A script that guesses first and else
does as before answers without evidence at no other turn.

Design. The guess-first flip under a sequence mean, 12 seeds with starts of their own, and eight under a token mean, which
does not flip. Before: the first five steps; after: the steps in which more than half of the first actions are guesses (the
last five where there are none). All episodes are watched, so that shares and entropies are of the same turns.

What is exact. The recorded entropy of arguments, e, is a mean over both arguments of a turn; by action, h, there is that of
the first argument alone. With shares s of the turns that are played, 2 e = sum_a s_a h_a + rest, where the rest is the
second argument (a relation, or the end) and both arguments of turns that were no action. The change of the sum is split
into within = sum (s + s') / 2 (h' - h) and between = sum (h + h') / 2 (s' - s), which add up to it. Both windows pool the
turns of all their steps.

Prediction. From the script, with .03 guesses before and .78 after. Thinking cannot rise: it begins at about ln 8, the most
that eight fillers have. The length is that of the study of the flip itself; four pilot flips of the study of warnings went
through this analysis beforehand and changed nothing but a word on reversals.
"""

import numpy as np

from minimodel import presets
from sim.learning.normalisers import TokenMean
from sim.records.config import replace
from sim.signals.onsets import halfway
from studies.kit import Prediction, above, below, claim, figures, median, within

GUESS = "decision/share/start/answer"
ACTIONS = ("search", "answer")
STEPS, TURNS = 45, 4
SEEDS, CONTROLS = 12, 8
A_GUESS = 0.75 * float(np.log(64))  # nats of a guess's first argument, a quarter known


def arms():
    """Return the runs: the flip, and the average that does not flip."""
    plain = {"start.script.guess": 0.06, "steps": STEPS, "evaluation": None, "watched": 8}
    inside = replace(presets.retry(), plain)
    return {"sequence mean": inside, "token mean": replace(inside, {"rule.normaliser": TokenMean()})}


@claim(
    "argument-entropy-rises-with-the-flip",
    says="At the flip the entropy of the first turn's arguments rises by more than half a nat a token.",
    kind=median(),
    region=above(0.5),
    predicts=Prediction(
        0.75 * A_GUESS / 2, source="half of .75 ln 64 for each search that becomes a guess, .75 of them"
    ),
    unit="nats a token, while most first actions are guesses minus the first five steps",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A4",
    reverses="the share known: with nine in ten known, guesses are sure",
)
@claim(
    "the-rise-is-the-mixture-of-actions",
    says="Of the rise at the first argument of the first turn more than four fifths is the change of actions.",
    kind=median(),
    region=above(0.8),
    predicts=Prediction(1.0, source="answers out of nothing are as uniform before as after"),
    unit="between-action part of the rise",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A4",
    reverses="the start: where it guesses what it knows alone, answers themselves come to be in doubt",
)
@claim(
    "entropy-does-not-rise-at-the-second-turn",
    says="At the second turn the entropy of arguments rises by less than a tenth of a nat.",
    kind=median(),
    region=below(0.1),
    predicts=Prediction(0.0, source="the script answers without evidence at the first turn alone"),
    unit="nats a token",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A4",
    reverses="the turn: the first",
)
@claim(
    "entropy-neither-leads-nor-follows",
    says="The entropy of the first turn's arguments goes half of its way within two steps of the exact share of guesses.",
    kind=median(),
    region=within(-2, 2),
    predicts=Prediction(0.0, source="a mixture moves with its shares"),
    unit="steps by which entropy is first",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A4",
    reverses="what is read: the entropy of the decision itself is half-way at .11 guesses",
)
def study_entropy_follows(study):
    points, seeds = arms(), study.seeds()
    label, other = points
    runs = study.sweep({label: points[label]}, seeds=seeds)[label]
    quiet = study.sweep({other: points[other]}, seeds=seeds[:CONTROLS])[other]
    after = flipped(runs[GUESS])
    parts = [split(runs, turn, after) for turn in range(TURNS)]
    still = [split(quiet, turn, after[:CONTROLS]) for turn in range(TURNS)]
    first, moved = parts[0], runs["update/moved"][:, -1] > 0

    rises, mixed = "argument-entropy-rises-with-the-flip", "the-rise-is-the-mixture-of-actions"
    study.conclude(rises, values=first["rise"], moved=moved)
    study.conclude(mixed, values=first["between"] / (first["between"] + first["within"]), moved=moved)
    for claimed in (rises, mixed):
        study.control(
            claimed,
            "under a token mean, in the same steps, there is no rise",
            region=below(0.1),
            values=still[0]["rise"],
        )
    second = "entropy-does-not-rise-at-the-second-turn"
    study.conclude(second, values=parts[1]["rise"], moved=moved)
    study.control(second, "at the first it does", region=above(0.1), values=first["rise"])

    share, entropy, decision = (runs[name] for name in (GUESS, "entropy/argument/turn0", "entropy/decision/turn0"))
    half, follows = _half(share, _mean(share, after)), _half(entropy, _mean(entropy, after))
    study.conclude("entropy-neither-leads-nor-follows", values=half - follows, moved=moved)
    study.control(
        "entropy-neither-leads-nor-follows",
        "the entropy of the decision itself, on its way to its peak, is earlier",
        region=above(0),
        values=half - _half(decision, decision.max(1)),
    )
    _show(study, runs, quiet, parts, still, after)


def flipped(guess):
    """Return the steps in which guessing prevails, or the last five of a run in which it never does  # [S, T]."""
    prevails = guess > 0.5
    last = np.arange(guess.shape[1]) >= guess.shape[1] - 5
    return np.where(prevails.any(1)[:, None], prevails, last)


def _mean(x, where):
    """Return the mean of x [S, T] over the steps in `where`, by seed."""
    return np.where(where, x, 0).sum(1) / where.sum(1)


def _half(x, end):
    """Return when each run of x [S, T] has gone half of the way from its first five steps to `end` [S]; its end if never."""
    found = halfway(x, x[:, :5].mean(1), end, persistence=2)
    return np.where(np.isfinite(found), found, x.shape[1])


def _pooled(runs, turn, where):
    """Pool the turns of the steps in `where` [S, T]: (e [S], shares [A, S], first-argument entropies [A, S])."""
    solved = runs[f"behaviour/accuracy/turn{turn - 1}"] if turn else np.zeros(where.shape)
    played = np.where(where, 1 - solved, 0)  # episodes end when they are solved, and not before
    e = (played * np.nan_to_num(runs[f"entropy/argument/turn{turn}"])).sum(1) / played.sum(1)
    taken = np.stack([np.where(where, runs[f"behaviour/{a}_share/turn{turn}"], 0) for a in ACTIONS])
    h = np.stack([np.nan_to_num(runs[f"entropy/argument/turn{turn}/{a}"]) for a in ACTIONS])  # NaN where none was taken
    count = taken.sum(-1)
    return e, count / played.sum(1), (taken * h).sum(-1) / np.where(count > 0, count, np.nan)


def split(runs, turn, after):
    """Return the rise of e and the exact parts of twice that rise: between and within actions, and the rest  # [S] each."""
    early = np.broadcast_to(np.arange(after.shape[1]) < 5, after.shape)
    (e0, s0, h0), (e1, s1, h1) = (_pooled(runs, turn, where) for where in (early, after))
    known0, known1 = np.nan_to_num(np.where(np.isnan(h0), h1, h0)), np.nan_to_num(np.where(np.isnan(h1), h0, h1))
    between = ((known0 + known1) / 2 * (s1 - s0)).sum(0)
    inside = ((s0 + s1) / 2 * (known1 - known0)).sum(0)
    rise = e1 - e0
    return {
        "before": e0,
        "after": e1,
        "rise": rise,
        "between": between,
        "within": inside,
        "rest": 2 * rise - between - inside,
        "answers": s1[1] - s0[1],
        "an answer before": known0[1],
        "an answer after": known1[1],
    }


def _show(study, runs, quiet, parts, still, after):
    """Put up the table by turn, that of the first turn by seed, and the figure."""
    claimed = "argument-entropy-rises-with-the-flip"
    names = tuple(parts[0])
    study.table(
        claimed,
        ("turn", *names, "rise, token mean"),
        [
            (turn + 1, *(float(np.median(part[name])) for name in names), float(np.median(still[turn]["rise"])))
            for turn, part in enumerate(parts)
        ],
        caption=f"Medians of {SEEDS} seeds, nats ({CONTROLS} under a token mean). Twice the rise is between + within + "
        "rest, seed by seed. Answers: change of their share of the turns played; an answer: entropy of its first argument.",
    )
    early = np.broadcast_to(np.arange(STEPS) < 5, after.shape)
    rows = [
        (
            kind,
            *(
                float(
                    np.median(
                        _mean(runs[f"entropy/{kind}/turn{t}"], after) - _mean(runs[f"entropy/{kind}/turn{t}"], early)
                    )
                )
                for t in range(TURNS)
            ),
        )
        for kind in ("thinking", "decision", "argument")
    ]
    study.table(
        claimed,
        ("tokens", *(f"turn {t + 1}" for t in range(TURNS))),
        rows,
        caption="Rise of entropy by kind of token, mean over steps; medians of seeds, nats.",
    )
    made, (left, right) = figures.figure(1, 2, title="Entropy of the first turn's arguments", size=(9.0, 3.6))
    figures.bands(
        {"sequence mean": runs, "token mean": quiet}, "entropy/argument/turn0", ylabel="nats a token", axes=left
    )
    low = np.zeros(TURNS)
    for name in ("between", "within", "rest"):
        height = np.array([float(np.mean(part[name])) / 2 for part in parts])
        right.bar(np.arange(TURNS) + 1, height, bottom=np.where(height >= 0, low, 0), width=0.6, label=f"{name}")
        low = low + np.maximum(height, 0)
    spread = np.array([np.percentile(part["rise"], (10, 50, 90)) for part in parts])
    reach = np.abs(np.diff(spread, axis=1)).T
    right.errorbar(
        np.arange(TURNS) + 1, spread[:, 1], reach, fmt="ko", markersize=4, capsize=4, label="rise, 10-90 % of seeds"
    )
    right.axhline(0, color="#555555", linewidth=1)
    right.set_xticks(np.arange(TURNS) + 1)
    right.set_xlabel("turn")
    right.set_ylabel("rise, nats a token")
    right.set_title("What the rise consists of")
    right.legend()
    study.figure(
        claimed,
        made,
        caption=f"Left: mean and 10-90 % band. Right: mean of {SEEDS} seeds; between actions, within them, and the rest "
        "(the second argument, and turns that were no action); dots: median.",
    )
