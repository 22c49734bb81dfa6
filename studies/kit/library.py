"""A folder of studies, read without running them."""

import importlib.util
from pathlib import Path
from types import ModuleType

from studies import FOLDER
from studies.kit.claims import Claim

__all__ = ["claims_in"]


def claims_in(folder: Path = FOLDER) -> list[Claim]:
    """Return the claims on the functions of the folder's ``study_*.py``, in order; ImportError names a broken file."""
    found: list[Claim] = []
    for path in sorted(folder.glob("study_*.py")):
        for value in vars(_load(path)).values():
            marks = getattr(value, "pytestmark", []) if callable(value) else []
            found += [mark.args[0] for mark in reversed(marks) if mark.args and isinstance(mark.args[0], Claim)]
    return found


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
