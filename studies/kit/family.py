"""The registered family of claims and the false-discovery rate over it.

The family is every claim declared in the studies' folders for a rung, whatever was selected on the command line. It is
read from the source, so that choosing one study does not shrink it.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from studies.kit.records import load

__all__ = ["benjamini_hochberg", "declared", "file_fingerprint", "q_values"]


def declared(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return the rungs of every ``@claim("id", ...)`` in the folder's ``study_*.py``, by id.

    Only ids written as plain strings are seen; a claim without ``rungs=`` belongs to ``sim``. A study that does not
    parse is left out here; pytest reports it.
    """
    found: dict[str, tuple[str, ...]] = {}
    for path in sorted(folder.glob("study_*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except SyntaxError:
            continue
        found.update(_claims(tree))
    return found


def _claims(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    for function in ast.walk(tree):
        for decorator in getattr(function, "decorator_list", []):
            if not isinstance(decorator, ast.Call) or not decorator.args:
                continue
            name = getattr(decorator.func, "id", getattr(decorator.func, "attr", ""))
            first = decorator.args[0]
            if name == "claim" and isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, _rungs(decorator)


def _rungs(call: ast.Call) -> tuple[str, ...]:
    for keyword in call.keywords:
        if keyword.arg == "rungs":
            try:
                return tuple(ast.literal_eval(keyword.value))
            except ValueError:
                return ("sim", "minimodel", "fullscale")  # not a literal: count it rather than lose it
    return ("sim",)


def benjamini_hochberg(p: Mapping[str, float]) -> dict[str, float]:
    """Return q by name: the smallest false-discovery rate at which each would be accepted.

    q(i) = min over j >= i of p(j) m / j, over the p in ascending order (Benjamini and Hochberg, 1995).

    >>> benjamini_hochberg({"a": 0.01, "b": 0.04, "c": 0.03, "d": 1.0})["b"]
    0.05333333333333334
    """
    ordered = sorted(p, key=lambda name: (p[name], name))
    q: dict[str, float] = {}
    running = 1.0
    for position in range(len(ordered), 0, -1):
        name = ordered[position - 1]
        running = min(running, p[name] * len(ordered) / position)
        q[name] = running
    return q


def q_values(measured: Mapping[str, float | None], folders: Iterable[Path], rung: str) -> dict[str, float]:
    """Return q over the registered family, for every claim in it.

    ``measured`` holds the p of the claims that ran. The others enter with the p on record; a claim without a p (an
    exact kind, no verdict, never run) enters as p = 1.
    """
    p: dict[str, float] = {}
    for folder in folders:
        for claim, rungs in declared(folder).items():
            if rung in rungs:
                entry = load(folder / "records", claim, rung)
                on_record = entry.finding.p if entry and entry.finding else None
                p[claim] = 1.0 if on_record is None else on_record
    p.update({claim: 1.0 if value is None else value for claim, value in measured.items()})
    return benjamini_hochberg(p)


def file_fingerprint(path: Path) -> str:
    """Return a hash of what a study's file does; its docstrings, comments and layout do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [line for line in body if not _is_text(line)]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
