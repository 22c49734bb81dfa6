import pytest

from studies.kit.phase.places import GridError
from studies.kit.phase.target import find


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("toy", "study_toy"),
        ("study_toy", "study_toy"),
        ("pair", "study_pair"),
        ("moves", "study_pair"),
        ("twice", "study_twice"),
    ],
)
def test_a_study_has_several_names(toys, name, function):
    found = find(name, "sim", toys)
    assert found.function.__name__ == function
    assert found.path == toys / "study_toy.py"


def test_a_path_names_the_study_that_has_the_file_s_name(toys):
    assert find(str(toys / "study_toy.py"), "sim").name == "toy"


def test_claims_come_in_order_and_by_id(toys):
    pair = find("pair", "sim", toys)
    assert [claim.id for claim in pair.claims] == ["differs", "moves"]
    assert pair.claim().id == "differs"
    assert pair.claim("moves").id == "moves"
    with pytest.raises(GridError, match="no claim 'mves' at this rung; did you mean 'moves'"):
        pair.claim("mves")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pare", "no study and no claim 'pare' in .*; did you mean 'pair'"),
        ("nowhere/study_x.py", "no file"),
    ],
)
def test_an_unknown_study_is_named(toys, name, words):
    with pytest.raises(GridError, match=words):
        find(name, "sim", toys)


def test_what_cannot_be_swept_is_said(toys, tmp_path):
    with pytest.raises(GridError, match="study_toy claims nothing at minimodel; rungs: sim"):
        find("toy", "minimodel", toys)
    with pytest.raises(GridError, match="no folder"):
        find("toy", "sim", tmp_path / "none")
    (tmp_path / "study_broken.py").write_text("1 / 0")
    with pytest.raises(GridError, match="cannot be imported: ZeroDivisionError"):
        find("broken", "sim", tmp_path)
    (tmp_path / "study_empty.py").write_text("")
    with pytest.raises(GridError, match="holds no study"):
        find("empty", "sim", tmp_path)
    head = "from studies.kit import *\n@claim('c{0}', says='x', kind=rate(), region=above(.1))\n"
    head += "def study_{0}(study{1}): ...\n"
    (tmp_path / "study_both.py").write_text(head.format("p", "") + head.format("q", ""))
    with pytest.raises(GridError, match=r"holds 2 studies.*study_p \(cp\); study_q \(cq\)"):
        find("both", "sim", tmp_path)
    (tmp_path / "study_fixtures.py").write_text(head.format("f", ", tmp_path"))
    with pytest.raises(GridError, match="takes study, tmp_path: outside pytest"):
        find("fixtures", "sim", tmp_path)


def test_files_of_one_name_are_not_mistaken_for_each_other(toys, tmp_path):
    find("toy", "sim", toys)
    (tmp_path / "study_toy.py").write_text((toys / "study_toy.py").read_text())
    with pytest.raises(GridError, match="another module 'study_toy' is loaded already"):
        find("toy", "sim", tmp_path)
