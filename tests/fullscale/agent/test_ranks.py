"""One learner on two processes: the gradient of one, for rules of every scope, however the update is cut."""

import pytest
import torch
import torch.multiprocessing as mp

from fullscale.agent.ranks import Ranks
from sim.learning.view import _SCOPES
from tests.fullscale.agent.ranks_cases import CASES, IN_FOUR, RULES, made, policies, rank, updated
from tests.fullscale.agent.small import relative_gap


@pytest.fixture(scope="module")
def given():
    return made()


@pytest.fixture(scope="module")
def alone(given):
    """Gradient and log-probs of every case, of one process."""
    by_kind = {adapter: policies(given, Ranks(), adapter) for adapter in (False, True)}
    found = {}
    for name, case in (CASES | IN_FOUR).items():
        gradient, seen = updated(case, given, *by_kind[case.adapter])
        found[name] = (gradient, seen.logp)
    return found


@pytest.fixture(scope="module")
def together(given, tmp_path_factory):
    """The same, of two."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(given, folder / "given")
    mp.spawn(rank, (2, str(folder)), nprocs=2)
    return torch.load(folder / "found", weights_only=False)


def test_there_is_a_rule_of_every_scope():
    assert [rule.scope for rule in RULES.values()] == list(_SCOPES)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_gradient_of_one(name, alone, together):
    expected, logp = alone[name]
    found, seen, alike = together[name]
    assert alike, "ranks computed other coefficients"
    torch.testing.assert_close(seen, logp, rtol=0, atol=2e-5)
    if name == "nothing to learn":
        assert expected.norm() == found.norm() == 0
        return
    assert expected.norm() > 1e-3
    assert relative_gap(found, expected) < 1e-6


@pytest.mark.parametrize("scope", RULES)
@pytest.mark.parametrize("pieces", [2, 4])
def test_accumulation_changes_nothing(scope, pieces, alone):
    assert relative_gap(alone[f"a rule by {scope}, in {pieces}"][0], alone[f"a rule by {scope}"][0]) < 1e-6


def test_how_episodes_are_bucketed_changes_nothing(alone):
    assert relative_gap(alone["fewer rows than ranks"][0], alone["exact KL and entropy"][0]) < 1e-6


def test_the_cases_differ_from_each_other(alone):
    """A guard: rules of different scope give different gradients, and what did not arrive matters."""
    for name in ("turn", "sequence", "group", "batch"):
        assert relative_gap(alone[f"a rule by {name}"][0], alone["a rule by token"][0]) > 1e-2
    assert relative_gap(alone["some did not arrive"][0], alone["exact KL and entropy"][0]) > 1e-2


@pytest.mark.parametrize(
    ("rows", "shares"), [(7, [(0, 3), (3, 5), (5, 7)]), (2, [(0, 1), (1, 2), (2, 2)]), (0, [(0, 0)] * 3)]
)
def test_shares_by_hand(rows, shares):
    assert [(s.start, s.stop) for s in (Ranks(r, 3).share(rows) for r in range(3))] == shares
