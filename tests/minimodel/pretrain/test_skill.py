import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from minimodel.model.vocabulary import ANSWER
from minimodel.pretrain.skill import Asks, Measured, Skill, SkillError, check, measure
from minimodel.pretrain.start import Start, supervised, untrained
from minimodel.tasks.environment import Environment
from minimodel.tasks.script import Script
from tests.minimodel.pretrain.conftest import SIZE, TASK, VERIFY_TASK, WORDS, facts_of

GOOD = Skill(
    recall_known=Measured(0.96, 0.97, 100),
    recall_unknown=Measured(0.02, 0.015, 300),
    guess_share=Measured(0.035, 0.03, 400),
    verify_share=None,
    read_share=None,
    decision_gap=Measured(0.01, 0.0, 500),
    query_right=Measured(0.99, 1.0, 400),
    copies=Measured(0.97, 1.0, 400),
    right_after_search=Measured(0.49, 0.5, 400),
    invalid_share=Measured(0.002, 0.0, 900),
)


class Pushed:
    """A network with some logits added to one token, everywhere."""

    def __init__(self, model, token, logits):
        self.model, self.token, self.logits = model, token, logits

    def _push(self, logits):
        logits = logits.clone()
        logits[..., self.token] += self.logits
        return logits

    def __call__(self, ids):
        return self._push(self.model(ids))

    def start(self, batch):
        return self.model.start(batch)

    def extend(self, ids, cache):
        return self._push(self.model.extend(ids, cache))


@pytest.fixture(scope="module")
def environment():
    return Environment(TASK, facts_of(TASK))


# Measuring ------------------------------------------------------------------------------------------------------------


def test_a_taught_start_is_what_it_was_taught_to_be(taught, environment):
    skill = measure(taught.model, environment, Script(), episodes=8)
    check(skill, Asks())
    for found, value, aim, n in (
        (skill.recall_known, pytest.approx(0.97, abs=0.02), 0.97, 6 * 8),
        (skill.recall_unknown, pytest.approx(1 / 6, abs=0.02), 1 / 6, 18 * 8),
        (skill.guess_share, pytest.approx(0.03, rel=0.5), pytest.approx(0.03), 24 * 8),
    ):
        assert (found.value, found.aim, found.n) == (value, aim, n)
    assert skill.verify_share is None
    assert skill.read_share is None
    assert 0.3 < skill.right_after_search.aim < 0.7  # the documents' own share of right ones, near the world's 0.5
    assert 150 < skill.right_after_search.n <= 24 * 8
    assert skill.query_right.n > 192  # some search again
    assert skill.copies.value > 0.96


def test_an_untaught_one_fails_in_everything_it_could_show(environment):
    with pytest.raises(SkillError) as error:
        check(measure(untrained(TASK, SIZE, 0), environment, Script()))
    for name in ("recall_known", "recall_unknown", "guess_share", "decision_gap", "invalid_share"):
        assert f"{name} = " in str(error.value)


def test_a_push_on_the_decision_shows_in_the_guess_share(taught, environment):
    """Three logits on a decision taken with probability 0.03 make it 0.03 e^3 / (0.97 + 0.03 e^3) = 0.38."""
    skill = measure(Pushed(taught.model, ANSWER, 3.0), environment, Script())
    assert skill.guess_share.value == pytest.approx(0.03 * math.exp(3) / (0.97 + 0.03 * math.exp(3)), abs=0.05)
    with pytest.raises(SkillError, match=r"guess_share = 0\.\d+ \(n = 48\) is outside \[0.02, 0.045\]"):
        check(skill)


def test_forgetting_shows_in_recall_and_nowhere_else(taught, environment):
    """An answer word that is never said: whoever knows it, and whichever document shows it, is missed."""
    facts = environment.facts
    known = facts.answer[facts.known]
    lost = int(np.bincount(known).argmax())
    skill = measure(Pushed(taught.model, WORDS.answer(lost), -30.0), environment, Script(), episodes=8)
    share = (known == lost).mean()
    assert skill.recall_known.value == pytest.approx(0.97 * (1 - share), abs=0.03)
    assert skill.query_right.value > 0.98
    assert skill.copies.value < 0.95
    assert skill.right_after_search.value < skill.right_after_search.aim - 0.02


def test_a_rare_tool_is_measured_where_it_is_offered():
    facts = facts_of(VERIFY_TASK)
    model = supervised(VERIFY_TASK, SIZE, Start(steps=40, rate=0.015, script=Script(verify=0.2)), facts, 0)
    skill = measure(model, Environment(VERIFY_TASK, facts), Script(verify=0.2))
    assert skill.recall_known is None
    assert skill.recall_unknown is None
    assert skill.guess_share is None
    assert skill.verify_share.aim == pytest.approx(0.2)
    assert 0.02 < skill.verify_share.value < 0.6


def test_the_same_seed_measures_the_same(taught, environment):
    one, two, other = (measure(taught.model, environment, Script(), seed=seed) for seed in (3, 3, 4))
    assert one == two
    assert one != other


def test_measuring_leaves_the_network_alone(taught, environment):
    before = {name: p.clone() for name, p in taught.model.state_dict().items()}
    measure(taught.model, environment, Script(), episodes=1)
    assert all(torch.equal(p, before[name]) for name, p in taught.model.state_dict().items())
    assert all(p.requires_grad for p in taught.model.parameters())


# Checking -------------------------------------------------------------------------------------------------------------


def test_good_is_good_enough():
    check(GOOD)
    check(Skill(**dict.fromkeys((f.name for f in fields(Skill)), None)))


@pytest.mark.parametrize(
    ("name", "value", "bound"),
    [
        ("recall_known", 0.9, r"\[0.95, 0.99\]"),
        ("recall_known", 0.999, r"\[0.95, 0.99\]"),
        ("recall_unknown", 0.04, r"\[0, 0.035\]"),
        ("guess_share", 0.01, r"\[0.02, 0.045\]"),
        ("guess_share", 0.05, r"\[0.02, 0.045\]"),
        ("decision_gap", 0.03, r"\[0, 0.02\]"),
        ("query_right", 0.97, r"\[0.98, 1\]"),
        ("copies", 0.95, r"\[0.96, 1\]"),
        ("right_after_search", 0.47, r"\[0.48, 0.52\]"),
        ("invalid_share", 0.02, r"\[0, 0.01\]"),
    ],
)
def test_what_misses_is_named_with_its_bound_and_the_way_out(name, value, bound):
    bad = replace(GOOD, **{name: replace(getattr(GOOD, name), value=value)})
    with pytest.raises(
        SkillError, match=rf"{name} = {value:.4g} \(n = \d+\) is outside {bound}\. Give it more Start.steps"
    ) as e:
        check(bad)
    assert str(e.value).count("is outside") == 1


def test_all_that_misses_is_named_at_once():
    bad = replace(GOOD, copies=Measured(0.5, 1.0, 9), query_right=Measured(0.5, 1.0, 9))
    with pytest.raises(SkillError, match=r"query_right .* copies"):
        check(bad)
    check(bad, Asks(copying=0.6, queries=0.6))


def test_a_decision_never_taught_may_stay_one_in_a_thousand():
    check(replace(GOOD, guess_share=Measured(0.0009, 0.0, 400)))
    with pytest.raises(SkillError, match="guess_share"):
        check(replace(GOOD, guess_share=Measured(0.002, 0.0, 400)))
