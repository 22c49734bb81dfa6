"""What docs/sweeps.md shows is so: its example runs, its commands are accepted, its grids mean what it says."""

import inspect
import re
import shlex
from pathlib import Path

import pytest
import tyro

from studies.kit.phase.axes import split
from studies.kit.phase.sweeps import Setting
from studies.kit.sweep_cli import sweep

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "sweeps.md").read_text()


def test_the_example_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(block, {})
    *points, edge = capsys.readouterr().out.splitlines()
    verdicts = [re.search(r"supported|refuted|undecided", line).group() for line in points]
    assert verdicts == ["supported", "refuted", "refuted", "supported", "supported", "refuted"]
    low, high = map(float, edge.split()[:2])
    assert 0.2 < low < 0.31 < high < 0.4  # theory's line at a hit rate of .6


def test_the_commands_are_accepted():
    lines = re.findall(r"^metastable sweep (.*)", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        seen = {}
        tyro.cli(stand_in(seen), args=shlex.split(line))
        assert seen["study"] == "length_diagram"
        assert seen["grid"] or seen["bisect"]


def stand_in(seen):
    """A command with the options of ``sweep`` that only notes them."""

    def noted(**options):
        seen.update(options)
        return 0

    noted.__signature__ = inspect.signature(sweep)
    noted.__annotations__ = sweep.__annotations__
    return noted


ROWS = re.findall(r"^\| `(\w.*?=.*?)` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("row", "n"), list(zip(ROWS, (2, 11, 5, 5, 2), strict=True)))
def test_the_grids_have_so_many_values(row, n, tmp_path):
    setting = Setting.of("length_diagram", store=tmp_path / "store", ledgers=tmp_path / "ledgers")
    path, text = split(row)
    assert len(setting.axis(path, text).values) == n
