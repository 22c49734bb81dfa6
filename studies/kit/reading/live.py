"""The record of a run while it trains: in the layout of `keeping`, a step at a time, whole after every one of them.

    FOLDER/rollouts/step_12.npz   the rollouts of a step that are kept, with their tokens
           episodes.jsonl.gz      the same with their words; every step adds a part
           manifest.json, provenance.json, steps.npz, reading.json
           training.json          the settings of the trainer
           report.txt, index.html once the run has ended: what it shows, and the page

The four in the middle belong together and change at every step. They are written to a folder of their own, and one link
that is renamed brings all of them at once; so what is stopped at any moment leaves the record of the steps before, and
`keeping.load` reads it. `Live.close` puts the files in the place of the links.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.records.steps import StepTable
from sim.records.tables import RecordError
from studies.kit.episodes import ANSWER, NO_ACTION, Episode, to_rollouts, workflow
from studies.kit.reading import keeping
from studies.kit.reading.fold import Folding, Reading
from studies.kit.reading.formats import Source
from studies.kit.reading.keeping import InputFile, KeepingError, Origin
from studies.kit.reading.sample import Sample

__all__ = ["LOGGED", "SHOWN", "Live"]

LOGGED = "logged/"
"""Before the names of what the trainer itself logged, in the step table."""

SHOWN = 5000
"""Rollouts that the page holds at the most."""

_TOGETHER = ("manifest.json", "provenance.json", "steps.npz", "reading.json")
_NOW = ".now"  # the link that is renamed
_WORDS = "episodes.jsonl.gz"


class Live:
    """A record that grows: `step` adds one, `log` values that come after it, `close` ends it."""

    def __init__(
        self, folder: Path, source: Source, keep: int, settings: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        """Take a folder that is new or empty; KeepingError for another.

        ``source`` keeps account of what could not be read, ``keep`` is the most rollouts to keep of a step, ``settings``
        are the trainer's, which tell this run from others in its manifest.
        """
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise KeepingError(f"{folder} is not empty, and a record is not written over another: name another folder")
        (folder / "rollouts").mkdir(parents=True)
        self.folder, self.source, self.keep, self.provenance = folder, source, keep, dict(provenance)
        text = json.dumps(settings, indent=1, sort_keys=True, default=str).encode()
        (folder / "training.json").write_bytes(text)
        files = (InputFile("training.json", len(text), hashlib.sha256(text).hexdigest()),)
        self.origin = Origin(source.format, source.tools, source.solved_at, keep, files)
        self.codes: list[str] = []
        """Actions by their codes in the rollouts, in order of appearance, so that no code ever changes."""
        self._folding = Folding(0)
        self._logged: dict[int, Mapping[str, float]] = {}
        self._versions = 0

    def step(self, step: int, episodes: Sequence[Episode]) -> None:
        """Add the rollouts of a step, more of a step than the last one. OSError as from writing."""
        sample = Sample(self.keep)
        for episode in episodes:
            self.source.counts["episodes"] += 1
            self._folding.add(episode)
            sample.add(episode, workflow(turn.action for turn in episode.turns))
        self._folding.sample = Sample(0)  # it keeps nothing, and need not count what it does not keep
        kept = sample.episodes()
        if len(kept) < len(episodes):
            self.source.note(f"of a step {self.keep} rollouts are kept at the most; all are counted")
        self._keep_rollouts(step, kept)
        self._turn_over([_words_only(each) for each in kept])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add what the trainer logged of a step; it is written with the next step, or at the end."""
        self._logged[step] = {**self._logged.get(step, {}), **{LOGGED + name: x for name, x in values.items()}}

    def close(self) -> None:
        """Write what was logged last and the page, and put files in the place of links."""
        if not self._versions:
            return
        self._turn_over(())
        for name in _TOGETHER:
            copy = self.folder / f".{name}"
            shutil.copyfile(self.folder / name, copy)
            copy.replace(self.folder / name)
        shutil.rmtree((self.folder / _NOW).resolve())
        (self.folder / _NOW).unlink()
        self._show()

    def _show(self) -> None:
        """Write what the whole run shows."""
        from studies.kit.inspector.page import write
        from studies.kit.reading.showing import inspected
        from studies.kit.reading.transitions import transitions
        from studies.kit.reading.words import report

        reading, sample = keeping.load(self.folder), Sample(SHOWN)
        for episode in reading.episodes:
            sample.add(episode, workflow(turn.action for turn in episode.turns))
        reading = replace(reading, episodes=sample.episodes())
        found = transitions(reading)
        (self.folder / "report.txt").write_text("\n".join(report(reading, found)) + "\n", encoding="utf-8")
        write(self.folder / "index.html", [inspected(reading, found)], reading.name)

    def reading(self) -> Reading:
        """Return what the run shows so far, without its episodes."""
        made = self._folding.reading(self.source, self.folder.name)
        names = sorted({name for values in self._logged.values() for name in values})
        logged = {name: [self._logged.get(s, {}).get(name, np.nan) for s in made.step.tolist()] for name in names}
        return replace(made, steps=StepTable({**made.steps.columns, **{n: np.array(x) for n, x in logged.items()}}))

    def _keep_rollouts(self, step: int, kept: Sequence[Episode]) -> None:
        there = {turn.action for episode in kept for turn in episode.turns} - {NO_ACTION}
        for name in sorted(there - set(self.codes), key=lambda name: (name == ANSWER, name)):
            self.codes.append(name)
        path = self.folder / "rollouts" / f"step_{step}.npz"
        try:
            to_rollouts(kept, self.codes).save(path.with_name(f".{path.name}"))
        except RecordError as error:
            self.source.lacks(f"record of the rollouts of step {step}", str(error))
        else:
            path.with_name(f".{path.name}").replace(path)

    def _turn_over(self, kept: Sequence[Episode]) -> None:
        """Write what changed: the words of a step to the end of theirs, the rest to a new version that replaces the last."""
        self._versions += 1
        new = self.folder / f".version{self._versions}"
        keeping.write(replace(self.reading(), episodes=tuple(kept)), new, self.origin, provenance=self.provenance)
        about = json.loads((new / "reading.json").read_text(encoding="utf-8"))
        about["codes"] = self.codes
        (new / "reading.json").write_text(json.dumps(about, sort_keys=True, indent=1) + "\n", encoding="utf-8")
        with (self.folder / _WORDS).open("ab", buffering=0) as stream:
            if kept:
                stream.write((new / _WORDS).read_bytes())
        now, link = self.folder / _NOW, self.folder / ".link"
        link.unlink(missing_ok=True)
        link.symlink_to(new.name)
        before = now.resolve() if now.is_symlink() else None
        link.replace(now)
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
            return
        for name in _TOGETHER[::-1]:  # the manifest last: with it the record is there
            (self.folder / name).symlink_to(os.path.join(_NOW, name))  # noqa: PTH118


def _words_only(episode: Episode) -> Episode:
    return replace(episode, turns=tuple(replace(turn, tokens=None, pieces=()) for turn in episode.turns))
