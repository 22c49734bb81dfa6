"""The code in docs/minimodel.md and about the second rung in README.md is code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("torch")


def blocks(path: Path, holding: str) -> list[str]:
    found = re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
    return [block for block in found if holding in block]


def test_every_variant_on_the_page_is_a_run_of_its_own():
    """One line changes world, loss, lag, thinking, network or arithmetic: every line gives another config."""
    from sim.records.config import canonical_json, to_dict

    (block,) = blocks(ROOT / "docs" / "minimodel.md", "replace(base")
    names: dict = {}
    imports, lines = block.split("base = presets.retry()\n")
    exec("from minimodel import presets\n" + imports + "base = presets.retry()", names)
    variants = [line for line in lines.splitlines() if line.startswith("replace(")]
    configs = {canonical_json(to_dict(eval(line, names))) for line in variants} | {
        canonical_json(to_dict(names["base"]))
    }
    assert len(configs) == len(variants) + 1 == 7


@pytest.mark.long
def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (page,) = blocks(ROOT / "docs" / "minimodel.md", "train(presets.retry()")
    (readme,) = blocks(ROOT / "README.md", "presets.retry()")
    for block in (page, readme):
        names: dict = {}
        exec(block, names)
        guess = names["runs"]["decision/share/start/answer"]
        assert guess.shape[1] == 100
        assert (guess[:, 0] < 0.05).all()
