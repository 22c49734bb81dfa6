"""Inference servers as configs: what is refused, what is made of them, and runs whose episodes a real one writes."""

import os
import shutil
import threading
from dataclasses import dataclass

import numpy as np
import pytest

from fullscale.agent.collecting import Collector
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Adapter, Model, Sampler
from fullscale.engine.http.dialects import LlamaCpp, Sglang, Vllm
from fullscale.engine.http.serving import LlamaServer, why_not
from fullscale.engine.local import decoder, turn_ends
from fullscale.engine.protocol import Settings
from fullscale.engine.servers import AtSglang, AtVllm, OwnLlama, Reader
from minimodel.agent.optimiser import AdamW
from minimodel.agent.schedule import Lag
from sim.cluster.scheduling import Capacity
from sim.learning.setup import Evaluation
from sim.records.config import ConfigError, from_dict, replace, to_dict
from tests.fullscale.agent.small import begin, small_world, tokenizer, training
from tests.fullscale.engine.http.standin import Server, standing

needed = pytest.mark.skipif(bool(why_not()), reason=why_not())
WORDS = {"tokenizer": tokenizer(), "decode": decoder(tokenizer()), "ends": turn_ends(tokenizer())}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Runs publish weights below the folder that a test is in."""
    monkeypatch.chdir(tmp_path)


def reader(context_tokens=64, vocabulary=200):
    return Reader(**WORDS, vocabulary=vocabulary, context_tokens=context_tokens)


# --- configs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (OwnLlama, "slots", 0),
        (OwnLlama, "threads", -1),
        (OwnLlama, "chunk_tokens", 0),
        (lambda **more: AtVllm("http://127.0.0.1:8000", "m", **more), "concurrent", 0),
        (lambda **more: AtVllm("http://127.0.0.1:8000", "m", **more), "timeout_s", 0.0),
        (lambda **more: AtSglang("http://127.0.0.1:8000", **more), "chunk_tokens", 0),
        (lambda **more: AtSglang("http://127.0.0.1:8000", **more), "timeout_s", -1.0),
    ],
)
def test_sizes_must_be_positive(make, name, value):
    with pytest.raises((ConfigError, ValueError), match=rf"{name} = {value} must be positive"):
        make(**{name: value})


@pytest.mark.parametrize(
    "server", [OwnLlama(slots=3), AtVllm("http://127.0.0.1:8000", "policy"), AtSglang("http://127.0.0.1:30000", 4)]
)
def test_a_run_may_name_any_of_them(server):
    config = training(sampler=Sampler(server=server))
    assert from_dict(to_dict(config)) == config
    assert replace(training(), {"sampler.server": server}).sampler.server == server


@pytest.mark.parametrize(
    "server", [AtVllm("127.0.0.1:8000", "policy"), AtSglang("ftp://host")], ids=["no scheme", "another scheme"]
)
def test_an_address_that_is_none_is_refused(server, tmp_path):
    with pytest.raises(ValueError, match="no address of a server; write http://host:port"):
        server.engine(reader(), tmp_path)


@pytest.mark.parametrize(
    ("server", "dialect"),
    [
        (OwnLlama(slots=3, chunk_tokens=5), LlamaCpp),
        (AtVllm("http://127.0.0.1:8000", "policy", concurrent=3, chunk_tokens=5), Vllm),
        (AtSglang("http://127.0.0.1:30000", concurrent=3, chunk_tokens=5), Sglang),
    ],
)
def test_an_engine_speaks_the_servers_language(server, dialect, tmp_path):
    """And nothing is asked or started before there are weights."""
    engine, end = server.engine(reader(), tmp_path)
    assert isinstance(engine.dialect, dialect)
    assert (engine.concurrent, engine.chunk_tokens, engine.vocabulary) == (3, 5, 200)
    assert engine.ends == frozenset(turn_ends(tokenizer()))
    with pytest.raises(RuntimeError, match="call publish"):
        engine.play([[1]], lambda rows, turns: [], Settings(1.0, 4, 40), None)
    end()
    end()  # again does nothing
    assert list(tmp_path.iterdir()) == []


# --- a run over HTTP --------------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What the runs of a test started, and played."""

    servers: list
    batches: list

    def pids_alive(self):
        return [pid for pid in {pid for _, pid in self.servers} if _alive(pid)]


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def seen(monkeypatch):
    found, start, collect = Seen([], []), LlamaServer.start, Collector.batch

    def starting(self, *given):
        start(self, *given)
        found.servers.append((self, self.pid))

    def collecting(self, step):
        found.batches.append(collect(self, step)[0])
        return found.batches[-1], np.ones(found.batches[-1].reward.shape, np.bool_)

    monkeypatch.setattr(LlamaServer, "start", starting)
    monkeypatch.setattr(Collector, "batch", collecting)
    return found


OWN = Sampler(turn_tokens=16, context_tokens=700, server=OwnLlama(slots=4, chunk_tokens=16))
SMALL = {"prompts": 2, "group": 3, "steps": 2, "watched": 3, "optimiser": AdamW(1e-3), "sampler": OWN}


