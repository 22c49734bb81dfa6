"""How long a mode lasts under gradient noise: no well, no rate, and what Adam's first moment does to both.

Why. "Metastable" suggests wells, barriers and Kramers' exponential escape. Under Adam with gradient noise through shared
weights the log-odds z of guessing have a quasi-potential U = 2 Delta g / (alpha s): a step of height 2.7 between two
plains, since the pull vanishes wherever the policy is sure. A plain holds nothing. Runs that search wander off without
bound, those still near the step leave early, and the rate of escape falls as 1 / (2 t). Kramers' formula has no well to
start from. A constant drive below the fold makes one, and there his formula should hold.

Predictions. (1) The chain of independent steps z' = z + drift(z) + sd N(0, 1), exact on a grid. (2) The same steps through
Adam's first moment, which keeps each for about ten updates: simulated walks of the reduced model, measured as the runs
are. Neither knows the loop; both take the gap at the starting habits of the other decisions.

With 96 seeds two of the claims came out undecided on one set of fresh seeds in three; there are 320 since.
"""

import numpy as np
from scipy.special import expit

from sim.learning.optimisers import Sgd
from sim.learning.presets import noise
from sim.learning.setup import Drive
from sim.mdp.theory.drift import gap_along
from sim.mdp.theory.escape import (
    Diffusion,
    adam_diffusion,
    chain_passage_steps,
    kramers_steps,
    momentum_walks,
    survival,
)
from sim.records.config import replace
from sim.signals.dwell import escape_rate, kaplan_meier, median_length, spells, time_on_test
from studies.kit import Control, Prediction, above, below, bootstrap, claim, figures, within

GUESS, LOGIT = "decision/share/start/answer", "policy/logit/start/answer"
SEEDS, STEPS = 320, 600
WELL_SEEDS = 128
EARLY, LATE = 100, STEPS - 1
WELL, PAST = -1.87, 0.95
"""Bottom of the drive's well, log-odds, and a share of guessing beyond its barrier, which is at .85."""
GRID = np.linspace(-60, 60, 1201)
A_WELL, MEMORYLESS = "a drive's well", "escapes from a drive's well"
INDEPENDENT = "against the prediction of independent steps"


@claim(
    "search-mode-is-no-well",
    says="Runs that still search spread without bound, as they would not in a well.",
    kind=bootstrap(),
    region=above(0.65),
    predicts=Prediction(1.13, source="walks with Adam's first moment; a free walk 1.29, a well 0"),
    unit="log2 of the spread of log-odds among those still searching, step 599 over step 100",
    seeds=SEEDS,
    expect="supported",
    source="theory of escape",
    reverses="a constant drive below the fold makes a well",
    controls=(Control(A_WELL, below(0.65)),),
)
@claim(
    "escapes-slow-down",
    says="Escapes from search are not memoryless: the longer a run has searched, the less likely it leaves.",
    kind=bootstrap(),
    region=below(0.5),
    predicts=Prediction(0.343, source="walks with Adam's first moment; the rate falls as 1 / (2 t) on a plain"),
    unit="mean place of an escape in the total time on test (memoryless: .5)",
    seeds=SEEDS,
    expect="supported",
    source="theory of escape",
    reverses="the step size: at a rate of .15 and a noise of 6, escapes have only begun by step 400",
    controls=(Control(MEMORYLESS, above(0.4)),),
)
@claim(
    "escape-rate-as-predicted",
    says="The rate of escape from search is predicted within a factor of 2.",
    kind=bootstrap(),
    region=within(-1, 1),
    predicts=Prediction(0.0, source="1.04 escapes per 1,000 steps of search; 1.75 if steps were independent"),
    unit="log2 of measured over predicted rate",
    seeds=SEEDS,
    expect="supported",
    source="theory of escape",
    reverses="a noise-free private weight: almost nothing escapes, and the calculation knows of no such weight",
)
@claim(
    "guess-mode-dwell-as-predicted",
    says="With Adam's first moment in the calculation the median stay in the guess mode is predicted within a factor of 2.",
    kind=bootstrap(),
    region=within(-1, 1),
    predicts=Prediction(0.0, source="39 steps, walks with Adam's first moment; 11 if steps were independent"),
    unit="log2 of measured over predicted median stay",
    seeds=SEEDS,
    expect="supported",
    source="theory of escape",
    reverses="optimiser.b1: without the first moment stays are a third as long",
    controls=(Control(INDEPENDENT, above(1)),),
)
def study_dwell(study):
    runs = study.sweep({"noise": noisy()}, seeds=study.seeds(SEEDS), block=SEEDS)
    runs |= study.sweep({"well": well()}, seeds=study.seeds(WELL_SEEDS), block=WELL_SEEDS)
    foreseen = {label: predicted(noisy(b1=b1)) for label, b1 in (("noise", 0.9), ("no momentum", 0.0))}
    walks = {label: expit(path) for label, path in foreseen.items()}
    z, x = runs["noise"][LOGIT], runs["noise"][GUESS]
    in_well = runs["well"][LOGIT], runs["well"][GUESS]

    study.conclude("search-mode-is-no-well", **_resampled(_spread, z))
    study.control("search-mode-is-no-well", A_WELL, **_resampled(lambda rows: _spread(rows, PAST), in_well[0]))
    study.conclude("escapes-slow-down", **_resampled(_place, x))
    study.control("escapes-slow-down", MEMORYLESS, **_resampled(lambda rows: _place(rows, PAST), in_well[1]))
    for name, measure in (("escape-rate-as-predicted", rate), ("guess-mode-dwell-as-predicted", stay)):
        number = measure(walks["noise"])
        study.conclude(name, **_resampled(lambda r, f=measure, p=number: np.log2(f(r) / p), x))
    short = stay(walks["no momentum"])
    study.control("guess-mode-dwell-as-predicted", INDEPENDENT, **_resampled(lambda r: np.log2(stay(r) / short), x))
    _show(study, runs, walks, foreseen["noise"])


