"""A folder of studies, read without running them."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from studies import FOLDER
from studies.kit.claims import Claim

__all__ = ["Statement", "claims_in", "claims_on", "statement"]


@dataclass(frozen=True)
class Statement:
    """A claim where it is made."""

    claim: Claim
    """The claim."""
    claims: tuple[Claim, ...]
    """All claims of its study."""
    path: Path
    """File of the study."""
    function: Callable[..., Any]
    """The study."""

    @property
    def name(self) -> str:
        """Name of the study: the stem of its file without ``study_``."""
        return self.path.stem.removeprefix("study_")


def statement(claim: str, folder: Path = FOLDER) -> Statement | None:
    """Return a claim with its study, or ``None``; only files that mention it are loaded. ImportError names a broken one."""
    for path in sorted(folder.glob("study_*.py")):
        if claim not in path.read_text(encoding="utf-8"):
            continue
        for value in vars(_load(path)).values():
            made = claims_on(value)
            for each in made:
                if each.id == claim:
                    return Statement(each, made, path, value)
    return None


def claims_in(folder: Path = FOLDER) -> list[Claim]:
    """Return the claims on the functions of the folder's ``study_*.py``, in order; ImportError names a broken file."""
    found: list[Claim] = []
    for path in sorted(folder.glob("study_*.py")):
        for value in vars(_load(path)).values():
            found += claims_on(value)
    return found


def claims_on(value: Any) -> tuple[Claim, ...]:
    """Return the claims on a function, in the order they are written; none on anything else."""
    marks = getattr(value, "pytestmark", []) if callable(value) else []
    return tuple(mark.args[0] for mark in reversed(marks) if mark.args and isinstance(mark.args[0], Claim))


def _load(path: Path) -> ModuleType:
    name = f"studies.{path.stem}" if path.parent == FOLDER else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
