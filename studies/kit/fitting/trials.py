"""How often the true mechanism stands first, and how often intervals hold: runs of the simulator whose mechanism is known.

Every run comes from the simulator's own training loop, which knows nothing of the chains that are fitted to it. It is
observed up to somewhere in its transition, and the next steps are foretold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sim.learning import presets
from sim.learning.batch import Batch
from sim.learning.lookup import Lookup
from sim.learning.loop import Block, train
from sim.learning.setup import Training
from sim.mdp.policy import PolicyTables
from sim.mdp.sampling import Sample
from sim.mdp.worlds import SEED_A_HABIT, World, seed_a
from sim.records.config import replace as varied
from sim.records.rng import BlockStream
from studies.kit.fitting.data import Observed, from_columns
from studies.kit.fitting.forecast import INTERVALS, forecast
from studies.kit.fitting.rank import rank, standing

__all__ = ["HORIZON", "LOST", "TRUE", "Outcome", "Trial", "carry_out", "confusion", "coverage", "quiet", "trials"]

F64 = NDArray[np.float64]

HORIZON = 10
"""Steps foretold."""
LOST = 0.7
"""P(lost) at each turn after the first, where long rollouts are lost."""
_LONGEST, _FIRST = 150, 15  # steps that are observed, at most and at least
_LEVELS = {"length weight": (0.1, 0.25), "restoring": (0.25, 0.6)}  # shares between which observation ends
_USUAL = (0.1, 0.4)
_SPARE = {"noise": 3.5}  # runs made for one that flips: some 40 % do


def _configs() -> dict[str, Training]:
    plain = presets.null()
    guessing = (("start/answer", 2.2), *SEED_A_HABIT[1:])
    scarce = varied(seed_a(), {"known": 0.3, "hit_known": 0.4})  # where the loss at which the push turns is .34
    return {
        "restoring": varied(plain, {"habit": guessing, "steps": 80}),
        "length weight": varied(presets.length_window(), {"steps": 300}),
        "push": varied(presets.drive(), {"steps": 80}),
        "noise": presets.noise(),
        "lost rollouts": varied(plain, {"world": scarce, "steps": 120}),
    }


TRUE = tuple(_configs())
"""The mechanisms that are simulated."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One simulated run."""

    truth: str
    """Its mechanism."""
    seed: int
    """Its seed."""
    seen: Observed
    """What is observed."""
    came: Observed
    """The next `HORIZON` steps."""


@dataclass(frozen=True)
class Outcome:
    """What a fit made of a trial."""

    truth: str
    """The mechanism."""
    seed: int
    """The seed."""
    steps: int
    """Steps observed."""
    order: tuple[str, ...]
    """Rivals, best first."""
    tied: tuple[str, ...]
    """Rivals that are not told apart from the first, itself included."""
    by_first: str
    """The rival that would stand first by the first decision alone, without what the later ones tell."""
    informative: bool
    """Whether the first beats what knows no mechanism."""
    ahead: float
    """Score of the true mechanism minus that of the best other, nats."""
    inside: dict[float, int]
    """Steps inside the interval of the forecast, by its nominal coverage."""
    inside_true: dict[float, int]
    """The same for the forecast of the true mechanism alone."""


class _Lossy(Block):
    """The training loop where a rollout of n turns is learnt from with probability (1 - LOST)^(n - 1)."""

    def __init__(self, config: Training, seeds: tuple[int, ...], study: str) -> None:
        super().__init__(config, seeds, study)
        self.arrival = BlockStream(seeds, f"{study}/arrival")

    def batch(
        self, sample: Sample, lookup: Lookup, policies: tuple[PolicyTables, PolicyTables, PolicyTables], step: int
    ) -> Batch:
        """Return the batch without the tokens of what is lost; the baseline is over all."""
        every = super().batch(sample, lookup, policies, step)
        u = self.arrival.uniforms(step, (self.config.prompts, self.config.group))
        arrives = u < (1 - LOST) ** (every.mask.sum(-1) - 1.0)
        return replace(every, mask=every.mask & arrives[..., None])


