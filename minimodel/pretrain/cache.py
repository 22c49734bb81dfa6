"""Starts on disk, so that a study and its neighbours teach each of them once.

    FOLDER/3f1c0a5be2d94e77/weights.npz      the network
                            manifest.json    what it is, and what it can do; written last

A start is named by what it depends on: the questions and what is known, tools, layout, network, recipe, seed, the code
that makes it, and the arithmetic of the host. The hit rates of the world it is used in are not among them.
"""

import dataclasses
import functools
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from minimodel.model.threads import one_thread
from minimodel.model.transformer import Size, Transformer
from minimodel.pretrain.lessons import Teacher, demonstration_world
from minimodel.pretrain.skill import Asks, Skill, check, measure
from minimodel.pretrain.start import Start, supervised, untrained
from minimodel.tasks.facts import Facts, draw_facts
from minimodel.tasks.task import Task
from sim.records.config import canonical_json, from_dict, to_dict
from sim.records.fingerprint import tree_fingerprint
from sim.records.npz import digest, npz_bytes, read_npz

__all__ = ["CacheError", "obtain", "start_key"]

_CODE = ("minimodel.model", "minimodel.tasks", "minimodel.pretrain", "sim.mdp")
_WAY_OUT = "move the folder away and ask again, and it is made anew"


class CacheError(RuntimeError):
    """A folder does not hold the start its name promises. The message names the folder and the way out."""


def obtain(
    task: Task,
    size: Size,
    start: Start,
    seed: int,
    folder: Path = Path("runs/starts"),
    progress: Callable[[int, int], None] | None = None,
    asks: Asks = Asks(),  # noqa: B008  frozen
) -> tuple[Transformer, Skill, Facts]:
    """Return a start that is good enough, and the facts it knows; made once, then read from `folder`.

    Two processes that want the same start at once: one makes it, the other waits.

    Parameters
    ----------
    task
        What it will be used in; the facts are drawn for its world.
    size, start, seed
        The network, how it is taught, and which draws (of facts, too).
    folder
        Where starts are kept.
    progress
        Called as ``progress(done, total)`` after every update, while it is made.
    asks
        How good it must be.

    Raises
    ------
    SkillError
        When it falls short. It is then not kept.
    CacheError
        When what is kept cannot be read.
    """
    facts = draw_facts(task.world, task.vocabulary, task.held_out, seed)
    identity = _identity(task, size, start, seed)
    place = Path(folder) / start_key(task, size, start, seed)
    if not _complete(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            if not _complete(place):  # it may have been made while we waited
                model, skill = _make(task, size, start, facts, seed, progress)
                check(skill, asks)
                _write(place, model, {"identity": identity, "skill": to_dict(skill)})
    model, skill = _read(place, task, size, seed)
    check(skill, asks)
    return model, skill, facts


def start_key(task: Task, size: Size, start: Start, seed: int) -> str:
    """Return the name of a start, 16 hexadecimal digits."""
    return hashlib.sha256(canonical_json(_identity(task, size, start, seed)).encode()).hexdigest()[:16]


def _identity(task: Task, size: Size, start: Start, seed: int) -> dict[str, Any]:
    """Return what a start depends on, as plain data."""
    played = dataclasses.replace(task, world=demonstration_world(task.world, start.hit))
    return {
        "task": to_dict(played),
        "size": to_dict(size),
        "start": to_dict(start),
        "seed": seed,
        "code": _code(),
        "torch": str(torch.__version__),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


@functools.cache
def _code() -> str:
    """Return the fingerprint of the code that makes starts."""
    return tree_fingerprint({package: _folder(package) for package in _CODE})


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


def _make(
    task: Task, size: Size, start: Start, facts: Facts, seed: int, progress: Callable[[int, int], None] | None
) -> tuple[Transformer, Skill]:
    """Teach a start, and measure it in the world of its demonstrations."""
    model = supervised(task, size, start, facts, seed, progress)
    world = Teacher(task, facts, start.script, start.hit, start.thought, seed).environment
    with one_thread():
        return model, measure(model, world, start.script, seed=seed)


def _complete(place: Path) -> bool:
    return (place / "manifest.json").is_file()


def _write(place: Path, model: Transformer, manifest: dict[str, Any]) -> None:
    """Write a start under another name and rename it, so that it is there whole or not at all."""
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    writing = place.with_name(f".writing-{place.name}-{uuid.uuid4().hex}")
    writing.mkdir()
    try:
        (writing / "weights.npz").write_bytes(npz_bytes(weights))
        text = json.dumps({**manifest, "weights": digest(weights)}, sort_keys=True, indent=1, allow_nan=False)
        (writing / "manifest.json").write_text(text + "\n", encoding="utf-8")
        if place.exists():  # without a manifest: what a meddler left
            raise CacheError(f"{place} is in the way and holds no start; {_WAY_OUT}")
        writing.rename(place)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _read(place: Path, task: Task, size: Size, seed: int) -> tuple[Transformer, Skill]:
    try:
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
        weights = read_npz(place / "weights.npz")
        if digest(weights) != manifest["weights"]:
            raise ValueError("the weights are not those of the manifest")
        model = untrained(task, size, seed)
        model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
        return model, from_dict(manifest["skill"])
    except Exception as error:
        raise CacheError(f"{place} cannot be read ({error!r}); {_WAY_OUT}") from error
