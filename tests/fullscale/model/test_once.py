"""A folder made once: whole, by one process, and again when it is damaged."""

import logging
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from fullscale.model.once import made_once


def write(into: Path) -> None:
    (into / "deep").mkdir()
    (into / "deep" / "weights").write_bytes(bytes(range(256)) * 100)
    (into / "config").write_text("{}")
    with (into.parent / "made").open("a") as log:
        log.write("x")


def slowly(into: Path) -> None:
    time.sleep(0.3)
    write(into)


def obtain_slowly(place: Path) -> None:
    assert (made_once(place, slowly) / "config").read_text() == "{}"


def made(place: Path) -> int:
    return len((place.parent / "made").read_text())


def test_made_once_and_found_again(tmp_path: Path) -> None:
    place = tmp_path / "cache" / "model"
    for _ in range(3):
        assert made_once(place, write) == place
    assert made(place) == 1
    assert sorted(p.name for p in place.iterdir()) == ["config", "deep", "manifest.json"]
    assert [p.name for p in place.parent.iterdir() if p.name.startswith(".writing")] == []


def test_processes_that_want_it_at_once_make_it_once(tmp_path: Path) -> None:
    place = tmp_path / "model"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=obtain_slowly, args=(place,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert made(place) == 1


@pytest.mark.parametrize("how", ["a bit", "cut", "gone", "more", "no manifest", "half a manifest", "a file"])
def test_what_is_damaged_is_made_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    place = made_once(tmp_path / "model", write)
    weights, manifest = place / "deep" / "weights", place / "manifest.json"
    if how == "a bit":
        data = bytearray(weights.read_bytes())
        data[1234] ^= 1
        weights.write_bytes(data)
    elif how == "cut":
        os.truncate(weights, 1000)
    elif how == "gone":
        weights.unlink()
    elif how == "more":
        (place / "stray").touch()
    elif how == "no manifest":
        manifest.unlink()
    elif how == "half a manifest":
        os.truncate(manifest, 20)
    else:
        place.rename(tmp_path / "away")
        place.write_text("not a folder")
    with caplog.at_level(logging.WARNING):
        made_once(place, write)
    assert made(place) == 2
    assert weights.read_bytes() == bytes(range(256)) * 100
    assert "it is made again" in caplog.text
    assert made_once(place, write)
    assert made(place) == 2


def test_nothing_is_left_of_an_attempt_that_failed_or_was_killed(tmp_path: Path) -> None:
    def fail(into: Path) -> None:
        (into / "half").touch()
        raise OSError("the disk is full")

    place = tmp_path / "model"
    with pytest.raises(OSError, match="the disk is full"):
        made_once(place, fail)
    assert not place.exists()
    killed = tmp_path / ".writing-model-0123"
    killed.mkdir()
    made_once(place, write)
    assert not killed.exists()
    assert not any(p.name.startswith(".writing") for p in tmp_path.iterdir())
