"""Where a step's batch comes from: questions, an engine and its versions, and what the episodes are worth."""

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullscale.agent.closed_book import closed_book
from fullscale.agent.parts import Parts
from fullscale.agent.ranks import Ranks
from fullscale.agent.rollouts import Played, joined, play
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Training
from fullscale.engine.http.engine import HttpEngine
from fullscale.engine.local import LocalEngine, decoder, turn_ends
from fullscale.engine.protocol import Engine
from fullscale.engine.servers import Reader
from fullscale.model.halves import halves
from fullscale.world.questions import Question
from minimodel.agent.collect import Draws
from sim.records.config import to_dict
from sim.records.run import run_key

__all__ = ["Collector", "chosen"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Collector:
    """Plays the batches of a run.

    Parameters
    ----------
    weights
        Version -> the network that has it.
    """

    def __init__(
        self,
        config: Training,
        parts: Parts,
        seed: int,
        study: str,
        folder: Path,
        ranks: Ranks,
        weights: Callable[[int], Any],
    ) -> None:
        self.config, self.parts, self.ranks, self._weights = config, parts, ranks, weights
        self.seed, self.study, self.folder = seed, study, folder
        self._ends: list[Callable[[], None]] = []
        self.engine: Engine = self._engine(folder)
        """What samples here and now: every batch, or beside an asynchronous one held-out and greedy episodes."""
        self.newest = -1
        self._counted: dict[str, int] = {}

    @property
    def baseline(self) -> str:
        """What a group's baseline is over."""
        schedule = self.config.schedule
        return "all" if isinstance(schedule, Asynchronous) else schedule.baseline

    def published(self, version: int) -> None:
        """Note that there is a new version."""
        self.newest = version

    def batch(self, step: int) -> tuple[Played, Flags]:
        """Return the batch of a step, and which of its episodes arrive, [Q, G]."""
        c = self.config
        assert not isinstance(c.schedule, Asynchronous)
        draws = self._draws("train")
        questions = chosen(draws, step, self.parts.world.train, c.prompts)
        shape = (c.prompts, c.group, c.task.world.turns)
        batch = self._played(questions, c.group, draws, step, c.schedule.versions(step, shape))
        return batch, c.schedule.arrives(batch.taken, draws.block("arrival", step, c.prompts, c.group))

    def reward(self, batch: Played) -> tuple[F64, dict[str, float]]:
        """Return the reward that is trained on, [Q, G], and what a judge said, where there is one."""
        monitor, judge = self.config.monitor, self.config.judge
        reward = batch.reward if monitor is None else monitor(batch)  # type: ignore[arg-type]  # it has what is read
        if judge is None:
            return reward, {}
        said = self.ranks.from_first(judge.of(self._texts(batch)) if self.ranks.rank == 0 else None)
        columns = {"judge/score": said.score, "judge/unclear_share": said.unclear}
        return reward + said.term.reshape(reward.shape), columns

    def greedy(self, questions: Sequence[Question], step: int) -> F64:
        """Return the reward of the likeliest episode of each question, [Q, 1]."""
        shape = (len(questions), 1, self.config.task.world.turns)
        beside = self._played(questions, 1, self._draws("greedy"), step, np.full(shape, self.newest), greedy=True)
        return self.reward(beside)[0]

    def held_out(self, step: int, prompts: int, group: int) -> Played:
        """Return episodes on held-out questions with the newest weights."""
        draws = self._draws("eval")
        questions = chosen(draws, step, self.parts.world.held_out, prompts)
        shape = (prompts, group, self.config.task.world.turns)
        return self._played(questions, group, draws, step, np.full(shape, self.newest))

    def known(self, questions: Sequence[Question]) -> F64:
        """Return 1 for each that is answered right without any tool, with the newest weights, [Q]; the first rank asks."""
        found = None
        if self.ranks.rank == 0:
            self._publish(self.newest)
            found = closed_book(self.engine, self.parts.dialogue, questions, self.config.sampler.turn_tokens)
        answer: F64 = self.ranks.from_first(found)
        return answer

    def counts(self) -> dict[str, float]:
        """Return what a server answered dishonestly, and how often it did not answer, since this was last asked."""
        if not isinstance(self.engine, HttpEngine):
            return {}
        now = {"violations": self.engine.violations.total(), "failures": self.engine.failures.total()}
        before, self._counted = self._counted, now
        return self.ranks.from_first({f"engine/{name}": float(n - before.get(name, 0)) for name, n in now.items()})

    def state(self) -> dict[str, Any]:
        """Return what of this has to be saved."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned."""

    def __enter__(self) -> "Collector":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what was begun."""
        self.close()

    def close(self) -> None:
        """End what was begun, a server of the run's own; again does nothing."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def _draws(self, purpose: str) -> Draws:
        return Draws(self.seed, self.study, purpose)

    def _publish(self, version: int) -> None:
        self.engine.publish(version, self._weights(version))

    def _played(
        self,
        questions: Sequence[Question],
        group: int,
        draws: Draws,
        step: int,
        versions: I64,
        *,
        greedy: bool = False,
    ) -> Played:
        """Play this rank's share and return the whole batch. A server is one for all, and the first rank speaks to it."""
        mine, p = self.ranks.share(len(questions)), self.parts
        if self.config.sampler.server is not None:
            mine = slice(0, 0 if self.ranks.rank else len(questions))
        part = []
        if mine.start < mine.stop:
            part = [
                play(
                    self.engine,
                    p.environment,
                    p.dialogue,
                    questions[mine],
                    group,
                    p.settings,
                    draws,
                    step,
                    first=mine.start,
                    greedy=greedy,
                    versions=versions[mine],
                    publish=self._publish,
                    compaction=self.config.sampler.compaction,
                )
            ]
        return joined([each for parts in self.ranks.gathered(part) for each in parts])

    def _engine(self, folder: Path) -> Engine:
        s, tokenizer, model = self.config.sampler, self.parts.dialogue.tokenizer, self.parts.policy.model
        decode, ends = decoder(tokenizer), turn_ends(tokenizer, model)
        if s.server is None:
            # No prompts are kept from call to call: a run that goes on has not kept them, and must read in the same company.
            return LocalEngine(decode, ends, rows=s.rows, chunk_tokens=s.chunk_tokens, prefix_bytes=0)
        reader = Reader(tokenizer, decode, ends, len(halves(model).weight), s.context_tokens)
        # Runs that share a folder publish apart, and one that goes on where it was killed in its own place.
        name = run_key(to_dict(self.config), self.study, self.seed, "fullscale", "")
        published = folder / "published" / name
        made, end = s.server.engine(reader, published)
        self._ends += [end, partial(shutil.rmtree, published, ignore_errors=True)]
        return made

    def _texts(self, batch: Played) -> list[str]:
        """Return what each episode wrote and read after its prompt, Q x G texts."""
        decode, found = decoder(self.parts.dialogue.tokenizer), []
        Q, G = batch.reward.shape
        for q in range(Q):
            for g in range(G):
                n, sampled = int(batch.length[q, g]), batch.sampled[q, g]
                found.append(decode(batch.ids[q, g, int(np.argmax(sampled)) : n].tolist()) if sampled.any() else "")
        return found


def chosen(draws: Draws, step: int, questions: Sequence[Question], wanted: int) -> list[Question]:
    """Return `wanted` different questions, in random order."""
    if wanted > len(questions):
        raise ValueError(f"{wanted} different questions of {len(questions)}; ask for fewer, or bring more")
    order = np.argsort(draws.block("question", step, len(questions)), kind="stable")[:wanted]
    return [questions[i] for i in order]
