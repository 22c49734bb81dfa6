"""Starts on disk: made once, found by what they depend on, whole or not at all."""

import json
import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
import torch

from fullscale.start.demonstrations import Demonstrated
from fullscale.start.kept import restore, start_key, started
from fullscale.start.start import Start
from fullscale.start.supervised import supervised
from tests.fullscale.agent.small import model
from tests.fullscale.start.small import by_hand, played, policy

START = Start(epochs=2, batch=2, rate=1e-3)
TOKENS = Demonstrated((by_hand([0, 1, 1, 0, 1]), by_hand([0, 1])), played=3, unsolved=1, too_long=0, failed=0)


class Maker:
    """Makes policies and counts them."""

    def __init__(self):
        self.made = 0

    def __call__(self):
        self.made += 1
        return policy()


def test_a_start_is_made_once_and_read_back_to_the_bit(tmp_path):
    make = Maker()
    places = [started("tiny", make, TOKENS, START, 3, tmp_path) for _ in range(2)]
    assert places[0] == places[1] == tmp_path / f"start-{start_key('tiny', TOKENS, START, 3)}"
    assert make.made == 1
    network, untaught = policy(), policy()
    went = restore(network, places[0])
    assert went["demonstrations"] == {"kept": 2, "played": 3, "unsolved": 1, "too_long": 0, "failed": 0}
    assert len(went["taught"]["losses"]) == 2
    assert went["taught"]["losses"][1] < went["taught"]["losses"][0]
    assert (went["taught"]["tokens"], went["taught"]["read"]) == (8, 14)
    assert went["seconds"] > 0
    supervised(untaught, TOKENS.kept, START, 3)
    for a, b, c in zip(network.parameters(), untaught.parameters(), policy().parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_its_name_is_what_it_depends_on_and_nothing_else():
    def key(name="tiny", demonstrated=TOKENS, start=START, seed=0):
        return start_key(name, demonstrated, start, seed)

    others = [
        key("another"),
        key(seed=1),
        key(demonstrated=replace(TOKENS, kept=TOKENS.kept[:1])),
        *(key(start=replace(START, **{name: 3})) for name in ("epochs", "batch", "micro")),
        key(start=replace(START, rate=0.5)),
        key(start=replace(START, warmup=0.5)),
    ]
    assert len({key(), *others}) == len(others) + 1
    same = replace(START, known=0.9, demonstrations=99, unsolved=True, think=True)  # all this is in the tokens already
    assert key(start=same) == key() == key(demonstrated=replace(TOKENS, unsolved=7))
    assert key(demonstrated=played()[0]) != key(demonstrated=played(think=True)[0])


@pytest.mark.parametrize("how", ["interrupted", "failed"])
def test_of_a_start_that_was_not_finished_nothing_is_left(tmp_path, how):
    error = {"interrupted": KeyboardInterrupt, "failed": FloatingPointError}[how]

    def stop(done, total):
        assert done < total
        raise error

    with pytest.raises(error):
        started("tiny", Maker(), TOKENS, START, 0, tmp_path, stop)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []


def killed(folder):
    def make():
        os.kill(os.getpid(), signal.SIGKILL)

    started("tiny", make, TOKENS, START, 0, folder)


def test_a_start_that_was_killed_is_made_anew(tmp_path):
    worker = multiprocessing.get_context("fork").Process(target=killed, args=(tmp_path,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == -signal.SIGKILL
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("start-")]
    make = Maker()
    place = started("tiny", make, TOKENS, START, 0, tmp_path)
    assert make.made == 1
    assert sorted(p.name for p in place.iterdir()) == ["manifest.json", "start.json", "weights.safetensors"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".writing")] == []


def test_what_is_kept_is_only_what_was_taught(tmp_path):
    def make():
        found = policy()
        found.model.requires_grad_(False)
        found.model.model.norm.requires_grad_(True)
        return found

    place = started("norm only", make, TOKENS, START, 0, tmp_path)
    assert (place / "weights.safetensors").stat().st_size < 1000
    network = make()
    restore(network, place)
    assert not torch.equal(network.model.model.norm.weight, policy().model.model.norm.weight)
    with pytest.raises(ValueError, match=r"is of another model: \d+ parameters differ, the first is 'model.embed"):
        restore(policy(), place)


def test_a_start_of_another_model_is_refused_and_changes_nothing(tmp_path):
    place = started("tiny", Maker(), TOKENS, START, 0, tmp_path)
    other = policy(model().to(torch.float64))
    before = [p.detach().clone() for p in other.parameters()]
    with pytest.raises(ValueError, match=r"is of another model: \d+ parameters differ"):
        restore(other, place)
    assert all(torch.equal(p, b) for p, b in zip(other.parameters(), before, strict=True))


def test_what_it_tells_is_plain(tmp_path):
    place = started("tiny", Maker(), TOKENS, START, 0, tmp_path)
    told = json.loads((place / "start.json").read_text())
    assert told["identity"]["model"] == "tiny"
    assert told["identity"]["start"] == {"epochs": 2, "batch": 2, "micro": 4, "rate": 0.001, "warmup": 0.1}
    assert told["identity"]["tokens"] == TOKENS.digest()
