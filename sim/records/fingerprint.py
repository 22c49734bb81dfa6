"""Which code made a record: a hash of what the code does, blind to how it is explained.

The hash is taken over the syntax trees of all modules at or below a rung, without docstrings and hence without comments
or layout. An edit to the prose leaves every record valid; an edit to the code makes its records "recorded with other
code".
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sim.records.config import near_misses

__all__ = ["RUNGS", "code_fingerprint", "environment", "tree_fingerprint"]

RUNGS: Mapping[str, tuple[str, ...]] = {
    "sim": ("sim",),
    "minimodel": ("sim", "minimodel"),
    "fullscale": ("sim", "minimodel", "fullscale"),
}
"""Each rung with the packages at or below it. Studies are not among them: they measure runs, they do not make them."""

_KERNEL_SOURCES = frozenset({".cu", ".cuh", ".cpp", ".h"})  # hashed as bytes, since nothing here can parse them


@functools.cache
def code_fingerprint(rung: str) -> str:
    """The sha256 of the code at or below ``rung``, computed once per process.

    ValueError for an unknown rung, ModuleNotFoundError if one of its packages is not installed. No package is imported.
    """
    if rung not in RUNGS:
        raise ValueError(f"no rung {rung!r}{near_misses(rung, RUNGS)}")
    return tree_fingerprint({package: _folder(package) for package in RUNGS[rung]})


def tree_fingerprint(packages: Mapping[str, Path]) -> str:
    """The sha256 over the modules below each folder, in order of package name and of path inside the package."""
    total = hashlib.sha256()
    for package in sorted(packages):
        root = packages[package]
        total.update(f"{package}\n".encode())
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
            if path.suffix == ".py":
                content = "".join(_skeleton(ast.parse(path.read_bytes(), filename=str(path)))).encode()
            elif path.suffix in _KERNEL_SOURCES:
                content = path.read_bytes()
            else:
                continue
            name = f"{package}/{path.relative_to(root).as_posix()}"
            total.update(f"{name} {len(content)}\n".encode())
            total.update(content)
    return total.hexdigest()


def environment() -> dict[str, Any]:
    """For a run's provenance: host, platform, processors, and versions of what its numbers rest on."""
    return {
        "host": platform.node(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "cpus": os.cpu_count(),
        "versions": {
            "python": platform.python_version(),
            "numpy": importlib.metadata.version("numpy"),
            "scipy": importlib.metadata.version("scipy"),
        },
    }


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"package {package!r} is not installed: install metastable with the rung's extra")
    return Path(next(iter(spec.submodule_search_locations)))


def _skeleton(node: Any) -> Iterator[str]:
    """A syntax tree in words, as `ast.dump` writes it, without docstrings.

    Fields that are None or empty are left out: later versions of Python add such fields to old syntax, and the same
    code should have the same hash under all of them.
    """
    if isinstance(node, ast.AST):
        yield type(node).__name__
        yield "("
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != []:
                yield f"{name}="
                yield from _skeleton(value)
                yield ","
        yield ")"
    elif isinstance(node, list):
        yield "["
        for item in node:
            if not _is_docstring(item):
                yield from _skeleton(item)
                yield ","
        yield "]"
    else:
        yield repr(node)


def _is_docstring(node: Any) -> bool:
    """Whether a node is a bare string: a docstring of a module, class, function or (by convention) a field."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
