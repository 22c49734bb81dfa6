import pytest
import torch

from minimodel.agent.checkpoint import Checkpoint

STATE = {"step": 3, "rows": [{"step": 0, "x": 0.5, "y": float("nan")}], "model": {"w": torch.arange(6.0)}, "kept": None}


def test_what_was_saved_is_loaded(tmp_path):
    saved = Checkpoint(tmp_path / "a" / "run.pt", "key")
    assert saved.load() is None
    saved.save(STATE)
    found = saved.load()
    assert found["step"] == 3
    assert found["rows"][0]["x"] == 0.5
    assert torch.equal(found["model"]["w"], torch.arange(6.0))
    saved.save(STATE | {"step": 4})
    assert saved.load()["step"] == 4
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["run.pt"]  # nothing temporary is left
    saved.remove()
    assert saved.load() is None
    saved.remove()  # twice is once


def test_a_save_that_fails_leaves_the_last_one(tmp_path, monkeypatch):
    saved = Checkpoint(tmp_path / "run.pt", "key")
    saved.save(STATE)

    def full(number):
        raise OSError("no space left")

    monkeypatch.setattr("minimodel.agent.checkpoint.os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        saved.save(STATE | {"step": 9})
    assert saved.load()["step"] == 3
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_of_another_run_or_of_nothing_is_refused(tmp_path):
    Checkpoint(tmp_path / "run.pt", "mine").save(STATE)
    with pytest.raises(RuntimeError, match="is of run mine, not yours; move it away"):
        Checkpoint(tmp_path / "run.pt", "yours").load()
    whole = (tmp_path / "run.pt").read_bytes()
    (tmp_path / "run.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError, match="cannot be read"):
        Checkpoint(tmp_path / "run.pt", "mine").load()
