"""Hooks that the kit offers to other plugins and to ``conftest.py``."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from studies.kit.finding import Finding

__all__ = ["pytest_studies_finding"]


def pytest_studies_finding(finding: "Finding") -> None:
    """Called once for each finding of the session, at its end, with the q-value filled in.

    Called in the controlling process only, also under pytest-xdist. In a ``conftest.py``:

    .. code-block:: python

        def pytest_studies_finding(finding):
            tracker.log({f"{finding.claim}/effect": finding.effect})
    """
