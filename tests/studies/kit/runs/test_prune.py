import json
import shutil
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.store import Store
from studies.kit.runs import prune
from studies.kit.runs.listing import scan
from studies.kit.runs.prune import plan, remove
from studies.kit.runs.references import References, collect
from studies.kit.seeds import FRESH_FROM
from tests.studies.kit.runs.stores import OTHER, THIS, names, record, stored

NONE = References(frozenset({"fold", "dwell"}), {})
OLD = "fedcba9876543210" * 4


def test_what_goes_and_what_stays_is_counted(tmp_path):
    stored(tmp_path, *(record(seed=seed) for seed in range(3)), *(record(seed=seed, code=OTHER) for seed in range(2)))
    planned = plan(scan(tmp_path), NONE)
    assert sorted(row.manifest["fingerprint"] for row in planned.going) == [OTHER] * 2
    assert planned.counts == {"current": 3}
    assert planned.size == sum(row.size for row in planned.going) > 1000


def test_removal_leaves_the_others_and_no_trace(tmp_path):
    going, staying = stored(tmp_path, record(code=OTHER), record())
    rows = scan(tmp_path)
    size = next(row.size for row in rows if row.name == going)
    assert remove([row for row in rows if row.name == going]) == (size, [])
    assert names(tmp_path) == [staying]
    assert Store(tmp_path).load(staying).seed == 0


def test_what_somebody_else_removed_meanwhile_is_no_failure(tmp_path):
    (key,) = stored(tmp_path, record())
    rows = scan(tmp_path)
    shutil.rmtree(tmp_path / key)
    assert remove(rows) == (0, [])


def test_who_is_killed_while_removing_leaves_a_run_whole_or_not_at_all(tmp_path, monkeypatch):
    keys = stored(tmp_path, *(record(seed=seed) for seed in range(3)))

    def killed(path):
        (Path(path) / "manifest.json").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(prune.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        remove(scan(tmp_path))
    monkeypatch.undo()
    store = Store(tmp_path)
    assert len(store.keys()) == 2
    assert all(store.load(key).key == key for key in keys if store.has(key))
    left = [row for row in scan(tmp_path) if row.kind == "temporary"]
    assert [row.name.startswith(prune.REMOVING) for row in left] == [True]
    assert remove(plan(left, NONE).going)[1] == []  # it was chosen once and need not wait a day
    assert names(tmp_path) == store.keys()
    assert set(store.keys()) < set(keys)


def test_a_failure_is_told_and_the_others_go(tmp_path, monkeypatch):
    stored(tmp_path, *(record(seed=seed) for seed in range(3)))
    rows = scan(tmp_path)
    real = Path.rename

    def refuse(path, target):
        if path.name == rows[0].name:
            raise PermissionError("not yours")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    freed, failures = remove(rows)
    assert freed == rows[1].size + rows[2].size
    assert failures == [f"{rows[0].path}: not yours"]
    assert Store(tmp_path).keys() == [rows[0].name]


def test_a_writer_that_may_be_alive_is_let_be(tmp_path):
    (key,) = stored(tmp_path, record())
    (tmp_path / key).rename(tmp_path / f".writing-{key}-0")
    rows = scan(tmp_path)
    assert plan(rows, NONE).counts == {"young": 1}
    assert len(plan(rows, NONE, now=time.time() + 2 * prune.STALE_S).going) == 1


def test_a_link_is_not_followed(tmp_path):
    (key,) = stored(tmp_path / "real", record(code=OTHER))
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / key).symlink_to(tmp_path / "real" / key)
    assert plan(scan(tmp_path / "store"), NONE).counts == {"link": 1}
    assert Store(tmp_path / "real").keys() == [key]


_RUNS = st.lists(
    st.tuples(
        st.sampled_from(["fold", "dwell", "elsewhere"]),
        st.sampled_from([0, 1, FRESH_FROM, FRESH_FROM + 1, 2_000_000]),
        st.sampled_from([THIS, OTHER, OLD]),
        st.sampled_from(["sim", "nowhere"]),
    ),
    min_size=1,
    max_size=8,
    unique=True,
)
_WAYS = st.sampled_from(["key", "study and code", "study and seeds", "nothing"])


@given(_RUNS, st.data())
def test_no_run_that_is_referred_to_is_ever_removed(runs, data):
    """Whatever lies in the store and whoever refers to it: what stays holds all that is referred to, bit for bit."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        made = [record(study, seed, code=code, rung=rung) for study, seed, code, rung in runs]
        stored(root / "store", *made)
        (root / "studies").mkdir()
        (root / "studies" / "study_fold.py").touch()
        named = _refer(data, root / "escalations", made) | _refer(data, root / "sweeps", made)
        references = collect([root / "studies"], root / "store", [root / "escalations"], asked=["dwell"])
        planned = plan(scan(root / "store"), references)
        _, failures = remove(planned.going)
        left = set(Store(root / "store").keys())
        assert failures == []
        assert named <= left
        for each, (study, seed, code, rung) in zip(made, runs, strict=True):
            current = study == "fold" and code == THIS and seed < FRESH_FROM
            must = each.key in named or study == "elsewhere" or current or rung == "nowhere"
            assert must <= (each.key in left)  # nothing lost
            if not named:
                assert must == (each.key in left)  # and nothing kept without a reason
            if each.key in left:
                assert Store(root / "store").load(each.key).equals(each)


def _refer(data, folder, made):
    """Write files that refer to some of the runs in some way; return the keys of the runs meant."""
    folder.mkdir()
    named = set()
    for number in range(data.draw(st.integers(0, 3))):
        target, way = data.draw(st.sampled_from(made)), data.draw(_WAYS)
        about = {"study": target.manifest["study"], "note": "as planned"}
        if way == "key":
            about = {"key": target.key}
        if way == "study and code":
            about["fingerprint"] = target.manifest["fingerprint"]
        if way == "study and seeds":
            about["seeds"] = f"fresh:{target.seed}"
        (folder / f"{number}.json").write_text(json.dumps(about))
        if way in ("key", "study and code") or (way == "study and seeds" and target.seed >= FRESH_FROM):
            named.add(target.key)
    return named
