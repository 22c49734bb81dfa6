"""Print what docs/published_clusters.md says beside the claims: ``python docs/make_published.py``, a minute or two.

Seeds 100 and on, which no record uses.
"""

import numpy as np

from studies import anchors


def interrupts() -> None:
    """AReaL's gain of interrupts over drains, by rollouts in flight: calculated, simulated at an eighth, full size."""
    for part in (1 / 8, 3 / 32, 1 / 16, 1 / 32):
        rates = [
            anchors.rate(anchors.timed(anchors.areal(mode, part, steps=8), (100, 101, 102), study="pilot")["time_s"], 2)
            for mode in ("interrupt", "blocking")
        ]
        gain = float(np.exp(np.log(rates[0] / rates[1]).mean()))
        calculated, full = anchors.drain_gain(part), anchors.drain_gain(part, part=1)
        print(f"in flight {part:.4f}: calculated {calculated:.2f}, simulated {gain:.2f}, full size {full:.2f}")  # noqa: T201


def same_updates() -> None:
    """Verl's waits when every row spends the time on updates that threshold 0 prints."""
    for threshold in (0.1, 0.3, 0.5):
        cluster = anchors.verl(threshold, 1 / 8, 5, train_s=anchors.VERL[0].train_s)
        waits = anchors.timed(cluster, (100, 101), study="pilot")["wait_s"][:, 2:]
        print(f"threshold {threshold}: {waits.mean():.0f} s")  # noqa: T201


if __name__ == "__main__":
    interrupts()
    same_updates()
