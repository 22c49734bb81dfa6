import ctypes
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from minimodel.model.compiling import build, cache_folder

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="no C++ compiler")


@pytest.fixture
def source(tmp_path):
    (tmp_path / "number.h").write_text("#define NUMBER 42\n")
    path = tmp_path / "answer.cpp"
    path.write_text('#include "number.h"\nextern "C" int answer() { return NUMBER; }\n')
    return [path, tmp_path / "number.h"]


@needs_compiler
def test_it_is_compiled_once(source, tmp_path, monkeypatch):
    made = build(source, tmp_path / "cache")
    assert ctypes.CDLL(str(made)).answer() == 42
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [made.name]  # nothing half done is left
    monkeypatch.setenv("PATH", "")
    assert build(source, tmp_path / "cache") == made  # what is there needs no compiler


@needs_compiler
def test_a_change_in_any_source_makes_another_library(source, tmp_path):
    before = build(source, tmp_path)
    source[1].write_text("#define NUMBER 43\n")
    after = build(source, tmp_path)
    assert after != before
    assert [ctypes.CDLL(str(made)).answer() for made in (before, after)] == [42, 43]


@needs_compiler
def test_builders_at_the_same_time_do_not_disturb_each_other(source, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        made = set(pool.map(lambda _: build(source, tmp_path / "cache"), range(3)))
    assert len(made) == 1
    assert ctypes.CDLL(str(made.pop())).answer() == 42


@needs_compiler
def test_what_does_not_compile_is_said_and_leaves_nothing(source, tmp_path):
    source[0].write_text("this is not C++")
    with pytest.raises(RuntimeError, match=r"(?s)could not compile answer\.cpp: .*this"):
        build(source, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_without_a_compiler_the_error_names_the_way_out(source, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"install g\+\+, or name one in CXX"):
        build(source, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_the_cache_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "metastable"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in cache_folder().parents
