"""Starts on disk: each is taught once.

    FOLDER/start-3f1c0a5be2d94e77/weights.safetensors    the parameters that were taught
                                  start.json             what it is, and how it went
                                  manifest.json          digests; written last

A start is named by the model it begins from, by the tokens it is taught, by how, and by the code and arithmetic that teach
them. World, corpus, questions, prompt and tokenizer are not in its name: the tokens stand for everything that made them, so
a change that alters no token costs nothing, and one that does is never missed.
"""

import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from fullscale.agent.policy import LanguagePolicy
from fullscale.model.once import made_once
from fullscale.start.demonstrations import Demonstrated
from fullscale.start.start import Start
from fullscale.start.supervised import supervised
from minimodel.model.compiling import cache_folder
from sim.records.config import canonical_json
from sim.records.fingerprint import tree_fingerprint

__all__ = ["restore", "start_key", "started"]

_CODE = ("fullscale.start", "fullscale.agent", "fullscale.kernels", "fullscale.model")
_WEIGHTS, _REPORT = "weights.safetensors", "start.json"
_TAUGHT_BY = ("epochs", "batch", "micro", "rate", "warmup")
"""What of a :class:`Start` matters once the tokens are there."""


def started(
    model: str,
    make: Callable[[], LanguagePolicy],
    demonstrated: Demonstrated,
    start: Start,
    seed: int,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Return the folder of a start, made where it is not there yet; :func:`restore` reads it.

    Processes that want it at once wait for the one that makes it; of one that is killed nothing is left.

    Parameters
    ----------
    model
        Names what `make` returns: two that differ in weights, dtype, autocast, adapter or temperature have two
        names.
    make
        Returns the policy that is taught; called only where the start has to be made.
    demonstrated
        What it is taught.
    start, seed
        How.
    folder
        Where starts are kept; default: the user's cache folder.
    progress
        Called as ``progress(done, total)`` after every update.
    """
    parent = cache_folder() if folder is None else Path(folder)

    def teach(into: Path) -> None:
        policy, began_s = make(), time.monotonic()
        taught = supervised(policy, demonstrated.kept, start, seed, progress)
        went = {
            "identity": _identity(model, demonstrated, start, seed),
            "demonstrations": {"kept": len(demonstrated.kept)} | demonstrated.counts(),
            "taught": dataclasses.asdict(taught),
            "seconds": time.monotonic() - began_s,
        }
        save_file({name: p.detach().cpu().contiguous() for name, p in _taught(policy)}, into / _WEIGHTS)
        text = json.dumps(went, sort_keys=True, indent=1, allow_nan=False)
        (into / _REPORT).write_text(text + "\n", encoding="utf-8")

    return made_once(parent / f"start-{start_key(model, demonstrated, start, seed)}", teach)


def restore(policy: LanguagePolicy, place: Path) -> Mapping[str, Any]:
    """Give `policy` the parameters of a start, in place, and return its ``start.json``: what it is and how it went.

    Raises
    ------
    ValueError
        When the start is of another model: its parameters have other names, shapes or dtypes. Nothing is changed then.
    OSError
        When the folder cannot be read.
    """
    weights, parameters = load_file(place / _WEIGHTS), dict(_taught(policy))
    unlike = sorted(weights.keys() ^ parameters.keys()) or [
        name for name, p in parameters.items() if (p.shape, p.dtype) != (weights[name].shape, weights[name].dtype)
    ]
    if unlike:
        raise ValueError(
            f"the start in {place} is of another model: {len(unlike)} parameters differ, the first is {unlike[0]!r}; make "
            "the model as it was when the start was made"
        )
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(weights[name])
    found: dict[str, Any] = json.loads((place / _REPORT).read_text(encoding="utf-8"))
    return found


def start_key(model: str, demonstrated: Demonstrated, start: Start, seed: int) -> str:
    """Return the name of a start, 16 hexadecimal digits."""
    return hashlib.sha256(canonical_json(_identity(model, demonstrated, start, seed)).encode()).hexdigest()[:16]


def _identity(model: str, demonstrated: Demonstrated, start: Start, seed: int) -> dict[str, Any]:
    """Return what a start depends on, as plain data."""
    return {
        "model": model,
        "tokens": demonstrated.digest(),
        "start": {name: getattr(start, name) for name in _TAUGHT_BY},
        "seed": seed,
        "code": _code(),
        "torch": str(torch.__version__),
        "transformers": version("transformers"),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def _taught(policy: LanguagePolicy) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the parameters that are taught, each once however many places share it, with their names."""
    return ((name, p) for name, p in policy.model.named_parameters() if p.requires_grad)


@functools.cache
def _code() -> str:
    """Return the fingerprint of the code that teaches."""
    return tree_fingerprint({package: _folder(package) for package in _CODE})


def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))
