"""How runs are put into the page: an index of all, and for each step a packed block with its rollouts' words.

The index is JSON in which no ``<``, ``>`` or ``&`` occurs. A block is JSON, deflated, in base 64; the page unpacks it when
its step is opened. A text that occurs several times in a block (a prompt in its group, a token) stands in it once.
Log-probabilities of tokens are whole millinats, other numbers have four significant digits.
"""

import base64
import json
import math
import zlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.records.tables import Outcome, Tokens
from studies.kit.episodes import Episode, Turn
from studies.kit.inspector.data import Inspected, workflow_of

__all__ = ["blocks", "harmless", "index"]

_PREVIEW = 90  # characters: more does not fit on a line of the list
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}


def harmless(value: Any) -> str:
    r"""Write JSON that can stand inside a ``script`` element: ASCII, no ``<``, ``>`` or ``&``.

    >>> print(harmless("</script>"))
    "\u003c/script\u003e"
    """
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)


def index(run: Inspected) -> dict[str, Any]:
    """Return what the page needs to draw the overview and list every rollout, without their words."""
    kept = _ordered(run)
    extra = sorted({workflow_of(episode) for episode in kept} - set(run.workflows))
    workflows = [*run.workflows, *extra]  # the latter without shares: a reader may have folded rare ones
    groups, members = _groups(kept)
    return {
        "name": run.name,
        "actions": list(run.actions),
        "steps": list(run.steps),
        "rollouts": list(run.rollouts),
        "workflows": workflows,
        "shares": [[_short(share) for share in row] for row in run.shares.tolist()],
        "columns": {name: [_short(value) for value in values.tolist()] for name, values in run.columns.items()},
        "marks": [[mark.step, mark.label, mark.calibrated, mark.signal] for mark in run.marks],
        "absent": sorted(run.absent.items()),
        "notes": list(run.notes),
        "folded": [[title, list(lines)] for title, lines in run.folded.items()],
        "outcomes": [outcome.words for outcome in Outcome],
        "groups": groups,
        "kept": {
            "step": _places(run.steps, (episode.step for episode in kept)),
            "workflow": _places(workflows, map(workflow_of, kept)),
            "group": members,
            "outcome": [int(episode.outcome) for episode in kept],
            "reward": [_short(episode.reward) for episode in kept],
            "turns": [len(episode.turns) for episode in kept],
            "kl": [_short(_kl(episode)) for episode in kept],
            "last": [_last(episode) for episode in kept],
        },
    }


def blocks(run: Inspected) -> dict[int, str]:
    """Return the packed rollouts of each step that has any, by the step's place."""
    place = {step: at for at, step in enumerate(run.steps)}
    return {place[step]: _pack(list(own)) for step, own in groupby(_ordered(run), key=lambda episode: episode.step)}


class _Texts:
    """Numbers texts in order of first use, so that each is written once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def _pack(episodes: Sequence[Episode]) -> str:
    texts = _Texts()
    written = [_episode(episode, texts) for episode in episodes]
    content = json.dumps({"texts": list(texts.numbers), "episodes": written}, allow_nan=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(content.encode("ascii"), 6)).decode("ascii")


def _episode(episode: Episode, texts: _Texts) -> dict[str, Any]:
    return {
        "prompt": texts(episode.prompt),
        "versions": [episode.version_oldest, episode.version_newest, episode.take_version],
        "extras": [[name, _extra(value)] for name, value in episode.extras.items()],
        "turns": [_turn(turn, texts) for turn in episode.turns],
    }


def _turn(turn: Turn, texts: _Texts) -> dict[str, Any]:
    return {
        "action": texts(turn.action),
        "context": texts(turn.context),
        "generated": texts(turn.generated),
        "observed": texts(turn.observed),
        "counts": [turn.generated_tokens, turn.observed_tokens],
        "decision": [_short(turn.logp), _short(turn.logp_reference), _short(turn.entropy)],
        "tokens": None if turn.tokens is None else _tokens(turn.tokens, turn.pieces, texts),
    }


def _tokens(tokens: Tokens, pieces: Sequence[str], texts: _Texts) -> dict[str, Any]:
    """Return columns; one whose entries are all the same is that entry alone."""
    return {
        "count": len(tokens),
        "id": tokens.id.tolist(),
        "piece": [texts(piece) for piece in pieces] if len(pieces) == len(tokens) else None,
        "kind": _column((tokens.sampled.astype(int) + tokens.train.astype(int)).tolist()),
        "version": _column([None if each < 0 else each for each in tokens.version.tolist()]),
        "logp": _column(_milli(tokens.logp_behaviour)),
        "proximal": _column(_milli(tokens.logp_proximal)),
        "reference": _column(_milli(tokens.logp_reference)),
    }


def _column(values: list[Any]) -> Any:
    return values[0] if len(set(values)) == 1 else values


def _milli(values: NDArray[np.float64]) -> list[int | None]:
    return [round(1000 * value) if math.isfinite(value) else None for value in values.tolist()]


def _ordered(run: Inspected) -> list[Episode]:
    return sorted(run.episodes, key=lambda episode: episode.step)


def _groups(kept: Sequence[Episode]) -> tuple[list[list[str]], list[int]]:
    """Return [task, role, beginning of the prompt] of each group, and the group of each rollout.

    Words with which every prompt of the run begins, such as instructions, are left out: they tell nothing apart.
    """
    common = _instructions({episode.prompt for episode in kept})
    groups: dict[tuple[int, str, str], int] = {}
    shown, members = [], []
    for episode in kept:
        key = (episode.step, str(episode.task), episode.role)
        if key not in groups:
            groups[key] = len(groups)
            shown.append([_line(str(episode.task), _PREVIEW), episode.role, _line(episode.prompt[common:], _PREVIEW)])
        members.append(groups[key])
    return shown, members


def _instructions(prompts: set[str]) -> int:
    """Return the length of what all of several prompts begin with, in whole words; 0 for a single prompt."""
    if len(prompts) < 2:
        return 0
    first, last = min(prompts), max(prompts)  # of sorted texts these two have least in common
    shared = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return max(first.rfind(space, 0, shared) for space in " \n\t") + 1


def _places(names: Sequence[Any], values: Iterable[Any]) -> list[int]:
    place = {name: at for at, name in enumerate(names)}
    return [place[value] for value in values]


def _kl(episode: Episode) -> float | None:
    """Return the sum of log-probability minus reference over sampled tokens, or over decisions where no tokens are kept."""
    parts: list[float] = []
    for turn in episode.turns:
        if turn.tokens is not None:
            apart = turn.tokens.logp_behaviour - turn.tokens.logp_reference
            parts += apart[turn.tokens.sampled].tolist()
        elif turn.logp is not None and turn.logp_reference is not None:
            parts.append(turn.logp - turn.logp_reference)
    return math.fsum(parts) if parts and all(map(math.isfinite, parts)) else None


def _last(episode: Episode) -> str:
    """Return the end of what the policy wrote last."""
    text = next((turn.generated for turn in reversed(episode.turns) if turn.generated.strip()), "")
    return _line(text[-4 * _PREVIEW :], None)[-_PREVIEW:]


def _line(text: str, limit: int | None) -> str:
    return " ".join(text[: None if limit is None else 4 * limit].split())[:limit]


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")


def _extra(value: float | str) -> float | str:
    return str(value) if isinstance(value, str) or not math.isfinite(value) else float(f"{value:.4g}")