def noisy(sd=0.5, **optimiser):
    """NOISE-E; with few questions a batch, since the injected noise dominates that of sampling."""
    changes = {f"optimiser.{name}": value for name, value in optimiser.items()}
    return replace(noise(sd), {"prompts": 16, "steps": STEPS, **changes})


def well():
    """A constant drive at less than half the fold under SGD: the return holds z at -1.87, noise of .48 a step shakes it."""
    habit = (("start/answer", WELL), ("fresh/answer", 4.85), ("failed/answer", -4.2))
    drive = Drive(rate=0.12, duration=STEPS)
    return replace(noisy(0.2), {"habit": habit, "optimiser": Sgd(2.4), "drive": drive})


def gap(config, grid):
    """Delta at each log-odds of guessing, the other decisions at their habits."""
    at = np.linspace(-8, 8, 9)
    return np.interp(grid, at, gap_along(config.graph(), config.policy().z0, at))


def theory(config, grid=GRID):
    """The diffusion of the start logit under a config: Adam's steps, or SGD's with a drive."""
    o, sd = config.optimiser, config.noise.sd
    if isinstance(o, Sgd):
        pull = gap(config, grid) * expit(grid) * expit(-grid)
        return Diffusion(grid, config.drive.rate - o.rate * pull, np.full(len(grid), o.rate * sd))
    return adam_diffusion(grid, gap(config, grid), o.rate, sd, config.features.shared)


def predicted(config, walks=4096):
    """Log-odds of guessing along walks of the reduced model, [walks, steps]."""
    start, b1 = dict(config.habit)["start/answer"], getattr(config.optimiser, "b1", 0.0)
    field = theory(config).field
    return momentum_walks(field, start, b1, config.steps, walks, np.random.default_rng(0))


def rate(x):
    """First escapes from search per step of search, for shares of guessing [S, T]."""
    first = _search(x)
    return escape_rate(first.length, first.ended)


def stay(x):
    """Median first stay in the guess mode, steps."""
    guess = _guess(x)
    return median_length(guess.length, guess.ended)


def _search(x, enter=0.5):
    return spells(x, enter).first


def _guess(x):
    found = spells(x)
    return found.where(found.inside).first


def _place(x, enter=0.5):
    first = _search(x, enter)
    return float(time_on_test(first.length, first.ended).mean())


def _spread(z, share=0.5):
    """log2 of the standard deviation of log-odds among those never past a share of guessing, late over early."""
    return float(np.log2(_spread_at(z, LATE, share) / _spread_at(z, EARLY, share)))


def _spread_at(z, step, share):
    still = (expit(z[:, : step + 1]) < share).all(1)
    return z[still, step].std()


def _resampled(measure, rows, replicates=199):
    """The measure of the runs and of resampled seeds."""
    rng, n = np.random.default_rng(0), len(rows)
    again = [measure(rows[rng.integers(n, size=n)]) for _ in range(replicates)]
    return {"value": measure(rows), "replicates": again, "units": n}


