"""How a language model is started: which habit is demonstrated, how much of it, and how it is taught."""

from minimodel.tasks.script import Script
from sim.records.config import config

__all__ = ["Start"]


@config
class Start:
    """How a start is made."""

    script: Script = Script()
    """The habit: P(action | context), as at the other rungs."""
    demonstrations: int = 128
    """Episodes that are played; those that are not solved, or do not fit, are not taught."""
    known: float = 0.5
    """P(an answer without evidence is right); else it is the answer to another question."""
    think: bool = False
    """Whether a turn begins with a sentence between <think> and </think>."""
    unsolved: bool = False
    """Whether episodes that were not solved are taught too."""
    epochs: int = 1
    """Times each demonstration is taught."""
    batch: int = 4
    """Demonstrations an update."""
    micro: int = 4
    """Demonstrations a forward; changes memory and time, not the gradient."""
    rate: float = 1e-4
    """Largest learning rate."""
    warmup: float = 0.1
    """Share of the updates over which the rate grows from nothing; over the others it falls to nothing."""

    def __post_init__(self) -> None:
        for name in ("demonstrations", "epochs", "batch", "micro"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        for name in ("known", "warmup"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must lie in [0, 1]")
        if self.rate <= 0:
            raise ValueError(f"rate = {self.rate} must be positive")

    def rate_at(self, update: int, updates: int) -> float:
        """Return the learning rate of an update: up over the first `warmup` of them, then down to 0, linearly.

        >>> [round(Start(rate=1.0, warmup=0.2).rate_at(update, 10), 3) for update in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.125]
        """
        rising = self.warmup * updates
        up = (update + 1) / rising if update < rising else 1.0
        down = (updates - update) / (updates - rising) if update >= rising else 1.0
        return self.rate * min(up, down, 1.0)
