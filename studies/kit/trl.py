"""Record a run of TRL's `GRPOTrainer` while it trains.

    from studies.kit.trl import MetastableCallback

    trainer = GRPOTrainer(model, reward_funcs, args, dataset)
    MetastableCallback("runs/read/mine", tools=("search",)).attach(trainer)
    trainer.train()

After every optimiser step the folder holds the whole record so far (`studies.kit.reading.live`): the step table with
behaviour by turn, and rollouts with ids, masks and log-probs. Stop the run when you like; `metastable read` reads both the
folder and TRL's own log.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

from studies.kit.reading import trl
from studies.kit.reading.formats import Source
from studies.kit.reading.live import Live
from studies.kit.reading.trl_episodes import Maker
from studies.kit.reading.trl_tap import Tap, why_not

if TYPE_CHECKING:
    from collections.abc import Mapping

    from studies.kit.episodes import Episode

__all__ = ["KEEP", "MetastableCallback"]

KEEP = 64
"""Rollouts that are kept of a step, with their tokens, unless another number is given."""

_OVER = ("train_runtime", "train_loss")  # of these a log is the summary at the end


class MetastableCallback(TrainerCallback):
    """Writes our record of a run, a step at a time, by the process that logs.

    `attach` it to the trainer, which also adds it to the trainer's callbacks. Given to the trainer as a callback alone, it
    cannot see ids, masks and log-probs, and records what TRL logs (``log_completions=True``); so it does where the
    trainer is not one that it knows how to read, which it says. What goes wrong with the record is a warning and ends the
    record, not the training.
    """

    def __init__(
        self, out: Path | str, tools: Sequence[str] = (), solved_at: float | None = None, keep: int = KEEP
    ) -> None:
        """Name the folder, which must be new or empty, the tools, and the reward that counts as solved.

        Without ``tools`` every name is one; without ``solved_at`` 1 is solved and 0 is wrong. ``keep`` is the most
        rollouts to keep of a step; all of them are counted. ValueError if it is negative.
        """
        if keep < 0:
            raise ValueError(f"keep={keep}: must be 0 or more")
        self.out, self.keep = Path(out), keep
        self.source = Source("trl", (), tools, solved_at)
        """What could not be recorded, and notes."""
        self._live: Live | None = None
        self._tap: Tap | None = None
        self._maker: Maker | None = None
        self._read: set[str] = set()
        self._over = False

    def attach(self, trainer: Any) -> Self:
        """Record this trainer, from now on. Returns itself."""
        trainer.add_callback(self)
        reason = why_not(trainer)
        if reason is not None:
            warnings.warn(f"{reason}; what TRL logs is recorded, no ids, masks or log-probs", stacklevel=2)
            self.source.note(f"recorded from TRL's log: {reason}")
            return self
        self._tap = Tap(trainer)
        words = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        self._maker = Maker(self.source, words, {*trainer.eos_token_ids, words.pad_token_id, words.bos_token_id})
        return self

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the folder. KeepingError if it is not empty, ValueError if there is nothing to record."""
        if self._tap is None and not getattr(args, "log_completions", False):
            raise ValueError("there is nothing to record: attach(trainer), or train with log_completions=True")
        if not state.is_world_process_zero:
            return
        settings = json.loads(args.to_json_string())
        self._live = Live(self.out, self.source, self.keep, settings, {"trainer": _version()})
        if self._tap is None:
            self._read = {path.name for path in trl.files(Path(args.output_dir))}
            self.source.note("recorded from TRL's log: the callback was not attached to the trainer")

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the log of the step before, where the log is all there is."""
        self._follow(args)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the rollouts of the step."""
        if self._tap is None:
            return
        rollouts = self._tap.step()  # all processes take part
        if self._live is None or self._over:
            return
        assert self._maker is not None
        step = int(state.global_step)
        try:
            self._live.step(step, [self._maker(each, step) for each in rollouts])
        except Exception as error:
            self._give_up(step, error)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        """Keep what the trainer logs: numbers of a training step."""
        if self._live is None or logs is None or any(name in logs for name in _OVER):
            return
        numbers = {name: float(x) for name, x in logs.items() if isinstance(x, int | float) and name[:5] != "eval_"}
        self._live.log(int(state.global_step), numbers)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the record."""
        self._follow(args)
        if self._live is None or self._over:
            return
        try:
            self._live.close()
        except Exception as error:
            self._give_up(int(state.global_step), error)

    def _follow(self, args: Any) -> None:
        """Record the files that TRL wrote since the last time."""
        if self._tap is not None or self._live is None or self._over:
            return
        for path in trl.files(Path(args.output_dir)):
            if path.name in self._read:
                continue
            self._read.add(path.name)
            episodes = self._of_file(path)
            if episodes:
                try:
                    self._live.step(episodes[0].step, episodes)
                except Exception as error:
                    self._give_up(episodes[0].step, error)
                    return

    def _of_file(self, path: Path) -> list[Episode]:
        part = Source("trl", (path,), self.source.tools, self.source.solved_at)
        episodes = list(trl.read(part))
        self.source.counts.update(part.counts)
        self.source.problems.extend(part.problems)
        self.source.absent.update(part.absent)
        for note in part.notes:
            self.source.note(note)
        return episodes

    def _give_up(self, step: int, error: Exception) -> None:
        self._over = True
        warnings.warn(f"{self.out}: the record ends before step {step} ({error!r}); training goes on", stacklevel=2)


def _version() -> str:
    import trl as package

    return f"TRL {package.__version__}"
