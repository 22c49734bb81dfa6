import errno
import os
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from sim.records.store import Store
from studies.kit.executors import processes
from studies.kit.phase import GridError, sweep_study
from studies.kit.progress import Status
from studies.kit.seeds import Seeds

GRID = {"inner.level": (-1.0, 0.0, 1.0, 2.0), "spread": "0.1,0.3"}


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """The levels that were trained, one entry a call."""
    path = tmp_path / "calls"
    monkeypatch.setenv("TOY_CALLS", str(path))
    return lambda: [float(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []


def verdicts(swept, claim=None):
    found = [entry.of(claim or swept.target.claims[0].id) for entry in swept.entries]
    return [None if each is None else each.verdict for each in found]


# What a sweep is ------------------------------------------------------------------------------------------------------


def test_a_study_over_a_grid_worked_by_hand(sweep):
    swept = sweep("toy", GRID)
    assert [tuple(entry.point.values()) for entry in swept.entries[:3]] == [(-1.0, 0.1), (-1.0, 0.3), (0.0, 0.1)]
    assert verdicts(swept)[:2] == ["refuted"] * 2
    assert verdicts(swept)[4:] == ["supported"] * 4
    effects = [entry.of("is-up").effect for entry in swept.entries]
    # One draw of noise for every point, and the median of eight: level + spread x the same number.
    noise = (effects[0] + 1) / 0.1
    assert noise != 0
    levels = np.repeat([-1.0, 0.0, 1.0, 2.0], 2)
    np.testing.assert_allclose(effects, levels + noise * np.tile([0.1, 0.3], 4))
    assert {entry.of("is-up").n for entry in swept.entries} == {8}


def test_a_point_says_what_the_study_says_under_pytest(sweep, toys, places):
    """The study as it stands, concluded by the kit's own fixture."""
    from studies.kit.executors import inline
    from studies.kit.fixture import Study

    swept = sweep("toy", {"n": [4]})  # what it is anyway
    target = replace(swept.target)
    study = Study(
        target.path,
        target.claims,
        rung="sim",
        seeds=Seeds(0, 8),
        store_dir=places["store"],
        executor=lambda: inline,
        progress=None,
        start=toys,
    )
    with pytest.raises(ZeroDivisionError):  # its figure is drawn here, and not at a point
        target.function(study)
    (found,) = study.findings()
    mine = swept.entries[0].of("is-up")
    assert (mine.verdict, mine.effect, mine.low, mine.high) == (found.verdict, found.effect, found.low, found.high)
    assert len(Store(places["store"]).keys()) == 8  # and its runs were those of the sweep


def test_what_is_done_is_not_done_again(sweep, calls):
    sweep("toy", {"inner.level": (1.0, 2.0)})
    assert calls() == [1.0, 2.0]
    again = sweep("toy", {"inner.level": (1.0, 2.0)})
    assert again.fresh == 0
    wider = sweep("toy", {"inner.level": (1.0, 2.0, 3.0)})  # another sweep, with the runs of the first
    assert calls() == [1.0, 2.0, 3.0]
    assert wider.entries[:2] == again.entries


def test_a_ledger_answers_without_the_runs(sweep, places, calls):
    first = sweep("toy", GRID)
    for path in places["store"].iterdir():
        path.rename(places["store"].parent / f"away-{path.name}")
    made = len(calls())
    assert sweep("toy", GRID).entries == first.entries
    assert len(calls()) == made


def test_runs_that_several_points_need_are_made_once(sweep, calls):
    """Under ``arms="some"`` the arm without the key is the same at every point."""
    swept = sweep("pair", {"extra.level": (1.0, 2.0, 3.0)}, arms="some")
    assert len(calls()) == 1 + 3
    assert verdicts(swept, "moves") == ["supported"] * 3


def test_a_study_that_sweeps_twice(sweep, calls):
    swept = sweep("twice", {"inner.level": (-1.0, 1.0)})
    assert verdicts(swept) == ["refuted", "supported"]
    assert sorted(calls()) == [-1.0, 1.0, 1.0]  # below, the second sweep asks for the first one's runs again


def test_how_far_it_is(sweep):
    seen = []
    sweep("toy", {"inner.level": (1.0, 2.0, 3.0)}, watch=seen.append)
    assert (seen[0].points, seen[0].of, seen[0].status) == (0, 3, None)
    assert [progress.points for progress in seen] == sorted(progress.points for progress in seen)
    assert seen[-1].points == 3
    statuses = [progress.status for progress in seen if progress.status]
    assert isinstance(statuses[-1], Status)
    assert {status.total for status in statuses} == {24}
    assert max(status.done for status in statuses) == 24


# Who makes the runs ---------------------------------------------------------------------------------------------------


def test_all_executors_leave_the_same_records(toys, everywhere):
    swept, stored = everywhere("toy", GRID, folder=toys)
    assert len(stored) == 64
    assert verdicts(swept).count("supported") > 0


# Points that fail -----------------------------------------------------------------------------------------------------


def test_a_point_that_fails_does_not_stop_the_others(sweep, calls):
    grid = {"inner.kind": ("plain", "bad"), "inner.level": (1.0, -1.0)}
    swept = sweep("toy", grid)
    assert verdicts(swept) == ["supported", "refuted", None, None]
    failure = swept.failed[0].failure
    assert failure.error == "point 'inner.kind=bad, inner.level=1: only', seeds 0 to 7: RuntimeError: no such kind"
    assert 'raise RuntimeError("no such kind")' in failure.trace
    assert not failure.accident
    made = len(calls())
    assert sweep("toy", grid).fresh == 0  # a rerun would fail in the same way
    assert sweep("toy", grid, retry_failed=True).fresh == 2
    assert len(calls()) == made


def test_an_error_of_the_study_itself_is_a_failed_point(sweep):
    swept = sweep("breaks", {"n": (4, 8)})
    assert verdicts(swept) == ["supported", None]
    assert swept.failed[0].failure.error == "NameError: name 'undefined' is not defined"


def test_a_process_that_dies_takes_its_own_point_with_it(sweep):
    with processes(2) as executor:
        swept = sweep("toy", {"inner.kind": ("plain", "die", "odd", "other")}, executor=executor)
    assert verdicts(swept) == ["supported", None, "supported", "supported"]
    (failed,) = swept.failed
    assert failed.failure.error.endswith(": only', seeds 0 to 7: its worker process died (out of memory, or killed)")
    assert failed.failure.accident


def test_accidents_are_tried_again_unasked(sweep, places, calls):
    """A run in the store that cannot be read: the point fails until it is moved away, and then comes by itself."""
    swept = sweep("toy", {"inner.level": (1.0, 2.0)})
    ledgers = places["ledgers"].rename(places["ledgers"].parent / "before")
    damaged = sorted(places["store"].iterdir())[0]
    content = (damaged / "manifest.json").read_bytes()
    for text, words in ((b"{", "cannot be read"), (content.replace(b'"schema":1', b'"schema":9'), "update it")):
        (damaged / "manifest.json").write_bytes(text)
        broken = sweep("toy", {"inner.level": (1.0, 2.0)})
        assert len(broken.failed) == 1
        assert str(damaged) in broken.failed[0].failure.error
        assert words in broken.failed[0].failure.error
    damaged.rename(places["store"].parent / "moved-out")
    assert sweep("toy", {"inner.level": (1.0, 2.0)}).entries == swept.entries
    assert len(calls()) == 3
    assert ledgers.exists()


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("study", "grid", "options", "words"),
    [
        ("toy", {}, {}, "the grid is empty; give keys with values, such as inner.level, n, spread"),
        ("toy", {"inner.levle": (1.0,)}, {}, "did you mean 'level'"),
        ("toy", {"inner": (1.0,), "inner.level": (1.0,)}, {}, "contradict"),
        ("toy", {"n": (1,)}, {"arms": "any"}, "'all' or 'some'"),
        ("toy", {"n": (1,)}, {"seeds": 3}, "6 or more"),
        ("toy", {"n": (1,)}, {"seeds": "until-decided"}, "one number of seeds"),
        ("pair", {"n": (2, 3)}, {}, "the study itself sets it to 4 and, in arm 'high', to 8"),
        ("pair", {"extra.level": (1.0,)}, {}, "arm 'low' has no such field"),
        ("exact", {"n": (1,)}, {}, "makes no sweep"),
        ("toy", {"n": range(100_001)}, {}, "100,001 points"),
    ],
)
def test_a_bad_request_is_refused_before_anything_runs(sweep, calls, study, grid, options, words, places):
    with pytest.raises(GridError, match=words):
        sweep(study, grid, **options)
    assert calls() == []
    assert not list(places["ledgers"].glob("*"))


def test_a_study_may_be_told_to_set_what_it_varies(sweep):
    swept = sweep("pair", {"n": (2, 3)}, arms="some")
    assert verdicts(swept, "moves") == ["supported"] * 2


def test_a_folder_that_cannot_be_written(sweep, tmp_path, calls):
    (tmp_path / "file").write_text("")
    for name in ("store", "ledgers"):
        with pytest.raises(OSError, match=r"nothing can be written to .*file.*name another folder"):
            sweep("toy", GRID, **{name: tmp_path / "file" / "x"})
    assert calls() == []


def test_a_full_disk_stops_it_and_nothing_is_half_written(sweep, places, monkeypatch, contents, calls):
    import sim.records.store as module

    write, left = module._write, [12]

    def full(record, folder):
        left[0] -= 1
        if left[0] < 0:
            (folder / "steps.npz").write_bytes(b"PK")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        write(record, folder)

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(OSError, match="No space left"):
        sweep("toy", {"inner.level": (1.0, 2.0, 3.0)})
    assert len(contents(places["store"])) == 12  # every one of them is whole
    assert [path.name for path in places["store"].iterdir() if path.name.startswith(".")] == []
    monkeypatch.setattr(module, "_write", write)
    swept = sweep("toy", {"inner.level": (1.0, 2.0, 3.0)})
    assert verdicts(swept) == ["supported"] * 3
    assert len(contents(places["store"])) == 24
    assert len(calls()) == 2 + 2  # the second block was made twice, and only that


def test_a_disk_that_is_really_full(toys, tmp_path, contents):
    """A file system of 400 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if os.name != "posix" or os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting takes root's rights")
    try:
        places = {"store": disk / "store", "ledgers": disk / "sweeps"}
        with pytest.raises(OSError, match="No space left"):
            sweep_study("toy", {"inner.level": "0:9:10"}, folder=toys, seeds=8, **places)
        stored = contents(places["store"])  # all of them whole
        assert 8 <= len(stored) < 80
        assert [path.name for path in places["store"].iterdir() if path.name.startswith(".")] == []
        elsewhere = {"store": tmp_path / "store", "ledgers": tmp_path / "sweeps"}
        places["store"].rename(disk / "full")
        shutil.copytree(disk / "full", elsewhere["store"])
        swept = sweep_study("toy", {"inner.level": "0:9:10"}, folder=toys, seeds=8, **elsewhere)
        assert not swept.failed
        assert stored.items() <= contents(elsewhere["store"]).items()
    finally:
        subprocess.run(["umount", str(disk)], check=True)
