import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.runs.compare import compare, draw
from studies.kit.runs.tables import compared_lines
from tests.studies.kit.runs.stores import OTHER, config, record

NAN = float("nan")


def of(column, steps=(0, 1, 2, 3), **more):
    return record(columns={"step": np.array(steps), "x": np.array(column)}, **more)


def departure(a, b):
    (found,) = compare(of(a), of(b)).departures
    return found.first, found.steps, found.largest, found.at


def test_by_hand():
    assert departure([0.0, 1.0, 2.0, 3.0], [0.0, 1.5, 2.0, 1.0]) == (1, 2, 2.0, 3)
    assert departure([0, 1, 2, 3], [0, 1, 2, 5]) == (3, 1, 2.0, 3)


def test_bits_are_compared_not_values():
    assert departure([0.0, 1.0, 2.0, 3.0], [-0.0, 1.0, 2.0, 3.0]) == (0, 1, 0.0, 0)
    assert departure([NAN, 1.0, 2.0, 3.0], [NAN, NAN, 2.0, 3.0]) == (1, 1, np.inf, 1)
    assert departure([np.inf, 1.0, 2.0, 3.0], [-np.inf, 1.0, 2.0, 3.0]) == (0, 1, np.inf, 0)
    assert departure([0, 1, 2, 3], [0.0, 1.0, 2.0, 3.0]) == (0, 4, 0.0, 0)
    assert not compare(of([NAN] * 4), of([NAN] * 4)).departures


def test_rows_are_matched_by_step():
    found = compare(of([0.0, 1.0, 2.0, 3.0]), of([1.0, 2.0, 7.0, 8.0], steps=(1, 2, 3, 4)))
    assert found.steps == (3, 1, 1)
    assert [(each.first, each.largest) for each in found.departures] == [(3, 4.0)]
    assert not found.same


def test_columns_of_one_alone_are_said():
    other = record(columns={"step": np.arange(4), "y": np.arange(4)})
    found = compare(of([0.0] * 4), other)
    assert found.only == (("x",), ("y",))
    assert found.common == 0
    assert not found.same


@pytest.mark.parametrize(
    ("more", "kin"),
    [
        ({}, "the same run"),
        ({"code": OTHER}, "the same run, made by other code"),
        ({"seed": 3}, "the same config, another seed"),
        ({"made_of": config(known=0.1)}, "different runs"),
        ({"study": "dwell"}, "different runs"),
    ],
)
def test_what_two_runs_are_to_each_other(more, kin):
    assert compare(record(), record(**more)).kin == kin


def test_in_words():
    a, b = record(), record(seed=1, made_of=config(known=0.35), code=OTHER)
    lines = "\n".join(compared_lines(a, b, compare(a, b)))
    assert f"{a.key} and {b.key}: different runs" in lines
    assert "world.known  .5  .35" in lines
    assert "train/reward  1  at step 0  from step 0 (4 differ)" in lines
    assert "(1 of 2)" in lines
    same = compared_lines(a, a, compare(a, a))
    assert same[-1] == "the columns and steps are equal, bit for bit"


_COLUMN = st.lists(st.floats(), min_size=4, max_size=4)


@given(_COLUMN, _COLUMN)
def test_equal_if_and_only_if_the_bits_are_and_the_order_does_not_matter(left, right):
    a, b = of(left), of(right)
    forth, back = compare(a, b), compare(b, a)
    assert forth.same == a.steps.equals(b.steps)
    assert forth.departures == back.departures
    assert compare(a, a).same


def test_a_figure_of_both(tmp_path):
    a, b = record(), record(seed=1)
    for ending, start in ((".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")):
        draw(a, b, "train/reward", tmp_path / f"f{ending}")
        assert (tmp_path / f"f{ending}").read_bytes().startswith(start)
    text = (tmp_path / "f.svg").read_text()
    assert all(words in text for words in (a.key[:8], b.key[:8], "train/reward", "second - first"))
    draw(a, b, "train/reward", tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(ValueError, match="no column 'train/rewrad'; did you mean train/reward"):
        draw(record(), record(seed=1), "train/rewrad", tmp_path / "f.svg")
    with pytest.raises(ValueError, match="should end in"):
        draw(record(), record(seed=1), "train/reward", tmp_path / "f.txt")
