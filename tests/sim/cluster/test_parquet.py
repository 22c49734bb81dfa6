"""Logs as Parquet."""

import sys

import numpy as np
import pytest
from hypothesis import given

from sim.cluster.events import EventLog, Kind
from sim.cluster.parquet import read_parquet, write_parquet
from tests.sim.cluster.legal_logs import LEGAL_LOGS, story, walked


def test_what_is_written_is_read_with_its_metadata(tmp_path):
    pytest.importorskip("pyarrow")
    write_parquet(story(), tmp_path / "a.parquet", {"seed": "7", "cluster": "ein Würfel"})
    log, metadata = read_parquet(tmp_path / "a.parquet")
    assert log == story()
    assert metadata == {"seed": "7", "cluster": "ein Würfel"}
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_other_programs_see_columns_of_the_right_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    write_parquet(story(), tmp_path / "a.parquet", {})
    table = parquet.read_table(tmp_path / "a.parquet")
    assert [f"{field.name} {field.type}" for field in table.schema] == [
        "t_s double",
        "kind uint8",
        "entity int32",
        "traj int32",
        "turn int16",
        "version int32",
        "value double",
    ]
    column = parquet.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"
    assert table.column("kind").to_pylist().count(int(Kind.GEN_START)) == 6


@given(log=LEGAL_LOGS)
def test_any_log_comes_back(log, tmp_path_factory):
    pytest.importorskip("pyarrow")
    path = tmp_path_factory.mktemp("logs") / "a.parquet"
    write_parquet(log, path, {"n": str(len(log))})
    again, metadata = read_parquet(path)
    assert again == log
    assert metadata == {"n": str(len(again))}


def test_a_long_log_takes_fewer_bytes_than_in_memory(tmp_path):
    pytest.importorskip("pyarrow")
    log = walked(np.random.default_rng(0).integers(0, 10_000, 5000).tolist())
    write_parquet(log, tmp_path / "a.parquet", {})
    assert len(log) > 5000
    assert (tmp_path / "a.parquet").stat().st_size < 31 * len(log) / 2


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    write_parquet(story(), path, {})
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_parquet(EventLog.of([]), path, {})
    assert read_parquet(path)[0] == story()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_log_is_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"t_s": [0.0], "kind": [1]}), tmp_path / "steps.parquet")
    with pytest.raises(ValueError, match=r"steps\.parquet is no event log: it has no column 'entity'"):
        read_parquet(tmp_path / "steps.parquet")


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"metastable\[parquet\]"):
        write_parquet(story(), tmp_path / "a.parquet", {})
    with pytest.raises(ImportError, match=r"or use EventLog\.save"):
        read_parquet(tmp_path / "a.parquet")
