"""docs/fitting.md holds together: its totals are its cells, and its rivals are those of the code."""

import re
from pathlib import Path

import pytest

from studies.kit.fitting.mechanisms import RIVALS
from studies.kit.fitting.trials import TRUE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "fitting.md").read_text()


def test_rivals_are_those_of_the_code():
    assert set(RIVALS) == set(TRUE)
    rows = re.findall(r"^\| ([a-z ]+) \| (?:rate|the|restoring|Adam)", PAGE, re.M)
    assert rows == list(RIVALS)


@pytest.mark.parametrize(
    ("heading", "total"),
    [
        ("1,024 rollouts a step", "in 94 of 100"),
        ("256 rollouts a step", "84 of 100"),
        ("1,024 rollouts, one world", "94 of 100 again"),
    ],
)
def test_totals_are_the_diagonal(heading, total):
    table = PAGE.split(f"| {heading} |")[1].split("\n\n")[0]
    rows = [[int(cell) for cell in line.split("|")[2:7]] for line in table.splitlines()[2:]]
    assert [sum(row) for row in rows] == [20] * 5
    right = sum(row[i] for i, row in enumerate(rows))
    assert f"{right} of 100" in total
    assert total in PAGE