def trials(
    truth: str,
    n: int,
    *,
    prompts: int = 128,
    first: int = 0,
    study: str = "fitting/trials",
    world: World | None = None,
) -> list[Trial]:
    """Return `n` runs of a mechanism that came into their transition, with seeds from `first` on.

    Runs without a transition are left out: what a fit makes of a run in which nothing happens is another question. With
    `world` the run takes place there and not in the world of its preset.
    """
    seeds = tuple(range(first, first + int(np.ceil(_SPARE.get(truth, 1.2) * n)) + 2))
    config = varied(_configs()[truth], {"prompts": prompts} | ({} if world is None else {"world": world}))
    name = f"{study}/{truth}"
    columns = (
        _Lossy(config, seeds, name).run() if truth == "lost rollouts" else train(config, seeds, study=name).columns
    )
    level = BlockStream(seeds, f"{name}/level").doubles(0, (1,))[:, 0]
    found: list[Trial] = []
    for i, seed in enumerate(seeds):
        whole = from_columns(f"{truth} {seed}", {k: v[i] for k, v in columns.items()}, prompts * config.group)
        last = _ends(truth, whole.unsearched / whole.rollouts, float(level[i]))
        if last is not None and len(found) < n:
            seen = whole.between(max(0, last - _LONGEST + 1), last)
            found.append(Trial(truth, seed, seen, whole.between(last + 1, last + HORIZON)))
    return found


def quiet(n: int, *, prompts: int = 128, first: int = 0, study: str = "fitting/quiet") -> list[Observed]:
    """Return `n` runs of sixty steps in which nothing happens: plain gradient, from the habit that it restores."""
    config = varied(presets.null(), {"prompts": prompts, "steps": 60})
    runs = train(config, tuple(range(first, first + n)), study=study)
    rows = range(len(runs))
    return [
        from_columns(f"quiet {i}", {k: v[i] for k, v in runs.columns.items()}, prompts * config.group) for i in rows
    ]


def _ends(truth: str, share: F64, u: float) -> int | None:
    """Return the last step observed: the first at which the mean share of three steps reaches a level drawn at random."""
    low, high = _LEVELS.get(truth, _USUAL)
    smooth = np.convolve(share, np.ones(3) / 3, "valid")
    reached = smooth <= high - (high - low) * u if truth == "restoring" else smooth >= low + (high - low) * u
    reached = np.concatenate([np.zeros(2, bool), reached])
    reached[:_FIRST] = False
    last = int(np.argmax(reached))
    return last if reached.any() and last + HORIZON < len(share) else None


def carry_out(trial: Trial) -> Outcome:
    """Return what a fit makes of a trial."""
    ranking = rank(trial.seen)
    foreseen = forecast(ranking, HORIZON)
    seen = trial.came.unsearched / trial.came.rollouts
    scores = {row.name: row.score for row in ranking.rows}
    by_first = {row.name: row.first for row in ranking.rows}
    fans = {fan.name: fan for fan in foreseen.each} | {"together": foreseen.together}

    def inside(name: str) -> dict[float, int]:
        if name not in fans:
            return dict.fromkeys(INTERVALS, 0)
        ends = fans[name].counted
        return {c: int(((ends[:, i, 0] <= seen) & (seen <= ends[:, i, 1])).sum()) for i, c in enumerate(INTERVALS)}

    return Outcome(
        trial.truth,
        trial.seed,
        len(trial.seen),
        tuple(row.name for row in ranking.rows),
        tuple(row.name for row in ranking.tied),
        max(ranking.rows, key=lambda row: standing(row.mechanism, by_first)).name,
        ranking.informative,
        scores[trial.truth] - max(score for name, score in scores.items() if name != trial.truth),
        inside("together"),
        inside(trial.truth),
    )


def confusion(outcomes: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Return how many runs of each mechanism had each rival first."""
    table = {truth: dict.fromkeys(TRUE, 0) for truth in TRUE}
    for outcome in outcomes:
        table[outcome.truth][outcome.order[0]] += 1
    return table


def coverage(outcomes: Sequence[Outcome], nominal: float, true: bool = False) -> tuple[float, float]:
    """Return the share of steps inside an interval, and its standard error with the run as the unit."""
    shares = np.array([(o.inside_true if true else o.inside)[nominal] / HORIZON for o in outcomes])
    return float(shares.mean()), float(shares.std(ddof=1) / np.sqrt(len(shares)))
