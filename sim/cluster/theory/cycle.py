"""How long a training step takes with generation and training in turn, and how much running both at once can save."""

from sim.cluster.theory._checks import non_negative, positive

__all__ = ["asynchronous_gain_bound", "synchronous_step_s"]


def synchronous_step_s(longest_s: float, train_s: float, sync_s: float = 0.0) -> float:
    """Return the mean time of a synchronous step: E[max] + T_train + T_sync, s.

    Steps renew, so mean rates are exact by the renewal-reward theorem: a batch per mean step.

    Parameters
    ----------
    longest_s
        E[max], mean time of the last trajectory of a batch (:mod:`sim.cluster.theory.order`), s.
    train_s, sync_s
        Mean time of an update and of handing the weights over, s.
    """
    non_negative(longest_s=longest_s, train_s=train_s, sync_s=sync_s)
    return longest_s + train_s + sync_s


def asynchronous_gain_bound(generate_s: float, train_s: float, generate_split_s: float, train_split_s: float) -> float:
    """Return the largest speed-up of running generation and training at once: (T_g + T_t) / max(T_g', T_t').

    Both sides never stop and weights are handed over for nothing; what is reached is less. Were both to scale perfectly,
    T_g' = T_g / phi and T_t' = T_t / (1 - phi), it would be 1 at best: what asynchrony gains is the time that slots and
    machines stand idle behind the longest trajectory.

    Parameters
    ----------
    generate_s, train_s
        T_g and T_t, each with all machines in turn, s per batch.
    generate_split_s, train_split_s
        T_g' and T_t', each with its own part of the machines, s per batch.

    >>> asynchronous_gain_bound(60.0, 40.0, 80.0, 80.0)
    1.25
    """
    non_negative(generate_s=generate_s, train_s=train_s)
    positive(generate_split_s=generate_split_s, train_split_s=train_split_s)
    return (generate_s + train_s) / max(generate_split_s, train_split_s)
