"""What TRL's trainer knows of its rollouts and does not log: ids, masks, log-probs, weights of rewards, policy versions.

TRL has no public way to them, so `Tap` stands in front of three private methods of one trainer and reads its `_logs`.
Everything that depends on TRL's inside is in this file, as it is in TRL 1.16; `why_not` says whether it is there.

- ``_generate``: ids of prompt and completion, which of them were sampled, the sampler's log-probs;
- ``_generate_and_score_completions``: log-probs of the learner before the update and of the reference, the loss mask;
- ``_get_per_token_logps_and_entropies``: the learner's log-probs and entropies in its first forward on a rollout;
- ``_logs``: prompt, completion, rewards and advantage, as TRL logs them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

__all__ = ["Rollout", "Tap", "why_not"]

_METHODS = ("_generate", "_generate_and_score_completions", "_get_per_token_logps_and_entropies")
_GENERATED = 5  # ids of prompts, of completions, masks, completions, log-probs, and what follows
_LOGS = ("prompt", "completion", "rewards", "advantages", "extra")


@dataclass(frozen=True)
class Rollout:
    """One rollout as the trainer holds it; values of tokens are those of the completion, [n] each."""

    row: Mapping[str, Any]
    """What TRL logs of it: prompt, completion, a column for each reward function, extra columns, advantage."""
    rewards: tuple[str, ...]
    """Names of the reward functions."""
    reward: float | None
    """Weighted sum of their rewards; None if none gave one."""
    prompt: Sequence[int]
    """Ids of the prompt."""
    ids: Sequence[int]
    """Ids of the completion: what was sampled and what came back."""
    sampled: Sequence[bool]
    """Which of them the policy sampled."""
    train: Sequence[bool]
    """Which of them the loss takes."""
    truncated: bool
    """Whether the last of them ends no text."""
    version: int | None
    """Optimiser steps that the policy had taken when it wrote it; None where a rollout function wrote it."""
    logp: Sequence[float] | None = None
    """Log-probs under the sampler, where it gave them."""
    proximal: Sequence[float] | None = None
    """Log-probs under the learner at the start of its updates on the rollout."""
    reference: Sequence[float] | None = None
    """Log-probs under the reference."""
    entropy: Sequence[float] | None = None
    """Entropies of the learner's distributions in its first forward on the rollout, nats."""


@dataclass
class _Batch:
    rollouts: list[Rollout] = field(default_factory=list)
    spent: bool = False
    """Whether an optimiser step was recorded with it."""


def why_not(trainer: Any) -> str | None:
    """Say what a trainer lacks that `Tap` needs, or None."""
    missing = [name for name in (*_METHODS, "_logs", "reward_weights") if not hasattr(trainer, name)]
    missing += [f"_logs[{name!r}]" for name in _LOGS if not missing and name not in trainer._logs]
    if not missing:
        return None
    import trl

    return f"TRL {trl.__version__}'s {type(trainer).__name__} has no {missing[0]}: it is read as TRL 1.16 has it"


