"""The ``study`` fixture: what a study measures with, concludes with, and shows."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from studies.kit.claims import Claim, Control, check_region
from studies.kit.estimate import Estimate, Kind
from studies.kit.exhibits import Exhibit
from studies.kit.family import file_fingerprint
from studies.kit.finding import ControlFinding, Finding
from studies.kit.findings import build, estimated
from studies.kit.records import load, place
from studies.kit.regions import Region
from studies.kit.samples import DataError, one_a_seed
from studies.kit.seeds import Seeds
from studies.kit.until import Looks, sequential
from studies.kit.verdict import Judgement, judge
from studies.kit.words import near

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.records.run import Runs
    from studies.kit.executors import Executor
    from studies.kit.progress import Show

__all__ = ["Study"]

_BLOCKS_OF_WORK = 8  # enough for a few processes to end at about the same time


class Study:
    """One study while it runs. A study receives it as the argument ``study``."""

    def __init__(
        self,
        path: Path,
        claims: Sequence[Claim],
        *,
        rung: str,
        seeds: Seeds,
        store_dir: Path,
        executor: "Callable[[], Executor]",
        progress: "Show | None",
        start: Path,
        named: Collection[str] = (),
    ) -> None:
        self.path = path
        self.name = path.stem.removeprefix("study_")
        self.rung = rung
        self.claims = {claim.id: claim for claim in claims if rung in claim.rungs}
        self.progress = progress
        self.exhibits: list[Exhibit] = []
        self._elsewhere = {claim.id for claim in claims} - self.claims.keys()
        self._looks = None if seeds.cap is None else Looks(seeds, rung, self.claims.values(), named)
        self._choice = seeds if self._looks is None else self._looks.seeds
        self._store_dir = store_dir
        self._executor = executor
        self._start = start
        self._judged: dict[str, tuple[Estimate, Judgement]] = {}
        self._controls: dict[str, list[ControlFinding]] = {claim: [] for claim in self.claims}

    # Measuring --------------------------------------------------------------------------------------------------------

    def seeds(self, n: int | None = None) -> range:
        """Return the seeds: 0 .. n-1 with the claims' own n, unless the command line asks for others."""
        if n is None:
            n = max((claim.seeds_at(self.rung) for claim in self.claims.values()), default=8)
        return self._choice.of(n)

    def sweep(
        self,
        points: Mapping[str, Any],
        seeds: Iterable[int] | None = None,
        *,
        run: Callable[..., "Runs"] | None = None,
        block: int | None = None,
    ) -> "dict[str, Runs]":
        """Return the runs of every point, by label: from the store where it has them, trained otherwise.

        ``points`` is {label: config}; ``run(config, seeds, study=...)`` trains a block of seeds, by default with the
        loop of the rung. A run that takes minutes may take ``progress`` too and call it as ``progress(done_steps,
        total_steps)``. The first point is the baseline that the card compares the other configs with.
        """
        from sim.records.config import difference
        from sim.records.store import Store
        from studies.kit.sweep import sweep

        if not isinstance(points, Mapping):
            raise TypeError(
                f"sweep was given a {type(points).__name__}; give {{label: config}}, one config for each arm"
            )

        runs = sweep(
            run,
            points,
            self.seeds() if seeds is None else seeds,
            store=Store(self._store_dir),
            executor=self._executor(),
            study=self.name,
            rung=self.rung,
            block=block,
            progress=self.progress,
        )
        labels = list(points)
        rows = [
            (label, key, _short(before), _short(after))
            for label in labels[1:]
            for key, (before, after) in difference(points[labels[0]], points[label]).items()
        ]
        if rows:
            header = ("point", "setting", labels[0], "here")
            for claim in self.claims:
                self.exhibits.append(Exhibit(claim, "configs", header=header, rows=tuple(rows)))
        return runs

    def spread(self, work: Callable[..., list[Any]], config: Any, seeds: Iterable[int]) -> list[Any]:
        """Return ``work(config, seeds, study=...)``, a list with one entry a seed, done in blocks of seeds.

        For work that is no training run, such as refits: the sweeps' processes do it, nothing is stored. ``work`` must be
        a function of a module that another process can import.
        """
        from studies.kit.executors import Task
        from studies.kit.progress import carry_out

        wanted = tuple(int(seed) for seed in seeds)
        size = max(1, math.ceil(len(wanted) / _BLOCKS_OF_WORK))
        blocks = [wanted[first : first + size] for first in range(0, len(wanted), size)]
        tasks = [Task(work.__name__, config, block, self.name) for block in blocks]
        made = {
            task.seeds: done for task, done in carry_out(work, tasks, self._executor(), self.progress, 0, len(wanted))
        }
        return [item for block in blocks for item in made[block]]

    # Concluding -------------------------------------------------------------------------------------------------------

    def conclude(self, claim: str, *, moved: Any = None, **data: Any) -> Finding | None:
        """Hold the data against a claim and return the finding so far (controls may still come).

        ``data`` are those of the claim's kind, with ``clusters`` [n] where seeds share something drawn, such as their
        supervised start. ``moved`` [n] says at which seeds the learner changed at all; if it did at none there is no
        verdict. DataError where a kind takes one entry a seed and their number is not that of the
        claim's seeds. Returns ``None`` for a claim of this study that is not made at this rung.
        """
        if claim in self._elsewhere:
            return None
        stated = self._claim(claim)
        if claim in self._judged:
            raise DataError(f"claim {claim!r} is concluded twice: give all its data at once")
        estimate = estimated(claim, stated.kind, data)
        one_a_seed(claim, data, len(self.seeds(stated.seeds_at(self.rung))))
        if self._looks is not None:
            estimate = self._looks.sequential(stated, data, estimate)
        if moved is not None:
            estimate = _moved(estimate, np.asarray(moved))
        self._judged[claim] = estimate, judge(estimate, stated.region_at(self.rung))
        return self._finding(stated, ended=False)

    def control(
        self, claim: str, label: str, *, region: Region | None = None, kind: Kind | None = None, **data: Any
    ) -> ControlFinding | None:
        """Report a positive control: a setting in which the effect must show.

        The region is that of the claim's declared ``Control`` of this label, or given here; the kind is the claim's
        unless given. The claim has no verdict, and the study fails, unless the control is supported.
        """
        if claim in self._elsewhere:
            return None
        stated = self._claim(claim)
        declared = {control.label: control for control in stated.controls}
        if region is None and label not in declared:
            raise DataError(f"control {label!r} of {claim!r} has no region=, and the claim declares none by that name")
        held = Control(label, declared[label].region if region is None else region)
        check_region(f"{claim}, control {label}", kind or stated.kind, held.region)
        estimate = estimated(f"{claim}, control {label}", kind or stated.kind, data)
        if self._looks is not None:
            estimate = sequential(kind or stated.kind, data, estimate)
        judged = judge(estimate, held.region)
        found = ControlFinding(
            label=label,
            verdict=judged.verdict,
            effect=float(estimate.effect),
            low=judged.low,
            high=judged.high,
            n=int(estimate.n),
            region=held.region.words,
            reason=judged.reason,
        )
        self._controls[claim].append(found)
        return found

    # Showing ----------------------------------------------------------------------------------------------------------

    def figure(
        self, claim: str, figure: "Figure | Callable[[], Figure]", caption: str = "", headline: bool = False
    ) -> None:
        """Put a matplotlib figure on the card of a claim; ``headline`` also opens the report with it.

        Instead of a figure, a function that draws it may be given; at the points of a sweep it is not called.
        """
        figure = figure() if callable(figure) else figure
        if claim not in self._elsewhere:
            from studies.kit.figures import svg

            self._show(Exhibit(claim, "figure", svg(figure), caption, headline=headline))
        figure.clear()

    def table(self, claim: str, header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: str = "") -> None:
        """Put a table on the card of a claim."""
        names = tuple(_short(cell) for cell in header)
        cells = tuple(tuple(_short(cell) for cell in row) for row in rows)
        for row in cells:
            if len(row) != len(names):
                raise DataError(f"a table of {claim!r} has {len(names)} columns and a row of {len(row)}: {row}")
        self._show(Exhibit(claim, "table", caption=caption, header=names, rows=cells))

    def note(self, claim: str, text: str) -> None:
        """Put a remark on the card of a claim."""
        self._show(Exhibit(claim, "note", text))

    def rollouts(self, claim: str, text: str, caption: str = "") -> None:
        """Put the text of rollouts on the card of a claim; it is shown as text, whatever it contains."""
        self._show(Exhibit(claim, "rollouts", text, caption))

    def _show(self, exhibit: Exhibit) -> None:
        if exhibit.claim not in self._elsewhere:
            self._claim(exhibit.claim)
            self.exhibits.append(exhibit)

    # Ending -----------------------------------------------------------------------------------------------------------

    def findings(self, error: str = "") -> list[Finding]:
        """Return a finding for every claim at this rung; ``error`` says why a study stopped early."""
        found = [self._finding(claim, error=error) for claim in self.claims.values()]
        return found if self._looks is None else [self._looks.settled(each) for each in found]

    def again(self) -> bool:
        """Whether the study is to run once more, from the start and on more seeds, as some claim is not decided.

        Always no unless seeds are added until decided.
        """
        if self._looks is None or not self._looks.more(self._finding(claim) for claim in self.claims.values()):
            return False
        self._choice = self._looks.seeds
        self.exhibits, self._judged = [], {}
        self._controls = {claim: [] for claim in self.claims}
        return True

    def _claim(self, claim: str) -> Claim:
        if claim not in self.claims:
            raise DataError(f"this study makes no claim {claim!r}; {near(claim, self.claims)}")
        return self.claims[claim]

    def _finding(self, claim: Claim, *, ended: bool = True, error: str = "") -> Finding:
        estimate, judged = self._judged.get(claim.id, (None, None))
        seeds = self.seeds(claim.seeds_at(self.rung))
        recorded, here = self._on_record(claim)
        return build(
            claim,
            estimate,
            judged,
            study=self.name,
            rung=self.rung,
            seeds=seeds,
            here=here,
            recorded=recorded,
            controls=tuple(self._controls[claim.id]),
            ended=ended,
            error=error,
            fingerprint=self.fingerprint,
            study_fingerprint=self.study_fingerprint,
            rerun=self._rerun(claim.id),
        )

    def _on_record(self, claim: Claim) -> tuple[bool, bool]:
        """Whether the claim has a verdict on record, and whether that was made in such a place as this."""
        entry = load(self.path.parent / "records", claim.id, self.rung)
        if entry is None or entry.finding is None:
            return False, True  # without a record there is no other place to put a lost verdict down to
        return True, dict(entry.place) == place(self.rung)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the code at or below the rung."""
        from sim.records.fingerprint import code_fingerprint

        return code_fingerprint(self.rung)

    @cached_property
    def study_fingerprint(self) -> str:
        """Fingerprint of the study's own file."""
        return file_fingerprint(self.path)

    def _rerun(self, claim: str) -> str:
        folder = self.path.parent
        shown = folder.relative_to(self._start).as_posix() if folder.is_relative_to(self._start) else str(folder)
        options = [f"-k {claim}", *([f"--rung {self.rung}"] if self.rung != "sim" else []), self._choice.option]
        if self.claims[claim].is_long(self.rung):
            options.append("--all")
        return " ".join(part for part in ("pytest", shown, *options) if part)


def _moved(estimate: Estimate, moved: Any) -> Estimate:
    if moved.dtype != bool or moved.ndim != 1 or not moved.size:
        raise DataError(f"moved has type {moved.dtype} and shape {moved.shape}: it takes True or False, one a seed")
    detail = {**estimate.detail, "moved": f"{int(moved.sum())}/{moved.size}"}
    reason = estimate.reason if moved.any() else "the learner did not move"
    return replace(estimate, detail=detail, reason=reason)


def _short(value: Any) -> str:
    if isinstance(value, float | np.floating):
        from studies.kit.words import number

        return number(float(value))
    return str(value)
