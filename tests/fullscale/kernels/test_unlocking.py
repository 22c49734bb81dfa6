"""A record unlocks exactly what it shows, and nothing when a byte of it is wrong."""

import ast
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels import unlocking
from fullscale.kernels.unlocking import RecordError, decide, read, read_all, shortfall, source_hash
from sim.records.fingerprint import tree_fingerprint
from tests.fullscale.validate_gpu import made

PACKAGE = Path(unlocking.__file__).parents[1]


def asked(records, **changes):
    question = {"backend": "triton", "card": made.CARD, "triton_version": made.TRITON, "source_hash": made.SOURCE}
    return decide(**question | changes, records=records)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


# --- the decision -----------------------------------------------------------------------------------------------------


def test_a_record_unlocks_its_own_question_and_no_other(folder):
    whole = made.record(folder)
    decision = asked([whole])
    assert decision.unlocked
    assert decision.record == whole.path
    for changes, why in (
        ({"card": "NVIDIA H100"}, "no record of triton on NVIDIA H100"),
        ({"backend": "cuda"}, "no record of cuda"),
        ({"source_hash": "6" * 64}, "other source"),
        ({"triton_version": "3.7.0"}, "made with Triton 3.6.0, this is 3.7.0"),
        ({"triton_version": None}, "not installed"),
    ):
        decision = asked([whole], **changes)
        assert not decision.unlocked
        assert why in decision.reason


def test_a_patch_release_of_triton_is_the_same_compiler(folder):
    assert asked([made.record(folder)], triton_version="3.6.1").unlocked


@given(st.lists(st.sampled_from(["passed", "failed", "error", "skipped"]), min_size=3, max_size=3), st.data())
def test_it_unlocks_if_and_only_if_every_condition_holds(folder, statuses, data):
    reasons = [data.draw(st.sampled_from(["budget", "refused", "memory", "device lost"])) for _ in statuses]
    cases = [
        made.case(name, status=status, **({"reason": reason} if status == "skipped" else {}))
        for name, status, reason in zip(made.CASES, statuses, reasons, strict=True)
    ]
    kept = data.draw(st.integers(0, 3))
    head = {
        "interpreted": data.draw(st.booleans()),
        "dry_run": data.draw(st.booleans()),
        "card": data.draw(st.sampled_from([made.CARD, "NVIDIA A100", None])),
        "source_hash": data.draw(st.sampled_from([made.SOURCE, "7" * 64])),
    }
    found = made.record(folder, cases[:kept], **head)
    complete = kept == 3 and all(
        s == "passed" or (s == "skipped" and r in ("refused", "memory")) for s, r in zip(statuses, reasons, strict=True)
    )
    right = (
        complete
        and "passed" in statuses
        and head == {"interpreted": False, "dry_run": False, "card": made.CARD, "source_hash": made.SOURCE}
    )
    assert asked([found]).unlocked == right
    assert (shortfall(found) is None) == (complete and "passed" in statuses)


def test_what_another_backend_did_has_no_say(folder):
    beside = made.case("chunked: tails", backend="chunked", status="failed")
    assert asked([made.record(folder, [*(made.case(n) for n in made.CASES), beside])]).unlocked
    alone = [made.case(n, backend="chunked") for n in made.CASES]
    assert not asked([made.record(folder, alone)]).unlocked


def test_a_fault_that_a_tool_found_locks(folder):
    race = made.case("racecheck", phase="profile", status="failed")
    decision = asked([made.record(folder, [*(made.case(n) for n in made.CASES), race])])
    assert not decision.unlocked
    assert "'racecheck'" in decision.reason


def test_times_alone_unlock_nothing(folder):
    timed = [made.case("forward", phase="bench")]
    assert not asked([made.record(folder, timed, planned={"bench": ["forward"]})]).unlocked


def test_of_several_records_one_that_passed_is_enough_and_the_nearest_is_named(tmp_path):
    failed = made.record(tmp_path / "a", [made.case(made.CASES[0], status="failed")], date="2026-11-03T00:00:00+00:00")
    other = made.record(tmp_path / "b", source_hash="8" * 64, date="2026-11-04T00:00:00+00:00")
    assert "did not pass, the first 'tails'" in asked([other, failed]).reason
    assert asked([other, failed, made.record(tmp_path / "c")]).unlocked


# --- damage -----------------------------------------------------------------------------------------------------------


@given(st.data())
def test_a_record_cut_anywhere_unlocks_nothing(folder, data):
    whole = made.record(folder)
    content = whole.path.read_bytes()
    stop = data.draw(st.integers(0, len(content) - 2))  # without its last newline it is still whole
    torn = folder / "torn" / "torn.jsonl"
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(content[:stop])
    found, damaged = read_all([torn.parent])
    assert found == []
    assert len(damaged) == 1
    assert str(torn) in damaged[0]


