import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.records.fingerprint import code_fingerprint, environment, tree_fingerprint

SOURCE = '''\
"""What the module is for."""

RATE = 0.5
"""What the rate is."""


class Learner:
    """A learner."""

    rate: float = RATE
    """Its rate."""

    def step(self, x):
        """One step."""
        return x - self.rate * x  # downhill


async def nothing():
    """Do nothing."""
'''


@pytest.fixture
def fingerprint(tmp_path):
    """A function from the text of a module (or several) to the fingerprint of a package that holds it."""

    def compute(text, **others):
        root = tmp_path / "package"
        (root / "inner").mkdir(parents=True, exist_ok=True)
        for path in root.rglob("*.*"):
            path.unlink()
        (root / "inner" / "learner.py").write_text(text, encoding="utf-8")
        for name, content in others.items():
            (root / name.replace("_dot_", ".")).write_text(content, encoding="utf-8")
        return tree_fingerprint({"package": root})

    return compute


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # downhill", ""),
        ("  # downhill", "  # against the gradient"),
        ('"""What the module is for."""', '"""Other words, and more of them."""'),
        ('"""What the module is for."""\n', ""),
        ('"""What the rate is."""', '"""The rate per step."""'),
        ('    """A learner."""\n', ""),
        ('"""Its rate."""', "'''The rate it has.'''"),
        ('"""One step."""', '"""One step, downhill."""'),
        ('"""Do nothing."""', '"""Nothing is done."""'),
        ("return x - self.rate * x", "return (x\n            - self.rate * x)"),
        ("RATE = 0.5", "RATE = .50"),
    ],
)
def test_words_and_layout_do_not_change_it(fingerprint, old, new):
    assert old in SOURCE
    assert fingerprint(SOURCE.replace(old, new, 1)) == fingerprint(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 0.5", "RATE = 0.25"),
        ("x - self.rate", "x + self.rate"),
        ("rate: float = RATE", "rate: float = 1"),
        ("def step(self, x)", "def step(self, x=None)"),
        ("async def", "def"),
        ("        return x - self.rate * x", "        x - self.rate * x"),
        ("RATE = 0.5", "RATE = '0.5'"),
    ],
)
def test_edits_change_it(fingerprint, old, new):
    assert old in SOURCE
    assert fingerprint(SOURCE.replace(old, new, 1)) != fingerprint(SOURCE)


def test_a_text_that_is_used_is_not_a_docstring(fingerprint):
    assert fingerprint("def f():\n    return 'a'\n") != fingerprint("def f():\n    return 'b'\n")
    assert fingerprint("x = 'a'\n") != fingerprint("x = 'b'\n")


def test_names_of_modules_count_and_other_files_do_not(fingerprint, tmp_path):
    alone = fingerprint(SOURCE)
    assert fingerprint(SOURCE, notes_dot_md="words", data_dot_json="{}") == alone
    assert fingerprint(SOURCE, empty_dot_py="") != alone
    assert fingerprint(SOURCE, a_dot_py="x = 1") != fingerprint(SOURCE, b_dot_py="x = 1")
    assert fingerprint(SOURCE, kernel_dot_cu="a") != fingerprint(SOURCE, kernel_dot_cu="b")
    root = tmp_path / "package"
    assert tree_fingerprint({"package": root}) != tree_fingerprint({"renamed": root})


def test_moving_a_tree_does_not_change_it(fingerprint, tmp_path):
    before = fingerprint(SOURCE)
    moved = (tmp_path / "package").rename(tmp_path / "elsewhere")
    assert tree_fingerprint({"package": moved}) == before


@settings(deadline=None, max_examples=30)
@given(st.text(st.characters(codec="ascii", exclude_characters='"\\\r\0'), max_size=30), st.integers(0, 9))
def test_any_docstring_has_one_fingerprint_and_every_number_its_own(tmp_path_factory, words, number):
    def of(text):
        root = tmp_path_factory.mktemp("tree")
        (root / "m.py").write_text(text, encoding="utf-8")
        return tree_fingerprint({"p": root})

    bare = of(f"def f():\n    return {number}\n")
    assert of(f'def f():\n    """{words} """\n    return {number}\n') == bare
    assert of(f"def f():\n    return {number + 1}\n") != bare


def test_higher_rungs_contain_the_lower():
    assert code_fingerprint("sim") == tree_fingerprint({"sim": Path(sim.__file__).parent})
    assert len({code_fingerprint(rung) for rung in ("sim", "minimodel", "fullscale")}) == 3
    assert len(code_fingerprint("sim")) == 64


def test_an_unknown_rung_names_the_near_miss():
    with pytest.raises(ValueError, match="no rung 'minimodal'; did you mean minimodel"):
        code_fingerprint("minimodal")


def test_other_processes_agree_and_nothing_is_imported():
    program = (
        "import sys\n"
        "from sim.records.fingerprint import code_fingerprint\n"
        "print(code_fingerprint('minimodel'), 'minimodel' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path(sim.__file__).parents[1]
    )
    assert done.stdout.split() == [code_fingerprint("minimodel"), "False", "False"]


def test_the_environment_is_plain_data():
    got = environment()
    assert set(got) == {"host", "platform", "cpus", "versions"}
    assert got["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(type(version) is str for version in got["versions"].values())
