"""Sweeps: every point of a study on every seed, through the store, in blocks of seeds."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from importlib import import_module
from typing import Any

from sim.records.config import to_dict
from sim.records.fingerprint import code_fingerprint
from sim.records.run import RunRecord, Runs, run_key
from sim.records.store import Store
from studies.kit.executors import Executor, Run, SweepError, Task, inline
from studies.kit.progress import Show, carry_out

__all__ = ["BLOCK", "blocks", "keys_of", "stranger", "sweep", "trainer"]

BLOCK = {"sim": 32, "minimodel": 1, "fullscale": 1}
"""Seeds trained together. In the simulator one seed's bits do not depend on its company and a loop over many costs little
more than over one; above it a run takes a minute or more and is stored as soon as it is done."""
_TRAINERS = {"sim": "sim.learning.loop", "minimodel": "minimodel.agent.train", "fullscale": "fullscale.agent.train"}


def sweep(
    run: Run | None,
    points: Mapping[str, Any],
    seeds: Iterable[int],
    *,
    store: Store | None = None,
    executor: Executor = inline,
    study: str,
    rung: str = "sim",
    block: int | None = None,
    progress: Show | None = None,
) -> dict[str, Runs]:
    """Return the runs of every point, by label, seeds in the order asked for.

    ``run(config, seeds, study=study)`` trains a block of seeds and returns ``Runs``; by default that is ``train`` of
    ``sim.learning.loop``, ``minimodel.agent.train`` or ``fullscale.agent.train``, as the rung is. Where it takes
    ``progress=`` too, what it says of its steps is shown. Runs the store already holds, made by this code, are not made
    again. Each block is stored as soon as it is done, so a sweep that is stopped resumes. Blocks and processes change
    nothing in the bits.

    Raises
    ------
    SweepError
        When a run fails or comes back as another than asked for, naming its point and seeds.
    ValueError
        For no points, no seeds, a repeated seed, a block of less than one, or a rung without a loop of its own and no
        ``run``.
    """
    wanted = tuple(int(seed) for seed in seeds)
    if not points:
        raise ValueError("a sweep of no points: give {label: config}")
    if not wanted or len(set(wanted)) != len(wanted):
        raise ValueError(f"seeds {wanted}: a sweep takes one or more, each once")
    size = BLOCK[rung] if block is None else block
    if size < 1:
        raise ValueError(f"block={block}: it takes 1 or more seeds")
    run = run or trainer(rung)
    fingerprint = code_fingerprint(rung)
    keys = keys_of(points, wanted, study, rung, fingerprint)
    found: dict[str, RunRecord] = dict(_stored(store, keys.values()))
    tasks = list(blocks(points, keys, set(found), study, size))
    total = len({key for by_seed in keys.values() for key in by_seed.values()})
    with closing(carry_out(run, tasks, executor, progress, len(found), total)) as made:
        for task, runs in made:
            for record in runs.records():
                if record.key != keys[task.label].get(record.seed):
                    raise SweepError(stranger(task, record, study, rung, fingerprint))
                found[record.key] = record
                if store is not None:
                    store.save(record)
    return {
        label: Runs.from_records([found[keys[label][seed]] for seed in wanted], config)
        for label, config in points.items()
    }


def keys_of(
    points: Mapping[str, Any], seeds: Iterable[int], study: str, rung: str, fingerprint: str
) -> dict[str, dict[int, str]]:
    """Return the names of the runs in a store, by label and seed."""
    wanted = tuple(seeds)
    found = {}
    for label, config in points.items():
        nested = to_dict(config)
        found[label] = {seed: run_key(nested, study, seed, rung, fingerprint) for seed in wanted}
    return found


def trainer(rung: str) -> Run:
    """Return the loop of a rung. It is loaded only here: a study may bring its own."""
    if rung not in _TRAINERS:
        raise ValueError(f"rung {rung!r} has no training loop of its own: pass run=")
    train: Run = import_module(_TRAINERS[rung]).train
    return train


def stranger(task: Task, record: RunRecord, study: str, rung: str, fingerprint: str) -> str:
    """Say in what a run that came back differs from the one asked for."""
    asked = {"study": study, "rung": rung, "config": to_dict(task.config), "fingerprint": fingerprint}
    wrong = [name for name, value in asked.items() if record.manifest[name] != value] or ["seed"]
    if wrong == ["fingerprint"]:
        return f"{task.words}: the code changed while the sweep ran; start it again, what is stored stays"
    return f"{task.words}: the run came back with another {', '.join(wrong)} than asked for; pass them through"


def _stored(store: Store | None, keys: Iterable[Mapping[int, str]]) -> Iterator[tuple[str, RunRecord]]:
    if store is None:
        return
    for by_seed in keys:
        for key in by_seed.values():
            if store.has(key):
                yield key, store.load(key)


def blocks(
    points: Mapping[str, Any], keys: Mapping[str, Mapping[int, str]], begun: set[str], study: str, block: int
) -> Iterator[Task]:
    """Split what is missing into blocks; a config that stands under two labels is run once.

    Runs in ``begun`` are left out, and each that is given out is added to it.
    """
    for label, config in points.items():
        missing = [seed for seed, key in keys[label].items() if key not in begun]
        begun.update(keys[label][seed] for seed in missing)
        for start in range(0, len(missing), block):
            yield Task(label, config, tuple(missing[start : start + block]), study)
