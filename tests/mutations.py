"""A mutation is a way to be wrong; the test of a fault must fail under each of its own."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

Patch = pytest.MonkeyPatch
Mutation = Callable[[Patch, dict[str, Any]], None]


def entering(table: list[tuple[str, str, Mutation]]) -> Callable[..., Callable[..., Mutation]]:
    """Return what enters a mutation in a table of (name of a test, the fault in words, mutation that makes it fail)."""

    def fails(*tests: str) -> Callable[..., Mutation]:
        """Enter a mutation under the tests that catch it."""

        def enter(mutation: Mutation, fault: str = "") -> Mutation:
            table.extend((test, fault or mutation.__name__.replace("_", " "), mutation) for test in tests)
            return mutation

        return enter

    return fails


def put(owner: Any, name: str, wrong: Callable[..., Any]) -> Mutation:
    """Replace a method of a class or a function of one module."""
    return lambda patch, tests: patch.setattr(owner, name, wrong)


def around(owner: Any, name: str, wrong: Callable[..., Any]) -> Mutation:
    """Replace it by one that is given the shipped one first."""
    shipped = getattr(owner, name)
    return put(owner, name, lambda *given: wrong(shipped, *given))


def everywhere(shipped: Callable[..., Any], wrong: Callable[..., Any]) -> Mutation:
    """Replace a function in its own module and in all that imported its name, the tests among them."""
    name = shipped.__name__

    def mutate(patch: Patch, tests: dict[str, Any]) -> None:
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is shipped:
                patch.setattr(module, name, wrong)

    return mutate


def fails_under(mutate: Mutation, name: str, tests: dict[str, Any], request: Any, monkeypatch: Patch) -> None:
    """Run the test `name` of the module namespace `tests` under a mutation; it must fail."""
    test = tests[name]
    arguments = {fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(test).parameters}
    mutate(monkeypatch, tests)
    with np.errstate(all="ignore"), pytest.raises((AssertionError, pytest.fail.Exception)):
        test(**arguments)
