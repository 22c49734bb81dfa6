import pytest

from studies import FOLDER
from studies.kit.library import claims_in
from studies.kit.outline import outlined


def test_what_is_read_of_every_study_is_what_loading_it_gives():
    read = [claim for path in sorted(FOLDER.glob("study_*.py")) for _, claims in outlined(path) for claim in claims]
    loaded = [(claim.id, claim.rungs, claim.long) for claim in claims_in(FOLDER)]
    assert [(claim.id, claim.rungs, claim.long) for claim in read] == loaded
    assert len(loaded) > 100


@pytest.mark.parametrize(
    "source",
    [
        "from other import *",
        "from other import study_x",
        "study_x = 3",
        "class A:\n    def study_x(self): ...",
        "if True:\n    def study_x(study): ...",
        '@claim("a", says="A.", rungs=RUNGS)\ndef study_x(study): ...',
        '@claim("a", **same)\ndef study_x(study): ...',
        '@pytest.mark.parametrize("a", [1])\ndef study_x(study, a): ...',
        '@claim("Not Kebab")\ndef study_x(study): ...',
        "def study_x(:",
    ],
)
def test_what_cannot_be_told_from_the_source_is_left_to_pytest(tmp_path, source):
    path = tmp_path / "study_x.py"
    path.write_text(source)
    assert outlined(path) is None


def test_listing_loads_no_study(project):
    project.write(broken='raise RuntimeError("loaded")\n' + project.flips(8))
    assert "study_broken.py::study_flips" in project.output("--collect-only", "-q")
    assert "RuntimeError: loaded" in project.output()