class Tap:
    """Stands in front of a trainer's methods from its construction on, and keeps the rollouts of the step."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self._generated: Any = None
        self._batches: list[_Batch] = []
        self._forward: dict[tuple[int, ...], tuple[list[float], list[float] | None]] = {}
        generate, score, forward = (getattr(trainer, name) for name in _METHODS)

        def generating(*args: Any, **kwargs: Any) -> Any:
            self._generated = generate(*args, **kwargs)
            return self._generated

        def scoring(inputs: Any, *args: Any, **kwargs: Any) -> Any:
            output = score(inputs, *args, **kwargs)
            if trainer.model.training:
                self._keep(output)
            return output

        def forwarding(
            model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kw: Any
        ) -> Any:
            result = forward(model, input_ids, attention_mask, logits_to_keep, *args, **kw)
            if kw.get("compute_entropy") and trainer.model.training:
                self._see(input_ids, attention_mask, int(logits_to_keep), *result[:2])
            return result

        for name, method in zip(_METHODS, (generating, scoring, forwarding), strict=True):
            setattr(trainer, name, method)

    def step(self) -> list[Rollout]:
        """Return the rollouts of the optimiser step that ended, of all processes, which all must call this.

        They are those that were made since the step before, or where none were, those that it had.
        """
        from accelerate.utils import gather_object  # type: ignore[import-not-found, import-untyped, unused-ignore]

        new = [batch for batch in self._batches if not batch.spent] or self._batches[-1:]
        self._batches = new
        for batch in new:
            batch.rollouts, batch.spent = [self._scored(each) for each in batch.rollouts], True
        return list(gather_object([each for batch in new for each in batch.rollouts]))

    def _keep(self, output: Mapping[str, Any]) -> None:
        """Keep the batch that was generated and scored just now."""
        trainer = self.trainer
        if all(batch.spent for batch in self._batches):
            self._forward.clear()
        prompts, completions, masks, _, logps = self._generated[:_GENERATED]
        rows = _logged(trainer._logs, len(completions) * trainer.accelerator.num_processes)
        rows = rows[trainer.accelerator.process_index * len(completions) :]
        weights = dict(zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True))
        loss = output["completion_mask"] * output.get("tool_mask", 1)
        ends = {*trainer.eos_token_ids, trainer.processing_class.pad_token_id}
        own = getattr(trainer, "rollout_func", None) is None
        found = []
        for k, ids in enumerate(completions):
            n = len(ids)
            found.append(
                Rollout(
                    row=rows[k],
                    rewards=tuple(weights),
                    reward=_weighted(rows[k], weights),
                    prompt=list(map(int, prompts[k])),
                    ids=list(map(int, ids)),
                    sampled=[True] * n if masks is None else [bool(each) for each in masks[k]],
                    train=loss[k, :n].bool().tolist(),
                    truncated=n > 0 and ids[-1] not in ends,
                    version=int(trainer.state.global_step) if own else None,
                    logp=None if logps is None else [math.nan if each is None else float(each) for each in logps[k]],
                    proximal=_values(output.get("old_per_token_logps"), k, n),
                    reference=_values(output.get("ref_per_token_logps"), k, n),
                )
            )
        self._batches.append(_Batch(found))

    def _see(self, input_ids: Any, attention_mask: Any, keep: int, logps: Any, entropies: Any) -> None:
        """Keep what the learner's forward gave, by the ids of the sequence; the first forward on a rollout counts."""
        there = attention_mask.bool()
        lengths = there[:, -keep:].sum(1).tolist()
        logps, seen = logps.detach(), None if entropies is None else entropies.detach()
        for k, n in enumerate(lengths):
            key = tuple(input_ids[k][there[k]].tolist())
            if key not in self._forward:
                self._forward[key] = (
                    logps[k, :n].float().tolist(),
                    None if seen is None else seen[k, :n].float().tolist(),
                )

    def _scored(self, rollout: Rollout) -> Rollout:
        """Return a rollout with what the learner's forward gave, where there was one."""
        logps, entropies = self._forward.get((*rollout.prompt, *rollout.ids), (None, None))
        return replace(
            rollout,
            proximal=logps if rollout.proximal is None else rollout.proximal,
            entropy=entropies if rollout.entropy is None else rollout.entropy,
        )


def _logged(logs: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the last rows of TRL's log, with the columns in the order of its table."""
    columns = {"prompt": logs["prompt"], "completion": logs["completion"], **logs["rewards"], **logs["extra"]}
    columns["advantage"] = logs["advantages"]
    tails = {name: list(islice(reversed(values), count))[::-1] for name, values in columns.items()}
    return [{name: _none(tail[k]) for name, tail in tails.items() if len(tail) == count} for k in range(count)]


def _none(value: Any) -> Any:
    """Return a value as a parquet file gives it back: a reward that is not there is NaN here."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _weighted(row: Mapping[str, Any], weights: Mapping[str, float]) -> float | None:
    """Return the sum of weight x reward of the functions that gave one, None if none did."""
    given = [weight * value for name, weight in weights.items() if (value := row[name]) is not None]
    return float(sum(given)) if given else None


def _values(tensor: Any, row: int, count: int) -> list[float] | None:
    return None if tensor is None else tensor[row, :count].float().tolist()
