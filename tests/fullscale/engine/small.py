"""Small episodes on a tiny model, and what a full forward says about them."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from fullscale.engine.local import LocalEngine, decoder, turn_ends
from fullscale.engine.protocol import Reply, Settings, Spoken, Turn
from fullscale.model.tiny import tiny_config, tiny_model, tiny_tokenizer
from sim.records.rng import uniforms as block

ROWS, PLACES = 64, 400
SETTINGS = Settings(temperature=0.8, turn_tokens=10, context_tokens=120, stop=("</search>", "e"))


@cache
def tokenizer() -> Any:
    return tiny_tokenizer()


@cache
def model(*, seed: int = 0, tied: bool = True, dtype: torch.dtype = torch.float32) -> Any:
    return tiny_model(tiny_config(vocabulary=len(tokenizer()), layers=2, tied=tied), seed=seed, dtype=dtype)


def engine(of: Any = None, *, version: int = 0, ends: Sequence[int] | None = None, **more: Any) -> LocalEngine:
    found = LocalEngine(decoder(tokenizer()), turn_ends(tokenizer()) if ends is None else ends, **more)
    found.publish(version, model() if of is None else of)
    return found


def prompts(rows: int = 9) -> list[list[int]]:
    """Questions of unequal length, three rows each."""
    return [
        tokenizer().encode("Question: what is the capital of " + "Spain, " * (row // 3 * 2 + 1)) for row in range(rows)
    ]


@cache
def luck(seed: int = 0) -> Any:
    return block(seed, "engine/test", 0, (ROWS, PLACES))


def uniforms(row: int, place: int) -> float:
    return float(luck()[row, place])


def replies(turns: int = 3) -> Callable[[Sequence[int], Sequence[Turn]], list[Reply]]:
    """Observations whose length depends on the row and on what was written, so many turns at most, fewer in some rows."""
    asked: dict[int, int] = {}

    def reply(rows: Sequence[int], ended: Sequence[Turn]) -> list[Reply]:
        found = []
        for row, turn in zip(rows, ended, strict=True):
            asked[row] = asked.get(row, 0) + 1
            over = asked[row] >= 1 + (row * 7) % turns
            told = "<information>" + "Madrid " * (1 + (row + sum(turn.ids)) % 5) + "</information>"
            found.append(Reply(None if over else tuple(tokenizer().encode(told))))
        return found

    return reply


def over(rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply]:
    """One turn an episode."""
    return [Reply(None)] * len(rows)


def full_forward(of: Any, spoken: Spoken, temperature: float) -> tuple[Any, Any]:
    """Log-prob and entropy of every sampled token by one forward over the whole episode, float64 after the logits."""
    ids = torch.from_numpy(spoken.ids)
    with torch.no_grad():
        logits = of(ids[None], use_cache=False).logits[0, :-1].double() / temperature
    logp = torch.log_softmax(logits, -1)
    here = spoken.sampled[1:]
    return logp.gather(-1, ids[1:, None])[:, 0].numpy()[here], -(logp.exp() * logp).sum(-1).numpy()[here]


def largest_gap(of: Any, episodes: Sequence[Spoken], temperature: float = SETTINGS.temperature) -> float:
    gaps = []
    for spoken in episodes:
        for mine, theirs in zip((spoken.logp, spoken.entropy), full_forward(of, spoken, temperature), strict=True):
            gaps.append(np.abs(mine[spoken.sampled] - theirs).max())
    return float(max(gaps))


def same(a: Spoken, b: Spoken) -> bool:
    return a.ids.tolist() == b.ids.tolist() and a.turns == b.turns and a.ended == b.ended