@given(st.data())
def test_a_record_with_one_byte_changed_is_noticed_or_says_the_same(folder, data):
    whole = made.record(folder)
    content = bytearray(whole.path.read_bytes())
    closing = content.rindex(b'{"kind": "closing"')
    at = data.draw(st.integers(0, closing - 1))
    content[at] = data.draw(st.integers(32, 126))
    changed = folder / "changed" / "changed.jsonl"
    changed.parent.mkdir(exist_ok=True)
    changed.write_bytes(bytes(content))
    found, damaged = read_all([changed.parent])
    changed.unlink()
    assert len(found) + len(damaged) == 1
    if damaged:
        assert str(changed) in damaged[0]
    else:
        assert (found[0].header, found[0].cases) == (whole.header, whole.cases)


def test_each_kind_of_damage_has_its_words(folder):
    head, cases = made.header(), [made.case(n) for n in made.CASES]
    whole = made.lines(head, cases)

    def told(content):
        with pytest.raises(RecordError) as caught:
            read(made.write(folder / "x" / "x.jsonl", content))
        return str(caught.value)

    assert "does not begin with the header" in told(whole[1:])
    assert "does not begin with the header" in told([])
    assert "does not begin with the header" in told(
        made.lines({k: v for k, v in head.items() if k != "planned"}, cases)
    )
    assert "does not begin with the header" in told(made.lines(head | {"dry_run": "no"}, cases))
    assert "schema 99, this program reads 1" in told(made.lines(head | {"schema": 99}, cases))
    assert "was cut off: go on with" in told(whole[:-1])
    assert "not those it was closed with" in told([*whole[:2], *whole[3:]])
    assert "a case twice" in told(made.lines(head, [*cases, cases[0]]))
    assert "is no case" in told([*whole, whole[1], whole[-1]])


# --- the code ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    """The kernels in a folder of their own, to be edited."""
    package = tmp_path / "fullscale"
    shutil.copytree(PACKAGE / "kernels", package / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return package


def test_a_copy_of_the_code_has_its_hash(copy):
    for backend in ("reference", "chunked"):
        assert source_hash(backend, copy) == source_hash(backend)


@pytest.mark.parametrize(
    ("file", "edit", "changes"),
    [
        ("chunked.py", lambda text: text + "\n# why\n", False),
        ("chunked.py", lambda text: text.replace('"""Reduce every strip', '"""Reduce each strip'), False),
        ("chunked.py", lambda text: text + "\nX = 1\n", True),
        ("contract.py", lambda text: text.replace("STRIP = 2048", "STRIP = 1024"), True),
        ("merging.py", lambda text: text.replace("top - M[", "M - top["), True),
        ("linear_logprob.py", lambda text: text + "\nX = 1\n", False),
        ("selection.py", lambda text: text + "\nX = 1\n", False),
    ],
)
def test_the_hash_sees_what_bits_depend_on(copy, file, edit, changes):
    before, run_before = source_hash("chunked", copy), tree_fingerprint({"fullscale": copy})
    path = copy / "kernels" / file
    text = path.read_text()
    assert edit(text) != text
    path.write_text(edit(text))
    assert (source_hash("chunked", copy) != before) == changes
    if changes:  # every edit that it sees, the fingerprint of runs sees too
        assert tree_fingerprint({"fullscale": copy}) != run_before


def test_imports_are_followed_in_every_form(tmp_path):
    package = tmp_path / "fullscale"
    for name, text in {
        "kernels/chunked.py": "from fullscale.kernels import a\nimport fullscale.kernels.sub.b\n",
        "kernels/a.py": "def f():\n    from fullscale.kernels.sub.c import X\n    from fullscale.kernels.sub import K\n",
        "kernels/sub/__init__.py": "K = 1\n",
        "kernels/sub/b.py": "import torch\nfrom sim.mdp import graph\nfrom fullscale.kernels.chunked import Y\n",
        "kernels/sub/c.py": "X = 1\n",
        "kernels/aside.py": "import fullscale.kernels.a\n",
    }.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    found = unlocking._reached(package / "kernels/chunked.py", package)
    assert {p.relative_to(package / "kernels").as_posix() for p in found} == {
        "chunked.py",
        "a.py",
        "sub/__init__.py",
        "sub/b.py",
        "sub/c.py",
    }


def test_a_changed_constant_and_a_moved_line_are_told_apart():
    def words(text):
        return "".join(unlocking._words(ast.parse(text)))

    assert words("def f(x):\n    'says'\n    return x + 1.0") == words("def f(x):\n\n    # why\n    return (x+1.0)")
    assert words("x = 1.0") != words("x = 1")
    assert words("x = f(1, 2)") != words("x = f(12)")
    assert words("x = [1]; y = []") != words("x = []; y = [1]")
    assert words("if a:\n    b\nc") != words("if a:\n    b\n    c")