def _show(study, runs, walks, log_odds):
    study.figure(
        "search-mode-is-no-well",
        _spreads(runs, log_odds),
        caption="Standard deviation of log-odds over the runs that have not escaped so far; those in the drive's well not "
        "beyond its barrier. Dashed: 4,096 walks of the reduced model.",
    )
    study.figure(
        "escapes-slow-down",
        _escapes(runs, walks),
        caption="Kaplan-Meier shares of runs that have not escaped. Dotted: exponential of the same number of escapes and "
        "steps. Dashed: reduced model with momentum; dash-dotted: the chain of independent steps.",
    )
    study.figure(
        "guess-mode-dwell-as-predicted",
        _stays(runs["noise"][GUESS], walks),
        caption="Kaplan-Meier shares of first stays (share of guessing from .5 until below .2) not yet over; those "
        "cut off by the end are censored. Dashed and dash-dotted: reduced model with momentum and without.",
    )
    header = ("", "escaped", "of", "escapes per 1,000 steps", "median stay", "mean place of an escape")
    study.table("escape-rate-as-predicted", header, _rows(runs["noise"][GUESS], walks))
    deep, short = (theory(well(), np.linspace(-12, end, 1001)) for end in (4, np.log(PAST / (1 - PAST))))
    first = _search(runs["well"][GUESS], PAST)
    study.note(
        "escapes-slow-down",
        f"In the drive's well: {1e3 * escape_rate(first.length, first.ended):.2f} escapes per 1,000 steps "
        f"({int(first.ended.sum())} of {len(first.ended)} runs); Kramers gives {1e3 / kramers_steps(deep):.2f}, the exact "
        f"chain {1e3 / chain_passage_steps(short, WELL):.2f}. Under Adam's noise {_refusal(theory(noisy()))}.",
    )
    again = spells(runs["noise"][GUESS])
    back = again.where(~again.inside).later
    study.note(
        "guess-mode-dwell-as-predicted",
        f"After a return, guessing comes back {1e3 * escape_rate(back.length, back.ended):.2f} times per 1,000 steps "
        f"({int(back.ended.sum())} of {len(back.ended)} spells of search).",
    )


def _rows(x, walks):
    names = {"measured": x, "predicted, first moment": walks["noise"], "predicted, independent": walks["no momentum"]}
    for name, shares in names.items():
        first = _search(shares)
        yield name, int(first.ended.sum()), len(shares), 1e3 * rate(shares), stay(shares), _place(shares)


def _refusal(diffusion):
    try:
        return f"Kramers gives {1e3 / kramers_steps(diffusion):.2f}"
    except ValueError as refused:
        return str(refused).split(", and")[0]


def _spreads(runs, walk):
    made, ax = figures.figure(title="Runs that still search spread like a free walk; in a drive's well they do not")
    at = np.unique(np.geomspace(5, LATE, 30).astype(int))
    for label, name, share, colour in (("noise", "Adam, noise .5", 0.5, 0), ("well", A_WELL, PAST, 2)):
        z = runs[label][LOGIT]
        ax.plot(at, [_spread_at(z, t, share) for t in at], "o", ms=4, color=figures.COLOURS[colour], label=name)
        ax.lines[-1].set_label(f"{name} (n={len(z)})")
    ax.plot(at, [_spread_at(walk, t, 0.5) for t in at], "--", color=figures.COLOURS[0], label="predicted")
    ax.set(xscale="log", yscale="log", xlabel="optimiser step", ylabel="spread of log-odds (standard deviation)")
    ax.legend()
    return made


def _escapes(runs, walks):
    made, axes = figures.figure(1, 2, title="Escapes slow down", size=(8.2, 3.9))
    panels = (("noise", "Adam, noise .5", 0.5), ("well", A_WELL, PAST))
    for ax, (label, name, level) in zip(axes, panels, strict=True):
        first = _search(runs[label][GUESS], level)
        _curve(ax, first, f"{name} (n={len(first.length)})", 0)
        t = np.arange(STEPS)
        ax.plot(t, np.exp(-escape_rate(first.length, first.ended) * t), ":", color="#555555", label="memoryless")
        ax.set(xlabel="optimiser step", ylabel="share not escaped", ylim=(0, 1.03))
    up = theory(noisy(), np.linspace(-60, 0, 601))
    _curve(axes[0], _search(walks["noise"]), "predicted, momentum", 1, "--")
    left = survival(up, -4.14, STEPS - 1)
    axes[0].plot(left, "-.", color=figures.COLOURS[4], linewidth=1.2, label="predicted, independent")
    for ax in axes:
        ax.legend(loc="lower left")
    axes[1].set_title("and in a drive's well they do not", loc="left", fontsize=11.5, fontweight="bold")
    return made


def _stays(x, walks):
    made, ax = figures.figure(title="Momentum makes stays in the guess mode three times as long")
    found = _guess(x)
    _curve(ax, found, f"Adam, noise .5 ({len(found.length)} stays)", 0)
    _curve(ax, _guess(walks["noise"]), "predicted, momentum", 1, "--")
    _curve(ax, _guess(walks["no momentum"]), "predicted, independent", 4, "-.")
    ax.set(xscale="log", xlabel="steps since guessing took over", ylabel="share of stays not over", ylim=(0, 1.03))
    ax.legend()
    return made


def _curve(ax, found, label, colour, style="-"):
    times, left = kaplan_meier(found.length, found.ended)
    start = np.concatenate([[1], times]), np.concatenate([[1], left])
    ax.step(*start, style, where="post", color=figures.COLOURS[colour], label=label)
