"""``python -m fullscale.train PRESET`` or ``torchrun -m fullscale.train PRESET``: train a language model.

On several devices torchrun starts a process for each; the first writes the record and what is shown.
"""

import ast
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace as replace_fields
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro

from fullscale.agent.estimating import estimated, hours
from fullscale.agent.ranks import Ranks
from fullscale.agent.setup import Training
from fullscale.agent.showing import Table, bar
from fullscale.agent.train import place, train
from fullscale.presets import PRESETS
from fullscale.world.jsonl import DataError
from sim.records.config import ConfigError, near_misses, replace
from sim.records.run import Runs
from sim.records.store import Store

__all__ = ["configured", "main"]

_MOST_OF_FREE = 0.95
"""Share of a device's free memory that an estimate may reach."""
_PATIENCE = timedelta(hours=4)
"""How long ranks wait for each other: the first alone plays over a server, judges, and writes checkpoints."""


class UsageError(Exception):
    """Something that was asked for cannot be done; the message names it and the way out."""


def configured(preset: str, changes: Sequence[str] = ()) -> Training:
    """Return a preset with changes such as ``"optimiser.rate=1e-5"``.

    Parameters
    ----------
    preset
        A name, or ``module:function`` of the user's own, a function that returns a config.

    Raises
    ------
    UsageError
        For an unknown preset, or a change that the config refuses.
    """
    base = _own(preset) if ":" in preset else PRESETS.get(preset)
    if base is None:
        more = "; one of your own is module:function"
        raise UsageError(f"there is no preset {preset!r}{near_misses(preset, PRESETS)}{more}")
    made = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise UsageError(f"--set {change}: give KEY=VALUE, such as optimiser.rate=1e-5")
        made[key] = _value(text)
    try:
        return replace(base(), made)
    except (ConfigError, ValueError) as error:
        raise UsageError(f"--set {' --set '.join(changes)}: {error}") from error


def _own(name: str) -> Callable[[], Training]:
    """Return a user's own function."""
    module, _, function = name.partition(":")
    sys.path.insert(0, "")  # the folder the command is given in, as for a script there
    try:
        found: Callable[[], Training] = getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{name}: {error}; give module:function, a function that returns a config") from error
    finally:
        sys.path.remove("")
    return found


def _value(text: str) -> Any:
    """Return what was written: a number, a truth value, None; else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def run(
    preset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET")],
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = (),  # noqa: A002  the name of the option
    seed: int = 0,
    study: str = "fullscale",
    folder: Path = Path("runs"),
    store: Path = Path("runs/store"),
    device: str = "auto",
    estimate: bool = False,
    anyway: bool = False,
) -> int:
    """Train a language model in multi-turn search episodes and keep the record of the run.

    A run that is stopped goes on from its last checkpoint when the same command is given again.

    Args:
        preset: Name of a run: smollm2_cpu, search_r1_qwen25_7b, search_r1_qwen3_8b, deep_research_verify; or a function of
            your own that returns a config, as module:function.
        set: KEY=VALUE, a dotted path into the run's config and what it is to be, such as optimiser.rate=1e-5; several times.
        seed: Seed of everything that is drawn.
        study: Namespace of the random streams; the name under which the run is kept.
        folder: Where supervised starts, published weights and checkpoints are kept.
        store: Where the record is kept.
        device: Where the network is: cpu, cuda, or auto for a GPU where there is one.
        estimate: Say how much memory a step takes, and stop.
        anyway: Begin even where the estimate is more than there is.
    """
    config = configured(preset, set)
    with _ranks(device) as (ranks, where):
        found = estimated(config, ranks.world)
        _say(ranks, f"memory of a step on each of {ranks.world}, estimated:\n{found.table()}\n")
        if estimate:
            _say(ranks, _cost(config))
            return 0
        _room(found.peak, where, anyway)
        _keepable(store)
        began = time.monotonic()
        table = Table(config, sys.stdout) if ranks.rank == 0 else None

        def keep(runs: Runs) -> None:
            (record,) = runs.records()
            provenance = {**record.provenance, "wall_s": time.monotonic() - began}
            Store(store).save(replace_fields(record, provenance=provenance))
            _say(
                ranks,
                f"kept as {record.key} in {store}. Look at it with\n  metastable runs show {record.key} --store {store}\n"
                f"  metastable inspect {record.key} --store {store}\n",
            )

        train(
            config,
            (seed,),
            study=study,
            folder=folder,
            device=where,
            watch=None if table is None else table.row,
            starting=None if ranks.rank else bar("supervised start"),
            keep=keep,
        )
    return 0


@contextmanager
def _ranks(device: str) -> Iterator[tuple[Ranks, str]]:
    """Join the other processes where torchrun started several; yield who this is and where its network goes."""
    try:
        found = place(device)
    except ValueError as error:
        raise UsageError(f"--{error}") from error
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(), found
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if found == "cuda":
        torch.cuda.set_device(local)
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if found == "cuda" else "gloo", timeout=_PATIENCE)
    try:
        yield Ranks.here(), found
    finally:
        torch.distributed.destroy_process_group()


def _room(wanted: int, device: str, anyway: bool) -> None:
    """Refuse a run that will not fit."""
    if device.startswith("cuda"):
        there = int(torch.cuda.mem_get_info()[0])
    else:
        there = _available()
    if wanted > _MOST_OF_FREE * there and not anyway:
        raise UsageError(
            f"a step takes about {wanted / 2**30:.1f} GiB and {there / 2**30:.1f} GiB are free on {device}; raise micro, "
            "use checkpointing or more devices, or begin with --anyway"
        )


def _keepable(store: Path) -> None:
    """Refuse a run whose record could not be kept."""
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--store {store}: {error.strerror or error}; name a folder that can be written") from error


def _available() -> int:
    """Return the bytes of memory a new program may have: copies of files count, where the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cost(config: Training) -> str:
    """Return what a run costs, in words."""
    found = hours(config)
    return (
        f"whole run: about {found.total:,.0f} GPU hours ({found.sampling:,.0f} sampling, {found.learning:,.0f} learning) "
        f"if episodes fill half of their {config.sampler.context_tokens:,} tokens, at 4e14 operations a second in learning "
        "and 5e13 in sampling; neither speed was measured here\n"
    )


def _say(ranks: Ranks, text: str) -> None:
    if ranks.rank == 0:
        sys.stdout.write(text)
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        status: int = tyro.cli(run, args=arguments, prog="python -m fullscale.train")
    except (UsageError, DataError, FileNotFoundError, ModuleNotFoundError) as error:
        sys.stderr.write(f"fullscale.train: {error}\n")
        return 2
    except KeyboardInterrupt as error:
        sys.stderr.write("\n".join(["", *getattr(error, "__notes__", ["stopped"])]) + "\n")
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
