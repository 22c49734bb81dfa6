"""docs/kernels.md and README.md say of cards what is on record, and no more."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")

from fullscale.validate_gpu import cases
from tests.fullscale.validate_gpu import made

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("make_kernels", ROOT / "docs" / "make_kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_is_on_record(page):
    text = (ROOT / "docs" / "kernels.md").read_text()
    assert page.between(text, "records") == page.records(page.passed()), "run `python docs/make_kernels.py`"


@pytest.mark.parametrize("name", ["README.md", "docs/kernels.md"])
def test_figures_of_speed_on_a_card_come_from_a_record_or_are_not_there(page, name):
    text = (ROOT / name).read_text()
    inner = page.between(text, "figures")
    if inner is not None:
        assert inner == page.figures(page.passed()), "run `python docs/make_kernels.py`"
    if name == "README.md":  # the page may speak of targets, and says that they are targets
        assert page.FIGURE.findall(page.outside(text)) == []


def test_a_figure_is_known_when_seen(page):
    for sentence in (
        "The forward takes 24 ms on an H200.",
        "On an H100 it is 3.2 times as fast.",
        "It reaches 735 TFLOP/s.",
        "On the GPU it needs 20 % less.",
        "At 92 % of what the GPU can do.",
    ):
        assert page.FIGURE.search(sentence), sentence
    for sentence in (
        "A run takes 20 ms on a CPU.",
        "The same agent on GPUs. It is 3 times as fast as a loop.",
        "Fused kernels for CUDA are locked until a record unlocks them.",
    ):
        assert not page.FIGURE.search(sentence), sentence


def test_without_a_record_there_is_no_figure(page):
    assert page.figures([]) == "No record on a card, so no figure."
    assert "| `triton` | | never run on a card |" in page.records([])


def test_with_records_the_newest_of_each_card_is_shown(page, tmp_path):
    timing = made.case(
        cases.Point(*cases.RECORD, 1.0, "forward+entropy").name,
        phase="bench",
        values={"ours": {"ms": [25.0, 25.0], "extra_mb": 20.0}},
        bounds={},
    )
    passed = [made.case(n) for n in made.CASES]
    for folder, changes in {
        "old": {"date": "2026-10-01T00:00:00+00:00"},
        "new": {"date": "2026-11-05T00:00:00+00:00"},
        "other": {"card": "NVIDIA H100"},
        "dry": {"dry_run": True, "card": "NVIDIA A100"},
    }.items():
        made.record(tmp_path / folder, [*passed, timing], **changes)
    made.record(tmp_path / "failed", [made.case("tails", status="failed")], {"passed": False}, card="NVIDIA B200")
    found = [r for folder in sorted(tmp_path.iterdir()) for r in page.passed(folder)]
    found.sort(key=lambda r: r.header["date"], reverse=True)
    table = page.records(found)
    assert "| `triton` | NVIDIA H200 | 2026-11-05 | 3.6.0 | `555555555555` | other code: unlocks nothing now |" in table
    assert "NVIDIA H100" in table
    assert "2026-10-01" not in table
    assert "A100" not in table
    assert "B200" not in table
    assert "25 ms" in page.figures(found)


def test_a_damaged_record_is_not_passed_over(page, tmp_path):
    (tmp_path / "x.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"x\.jsonl"):
        page.passed(tmp_path)


def test_only_what_stands_between_the_marks_is_written(page, tmp_path):
    start, end = page.MARKS["figures"]
    path = tmp_path / "a.md"
    path.write_text(f"before\n{start}\nold 5 TFLOP\n{end}\nafter\n")
    page.write(path, "figures", "new")
    assert path.read_text() == f"before\n{start}\n\nnew\n\n{end}\nafter\n"
    assert page.outside(path.read_text()) == f"before\n{start}\n\n\n\n{end}\nafter\n"
    path.write_text(f"before\n{start}\n")
    with pytest.raises(ValueError, match="a mark of figures is missing"):
        page.write(path, "figures", "new")
    path.write_text("no marks")
    page.write(path, "figures", "new")
    assert path.read_text() == "no marks"
