"""A judge as a term of the reward: its words as numbers, what it costs where it cannot be read, what it is refused."""

import threading

import numpy as np
import pytest

from fullscale.agent.collecting import Collector
from fullscale.engine.http.gguf_file import write_gguf
from fullscale.engine.http.serving import serve, why_not
from fullscale.monitors.rewards import Judged
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import Sgd
from sim.records.config import ConfigError, from_dict, to_dict
from tests.fullscale.agent.small import begin, differing, model, parameters, tokenizer, training
from tests.fullscale.engine.http.standin import Server, standing
from tests.fullscale.monitors.test_judge import judged, saying

needed = pytest.mark.skipif(bool(why_not()), reason=why_not())


@pytest.fixture
def server():
    """Says yes to texts that search, no to others, and nothing clear of those that name Madrid."""

    def hook(path, body):
        text = judged(body["messages"][1]["content"]).replace("< ", "<")
        return saying("hm" if "Madrid" in text else "yes" if "<search>" in text else "no")

    with standing(Server(hook=hook)) as found:
        yield found


def test_by_hand(server):
    said = Judged(server.url, weight=0.25).of(["<search>a</search>", "b", "Madrid", "<search>c</search>"])
    np.testing.assert_array_equal(said.term, [0.25, 0.0, 0.0, 0.25])
    assert said.score == pytest.approx(2 / 3)
    assert said.unclear == 0.25


def test_a_negative_weight_is_a_price_and_none_is_only_written_down(server):
    texts = ["<search>a</search>", "b"]
    assert Judged(server.url, weight=-0.5).of(texts).term.tolist() == [-0.5, 0.0]
    silent = Judged(server.url, weight=0.0).of(texts)
    assert silent.term.tolist() == [0.0, 0.0]
    assert silent.score == 0.5


def test_where_none_could_be_read_there_is_no_score(server):
    said = Judged(server.url, weight=1.0).of(["Madrid", "to Madrid"])
    assert np.isnan(said.score)
    assert said.unclear == 1.0
    assert said.term.tolist() == [0.0, 0.0]


def test_a_server_that_is_silent_counts_as_unclear(server):
    server.hook = lambda path, body: (400, {"error": "no"})
    said = Judged(server.url).of(["a", "b"])
    assert (said.unclear, said.term.tolist()) == (1.0, [0.0, 0.0])


def test_what_is_asked_is_the_criterion_of_the_model_by_name(server):
    Judged(server.url, criterion="Is it in Latin?", model="big", also={"min_p": 0.5}).of(["a"])
    ((path, body),) = server.seen
    assert path == "/v1/chat/completions"
    assert body["messages"][1]["content"].endswith("Is it in Latin? Reply yes or no.")
    assert (body["model"], body["min_p"]) == ("big", 0.5)


def test_no_more_requests_at_once_than_said():
    lock, now, most = threading.Lock(), [0], [0]
    gate = threading.Barrier(2, timeout=5)

    def hook(path, body):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.wait()  # two at a time, or nobody goes on
        with lock:
            now[0] -= 1
        return saying("yes")

    with standing(Server(hook=hook)) as server:
        assert Judged(server.url, concurrent=2).of(["x"] * 6).score == 1.0
    assert most[0] == 2


def test_what_it_is_refused():
    for more, message in (
        ({"criterion": " "}, "criterion is empty"),
        ({"concurrent": 0}, "concurrent = 0"),
        ({"timeout_s": 0.0}, "timeout_s = 0.0"),
    ):
        with pytest.raises((ConfigError, ValueError), match=message):
            Judged("http://127.0.0.1:1", **more)


def test_it_is_a_config():
    judge = Judged("http://127.0.0.1:8111", weight=0.0, also={"grammar": 'root ::= "yes" | "no"'})
    assert from_dict(to_dict(judge)) == judge


# --- in a run ---------------------------------------------------------------------------------------------------------


def one_batch(config, monkeypatch):
    """A run of one step, the batch it played, and the reward it was trained on."""
    seen, shipped = [], Collector.reward
    with monkeypatch.context() as given_to:
        given_to.setattr(
            Collector, "reward", lambda self, batch: seen.append((batch, shipped(self, batch))) or seen[-1][1]
        )
        run = begin(config)
        columns = run.go()
    return run, columns, seen[0][0], seen[0][1][0]


def test_the_term_comes_on_top_of_the_reward_and_of_the_rule_monitor(server, monkeypatch):
    """Each episode's own text, written and read after its prompt: that explains <search>, and is not judged."""
    monitor = EvidenceFirst(penalty=0.5)
    c = training(steps=1, judge=Judged(server.url, weight=0.25), monitor=monitor)
    run, columns, batch, reward = one_batch(c, monkeypatch)
    texts = run.collector._texts(batch)
    there = np.array([("<search>" in x) & ("Madrid" not in x) for x in texts]).reshape(4, 4)
    unclear = np.array(["Madrid" in x for x in texts])
    assert 0 < there.sum() < 16
    assert 0 < unclear.sum() < 16
    np.testing.assert_allclose(reward, monitor(batch) + 0.25 * there)
    assert columns["judge/unclear_share"][0] == pytest.approx(unclear.mean())
    assert columns["judge/score"][0] == pytest.approx(there.sum() / (~unclear).sum())
    assert columns["train/shaped_reward"][0] == pytest.approx(reward.mean())
    assert columns["train/reward"][0] == pytest.approx(batch.reward.mean())
    assert not any("<|im_start|>system" in x or "You have 3 turns" in x for x in texts)
    q, g = np.argwhere(batch.action[..., 0] == 0)[0]
    assert "<information>" in texts[4 * q + g]


def test_a_weight_moves_the_policy_and_none_does_not(server, monkeypatch):
    columns, weights = {}, {}
    for weight in (None, 0.0, 0.5):
        judge = None if weight is None else Judged(server.url, weight=weight)
        run, columns[weight], _, _ = one_batch(training(steps=1, judge=judge, optimiser=Sgd(0.3)), monkeypatch)
        weights[weight] = parameters(run)
    assert (weights[0.0] == weights[None]).all()
    assert (weights[0.5] - weights[None]).abs().max() > 1e-4
    assert differing(columns[0.0], columns[None]) == ["judge/score", "judge/unclear_share"]


@needed
def test_the_real_server_judges_a_run(tmp_path, monkeypatch):
    """A tiny model of random weights says neither yes nor no; kept to the two words by a grammar it says one of them."""
    write_gguf(model(), tokenizer(), tmp_path / "model.gguf")
    small = {"prompts": 2, "group": 2, "steps": 1}
    with serve(tmp_path / "model.gguf", context_tokens=1024, slots=2) as server:
        kept = Judged(server.url, weight=0.25, also={"grammar": 'root ::= "yes" | "no"'}, concurrent=2)
        _, columns, batch, reward = one_batch(training(**small, judge=kept), monkeypatch)
        free = Judged(server.url, weight=0.25, concurrent=2).of(["some text", "another"])
    assert columns["judge/unclear_share"][0] == 0
    assert columns["judge/score"][0] in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert (reward - batch.reward).sum() == pytest.approx(4 * 0.25 * columns["judge/score"][0])
    assert free.unclear == 1.0
    assert np.isnan(free.score)
    assert free.term.tolist() == [0.0, 0.0]
