"""The rival mechanisms of a transition, each as a chain with few settings; and two yardsticks that know no mechanism."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.mdp.calibration import TableFit
from sim.mdp.worlds import World
from studies.kit.fitting.fields import GRID, Field, losing, plain, weighted
from studies.kit.fitting.filtering import Motion
from studies.kit.fitting.world import FittedWorld

__all__ = ["RIVALS", "YARDSTICKS", "Constant", "Mechanism", "rivals", "yardsticks"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Constant:
    """Something chosen, or a grid of values that the data weigh."""

    name: str
    """What it is."""
    values: tuple[float, ...]
    """Values tried; one for a constant."""
    unit: str = ""
    """Its unit."""


SPEEDS = tuple(np.geomspace(0.01, 1.0, 41))
"""Fastest mean step on the grid, logits a step: a rate in terms that do not hang on the objective's scale."""
PUSHES = tuple(float(s * v) for s in (-1, 1) for v in np.geomspace(0.04, 1.0, 18))
"""Logits a step that a push adds."""
BEGINS, ENDS = 1 / 100, 1 / 40
"""P(a push begins in a step) and P(it ends in a step)."""
LOSSES = (0.3, 0.5, 0.7, 0.85)
"""P(a rollout is lost) at each turn after the first."""
STEPS = tuple(np.geomspace(0.05, 1.5, 13))
"""alpha: size of a step where noise is all there is, logits."""
DOSES = tuple(np.geomspace(0.03, 1.0, 8))
"""s: noise of the gradient on each shared direction, in units of the gradient."""
_PARTS = ("mean", "sd", "later", "later_sd")
_KINDS = 9  # exact for the moments of a group of eight with two searches each
DIRECTIONS, MEMORY = 16, 0.9
"""Shared directions, and the decay of Adam's first moment."""


@dataclass(frozen=True, eq=False)
class Mechanism:
    """A rival."""

    name: str
    """Short name."""
    says: str
    """What moves the first decision, in a sentence."""
    motion: Motion | None
    """The chain at its settings; None where the fitted worlds leave the mechanism no room."""
    constants: tuple[Constant, ...]
    """What was chosen, and what the data weigh."""
    settings: dict[str, F64] = field(default_factory=dict, repr=False)
    """Value of each fitted parameter at each setting, [P]."""
    excluded: str = ""
    """Why there is no chain."""
    contains: str = ""
    """A rival that is a special case of this one: to stand before it this one has to predict better."""


def rivals(fitted: FittedWorld, rollouts: int, group: int = 8) -> tuple[Mechanism, ...]:
    """Return the rival mechanisms in the fitted worlds, for batches of so many rollouts."""
    return tuple(make(fitted, rollouts, group) for make in RIVALS.values())


def yardsticks() -> tuple[Mechanism, ...]:
    """Return what any mechanism should beat: a straight line, and a walk without direction, with one parameter each."""
    return tuple(make() for make in YARDSTICKS.values())


def restoring(fitted: FittedWorld, rollouts: int, group: int) -> Mechanism:
    """Return the plain gradient: it restores the habit that earns more."""
    return _of_fields(
        "restoring",
        "the plain gradient alone: towards the habit that earns more",
        [plain(_grown(f), fitted.habit(f), rollouts, group) for f in fitted.fits],
        SPEEDS,
        [{"hit_known": f.world.hit_known} for f in fitted.fits],
    )


def length(fitted: FittedWorld, rollouts: int, group: int) -> Mechanism:
    """Return the length-weighted loss, in the worlds in which it teaches guessing."""
    made = [(f, weighted(_grown(f), fitted.habit(f), rollouts, group)) for f in fitted.fits]
    low, high = _range(fitted)
    kept = [(f, field) for f, field in made if field.towards_guessing(low, high)]
    names = tuple({"hit_known": f.world.hit_known} for f, _ in kept)
    return _of_fields(
        "length weight", "a sequence mean, which weighs a rollout by 1 / turns", [x for _, x in kept], SPEEDS, names,
        excluded="in no world that fits does a sequence mean push towards guessing",
    )  # fmt: skip


def lost(fitted: FittedWorld, rollouts: int, group: int) -> Mechanism:
    """Return the loss of long rollouts, in the worlds and at the losses at which it teaches guessing."""
    made = [
        ({"hit_known": f.world.hit_known, "lost a turn": lost}, field)
        for f in fitted.fits
        for lost, field in zip(LOSSES, losing(_grown(f), fitted.habit(f), LOSSES, rollouts, group), strict=True)
    ]
    low, high = _range(fitted)
    kept = [(name, field) for name, field in made if field.towards_guessing(low, high)]
    return _of_fields(
        "lost rollouts", "long rollouts are lost before they are learnt from",
        [x for _, x in kept], SPEEDS, tuple(n for n, _ in kept),
        excluded=f"in no world that fits does a loss of up to {max(LOSSES)} a turn push towards guessing",
    )  # fmt: skip


