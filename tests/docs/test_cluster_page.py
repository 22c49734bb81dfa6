"""The code in docs/cluster.md is code, and the presets it lists are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text()


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_run(number, capsys):
    block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    exec(block, {})
    assert capsys.readouterr().out.strip()


def test_the_commands_are_accepted():
    from studies.kit.cli import COMMANDS

    lines = re.findall(r"^metastable (\w+)", PAGE, re.MULTILINE)
    assert len(lines) == 4
    assert set(lines) <= set(COMMANDS)
