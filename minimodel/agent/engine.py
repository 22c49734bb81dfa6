"""The in-process engine: batched decoding with a KV cache, from which finished episodes are dropped.

Tokens are drawn by inverse CDF on indexed uniforms, one for each token, so that an episode's luck depends neither on its
company nor on when it is served. When weights are published in the middle of an episode, what has been read is read again
with the new ones (re-prefill), and the tokens that follow carry the new version.

Decoding is compiled where the machine has a compiler (see :mod:`minimodel.model.compiled`) and PyTorch's where it has not;
the two agree to 1e-5 in log-probability.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from minimodel.agent.policy import TinyPolicy, log_probs
from minimodel.agent.protocols import F32, I64, Flags, Written
from minimodel.model.compiled import CompiledDecoder, Drawn, available
from minimodel.model.sampling import inverse_cdf

__all__ = ["LocalEngine"]


class LocalEngine:
    """Samples with one version of the tiny transformer at a time.

    Parameters
    ----------
    compiled
        Whether to decode in compiled code where the machine can.
    """

    def __init__(self, *, compiled: bool = True) -> None:
        self.compiled = compiled and available()
        """Whether decoding is compiled."""
        self.version = -1
        self.policy: TinyPolicy | None = None
        self.decoder: CompiledDecoder | None = None

    def publish(self, version: int, policy: TinyPolicy) -> None:
        """Sample with `policy`, under this version number, from now on; compiled code takes a copy of its weights."""
        self.version, self.policy = version, policy
        self.decoder = CompiledDecoder(policy.model) if self.compiled else None

    def open(self, prompts: I64) -> "LocalConversation":
        """Begin an episode on every prompt.

        Raises
        ------
        RuntimeError
            Before any weights were published.
        """
        if self.policy is None:
            raise RuntimeError("nothing was published to this engine yet; call publish(version, policy) first")
        return LocalConversation(self, prompts)


class LocalConversation:
    """See :class:`~minimodel.agent.protocols.Conversation`."""

    def __init__(self, engine: LocalEngine, prompts: I64) -> None:
        self.engine = engine
        self.ids = torch.from_numpy(np.ascontiguousarray(prompts))  # [R, t], all that was read and written
        self._restart()

    def _restart(self) -> None:
        """Forget what was read; it will be read again with the weights the engine has now."""
        policy = self.engine.policy
        assert policy is not None
        self.policy, self.version, self.decoder = policy, self.engine.version, self.engine.decoder
        self.cache: Any = (policy.model if self.decoder is None else self.decoder).start(len(self.ids))
        self.read_to = 0

    @torch.inference_mode()
    def write(self, tokens: int, uniforms: F32 | None, watch: tuple[int, tuple[int, ...]]) -> Written:
        """Sample the next `tokens` of every episode."""
        if self.engine.version != self.version:
            self._restart()
        if self.decoder is None:
            drawn = self._draw(tokens, uniforms, watch)
        else:
            push = self.policy.push
            drawn = self.decoder.extend_and_draw(
                self.ids[:, self.read_to :],
                self.cache,
                tokens,
                uniforms,
                temperature=self.policy.temperature,
                watch=watch,
                push=None if push is None else (push.position, push.token, push.logits),
            )
        self.ids = torch.cat([self.ids, drawn.ids], 1)
        self.read_to = self.ids.shape[1] - 1  # the last token drawn is read with what follows it
        version = np.full(drawn.ids.shape, self.version)
        return Written(drawn.ids.numpy(), drawn.logp.numpy(), drawn.entropy.numpy(), version, drawn.watched.numpy())

    def _draw(self, tokens: int, uniforms: F32 | None, watch: tuple[int, tuple[int, ...]]) -> Drawn:
        """Read what is unread and draw the next tokens, with PyTorch."""
        unread, position = self.ids[:, self.read_to :], self.ids.shape[1]
        watched = torch.zeros(len(unread), len(watch[1]))
        made: list[tuple[Tensor, Tensor, Tensor]] = []
        for i in range(tokens):
            logits = self.policy.model.extend(unread, self.cache)
            push = self.policy.push
            if push is not None and push.position == position + i:
                logits[:, push.token] += push.logits
            logp = log_probs(logits, self.policy.temperature)
            ids = logp.argmax(-1) if uniforms is None else inverse_cdf(logp, torch.from_numpy(uniforms[i]))
            if i == watch[0]:
                watched = logp[:, list(watch[1])]
            made.append((ids, logp.gather(-1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(-1)))
            unread = ids[:, None]
        ids, logps, entropies = (torch.stack(parts, 1) for parts in zip(*made, strict=True))
        return Drawn(ids, logps, entropies, watched)

    @torch.inference_mode()
    def read(self, keep: Flags, observation: I64) -> None:
        """Drop the episodes that ended and append what came back to the others; it is read with the next token."""
        rows = torch.from_numpy(np.flatnonzero(keep))
        if len(rows) < len(self.ids):
            self.cache.keep(rows)
            self.ids = self.ids[rows]
        self.ids = torch.cat([self.ids, torch.from_numpy(observation)], 1)
