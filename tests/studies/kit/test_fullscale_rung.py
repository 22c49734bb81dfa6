"""Sweeps of the third rung: its own loop by default, runs that are in the store, jobs, and the page of a run's rollouts."""

import json
from functools import partial

import numpy as np
import pytest

pytest.importorskip("transformers")

from fullscale.agent.train import train
from minimodel.agent.optimiser import AdamW
from sim.records.config import replace
from sim.records.store import Store
from studies.kit.executors import SweepError
from studies.kit.inspector.own import stored
from studies.kit.inspector.page import page
from studies.kit.sweep import BLOCK, keys_of, sweep, trainer
from tests.fullscale.agent.conftest import single_threaded  # noqa: F401  tiny problems are slower on two threads
from tests.fullscale.agent.small import ANSWERS, PASSAGES, taught, tokenizer, training


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny model that half knows how to play, as a folder."""
    place = tmp_path_factory.mktemp("model")
    taught().save_pretrained(place)
    tokenizer().save_pretrained(place)
    return str(place)


@pytest.fixture
def base(saved, tmp_path, monkeypatch):
    """A run on files, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    questions, corpus = tmp_path / "questions.jsonl", tmp_path / "corpus.jsonl"
    asked = [{"question": f"What is the capital of {place}?", "answer": answer} for place, answer in ANSWERS.items()]
    questions.write_text("".join(json.dumps(each) + "\n" for each in asked))
    corpus.write_text("".join(json.dumps({"title": p.title, "text": p.text}) + "\n" for p in PASSAGES))
    data = {"data.questions": str(questions), "data.corpus": str(corpus), "data.held_out": 0.0}
    return replace(training(prompts=2, group=4, steps=2, keep_rollouts=1), data | {"model.source": saved})


@pytest.fixture
def points(base):
    return {"slow": base, "fast": replace(base, {"optimiser": AdamW(1e-2)})}


def test_its_own_loop_is_the_default():
    assert trainer("fullscale") is train
    assert BLOCK["fullscale"] == 1


def test_runs_are_made_once_and_kept(points, tmp_path):
    store = Store(tmp_path / "store")
    seen = []
    first = sweep(None, points, (0, 1), store=store, study="third", rung="fullscale", progress=seen.append)
    assert {label: runs.seeds for label, runs in first.items()} == {"slow": (0, 1), "fast": (0, 1)}
    assert len(store.keys()) == 4
    assert {key for by_seed in keys_of(points, (0, 1), "third", "fullscale", first["slow"].fingerprint).values()
            for key in by_seed.values()} == set(store.keys())  # fmt: skip
    assert first["slow"].rung == "fullscale"
    np.testing.assert_array_equal(first["slow"]["train/tokens"][:, 0], first["fast"]["train/tokens"][:, 0])
    assert (first["fast"]["update/moved"] > 2 * first["slow"]["update/moved"]).all()
    assert (first["slow"]["update/moved"] > 0).all()
    assert any(status is not None and status.steps == 2 for status in seen)

    again = sweep(refusing, points, (1, 0), store=store, study="third", rung="fullscale")
    assert again["fast"].equals(first["fast"].select([1, 0]))
    assert not list((tmp_path / "runs" / "checkpoints").glob("*.pt"))


def refusing(config, seeds, *, study):
    raise AssertionError("it is in the store")


def test_a_run_is_the_one_that_is_asked_for_directly(base, tmp_path):
    there = sweep(None, {"a": base}, (3,), study="third", rung="fullscale")["a"]
    here = train(base, (3,), study="third", folder=tmp_path / "elsewhere")
    assert set(there.columns) == set(here.columns)
    for name, values in here.columns.items():
        if name != "train/latency_s":
            np.testing.assert_array_equal(there[name], values, err_msg=name)


def test_a_run_that_fails_is_told_by_point_and_seed(base):
    broken = replace(base, {"data.corpus": "nowhere.jsonl"})
    with pytest.raises(SweepError, match=r"point 'broken', seed 0: .*nowhere.jsonl"):
        sweep(None, {"broken": broken}, (0,), study="third", rung="fullscale")


def test_the_rollouts_that_were_kept_are_read_as_text(base, tmp_path):
    store = Store(tmp_path / "store")
    sweep(None, {"a": base}, (0,), store=store, study="third", rung="fullscale")
    (key,) = store.keys()
    shown = stored(store.load(key))
    assert shown.steps == (0, 1)
    assert len(shown.episodes) == 8
    assert np.isnan(shown.shares[0]).all()
    assert shown.shares[1].sum() == pytest.approx(1.0)
    assert {"search", "answer"} <= set(shown.actions)
    for episode in shown.episodes:
        text = "".join("".join(turn.pieces) for turn in episode.turns)
        assert text.startswith("<|im_start|>system")
        assert any(f"What is the capital of {place}?" in text for place in ANSWERS)
    assert shown.notes == ("rung fullscale, rollouts of step 1",)
    assert key in page([shown], "Rollouts")


def test_a_run_that_kept_nothing_says_what_to_do(base, tmp_path):
    store = Store(tmp_path / "store")
    sweep(
        None,
        {"a": replace(base, {"keep_rollouts": None, "steps": 1})},
        (0,),
        store=store,
        study="third",
        rung="fullscale",
    )
    (key,) = store.keys()
    with pytest.raises(ValueError, match="run it again with keep_rollouts"):
        stored(store.load(key))


@pytest.mark.long
def test_jobs_make_the_same_runs(base, tmp_path):
    """In processes of their own, as Slurm's jobs are."""
    pytest.importorskip("submitit")
    from studies.kit.slurm import slurm

    executor = partial(slurm, tmp_path / "store", tmp_path / "jobs")(cluster="local", jobs=1)
    there = sweep(None, {"a": base}, (0, 1), study="third", rung="fullscale", executor=executor)
    assert len(Store(tmp_path / "store").keys()) == 2
    here = sweep(None, {"a": base}, (0, 1), study="third", rung="fullscale")
    for name, values in here["a"].columns.items():
        if name != "train/latency_s":
            np.testing.assert_allclose(there["a"][name], values, rtol=1e-4, atol=1e-5, err_msg=name)
