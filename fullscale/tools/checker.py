"""The verify tool: a checker of answers that errs at known rates, by draws that belong to episode and turn."""

import numpy as np
from numpy.typing import NDArray

from sim.mdp.worlds import Verify
from sim.records.rng import uniforms

__all__ = ["luck", "passes"]


def luck(seed: int, stream: str, episode: int, turns: int) -> NDArray[np.float32]:
    """Return the uniforms that decide the checks of an episode, one for each of its turns, [turns].

    They are named by (seed, stream, episode) alone: a rerun, in whatever order and company, finds them again.

    >>> bool((luck(1, "demo", 5, 4)[:2] == luck(1, "demo", 5, 2)).all())
    True
    """
    return uniforms(seed, f"{stream}/verify", episode, (turns,))


def passes(right: bool, verify: Verify, uniform: float) -> bool:
    """Return whether a candidate passes: with P = sensitivity where it is right, 1 - specificity where it is not."""
    return uniform < (verify.sensitivity if right else 1 - verify.specificity)