def push(fitted: FittedWorld, rollouts: int, group: int) -> Mechanism:
    """Return a push from outside that begins and ends, against the plain gradient."""
    fits = fitted.fits[
        :: max(1, len(fitted.fits) - 1)
    ]  # the least and the largest hit rate: between them little changes
    fields = [plain(_grown(f), fitted.habit(f), rollouts, group) for f in fits]
    table, speed, rate = (x.ravel() for x in np.meshgrid(np.arange(len(fits)), SPEEDS[::3], PUSHES, indexing="ij"))
    motion = _motion(fields, table.astype(np.int64), speed, push=rate, switch=(BEGINS, ENDS))
    constants = (
        Constant("fastest step of the gradient", SPEEDS[::3], "logits a step"),
        Constant("push", PUSHES, "logits a step"),
        Constant("P(it begins in a step)", (BEGINS,)),
        Constant("P(it ends in a step)", (ENDS,)),
    )
    says = "a constant push from outside for a while, against the plain gradient"
    return Mechanism("push", says, motion, constants, {"speed": speed, "push": rate}, contains="restoring")


def noise(fitted: FittedWorld, rollouts: int, group: int) -> Mechanism:
    """Return Adam on a decision whose shared weights receive other tokens' gradients: a walk, weakly pulled back."""
    found = fitted.middle
    field = plain(_grown(found), fitted.habit(found), rollouts, group)
    doses = np.array(DOSES)
    size = np.sqrt(doses[:, None] ** 2 + field.mean**2 / DIRECTIONS)  # [doses, Z]
    table, step = (x.ravel() for x in np.meshgrid(np.arange(len(DOSES)), STEPS, indexing="ij"))
    table = table.astype(np.int64)
    motion = Motion(
        field.mean / size,
        doses[:, None] / size,
        table,
        step,
        np.zeros(len(step)),
        np.repeat(field.later[None], len(DOSES), 0),
        np.repeat(field.later_sd[None], len(DOSES), 0),
        memory=MEMORY,
        signal_sized=True,
    )
    constants = (
        Constant("alpha", STEPS, "logits"),
        Constant("noise on a direction", DOSES, "of the gradient"),
        Constant("shared directions", (DIRECTIONS,)),
        Constant("decay of the first moment", (MEMORY,)),
    )
    says = "noise of other tokens through shared weights under Adam: a walk, weakly pulled back"
    return Mechanism("noise", says, motion, constants, {"alpha": step, "noise": doses[table]})


def line() -> Mechanism:
    """Return a straight line in log-odds."""
    slopes = np.linspace(-0.5, 0.5, 101)
    says = "a straight line in log-odds, no mechanism at all"
    constants = (Constant("slope", tuple(slopes), "logits a step"),)
    return Mechanism("straight line", says, _blind(1e-3, np.ones(len(slopes)), slopes), constants, {"slope": slopes})


def walk() -> Mechanism:
    """Return a walk without direction."""
    sizes = np.geomspace(0.005, 1.0, 31)
    says = "as it stands now, give or take a walk of independent steps"
    constants = (Constant("step", tuple(sizes), "logits"),)
    return Mechanism("walk", says, _blind(1.0, sizes, np.zeros(len(sizes))), constants, {"step": sizes})


def _blind(sd: float, scale: F64, push: F64) -> Motion:
    """Return a chain that knows no world: later decisions stay as they are."""
    none = np.zeros((1, len(GRID)))
    stay = np.zeros((1, len(GRID), 2))
    return Motion(none, none + sd, np.zeros(len(scale), np.int64), scale, push, stay, stay)


RIVALS: dict[str, Callable[[FittedWorld, int, int], Mechanism]] = {
    "restoring": restoring,
    "length weight": length,
    "push": push,
    "noise": noise,
    "lost rollouts": lost,
}
"""The rivals by name."""
YARDSTICKS: dict[str, Callable[[], Mechanism]] = {"straight line": line, "walk": walk}
"""The yardsticks by name."""


def _of_fields(
    name: str,
    says: str,
    fields: Sequence[Field],
    speeds: tuple[float, ...],
    labels: Sequence[dict[str, float]],
    excluded: str = "",
) -> Mechanism:
    """Return the mechanism that follows one of several fields at one of several speeds."""
    constants = [Constant("fastest step", speeds, "logits a step")]
    if not fields:
        return Mechanism(name, says, None, tuple(constants), excluded=excluded)
    constants += [Constant(key, tuple(sorted({label[key] for label in labels}))) for key in labels[0]]
    table = np.repeat(np.arange(len(fields)), len(speeds))
    speed = np.tile(np.array(speeds), len(fields))
    motion = _motion(fields, table, speed)
    settings = {key: np.array([label[key] for label in labels])[table] for key in labels[0]}
    return Mechanism(name, says, motion, tuple(constants), {"speed": speed, **settings})


def _motion(fields: Sequence[Field], table: I64, speed: F64, push: F64 | None = None, **more: Any) -> Motion:
    """Return the chain that follows fields at speeds, logits a step at the fastest point of each."""
    mean, sd, later, later_sd = (np.stack([getattr(f, name) for f in fields]) for name in _PARTS)
    scale = speed / np.array([f.fastest for f in fields])[table]
    return Motion(mean, sd, table, scale, np.zeros(len(speed)) if push is None else push, later, later_sd, **more)


def _grown(found: TableFit) -> World:
    """Return the world of a fit with as many kinds of unknown questions as a group needs."""
    return replace(found.world, unknown_kinds=_KINDS)


def _range(fitted: FittedWorld) -> tuple[float, float]:
    """Return the log-odds between which the run was seen, least and largest, within the grid."""
    seen = np.log(1 - fitted.table.search_share[:, 0] + 1e-4) - np.log(fitted.table.search_share[:, 0] + 1e-4)
    return float(max(seen.min(), GRID[0])), float(min(seen.max(), GRID[-1]))
