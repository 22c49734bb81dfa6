"""docs/family.md is what the code says now."""

import importlib.util
import re
from pathlib import Path

import pytest

from sim.learning import family
from sim.learning.rule import Rule

DOCS = Path(__file__).resolve().parents[2] / "docs"
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def make_family():
    spec = importlib.util.spec_from_file_location("make_family", DOCS / "make_family.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(make_family):
    assert (DOCS / "family.md").read_text() == make_family.page(), "run `python docs/make_family.py`"


def test_every_rule_has_a_row_an_equation_and_a_source(make_family):
    page = make_family.page()
    for name in family.__all__:
        assert page.count(f"| `{name}` |") == 1
        assert page.count(f"\n- `{name}(") == 1
        words = make_family.said(getattr(family, name))
        assert words["what"].endswith(".")
        assert words["equation"].startswith("w "), f"{name}: its docstring's second paragraph begins with 'w ='"
        assert "A = " in words["equation"] or "A_t = " in words["equation"], f"{name}: its equation says what A is"
        assert words["source"], f"{name}: its docstring names a source"


def test_the_figure_has_a_panel_for_every_distinct_weight(make_family):
    named = [name for names, _ in make_family.panels().values() for name in names]
    assert sorted(named) == sorted(family.__all__)
    drawn = (DOCS / "weights.svg").read_text()
    for name in family.__all__:
        assert name in drawn, "run `python docs/make_family.py`"


def test_a_change_of_a_rule_changes_its_row(make_family):
    def other(high: float = 0.3) -> Rule:
        """Other.

        w = rho.

        Source: nobody.
        """
        return family.grpo(high=high, kl=0)

    assert "ρ if ≤ 1.3, else 0" in make_family.row("other", other)
    assert "nobody" in make_family.row("other", other)


def test_a_part_without_words_is_named(make_family):
    with pytest.raises(TypeError, match="object has no words in docs/make_family"):
        make_family.weight(object())


def test_the_code_on_the_page_runs():
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "rules.md").read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["logits"].grad.abs().max() > 0
    assert len(names["runs"]["train/reward"]) == 4
