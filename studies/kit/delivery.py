"""A pytest plugin that hands findings to another process: ``-p studies.kit.delivery --findings FILE`` writes JSON lines."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from studies.kit.finding import Finding

__all__ = ["Delivery"]


class Delivery:
    """Appends each finding to a file as a line of JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_studies_finding(self, finding: "Finding") -> None:
        """Append a finding."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(finding.to_json() + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--findings``."""
    parser.getgroup("studies").addoption("--findings", metavar="FILE", help="append every finding here, as JSON lines")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Listen in the controlling process, which alone has all findings."""
    path = config.getoption("findings")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Delivery(Path(path)))
