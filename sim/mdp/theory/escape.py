"""Escape of the log-odds of a decision from a mode: mean times, survival, Kramers, and where Kramers does not apply.

z is the log-odds of guessing at the start, g = sigmoid(z). One update moves it by drift(z) + sd(z) N(0, 1), independent of
the last one: a chain, and for small steps the Ito diffusion dz = drift dt + sd dW. Its quasi-potential

    U(z) = - integral of 2 drift / sd^2 dz

is in units of the noise. Under Adam with gradient noise s on shared directions drift = - alpha Delta g (1 - g) / s and
sd = alpha, but for terms of order 1 / m, so that U = 2 Delta g / (alpha s): *a step between two plains*, not two wells.
Pull and curvature vanish where the policy is sure, at either end. So nothing is stationary, the mean time of escape is
that of an arbitrary floor, and from a plain the rate of escape falls as 1 / (2 t). :func:`kramers_steps` refuses such a
potential; :func:`plain_survival` is what takes its place.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import cumulative_trapezoid
from scipy.special import erf, erfcx, expit

from sim.mdp.theory.passage import landing

__all__ = [
    "WATCHED",
    "Diffusion",
    "Field",
    "adam_diffusion",
    "adam_step",
    "chain_passage_steps",
    "kramers_steps",
    "mean_passage_steps",
    "momentum_walks",
    "natural_distance",
    "plain_survival",
    "survival",
]

F64 = NDArray[np.float64]

Field = Callable[[F64, F64], tuple[F64, F64]]
"""Drift and sd of one step, [N] each, from z now and z of the policy that sampled, [N] each."""

WATCHED = 0.5826
"""-zeta(1/2) / sqrt(2 pi): a walk watched once a step finds a level this many sd farther off (Siegmund 1985)."""


@dataclass(frozen=True, eq=False)
class Diffusion:
    """Drift and noise of log-odds on a grid: reflected at its lower end, absorbed at its upper end, the level."""

    grid: F64
    """Equally spaced log-odds, rising."""
    drift: F64
    """Mean of one step at each grid point, logits."""
    sd: F64
    """Standard deviation of one step at each grid point, logits."""

    def __post_init__(self) -> None:
        gaps = np.diff(self.grid)
        if len(self.grid) < 3 or not (gaps > 0).all() or not np.allclose(gaps, gaps[0]):
            raise ValueError("the grid must rise in equal steps and have 3 points or more; use numpy.linspace")
        for name in ("drift", "sd"):
            if getattr(self, name).shape != self.grid.shape:
                raise ValueError(f"{name} has shape {getattr(self, name).shape}, the grid {self.grid.shape}")
        if not (self.sd > 0).all():
            raise ValueError(f"sd = {self.sd.min()} must be positive: without noise use Fold.passage_steps")

    @property
    def spacing(self) -> float:
        """Distance of neighbours on the grid."""
        return float(self.grid[1] - self.grid[0])

    def potential(self) -> F64:
        """Return U(z) = -integral of 2 drift / sd^2 from the lower end, in units of the noise, at each grid point."""
        found: F64 = cumulative_trapezoid(-2 * self.drift / self.sd**2, dx=self.spacing, initial=0)
        return found

    def field(self, z: F64, behaviour: F64) -> tuple[F64, F64]:
        """Return drift and sd at z, held at their end values beyond the grid; the policy that sampled plays no part."""
        del behaviour
        return np.interp(z, self.grid, self.drift), np.interp(z, self.grid, self.sd)

    def mirrored(self) -> "Diffusion":
        """Return the diffusion of -z, for passage downwards."""
        return Diffusion(-self.grid[::-1], -self.drift[::-1], self.sd[::-1])

    def check_start(self, start: float) -> None:
        """ValueError for a start that is not on the grid."""
        if not self.grid[0] <= start <= self.grid[-1]:
            raise ValueError(f"start {start} must lie on the grid, {self.grid[0]} to {self.grid[-1]}")


def adam_diffusion(grid: F64, gap: float | F64, rate: float, dose: float, directions: int) -> Diffusion:
    """Return what Adam makes of a decision that hangs on m shared directions with gradient noise s on each.

    Each direction carries 1 / sqrt(m) of the logit and has the gradient -Delta g (1 - g) / sqrt(m) + s N(0, 1); Adam
    divides it by its root mean square r = sqrt(s^2 + (Delta g (1 - g))^2 / m). In sum over directions

        drift = -alpha Delta g (1 - g) / r,    sd = alpha s / r.

    Assumes that r belongs to the present z (Adam's second moment averages over 1,000 steps, but the pull is small beside
    s), that steps are independent (its first moment correlates them: :func:`momentum_walks`), and no sampling noise.

    Parameters
    ----------
    grid
        Log-odds z.
    gap
        Delta, one for all or one at each grid point.
    rate, dose, directions
        alpha, s and m.
    """
    return Diffusion(grid, *adam_step(-gap * expit(grid) * expit(-grid), rate, dose, directions))


def adam_step(pull: F64, rate: float, dose: float, directions: int) -> tuple[F64, F64]:
    """Return drift and sd of one Adam step for a logit whose gradient is `pull`, as in :func:`adam_diffusion`."""
    size = np.sqrt(dose**2 + pull**2 / directions)
    return rate * pull / size, rate * dose / size


def mean_passage_steps(diffusion: Diffusion, start: float) -> float:
    """Return the mean first-passage time of the diffusion from `start` to the upper end of the grid, in steps.

    The solution of the backward equation drift T' + sd^2 T'' / 2 = -1 (Ito; Gardiner 2009, section 5.5),

        T = integral from start to level of e^U(y) [integral from floor to y of 2 e^-U(x) / sd(x)^2 dx] dy.

    Assumes small steps, no memory, and the reflecting floor: on a plain T grows with the floor without bound.
    """
    diffusion.check_start(start)
    U = diffusion.potential()
    speed = cumulative_trapezoid(2 * np.exp(-U) / diffusion.sd**2, dx=diffusion.spacing, initial=0)
    total = cumulative_trapezoid(np.exp(U) * speed, dx=diffusion.spacing, initial=0)
    return float(total[-1] - np.interp(start, diffusion.grid, total))


def chain_passage_steps(diffusion: Diffusion, start: float) -> float:
    """Return the mean first-passage time of the chain z' = z + drift(z) + sd(z) N(0, 1), in steps.

    Solves (1 - P) T = 1 on the cells of the grid, exact up to their width. Steps may be large; they are independent.
    """
    diffusion.check_start(start)
    d = diffusion
    middle = (d.grid[1:] + d.grid[:-1]) / 2
    step = landing(middle, d.grid, d.drift, d.sd)
    times = np.linalg.solve(np.eye(len(middle)) - step, np.ones(len(middle)))
    return float(1 + landing(np.array([start]), d.grid, d.drift, d.sd)[0] @ times)


def survival(diffusion: Diffusion, start: float, steps: int) -> F64:
    """Return P(the chain has not reached the upper end by step n) for n = 0 .. steps, [steps + 1].

    One minus :func:`sim.mdp.theory.passage.first_passage_probability` at every n.
    """
    diffusion.check_start(start)
    d = diffusion
    left = np.ones(steps + 1)
    p = landing(np.array([start]), d.grid, d.drift, d.sd)[0]
    step = landing((d.grid[1:] + d.grid[:-1]) / 2, d.grid, d.drift, d.sd)
    for n in range(1, steps + 1):
        left[n] = p.sum()
        p = p @ step
    return left


def kramers_steps(diffusion: Diffusion) -> float:
    """Return Kramers' mean time from the lowest well over the highest barrier above it, in steps.

        T = (2 / sd_w^2) 2 pi / sqrt(U''_w |U''_b|) e^(U_b - U_w)

    The saddle-point value of the integral of :func:`mean_passage_steps` with the level beyond the barrier (Kramers 1940).
    Assumes a well and a barrier with curvature, and a barrier high against the noise, U_b - U_w well above 1.

    Raises
    ------
    ValueError
        When the potential has no well with a barrier above it, such as a step between plains.
    """
    U = diffusion.potential()
    bend = np.diff(U, 2) / diffusion.spacing**2  # at grid[1:-1]
    inner = U[1:-1]
    lowest = np.flatnonzero((inner < U[:-2]) & (inner <= U[2:]) & (bend > 0))
    highest = np.flatnonzero((inner > U[:-2]) & (inner >= U[2:]) & (bend < 0))
    if len(lowest):
        well = lowest[np.argmin(inner[lowest])]
        highest = highest[highest > well]
    if not len(lowest) or not len(highest):
        raise ValueError(
            f"the quasi-potential, {U.min():.3g} to {U.max():.3g}, has no well with a barrier above it, and Kramers' "
            "formula needs both; between plains use survival or plain_survival"
        )
    top = highest[np.argmax(inner[highest])]
    prefactor = 2 / diffusion.sd[1 + well] ** 2 * 2 * np.pi / np.sqrt(bend[well] * -bend[top])
    return float(prefactor * np.exp(inner[top] - inner[well]))


def natural_distance(diffusion: Diffusion, start: float) -> float:
    """Return the distance from `start` to the upper end in natural scale, logits: integral of e^(U(y) - U(floor)) dy.

    In this scale the diffusion has no drift. The unit is that of the plain at the lower end, so the plain's own part
    counts as it is and a step of height H counts e^H-fold. Assumes that the floor lies on the plain, where U is level.
    """
    diffusion.check_start(start)
    total = cumulative_trapezoid(np.exp(diffusion.potential()), dx=diffusion.spacing, initial=0)
    return float(total[-1] - np.interp(start, diffusion.grid, total))


def plain_survival(diffusion: Diffusion, start: float, steps: int | F64) -> F64:
    """Return P(no passage within `steps`) from a plain that has no floor, with a step of the potential at its end.

    Brownian motion with sd that of the plain, at a = level - start from a wall that lets it through after a local time
    l = h - a, h the natural distance (elastic Brownian motion; Carslaw and Jaeger 1959, section 14.2): with
    x = sd sqrt(steps / 2),

        erf(a / 2x) + e^(a / l + (x / l)^2) erfc(a / 2x + x / l).

    Falls as h / (sd sqrt(pi steps / 2)), so the rate of escape falls as 1 / (2 steps): no rate, no memorylessness, no mean.
    Assumes a step that is narrow against sd sqrt(steps), and small steps of the walk: add `WATCHED` sd to the level.
    """
    a = float(diffusion.grid[-1]) - start
    through = natural_distance(diffusion, start) - a
    x = diffusion.sd[0] * np.sqrt(np.asarray(steps, float) / 2)
    near = a / (2 * np.maximum(x, 1e-300))
    free: F64 = erf(near)
    if through <= 1e-9 * a:
        return free
    return free + np.exp(-(near**2)) * erfcx(near + x / through)


def momentum_walks(
    field: Field, start: float, b1: float, steps: int, walks: int, rng: np.random.Generator, lag: int = 0
) -> F64:
    """Return simulated paths of z under Adam's first moment with its bias correction, [walks, steps].

        m' = b1 m + (1 - b1) (drift(z) + sd(z) N(0, 1)),    z' = z + m' / (1 - b1^t),   t = 1, 2, ...

    The reduced model of a run: noise with a memory of 1 / (1 - b1) steps in place of independent steps. The variance of a
    long displacement stays sd^2 a step; what changes is that a path persists: it meets a level later, overshoots it, and
    averages the pull over its way. Neither end of a diffusion's grid holds a path; beyond them drift and sd are those of
    the end. Column 0 is the start, as a run's columns are those before the update.

    Parameters
    ----------
    field
        Drift and sd of one step from (z now, z of the policy that sampled), such as :meth:`Diffusion.field`.
    start, steps, walks
        Log-odds at step 0, columns, paths.
    b1
        Decay of the first moment; 0 gives the chain of independent steps.
    lag
        Steps by which the policy that samples is behind.
    """
    if not 0 <= b1 < 1:
        raise ValueError(f"b1 = {b1} must lie in [0, 1)")
    z, m = np.full(walks, float(start)), np.zeros(walks)
    path = np.empty((steps, walks))
    for t in range(steps):
        path[t] = z
        drift, sd = field(z, path[max(t - lag, 0)])
        m = b1 * m + (1 - b1) * (drift + sd * rng.standard_normal(walks))
        z = z + m / (1 - b1 ** (t + 1))
    return np.ascontiguousarray(path.T)
