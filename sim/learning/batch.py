"""What a rule is given: the rewards of a batch of rollouts, their log-probs, and whatever else a part of the rule reads.

Sizes: Q questions, G rollouts for each, T tokens a rollout (turns, in the simulator); any leading axes. numpy or torch.
"""

from dataclasses import dataclass
from typing import Any, Literal

from sim.learning.arrays import array_namespace, detached

__all__ = ["Batch", "Reads", "require"]

Reads = Literal["reference", "turn", "state", "greedy_reward", "duration_s", "process_reward", "kl"]
"""What a part of a rule may read beside rewards, masks and the log-probs of the policies that sampled and learn."""


_PER_TOKEN = (
    "mask", "behaviour", "lengths", "proximal", "reference", "turn", "state", "process_reward", "step_reward",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Batch:
    """One batch; ``rollouts.padded()`` gives these views. A rule's ``reads`` says which of the optional ones it needs."""

    reward: Any
    """Reward of each rollout, [..., Q, G]; may be NaN where not valid."""
    mask: Any = None
    """What the loss may touch: sampled tokens, [..., Q, G, T], bool."""
    behaviour: Any = None
    """log mu of what was sampled, as the engine that sampled it had it, [..., Q, G, T]."""
    valid: Any = None
    """Rollouts that count, [..., Q, G], bool; None for all."""
    lengths: Any = None
    """Length each entry stands for, [..., Q, G, T]; None for 1 each."""
    proximal: Any = None
    """log pi_old, the learner's own log-probs when the batch began, [..., Q, G, T]; None for `behaviour`."""
    reference: Any = None
    """log pi_ref, [..., Q, G, T]."""
    turn: Any = None
    """Turn of each token, 0, 1, ... along T, [..., Q, G, T], int; None where every entry is a turn."""
    state: Any = None
    """``state_id`` a token's turn began in: equal where observations are identical, [..., Q, G, T], int."""
    process_reward: Any = None
    """Judgements of single steps at the token that earned them, [..., Q, G, T]; shaping weighs them into rewards."""
    step_reward: Any = None
    """Rewards given on the way, [..., Q, G, T]; `reward` comes on top, at the end."""
    greedy_reward: Any = None
    """Reward of one greedy rollout of each question, [..., Q]."""
    running_reward: Any = None
    """Running mean of the reward before this batch, [...]; None in the first one."""
    duration_s: Any = None
    """Time each rollout took, [..., Q, G], s."""

    def detached(self) -> "Batch":
        """Return the batch without gradients: itself where it has none."""
        free = {name: detached(x) for name, x in vars(self).items()}
        return self if all(free[name] is x for name, x in vars(self).items()) else Batch(**free)

    def __post_init__(self) -> None:
        xp, shape = array_namespace(self.reward), tuple(self.reward.shape)
        if not xp.isdtype(self.reward.dtype, "real floating"):
            raise ValueError(
                f"rewards are {self.reward.dtype}; advantages are fractions of them, so convert them to floats"
            )
        for name in ("mask", "valid"):
            x = getattr(self, name)
            if x is not None and not xp.isdtype(x.dtype, "bool"):
                raise ValueError(f"{name} is {x.dtype}; it must be bool: true where something counts")
        tokens = next((getattr(self, name).shape for name in _PER_TOKEN if getattr(self, name) is not None), None)
        expected = dict.fromkeys(("valid", "duration_s"), shape)
        expected |= {"greedy_reward": shape[:-1], "running_reward": shape[:-2]}
        expected |= dict.fromkeys(_PER_TOKEN, (*shape, *tokens[-1:]) if tokens is not None else ())
        for name, fits in expected.items():
            x = getattr(self, name)
            if x is not None and tuple(getattr(x, "shape", ())) != fits:
                raise ValueError(
                    f"{name} {tuple(getattr(x, 'shape', ()))} does not fit the reward {shape}; expected {fits}: nothing is "
                    "broadcast"
                )


def require(batch: Any, name: Reads, who: object) -> Any:
    """Return ``batch.name``.

    Raises
    ------
    ValueError
        When it is absent; names who needs it.
    """
    value = getattr(batch, name)
    if value is None:
        raise ValueError(
            f"{type(who).__name__} reads {name!r}, which this batch does not have; supply Batch({name}=...)"
        )
    return value


def usable(batch: Batch) -> Any:
    """Return 1 and 0 for rollouts that count, [..., Q, G], in the dtype of the reward."""
    xp = array_namespace(batch.reward)
    return xp.ones_like(batch.reward) if batch.valid is None else xp.astype(batch.valid, batch.reward.dtype)
