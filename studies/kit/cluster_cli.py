"""``metastable cluster``: simulate a preset of the cluster and say what came out, in numbers, figures and a timeline."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from studies.kit.words import CommandError, interval, near, number

if TYPE_CHECKING:
    from sim.cluster.run import ClusterRun
    from sim.cluster.spec import Cluster

__all__ = ["cluster"]

_Preset = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET")]
_LEAST = 5  # replicas, below which there is no interval


def cluster(
    preset: _Preset = "list",
    set: tuple[str, ...] = (),  # noqa: A002 -- the name of the option
    seed: int = 0,
    replicas: int = 1,
    skip: int = 5,
    engine: Literal["auto", "simpy", "compiled"] = "auto",
    timeline: Path | None = None,
    gantt: Path | None = None,
    log: Path | None = None,
    window: tuple[float, float] | None = None,
) -> int:
    """Simulate a cluster and print speed, idleness and staleness; without a preset, list the presets.

    Args:
        preset: One of the presets, such as areal or synchronous.
        set: Changes, as KEY=VALUE with dotted keys: --set admission.eta=2 learner.batch=128.
        seed: First seed. Runs of one seed have the same luck under every preset.
        replicas: Runs, with seeds from the first on; five or more give intervals over them.
        skip: Versions left out at the start, before things have settled.
        engine: Who simulates: simpy is the model of record, compiled its numba twin; they agree event by event.
        timeline: Write a timeline for ui.perfetto.dev here (.json or .json.gz).
        gantt: Draw the run here (.svg, .png or .pdf).
        log: Write every event here (.npz, or .parquet with the extra of that name).
        window: Seconds of simulated time that timeline and figure show, from and to.
    """
    from sim.cluster.model.simulation import Deadlock
    from sim.cluster.presets import PRESETS

    if preset == "list":
        for name, make in PRESETS.items():
            sys.stdout.write(f"{name}\n    {(make.__doc__ or '').strip().splitlines()[0].removeprefix('Return ')}\n")
        return 0
    if preset not in PRESETS:
        raise CommandError(f"no preset {preset!r}; {near(preset, PRESETS)}")
    if replicas < 1:
        raise CommandError(f"replicas = {replicas} must be at least 1")
    shown = [path for path in (timeline, gantt, log) if path is not None]
    if shown and replicas > 1:
        raise CommandError(f"{shown[0]} would show one of {replicas} replicas; ask for it with one")
    try:
        _check_outputs(timeline, gantt, log)
        config = _changed(PRESETS[preset](), set)
        runs = _simulated(config, range(seed, seed + replicas), engine, record=bool(shown))
        _print(preset, runs, skip)
        _write(runs[0], preset, timeline, gantt, log, window)
    except (ValueError, Deadlock, ImportError) as error:
        raise CommandError(str(error)) from error
    return 0


def _check_outputs(timeline: Path | None, gantt: Path | None, log: Path | None) -> None:
    endings = ((timeline, (".json", ".json.gz")), (gantt, (".svg", ".png", ".pdf")), (log, (".npz", ".parquet")))
    for path, allowed in endings:
        if path is not None and not path.name.endswith(allowed):
            raise ValueError(f"{path} should end in {' or '.join(allowed)}")
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"{path}: there is no folder {path.parent}")


def _changed(config: "Cluster", changes: tuple[str, ...]) -> "Cluster":
    """Apply KEY=VALUE changes; a value is JSON, or else text."""
    from sim.records.config import replace

    found: dict[str, Any] = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change}: give KEY=VALUE, such as learner.batch=128")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return replace(config, found)


def _simulated(config: "Cluster", seeds: range, engine: Any, record: bool) -> "list[ClusterRun]":
    from sim.cluster.run import replicate

    total = config.steps * len(seeds)
    with _bar(total) as advance:
        return list(replicate(config, seeds, engine=engine, record=record, on_version=lambda _: advance()))


@contextmanager
def _bar(total: int) -> Iterator[Any]:
    """Show a bar of versions made, with time left, where somebody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("versions"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


def _print(preset: str, runs: "list[ClusterRun]", skip: int) -> None:
    from sim.cluster.measures import summary
    from sim.cluster.statistics.intervals import replicated

    tables = [summary(run, skip) for run in runs]
    first = runs[0]
    seeds = f"seed {first.seed}" if len(runs) == 1 else f"seeds {first.seed} to {runs[-1].seed}"
    days = sum(run.books.end_s for run in runs) / len(runs) / 3600
    sys.stdout.write(
        f"{preset}: {first.cluster.steps} versions, {seeds}, {days:.2f} simulated hours a run ({first.engine})\n"
    )
    width = max(len(name) for name in tables[0])
    for name in tables[0]:
        values = [table[name] for table in tables]
        text = number(sum(values) / len(values))
        if len(values) >= _LEAST and max(values) > min(values):
            found = replicated(values)
            text += f"  {interval(found.low, found.high)}"
        sys.stdout.write(f"  {name:<{width}}  {text}\n")
    if 1 < len(runs) < _LEAST:
        sys.stdout.write(f"  (means of {len(runs)}; five replicas or more give 95 % intervals)\n")


def _write(
    run: "ClusterRun",
    preset: str,
    timeline: Path | None,
    gantt: Path | None,
    log: Path | None,
    window: tuple[float, float] | None,
) -> None:
    from sim.cluster.spans import Names

    if run.log is None:
        return
    start_s, end_s = window or (None, None)
    names = Names(
        engines=tuple(f"engine {i}" for i in range(run.cluster.engines.count)),
        pools=tuple(pool.name for pool in run.cluster.tools),
    )
    if timeline is not None:
        from sim.cluster.timeline import write_timeline

        write_timeline(run.log, timeline, start_s, end_s, names=names)
    if gantt is not None:
        from sim.cluster.gantt import gantt as draw

        draw(run.log, start_s=start_s, end_s=end_s, names=names, title=preset).savefig(gantt)
    if log is not None and log.suffix == ".npz":
        run.log.save(log)
    elif log is not None:
        from sim.cluster.parquet import write_parquet
        from sim.records.config import canonical_json

        about = {"config": canonical_json(run.cluster), "seed": str(run.seed), "engine": run.engine}
        write_parquet(run.log, log, about)
    for path in (timeline, gantt, log):
        if path is not None:
            sys.stdout.write(f"  wrote {path}\n")
