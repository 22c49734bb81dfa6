import json

import pytest

from studies.kit.export.folder import MARKER, ExportError, check, fresh_folder
from tests.studies.kit.runs.stores import names


def export(out, **files):
    with fresh_folder(out, {"format": "test"}) as folder:
        for name, text in files.items():
            (folder / "deep").mkdir(exist_ok=True)
            (folder / "deep" / name).write_text(text)


def test_a_folder_appears_whole_with_a_marker(tmp_path):
    export(tmp_path / "a" / "out", x="1")
    assert json.loads((tmp_path / "a" / "out" / MARKER).read_text()) == {"format": "test", "files": ["deep/x"]}
    assert names(tmp_path / "a") == ["out"]


def test_an_earlier_export_is_replaced_whole(tmp_path):
    export(tmp_path / "out", x="1", old="1")
    export(tmp_path / "out", x="2")
    assert (tmp_path / "out" / "deep" / "x").read_text() == "2"
    assert names(tmp_path / "out" / "deep") == ["x"]
    assert names(tmp_path) == ["out"]


def test_an_empty_folder_may_be_used(tmp_path):
    (tmp_path / "out").mkdir()
    export(tmp_path / "out", x="1")
    assert (tmp_path / "out" / MARKER).exists()


def test_what_fails_leaves_everything_as_it_was(tmp_path):
    export(tmp_path / "out", x="1")
    with pytest.raises(ZeroDivisionError), fresh_folder(tmp_path / "out", {}) as folder:
        (folder / "half").write_text(str(1 // 0))
    with pytest.raises(KeyboardInterrupt), fresh_folder(tmp_path / "new", {}):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "deep" / "x").read_text() == "1"


def test_when_the_last_step_fails_the_earlier_export_is_put_back(tmp_path, monkeypatch):
    export(tmp_path / "out", x="1")
    real = type(tmp_path).rename

    def refuse(path, target):
        if path.name.startswith(".exporting-"):
            raise PermissionError("no")
        return real(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", refuse)
    with pytest.raises(PermissionError):
        export(tmp_path / "out", x="2")
    monkeypatch.undo()
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out" / "deep" / "x").read_text() == "1"


def test_what_others_made_is_not_replaced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ExportError, match=r"out is there and was not made by an export: name another with --out"):
        export(out, x="1")
    (out / MARKER).write_text("{}")
    with pytest.raises(ExportError, match="was not made by an export"):
        check(out)
    (out / MARKER).write_text('{"files": []}')
    with pytest.raises(ExportError, match=r"out holds 'thesis.tex', which the export there did not write"):
        check(out)
    assert (out / "thesis.tex").read_text() == "years of work"


def put(folder):
    folder.mkdir()
    (folder / "mine").write_text("")


def test_what_somebody_put_there_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(ExportError, match="was not made by an export"), fresh_folder(tmp_path / "out", {}):
        put(tmp_path / "out")
    assert names(tmp_path / "out") == ["mine"]
    assert names(tmp_path) == ["out"]


def test_a_file_or_a_link_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with pytest.raises(ExportError, match="is no folder"):
            export(tmp_path / name, x="1")