@needed
@pytest.mark.parametrize("how", [{}, {"schedule": Lag(1), "steps": 3}], ids=["synchronous", "a lag"])
def test_a_server_of_its_own_writes_a_run(how, seen, tmp_path):
    """Its log-probs are the learner's; each version is a process of its own; afterwards there is none."""
    c = training(**SMALL | how, evaluation=Evaluation(every=2, prompts=2, group=1))
    with small_world():
        columns = begin(c, tmp_path).go()
    assert (columns["mismatch/mean"] <= 1e-4).all()
    assert (columns["mismatch/max"] <= 1e-3).all()
    assert (columns["mismatch/coverage"] == 1).all()
    assert (columns["mismatch/mean"] > 0).all()
    assert (columns["train/failed_share"] == 0).all()
    assert columns["update/moved"][-1] > 0
    assert np.isfinite(columns["eval/closed_book"][0])
    assert [played.version[played.sampled].max() for played in seen.batches] == ([0, 1] if not how else [0, 0, 1])
    assert len({pid for _, pid in seen.servers}) >= 2
    assert seen.pids_alive() == []
    assert {server.pid for server, _ in seen.servers} == {None}


@needed
def test_the_same_run_twice_plays_the_same_episodes(seen, tmp_path):
    """Log-probs only to rounding: who shares a forward on the server is a matter of time."""
    c = training(**SMALL | {"steps": 1})
    a, b = (begin(c, tmp_path / name).go() for name in "ab")
    first, again = seen.batches
    np.testing.assert_array_equal(first.ids, again.ids)
    np.testing.assert_array_equal(first.outcome, again.outcome)
    np.testing.assert_allclose(first.logp, again.logp, atol=1e-4)
    assert a["update/moved"] == pytest.approx(b["update/moved"], rel=1e-2)


@needed
@pytest.mark.parametrize("model", [{}, {"adapter": Adapter(rank=2, targets=("q_proj",))}], ids=["whole", "an adapter"])
def test_a_run_that_was_cut_goes_on(model, seen, tmp_path):
    """From the file saved after its first step, on another server; an adapter reaches it merged into the weights."""
    c = training(**SMALL | {"model": Model(source="tiny", **model)})
    file, kept = tmp_path / "run.pt", tmp_path / "kept"
    columns = begin(c, tmp_path).go(lambda row: row["step"] == 1 and shutil.copy(file, kept))
    kept.replace(file)
    again = begin(c, tmp_path).go()
    first, second, later = seen.batches
    np.testing.assert_array_equal(later.ids, second.ids)
    assert later.ids.shape != first.ids.shape or (later.ids != first.ids).any()
    assert (later.version[later.sampled] == 1).all()
    assert (again["mismatch/mean"] <= 1e-4).all()
    np.testing.assert_allclose(again["update/moved"], columns["update/moved"], rtol=1e-2)


@needed
def test_a_run_that_fails_leaves_no_server(seen, tmp_path):
    def stop(row):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        begin(training(**SMALL), tmp_path).go(stop)
    assert len(seen.servers) == 1
    assert seen.pids_alive() == []


@needed
def test_beside_the_learner_two_groups_at_a_time(tmp_path, monkeypatch):
    """Groups of both workers, new weights in episodes under way; nothing is left running."""
    servers, start = [], LlamaServer.start

    def starting(self, *given):
        start(self, *given)
        servers.append((self, self.pid))

    monkeypatch.setattr(LlamaServer, "start", starting)
    before = set(threading.enumerate())
    c = training(**SMALL, schedule=Asynchronous(admission=Capacity(eta=1.0), workers=2))
    with small_world():
        columns = begin(c, tmp_path).go()
    assert len(columns["step"]) == 2
    assert np.nanmax(columns["mismatch/mean"]) <= 1e-4
    assert columns["staleness/oldest"].max() <= 2
    assert (columns["staleness/coverage"] == 1).all()
    assert (columns["train/failed_share"] == 0).all()
    assert columns["update/moved"][-1] > 0
    assert not [pid for _, pid in servers if _alive(pid)]
    assert not [
        t for t in set(threading.enumerate()) - before if t.is_alive() and t.name.startswith(("rollout", "episode"))
    ]


@needed
def test_two_runs_of_one_folder_do_not_take_each_others_weights(tmp_path, monkeypatch):
    """As a sweep makes them: what a server of one run loads is never where the other writes."""
    loaded, start = {}, LlamaServer.start
    for seed in (0, 1):

        def starting(self, weights, name, seed=seed):
            loaded.setdefault(seed, set()).add(weights.resolve())
            start(self, weights, name)

        with monkeypatch.context() as given_to:
            given_to.setattr(LlamaServer, "start", starting)
            begin(training(**SMALL), tmp_path / f"run{seed}", seed=seed).go()
    assert len(loaded[0]) == len(loaded[1]) == 2
    assert not loaded[0] & loaded[1]


# --- a server that is not one's own -----------------------------------------------------------------------------------


def test_weights_are_published_in_the_runs_folder_before_anything_is_stamped(tmp_path):
    """A server that does not do as it is told ends the run: nothing is written with weights that nobody knows."""
    with standing(Server(hook=lambda path, body: (404, {"error": "no such door"}))) as server:
        c = training(**SMALL | {"sampler": Sampler(server=AtVllm(server.url, "policy", timeout_s=5.0))})
        run = begin(c, tmp_path)
        with pytest.raises(RuntimeError, match="404"):
            run.go()
        assert not server.asked("/v1/completions")
