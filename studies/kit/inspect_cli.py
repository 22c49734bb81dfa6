"""``metastable inspect``: a page in which to read the rollouts that runs of a store kept."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from studies.kit.words import CommandError

__all__ = ["inspect_runs"]


def inspect_runs(
    keys: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="KEY [KEY ...]")],
    store: Path = Path("runs/store"),
    out: Path = Path("runs/inspector.html"),
) -> int:
    """Write a page in which to read the rollouts that runs have kept (keep_rollouts in their config), side by side.

    Args:
        keys: Keys of runs, or their first digits.
        store: Folder of the runs.
        out: File to write.
    """
    from sim.records.config import ConfigError
    from sim.records.store import Store, StoreError
    from studies.kit.inspector.own import stored
    from studies.kit.inspector.page import write
    from studies.kit.runs.listing import find, scan

    rows = scan(store)
    try:
        runs = [stored(Store(store).load(find(rows, key).name)) for key in keys]
        path = write(out, runs, "Rollouts")
    except (ConfigError, StoreError, ValueError, OSError) as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(f"wrote {path}: open it in a browser\n")
    return 0
