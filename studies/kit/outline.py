"""The studies of a file read from its source, for ``--collect-only``: what is there, without what it computes with.

To load the studies takes seconds, since they load the simulator and torch; to list them takes their names, and of each
claim the id, the rungs and whether it is long. A file that says one of these otherwise than in plain words, binds a name
``study_*`` by anything but ``def``, or decorates a study with anything but ``@claim`` is left to pytest, which loads it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studies.kit.claims import Claim, ClaimError, outline

__all__ = ["OutlinedFile", "OutlinedStudy", "outlined"]

Outlined = list[tuple[ast.FunctionDef, tuple[Claim, ...]]]


class OutlinedStudy(pytest.Item):
    """A study that can be listed and selected, not run."""

    def __init__(self, *, node: ast.FunctionDef, claims: tuple[Claim, ...], **more: Any) -> None:
        super().__init__(**more)
        self.line = node.lineno - 1
        self.fixturenames = [argument.arg for argument in node.args.args]
        for claim in reversed(claims):  # as decorators are applied
            self.add_marker(pytest.mark.claim(claim))

    def runtest(self) -> None:
        """Refuse: nothing of the study has been loaded."""
        raise NotImplementedError(f"{self.nodeid} was collected to be listed only")

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return file, line and name."""
        return self.path, self.line, self.name

    def __repr__(self) -> str:
        return f"<Function {self.name}>"


class OutlinedFile(pytest.File):
    """A file of studies that has been read, not loaded."""

    def __init__(self, *, studies: Outlined, **more: Any) -> None:
        super().__init__(**more)
        self.studies = studies

    def collect(self) -> Iterator[OutlinedStudy]:
        """Yield its studies in the order they stand in."""
        for node, claims in self.studies:
            yield OutlinedStudy.from_parent(self, name=node.name, node=node, claims=claims)

    def __repr__(self) -> str:
        return f"<Module {self.name}>"


def outlined(path: Path) -> Outlined | None:
    """Return the studies of a file with their claims; ``None`` where they cannot be told without loading it."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
        found: Outlined = []
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("study_"):
                found.append((node, tuple(_claim(each) for each in node.decorator_list)))
            elif _binds_a_study(node):
                return None
    except (SyntaxError, ValueError, ClaimError):
        return None
    return found


def _binds_a_study(node: ast.stmt) -> bool:
    """Whether a statement of a module may give anything a name that pytest takes for a study's."""
    if isinstance(node, ast.FunctionDef) or (isinstance(node, ast.ImportFrom) and node.module == "studies.kit"):
        return False
    if isinstance(node, ast.Import | ast.ImportFrom):
        return any((alias.asname or alias.name).startswith(("study_", "*")) for alias in node.names)
    names = (
        getattr(each, "id", getattr(each, "name", "")) for each in ast.walk(node) if not isinstance(each, ast.alias)
    )
    return any(isinstance(name, str) and name.startswith("study_") for name in names)


def _claim(decorator: ast.expr) -> Claim:
    """Return a claim with what can be told of it; ValueError where that is not in plain words."""
    if not isinstance(decorator, ast.Call) or getattr(decorator.func, "id", "") != "claim" or len(decorator.args) != 1:
        raise ValueError(f"line {decorator.lineno} is no plain @claim(...)")
    if any(each.arg is None for each in decorator.keywords):
        raise ValueError(f"line {decorator.lineno} has keywords from elsewhere")
    told = {each.arg: ast.literal_eval(each.value) for each in decorator.keywords if each.arg in ("rungs", "long")}
    return outline(ast.literal_eval(decorator.args[0]), **told)
