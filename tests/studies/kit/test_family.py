import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from studies.kit.family import benjamini_hochberg, declared, file_fingerprint, q_values
from studies.kit.records import Record, write

STUDIES = {
    "study_one.py": """
        from studies.kit import claim, rate, above
        import studies.kit as kit

        @claim("a", says="A.", kind=rate(), region=above(0))
        @kit.claim("b", says="B.", kind=rate(), region=above(0), rungs=("sim", "minimodel"))
        def study_one(study): ...
    """,
    "study_two.py": """
        RUNGS = ("minimodel",)
        @claim("c", says="C.", rungs=("minimodel",))
        @claim("d", says="D.", rungs=RUNGS)
        @other("e")
        @claim(name())
        def study_two(study): ...
    """,
    "study_broken.py": "def study_(:",
    "not_a_study.py": '@claim("f", says="F.")\ndef study_f(study): ...',
}


@pytest.fixture
def folder(tmp_path):
    for name, text in STUDIES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def test_claims_are_read_from_the_source(folder):
    assert declared(folder) == {
        "a": ("sim",),
        "b": ("sim", "minimodel"),
        "c": ("minimodel",),
        "d": ("sim", "minimodel", "fullscale"),  # its rungs cannot be read: counted at each
    }


def test_benjamini_hochberg_by_hand():
    # .01 x 4, .03 x 4/2 = .06 held down by .04 x 4/3 = .0533, 1.
    q = benjamini_hochberg({"a": 0.01, "b": 0.04, "c": 0.03, "d": 1.0})
    assert q == pytest.approx({"a": 0.04, "b": 0.16 / 3, "c": 0.16 / 3, "d": 1.0})


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_benjamini_hochberg_agrees_with_scipy(p):
    q = benjamini_hochberg({str(i): value for i, value in enumerate(p)})
    assert np.allclose([q[str(i)] for i in range(len(p))], stats.false_discovery_control(p))


def test_the_family_is_what_is_registered_whatever_ran(folder, finding):
    # Of a, b, d at sim, only a ran; b is on record with .02; d was never run and enters as 1.
    write(folder / "records", "b", "sim", Record(finding(claim="b", p=0.02), {}, ""))
    q = q_values({"a": 0.01}, [folder], "sim")
    assert q == pytest.approx({"a": 0.03, "b": 0.03, "d": 1.0})
    # What ran counts with what it gave now, not with the record.
    assert q_values({"a": 0.01, "b": 0.5}, [folder], "sim")["a"] == pytest.approx(0.03)
    assert q_values({"a": 0.01, "b": 0.5}, [folder], "sim")["b"] == pytest.approx(0.75)
    # A claim without a p enters as 1.
    assert q_values({"a": 0.01, "b": None}, [folder], "sim")["a"] == pytest.approx(0.03)
    assert set(q_values({}, [folder], "minimodel")) == {"b", "c", "d"}


def test_fingerprint_of_a_study_sees_code_and_not_prose(tmp_path):
    path = tmp_path / "study_x.py"

    def of(text):
        path.write_text(text)
        return file_fingerprint(path)

    plain = of('"""Why."""\nX = 1\ndef study_x(study):\n    """Do."""\n    return X\n')
    assert of("# A comment.\nX = 1\n\ndef study_x(study):\n    return X\n") == plain
    assert of("X = 2\ndef study_x(study):\n    return X\n") != plain
