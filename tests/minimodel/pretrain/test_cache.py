import json
import threading
from dataclasses import replace

import pytest
import torch

from minimodel.model.transformer import Size
from minimodel.pretrain import cache
from minimodel.pretrain.cache import CacheError, obtain, start_key
from minimodel.pretrain.skill import Asks, SkillError
from minimodel.pretrain.start import Start, supervised
from minimodel.tasks.script import Script
from tests.minimodel.pretrain.conftest import SIZE, TASK, facts_of

FEW = Start(steps=2)
ANYTHING = Asks(recall=1, habit=1e9, decisions=1, queries=1, copying=1, right=1, invalid=1)


def get(folder, task=TASK, start=FEW, seed=0, **options):
    return obtain(task, SIZE, start, seed, folder, **{"asks": ANYTHING, **options})


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture
def made(monkeypatch):
    """Counts the starts that are made."""
    count = []
    monkeypatch.setattr(cache, "supervised", lambda *a, **k: (count.append(1), supervised(*a, **k))[1])
    return count


def test_a_start_is_made_once_and_read_after(tmp_path, made):
    progress = []
    model, skill, facts = get(tmp_path, progress=lambda *at: progress.append(at))
    again, same, other = get(tmp_path)
    assert made == [1]
    assert progress == [(1, 2), (2, 2)]
    assert torch.equal(weights(model), weights(again))
    assert torch.equal(weights(model), weights(supervised(TASK, SIZE, FEW, facts_of(TASK), 0)))
    assert skill == same
    assert skill.recall_known.n == 12
    assert (facts.answer == other.answer).all()
    assert all(p.requires_grad for p in again.parameters())


def test_worlds_that_differ_in_retrieval_share_a_start(tmp_path, made):
    hard = replace(TASK, world=replace(TASK.world, hit_known=0.1, hit_unknown=0.2, icc=0.2, unknown_kinds=2))
    _, _, easy_facts = get(tmp_path)
    _, _, facts = get(tmp_path, hard)
    assert made == [1]
    assert (facts.known == easy_facts.known).all()
    assert facts.kind.max() == 2  # but the facts are those of the world asked for
    assert easy_facts.kind.max() == 1
    get(tmp_path, hard, replace(FEW, hit=None))
    assert made == [1, 1]


def test_a_name_holds_all_that_a_start_depends_on():
    names = {
        start_key(TASK, SIZE, FEW, 0),
        start_key(TASK, SIZE, FEW, 1),
        start_key(TASK, Size(), FEW, 0),
        start_key(TASK, SIZE, Start(steps=3), 0),
        start_key(TASK, SIZE, replace(FEW, script=Script(guess=0.1)), 0),
        start_key(replace(TASK, thinking=3), SIZE, FEW, 0),
        start_key(replace(TASK, held_out=0.5), SIZE, FEW, 0),
        start_key(replace(TASK, world=replace(TASK.world, known=0.5)), SIZE, FEW, 0),
        start_key(replace(TASK, world=replace(TASK.world, turns=2)), SIZE, FEW, 0),
    }
    assert len(names) == 9
    assert all(len(name) == 16 for name in names)


def test_other_code_makes_another_start(monkeypatch):
    here = start_key(TASK, SIZE, FEW, 0)
    monkeypatch.setattr(cache, "_code", lambda: "another fingerprint")
    assert start_key(TASK, SIZE, FEW, 0) != here


def test_a_start_that_falls_short_is_not_kept(tmp_path):
    with pytest.raises(SkillError, match="recall_known"):
        get(tmp_path, asks=Asks())
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_what_is_kept_is_checked_against_what_is_asked(tmp_path, made):
    get(tmp_path)
    with pytest.raises(SkillError, match="recall_known"):
        get(tmp_path, asks=Asks())
    assert made == [1]


def test_two_who_want_the_same_start_make_it_once(tmp_path, monkeypatch):
    """The second comes while the first is at work, and finds it made."""
    entered, count, found = threading.Event(), [], []

    def slow(*args, **kwargs):
        count.append(1)
        entered.set()
        second.start()
        second.join(0.2)  # time to arrive at the lock, where it waits
        assert second.is_alive()
        return supervised(*args, **kwargs)

    monkeypatch.setattr(cache, "supervised", slow)
    second = threading.Thread(target=lambda: found.append(get(tmp_path)))
    model, _, _ = get(tmp_path)
    second.join()
    assert count == [1]
    assert torch.equal(weights(model), weights(found[0][0]))


def test_a_writer_that_is_killed_leaves_no_start(tmp_path, monkeypatch):
    def broken(arrays):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cache, "npz_bytes", broken)
        with pytest.raises(KeyboardInterrupt):
            get(tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []
    get(tmp_path)
    assert (tmp_path / start_key(TASK, SIZE, FEW, 0) / "manifest.json").is_file()


def test_a_damaged_start_is_named_and_never_used(tmp_path):
    get(tmp_path)
    place = tmp_path / start_key(TASK, SIZE, FEW, 0)
    manifest = json.loads((place / "manifest.json").read_text())
    (place / "manifest.json").write_text(json.dumps({**manifest, "weights": "0" * 64}))
    with pytest.raises(
        CacheError, match=rf"{place.name} cannot be read .*not those of the manifest.*move the folder away"
    ):
        get(tmp_path)
    (place / "weights.npz").write_bytes(b"not a zip")
    with pytest.raises(CacheError, match="cannot be read"):
        get(tmp_path)
    (place / "manifest.json").unlink()
    with pytest.raises(CacheError, match="in the way"):
        get(tmp_path)
