"""Training runs the studies start from; each is a complete config and a variant changes two lines.

Values that the published table gives are fitted (:mod:`sim.mdp.calibration`); the others are ours and stand here.
"""

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import SequenceMean
from sim.learning.optimisers import Adam, Natural, Sgd
from sim.learning.rule import Rule
from sim.learning.setup import Drive, Features, GradientNoise, Training
from sim.mdp.worlds import seed_a, verify_world
from sim.records.config import replace

__all__ = ["drive", "length_window", "noise", "null", "verify", "verify_driven"]


def null() -> Training:
    """Return tabular GRPO on seed A's world: private weights, no noise, no drive."""
    return Training()


def drive() -> Training:
    """Return the same pushed from outside: 0.38 logits a step for 40 steps, 1.6 times the critical drive (ours)."""
    return replace(null(), {"drive": Drive(rate=0.38, start=20, duration=40)})


def noise(sd: float = 0.5, private: float = 0.0, noisy: bool = False) -> Training:
    """Return NOISE-E: the start decision hangs on 16 shared directions that receive gradient noise under Adam.

    Parameters
    ----------
    sd
        Standard deviation of the noise on each direction, in units of the gradient.
    private
        Strength of a private weight of the start decision beside the shared ones.
    noisy
        Whether that private weight receives the noise as well.
    """
    return replace(
        null(),
        {
            "features": Features(shared=16, private=private),
            "optimiser": Adam(0.6),
            "noise": GradientNoise(sd, private=noisy),
            "steps": 600,
        },
    )


def length_window() -> Training:
    """Return a sequence-mean loss where its drift has the wrong sign: 35 % known, of which a search finds 60 %.

    The rate is 24 because a sequence mean divides by the number of turns, about 3 here.
    """
    world = replace(seed_a(), {"known": 0.35, "hit_known": 0.6})
    return replace(null(), {"world": world, "rule": Rule(normaliser=SequenceMean()), "optimiser": Sgd(24.0)})


def verify(p0: float = 0.01) -> Training:
    """Return the world with a verify tool that is used with probability `p0` at first, under the natural gradient.

    Advantages are not divided by the group's spread, so the effective gap is the true one times 1 - 1/G.
    """
    from scipy.special import logit

    return Training(
        world=verify_world(),
        habit=(("fresh/verify", float(logit(p0))), ("rejected/answer", -2.2)),
        features=Features(on=("fresh/verify",)),
        rule=Rule(credit=GroupCredit(std=False)),
        optimiser=Natural(0.3),
    )


def verify_driven() -> Training:
    """Return the verify world under :func:`drive`'s push and optimiser, from the same starting log-odds as guessing."""
    base = verify()
    return replace(
        base,
        {
            "habit": (("fresh/verify", -4.14), ("rejected/answer", -2.2)),
            "rule": null().rule,
            "optimiser": Sgd(2.4),
            "drive": drive().drive,
        },
    )
