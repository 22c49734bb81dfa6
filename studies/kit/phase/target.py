"""Which study a sweep is of: found by the name of its file or function, by a path, or by one of its claims."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from studies import FOLDER
from studies.kit.claims import Claim
from studies.kit.family import declared, file_fingerprint
from studies.kit.library import claims_on
from studies.kit.phase.places import GridError
from studies.kit.words import near

__all__ = ["Target", "find"]


@dataclass(frozen=True)
class Target:
    """A study function that is to be run at the points of a grid."""

    path: Path
    """Its file."""
    function: Callable[[Any], None]
    """The function."""
    claims: tuple[Claim, ...]
    """Its claims at the rung, in the order they are written."""
    fingerprint: str
    """Fingerprint of its file."""
    boundary: Callable[[Any], float | Mapping[str, float]] | None
    """The module's ``boundary(config)``, positive where theory has the claim supported; ``None`` where it has none."""

    @property
    def name(self) -> str:
        """Name of the function, without ``study_``."""
        return self.function.__name__.removeprefix("study_")

    def claim(self, id: str | None = None) -> Claim:  # noqa: A002 -- what it is called everywhere
        """Return a claim by id; the first one for ``None``. GridError with the near misses."""
        known = {claim.id: claim for claim in self.claims}
        if id is None:
            return self.claims[0]
        if id not in known:
            raise GridError(f"study {self.name!r} makes no claim {id!r} at this rung; {near(id, known)}")
        return known[id]


def find(study: str, rung: str, folder: Path = FOLDER) -> Target:
    """Return the study that a name means: ``length_diagram``, ``study_length_diagram``, a path, or a claim's id.

    A file with several studies is meant by the one that has its name; any other is named by its function or by a claim.
    GridError for an unknown name (with near misses), a file that cannot be imported, or a study without a claim at the
    rung.
    """
    path, wanted = _file(study, folder)
    module = _load(path)
    found = {
        name: claims
        for name, value in vars(module).items()
        if name.startswith("study_") and (claims := claims_on(value))
    }
    name = _function(study, wanted, path, found)
    function = getattr(module, name)
    takes = list(inspect.signature(function).parameters)
    if takes != ["study"]:
        raise GridError(f"{name} takes {', '.join(takes)}: outside pytest a study takes `study` and nothing else")
    here = tuple(claim for claim in found[name] if rung in claim.rungs)
    if not here:
        rungs = sorted({rung for claim in found[name] for rung in claim.rungs})
        raise GridError(f"{name} claims nothing at {rung}; rungs: {', '.join(rungs)}")
    return Target(path, function, here, file_fingerprint(path), getattr(module, "boundary", None))


def _file(study: str, folder: Path) -> tuple[Path, str | None]:
    """Return the file that holds a study, and the claim or function by which it was named."""
    if study.endswith(".py"):
        path = Path(study)
        if not path.is_file():
            raise GridError(f"no file {study!r}; give a study's name, a claim's id, or the path of a study_*.py")
        return path.resolve(), None
    if not folder.is_dir():
        raise GridError(f"no folder {str(folder)!r}: give the one that holds study_*.py with --folder")
    name = study.removeprefix("study_")
    files = {path.stem.removeprefix("study_"): path.resolve() for path in sorted(folder.glob("study_*.py"))}
    if name in files:
        return files[name], None
    functions = {name: path for path in files.values() for name in _functions(path)}
    if name in functions:
        return functions[name], f"study_{name}"
    claims = declared(folder)
    for path in files.values() if study in claims else ():
        text = path.read_text(encoding="utf-8")
        if f'"{study}"' in text or f"'{study}'" in text:
            return path, study
    known = [*files, *functions, *claims]
    raise GridError(f"no study and no claim {study!r} in {folder}; {near(study, known)}")


def _functions(path: Path) -> list[str]:
    import ast

    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except SyntaxError:
        return []
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name.removeprefix("study_") for name in names if name.startswith("study_")]


def _function(study: str, wanted: str | None, path: Path, found: Mapping[str, tuple[Claim, ...]]) -> str:
    """Return the name of the study function that is meant."""
    if wanted in found:
        return str(wanted)
    for name, claims in found.items():
        if wanted is not None and any(claim.id == wanted for claim in claims):
            return name
    if path.stem in found:
        return path.stem
    if len(found) == 1:
        return next(iter(found))
    if not found:
        raise GridError(f"{path} holds no study: a function study_*(study) with a claim on it")
    shown = "; ".join(f"{name} ({', '.join(claim.id for claim in claims)})" for name, claims in found.items())
    raise GridError(f"{study!r} holds {len(found)} studies; name one by its function or by a claim: {shown}")


def _load(path: Path) -> ModuleType:
    """Import a study's file under a name by which another process can import it too."""
    name = f"studies.{path.stem}" if path.parent == FOLDER else path.stem
    if name == path.stem and str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(name)
    except Exception as error:
        raise GridError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    if Path(str(module.__file__)).resolve() != path:
        raise GridError(f"{path}: another module {name!r} is loaded already, {module.__file__}; rename the file")
    return module
