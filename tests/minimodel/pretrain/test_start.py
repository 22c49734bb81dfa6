import math

import numpy as np
import pytest
import torch

from minimodel.model.transformer import Size
from minimodel.pretrain.lessons import Lesson
from minimodel.pretrain.start import Start, lesson_loss, supervised, untrained
from sim.records.config import ConfigError
from tests.minimodel.pretrain.conftest import SIZE, START, TASK, facts_of, teacher_of


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Oracle:
    """Predicts what it was told to: logits[:, i] for the token at i + 1."""

    def __init__(self, logits):
        self.logits = logits

    def __call__(self, ids):
        return self.logits[:, : ids.shape[1]]


def test_the_loss_of_knowing_nothing_is_log_words():
    lesson = teacher_of().closed_book(0, 24)
    logits = torch.zeros(24, lesson.ids.shape[1], TASK.vocabulary.size)
    assert lesson_loss(Oracle(logits), lesson).item() == pytest.approx(math.log(TASK.vocabulary.size), rel=1e-5)


def test_the_loss_of_knowing_all_is_the_entropy_of_the_targets():
    """Logits one place before each token; one place off, and it is a hundred times worse."""
    (lesson,) = teacher_of().episodes(0, 40, forced=0.0, slips=0.0, pieces=1)
    target = np.pad(lesson.targets, ((0, 0), (lesson.first - 1, 1), (0, 0)))
    logits = torch.from_numpy(np.log(target + 1e-12))
    p = np.where(lesson.targets > 0, lesson.targets, 1)
    entropy = float((-(p * np.log(p)).sum(-1) * lesson.weight).sum())
    assert entropy > 0.1
    assert lesson_loss(Oracle(logits), lesson).item() == pytest.approx(entropy, rel=1e-4)
    assert lesson_loss(Oracle(logits.roll(1, 1)), lesson).item() > 20 * entropy


def test_a_loss_by_hand():
    lesson = Lesson(
        ids=np.array([[1, 0, 1]]),
        first=1,
        targets=np.array([[[0.5, 0.5], [0.0, 1.0]]], np.float32),
        weight=np.array([[2.0, 3.0]], np.float32),
    )
    logits = torch.log(torch.tensor([[[0.25, 0.75], [0.8, 0.2], [0.5, 0.5]]]))
    expected = -2 * (0.5 * math.log(0.25) + 0.5 * math.log(0.75)) - 3 * math.log(0.2)
    assert lesson_loss(Oracle(logits), lesson).item() == pytest.approx(expected)


def test_updates_are_reported(taught):
    assert taught.progress == [(i, 150) for i in range(1, 151)]


def test_a_start_is_named_by_its_seed():
    few = Start(steps=3)
    a, b, c = (weights(supervised(TASK, SIZE, few, facts_of(TASK), seed)) for seed in (5, 5, 6))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not torch.equal(a, weights(untrained(TASK, SIZE, 5)))
    assert torch.equal(
        weights(supervised(TASK, SIZE, Start(steps=0), facts_of(TASK), 5)), weights(untrained(TASK, SIZE, 5))
    )


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    supervised(TASK, SIZE, Start(steps=1), facts_of(TASK), 0, lambda *_: seen.append(torch.get_num_threads()))
    assert (seen.pop(), torch.get_num_threads()) == (1, 2)
    torch.set_num_threads(before)


seen: list[int] = []


def test_a_private_decision_network_is_taught_as_well():
    size = Size(width=32, layers=1, heads=2, decision="private")
    model, fresh = supervised(TASK, size, Start(steps=2), facts_of(TASK), 0), untrained(TASK, size, 0)
    for part in ("trunk", "decider"):
        moved = weights(getattr(model, part)) - weights(getattr(fresh, part))
        assert moved.abs().max() > 1e-3


def test_the_rate_rises_falls_and_shrinks_with_the_network():
    start = Start(steps=100, rate=0.01)
    rates = [start.rate_at(step, Size()) for step in range(100)]
    assert max(rates) == pytest.approx(0.01)
    assert rates[0] == pytest.approx(0.001)
    assert rates[-1] == pytest.approx(0.01 / 90)
    assert start.rate_at(50, Size(width=128, layers=4)) == pytest.approx(rates[50] / 2)
    assert start.rate_at(50, Size(width=32)) == rates[50]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": -1}, "steps = -1"),
        ({"batch": 0}, "batch = 0"),
        ({"hit": 1.5}, r"hit = 1.5 must lie in \[0, 1.0\]"),
        ({"slips": 0.9}, r"slips = 0.9 must lie in \[0, 0.5\]"),
        ({"rate": 0.0}, "rate = 0.0"),
    ],
)
def test_a_start_that_makes_no_sense_is_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        Start(**change)


def test_the_start_of_these_tests_is_short():
    assert START.steps < Start().steps
