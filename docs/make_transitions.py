"""Print how often a change is told where there is none, and found where there is: ``python docs/make_transitions.py``.

The numbers of docs/reading.md: 200 series each, of 256 rollouts a step where they are shares; half a minute.
"""

import numpy as np
from scipy.signal import lfilter

from studies.kit.reading.transitions import shifts

RUNS, ROLLOUTS = 200, 256


def wander(rng: np.random.Generator, steps: int, memory: float, sd: float = 1.0) -> np.ndarray:
    """Return an autoregression of the first order, [steps], from its stationary law."""
    noise = rng.normal(size=steps + 200)
    return sd * lfilter([np.sqrt(1 - memory**2)], [1, -memory], noise)[200:]


def told(x: np.ndarray, counts: bool) -> list[int]:
    """Return the steps of the changes told."""
    rollouts = np.full(len(x), ROLLOUTS) if counts else None
    return [each.step for each in shifts("x", np.arange(len(x)), x, rollouts)]


def counted(rng: np.random.Generator, share: np.ndarray) -> np.ndarray:
    """Return the share that was counted, of `ROLLOUTS` a step."""
    return rng.binomial(ROLLOUTS, np.clip(share, 0, 1)) / ROLLOUTS


def main() -> None:
    """Print every rate."""
    rng = np.random.default_rng(0)
    for memory in (0.0, 0.5, 0.8, 0.9):
        rates = [
            float(np.mean([bool(told(wander(rng, n, memory), False)) for _ in range(RUNS)])) for n in (50, 100, 300)
        ]
        print(f"no share, autocorrelation {memory}: told in {rates} of series of 50, 100, 300 steps")  # noqa: T201
    for share in (0.02, 0.3, 0.5):
        rate = np.mean([bool(told(counted(rng, np.full(100, share)), True)) for _ in range(RUNS)])
        print(f"counts alone, share {share}, 100 steps: {rate}")  # noqa: T201
    for sd in (0.02, 0.05):
        for memory in (0.5, 0.8, 0.9):
            series = [[counted(rng, 0.5 + wander(rng, n, memory, sd)) for _ in range(RUNS)] for n in (50, 100, 300)]
            rates = [float(np.mean([bool(told(x, True)) for x in part])) for part in series]
            print(f"share, sd {sd}, autocorrelation {memory}: {rates}")  # noqa: T201
    for steps in (40, 60):
        ramp = 0.05 + 0.25 * np.clip((np.arange(steps) - 0.6 * steps + 10) / 20, 0, 1)
        found = [told(counted(rng, ramp + wander(rng, steps, 0.6, 0.02)), True) for _ in range(RUNS)]
        off = [min(abs(step - 0.6 * steps) for step in each) for each in found if each]
        print(f".05 to .3 in 20 steps, of {steps}: found {len(off) / RUNS}, off by {np.quantile(off, 0.9)} (90 %)")  # noqa: T201


if __name__ == "__main__":
    main()
