"""The session: options, collected claims, and the findings as they come in."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from studies.kit import exhibits, registry
from studies.kit.claims import Claim
from studies.kit.exhibits import Exhibit
from studies.kit.family import declared, q_values
from studies.kit.finding import Finding
from studies.kit.records import RecordError, append_fresh, record
from studies.kit.registry import Registered, claims_of
from studies.kit.seeds import parse

if TYPE_CHECKING:
    from studies.kit.executors import Processes
    from studies.kit.fixture import Study
    from studies.kit.ticker import Ticker

__all__ = ["EXHIBITS", "FINDING", "SESSION", "STUDY", "StudySession", "conclude", "git_commit", "missing"]

FINDING = "metastable-finding"
"""Name of the report property that carries a finding."""
EXHIBITS = "metastable_exhibits"
"""Attribute of a report that carries the exhibits (not a property: those end up in JUnit files)."""
SESSION = pytest.StashKey["StudySession"]()
STUDY = pytest.StashKey["Study"]()
_SEEDS = "metastable-seeds"
_EXTRAS = {"minimodel": ("torch", "minimodel"), "fullscale": ("torch", "full")}


def missing(rung: str) -> str:
    """Say what is not installed that a rung needs; empty where all is."""
    module, extra = _EXTRAS.get(rung, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        return f"--rung {rung} needs {module}, which is not installed: pip install 'metastable[{extra}]'"
    return ""


class StudySession:
    """One pytest session as the studies see it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rung: str = config.getoption("rung")
        # A worker of xdist must not draw a base of its own.
        given = getattr(config, "workerinput", {}).get(_SEEDS, config.getoption("seeds"))
        try:
            self.seeds = parse(given, self.rung)
        except ValueError as error:
            raise pytest.UsageError(str(error)) from None
        self.all: bool = config.getoption("all")
        self.recording: bool = config.getoption("record")
        if self.recording and self.seeds.n is not None:
            raise pytest.UsageError("--record keeps each claim's own seeds (or --seeds fresh): leave out --seeds N")
        if self.recording and self.seeds.cap is not None:
            raise pytest.UsageError(
                "--record with --seeds until-decided: a record and the fresh seeds it held on have a fixed number, or they "
                "would never come out undecided; use --seeds fresh"
            )
        processes: int | None = config.getoption("processes")
        if processes is not None and processes < 1:
            raise pytest.UsageError(f"--processes {processes}: it takes 1 or more")
        self.start = Path(config.invocation_params.dir)
        self.report_dir = self.start / config.getoption("report")
        self.store_dir = self.start / config.getoption("store")
        self.registered: dict[str, Registered] = {}
        self.kept = 0  # items that are to run in this process
        self.findings: list[Finding] = []
        self.exhibits: list[Exhibit] = []
        self._executor: Processes | None = None
        self._check_rung()

    def _check_rung(self) -> None:
        wanting = missing(self.rung)
        if wanting:
            raise pytest.UsageError(wanting)

    @property
    def worker(self) -> bool:
        """Whether this is a worker process of pytest-xdist."""
        return hasattr(self.config, "workerinput")

    @property
    def named(self) -> set[str]:
        """The words of ``-k``, among them the claims it names."""
        return set(re.findall(r"[\w-]+", self.config.getoption("keyword")))

    # Collection -------------------------------------------------------------------------------------------------------

    def register(self, items: list[pytest.Item]) -> None:
        """Note every claim before any selection, and let ``-k`` find studies by claim."""
        self.registered = registry.register(items, self.rung)
        for item in items:
            for claim in claims_of(item):
                item.extra_keyword_matches.add(claim.id)

    def select(self, items: list[pytest.Item]) -> None:
        """Leave studies of other rungs out, and long ones unless ``--all``."""
        kept, left_out = [], []
        for item in items:
            claims = claims_of(item)
            here = [claim for claim in claims if self.rung in claim.rungs]
            if claims and not here:
                left_out.append(item)
                self._mark(claims, elsewhere=True)
            elif any(claim.is_long(self.rung) for claim in here) and not self.all:
                left_out.append(item)
                self._mark(here, left_out=True)
            else:
                kept.append(item)
        self.kept = len(kept)
        if left_out:
            self.config.hook.pytest_deselected(items=left_out)
            items[:] = kept

    def _mark(self, claims: Iterable[Claim], *, left_out: bool = False, elsewhere: bool = False) -> None:
        for claim in claims:
            self.registered[claim.id] = replace(self.registered[claim.id], left_out=left_out, elsewhere=elsewhere)

    def share(self) -> None:
        """Hand the registry to the controlling process, where this is a worker of xdist."""
        if self.worker:
            self.config.workeroutput["metastable"] = registry.dump(list(self.registered.values()))  # type: ignore[attr-defined]

    def brief(self, workerinput: dict[str, Any]) -> None:
        """Tell a worker what this process has drawn."""
        if self.seeds.fresh:
            workerinput[_SEEDS] = self.seeds.option.split()[1]

    def receive(self, text: str) -> None:
        """Take the registry of a worker."""
        self.registered.update({item.claim: item for item in registry.load(text)})

    # Studies ----------------------------------------------------------------------------------------------------------

    def executor(self) -> "Processes":
        """The executor of sweeps, started at the first use; one process inside a worker of xdist."""
        if self._executor is None:
            from studies.kit.executors import processes

            asked = self.config.getoption("processes")
            cpus = 1 if self.worker else min(2, os.cpu_count() or 1)
            self._executor = processes(cpus if asked is None else asked)
        return self._executor

    def ticker(self) -> "Ticker | None":
        """What shows a study how far its sweeps are; ``None`` where nothing can, as inside a worker of xdist."""
        from studies.kit.ticker import Ticker

        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        capture = self.config.pluginmanager.get_plugin("capturemanager")
        return None if self.worker or reporter is None or capture is None else Ticker(reporter, capture)

    def close(self) -> None:
        """Stop the processes of sweeps."""
        if self._executor is not None:
            self._executor.close()

    # End --------------------------------------------------------------------------------------------------------------

    def folders(self) -> list[Path]:
        """The folders that hold the collected studies."""
        return [Path(folder) for folder in dict.fromkeys(item.folder for item in self.registered.values())]

    def family(self) -> set[str]:
        """The claims made at this rung: those declared in the folders and those collected."""
        made = {claim for folder in self.folders() for claim, rungs in declared(folder).items() if self.rung in rungs}
        return made | {item.claim for item in self.registered.values() if self.rung in item.rungs}

    def finish(self, reports: Iterable[Any]) -> list[Finding]:
        """Take findings and exhibits from the reports, fill in q over the registered family; in order of claim."""
        for report in reports:
            if getattr(report, "when", "") == "call":
                self.findings += [
                    Finding.from_json(str(text)) for name, text in report.user_properties if name == FINDING
                ]
                self.exhibits += exhibits.load(getattr(report, EXHIBITS, "[]"))
        q = q_values({found.claim: found.p for found in self.findings}, self.folders(), self.rung)
        self.findings = sorted(
            (replace(found, q=None if found.p is None else q[found.claim]) for found in self.findings),
            key=lambda found: found.claim,
        )
        return self.findings

    def record(self) -> tuple[list[str], list[str]]:
        """Write what ran to the records; return (lines, refusals)."""
        lines, refusals = [], []
        commit = git_commit(self.start)
        for found in self.findings:
            folder = Path(self.registered[found.claim].folder) / "records"
            try:
                if self.seeds.fresh:
                    append_fresh(folder, found)
                    lines.append(f"recorded fresh seeds {found.span} of {found.claim}: {found.verdict}")
                else:
                    changed = record(folder, found, commit)
                    lines.append(f"{'recorded' if changed else 'unchanged:'} {found.claim}")
            except RecordError as error:
                refusals.append(str(error))
        return lines, refusals


def conclude(item: pytest.Item, running: "Study", error: str = "") -> str:
    """Hang the findings of a study that ended on its item; return what fails it, empty if nothing does."""
    from studies.kit.findings import failures

    findings = running.findings(error)
    item.user_properties += [(FINDING, found.to_json()) for found in findings]
    return failures(findings)


def git_commit(folder: Path) -> str:
    """Return the short commit of a working tree, with ``+`` when it has changes; empty outside a repository."""
    try:
        run = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return run.stdout.strip()
