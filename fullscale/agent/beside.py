"""Batches that are played beside the learner, in real time: see :mod:`fullscale.rollout`."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from fullscale.agent.collecting import Collector, Flags, chosen
from fullscale.agent.rollouts import Played, joined, play
from fullscale.agent.schedules import Asynchronous
from fullscale.engine.protocol import Engine
from fullscale.rollout.books import Books
from fullscale.rollout.conductor import Conductor, Unwanted
from fullscale.rollout.ledger import Ticket
from fullscale.world.questions import Question

__all__ = ["Beside", "packed", "unpacked"]


class Beside(Collector):
    """Plays groups in threads while the learner updates; with several ranks the first one does, for all."""

    sampler: Engine
    conductor: Conductor[Played] | None = None
    _saved: Mapping[str, Any] | None = None

    def published(self, version: int) -> None:
        """Give the engine a version; with the first, begin."""
        super().published(version)
        if self.ranks.rank:
            return
        if self.conductor is None:
            self._begin(version)
        else:
            self.sampler.publish(version, self._weights(version))
            self.conductor.published(version)

    def batch(self, step: int) -> tuple[Played, Flags]:
        """Return the next batch that is whole; all of it arrives."""
        batch = None
        if self.conductor is not None:
            batch = joined([value for _, value in self.conductor.take()])
        found: Played = self.ranks.from_first(batch)
        return found, np.ones(found.reward.shape, np.bool_)

    def state(self) -> dict[str, Any]:
        """Return the books, complete groups included; what is under way is played again by whoever goes on from there."""
        if self.conductor is None:
            return {}
        books = self.conductor.state()
        for name in ("ready", "part"):
            books[name] = [{**each, "value": packed(each["value"])} for each in books[name]]
        return {"books": books}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state` returned, with the next version that is published."""
        if not state:
            return
        books = dict(state["books"])
        known = {q.id: q for q in self.parts.world.train}
        for name in ("ready", "part"):
            books[name] = [{**each, "value": unpacked(each["value"], known)} for each in books[name]]
        self._saved = books

    def close(self) -> None:
        """Wait for what is being played, which is told that it may give up."""
        if self.conductor is not None:
            self.conductor.close()
            self.conductor = None
        super().close()

    def _begin(self, version: int) -> None:
        c, schedule = self.config, self.config.schedule
        assert isinstance(schedule, Asynchronous)
        self.sampler = self.engine if c.sampler.server is not None else self._engine(self.folder)
        self.sampler.publish(version, self._weights(version))
        books: Books[Played] = Books(
            schedule.admission,
            schedule.order,
            schedule.drop,
            group=c.group,
            batch=c.prompts,
            concurrent=schedule.workers,
        )
        if self._saved is not None:
            books.load(self._saved)
        books.publish(version)
        self.conductor = Conductor(self._play, books, schedule.workers)

    def _play(self, ticket: Ticket) -> Played:
        """Play a group; all its luck comes from the ticket's number and play."""
        p = self.parts

        def give_up(_: int) -> None:
            if self.conductor is not None and not self.conductor.wanted(ticket):
                raise Unwanted

        return play(
            self.sampler,
            p.environment,
            p.dialogue,
            [self._question(ticket.number)],
            self.config.group,
            p.settings,
            self._draws(f"train/{ticket.play}" if ticket.play else "train"),
            ticket.number,
            compaction=self.config.sampler.compaction,
            between=give_up,
        )

    def _question(self, number: int) -> Question:
        """Return the question of a ticket: all in random order, and again in another."""
        train = self.parts.world.train
        epoch, place = divmod(number, len(train))
        return chosen(self._draws("train"), epoch, train, len(train))[place]


def packed(batch: Played) -> dict[str, Any]:
    """Return a batch as tensors and plain data, to be saved; questions by their ids."""
    found: dict[str, Any] = {}
    for each in fields(Played):
        value = getattr(batch, each.name)
        if each.name == "questions":
            found[each.name] = [question.id for question in value]
        else:
            found[each.name] = value.tolist() if value.dtype.kind == "U" else torch.from_numpy(value)
    return found


def unpacked(saved: Mapping[str, Any], questions: Mapping[str, Question]) -> Played:
    """Return what :func:`packed` was given.

    Raises
    ------
    ValueError
        When it holds a question that there is not: the data have changed.
    """
    unknown = [name for name in saved["questions"] if name not in questions]
    if unknown:
        raise ValueError(f"the checkpoint holds episodes on question {unknown[0]!r}, which the data no longer have")
    found: dict[str, Any] = {
        name: value.numpy() if isinstance(value, torch.Tensor) else np.array(value, np.str_)
        for name, value in saved.items()
        if name != "questions"
    }
    return Played(questions=tuple(questions[name] for name in saved["questions"]), **found)
