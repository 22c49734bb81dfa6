"""What a fit says: its limits always, ties and uninformative runs as such, and nothing stronger than sufficient."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from studies.kit.fitting.figure import draw, title
from studies.kit.fitting.forecast import forecast
from studies.kit.fitting.mechanisms import Mechanism
from studies.kit.fitting.rank import Ranked, rank
from studies.kit.fitting.trials import trials
from studies.kit.fitting.words import LIMITS, checked_words, ranking_words, report, world_words
from tests.studies.kit.fitting.runs import run_of


@pytest.fixture(scope="module")
def pushed():
    (trial,) = trials("push", 1, first=41, study="test/rank")
    ranking = rank(trial.seen)
    return ranking, forecast(ranking, 10, draws=400), trial.came


@pytest.fixture(scope="module")
def straight():
    return rank(run_of(np.rint(1000 * expit(-4 + 0.1 * np.arange(24))), 1000))


def test_everything_is_there(pushed):
    ranking, foreseen, _ = pushed
    text = "\n".join(report(ranking, foreseen, 3))
    assert "3 later steps were at hand and were not used" in text
    assert all(limit in text for limit in LIMITS)
    assert "Chosen, not fitted" in text
    for row in (*ranking.rows, *ranking.yardsticks):
        assert row.name in text
        assert all(constant.name in text for constant in row.mechanism.constants)
    assert "values, weighed by the counts" in text
    assert "1 value tried" in text
    assert "Push is sufficient in the fitted world" in text
    for word in ("cause", "because of a push", "proves", "explains"):
        assert word not in text
    assert max(map(len, text.splitlines())) < 160


def test_a_straight_line_is_said_to_be_uninformative(straight):
    text = "\n".join(ranking_words(straight))
    assert not straight.informative
    assert "Straight line, one parameter and no mechanism, predicts as well" in text
    assert "uninformative about mechanisms" in text
    assert "is sufficient" not in text
    assert "straight line predicts as well as any mechanism" in title(straight)


def test_ties_are_said(pushed):
    ranking, *_ = pushed
    close = replace(ranking.rows[1], behind=1.5)
    tied = replace(ranking, rows=(ranking.rows[0], close, *ranking.rows[2:]))
    text = "\n".join(ranking_words(tied))
    assert f"do not tell push from {close.name}: within 2 nats" in text
    assert title(tied).endswith(f"push, not told apart from {close.name}")
    assert title(ranking).endswith("push predicted each step best")


def test_a_rival_without_room_says_why(pushed):
    ranking, *_ = pushed
    none = Ranked(Mechanism("nowhere", "", None, (), excluded="no world"), None, -np.inf, 0.0, np.inf, None, 0.0)
    text = "\n".join(ranking_words(replace(ranking, rows=(*ranking.rows, none))))
    assert "nowhere: no world" in text
    assert "no room" in text


def test_a_world_that_does_not_fit_is_shouted(straight):
    # every rollout that is not solved by a guess is solved in one more turn, which no share of known questions allows
    assert straight.fitted.best.max_residual_points > 5
    assert any("DOES NOT FIT" in line for line in world_words(straight))


def test_a_run_whose_wrong_answers_end_it_is_warned_about(straight, pushed):
    assert any("Hardly any rollout searches after a wrong answer" in line for line in world_words(_never(straight)))
    assert not any("Hardly any" in line for line in world_words(pushed[0]))
    assert not any("hardly seen" in line for line in world_words(pushed[0]))


def _never(ranking):
    """Return a ranking whose fitted policy answers again after every failure."""
    never = [replace(found, logits=np.array([[-4.0, 4.0, 5.0]] * 2)) for found in ranking.fitted.fits]
    return replace(ranking, fitted=replace(ranking.fitted, fits=tuple(never)))


def test_a_world_that_fits_is_not(pushed):
    assert not any("DOES NOT FIT" in line for line in world_words(pushed[0]))


def test_a_check_in_words():
    from studies.kit.fitting.registration import Checked

    content = {
        "run": "mine",
        "registered_at": "2030-01-01",
        "data": {"first_step": 0, "last_step": 9, "later_steps_at_hand": 4},
    }
    found = Checked((10, 11), np.array([0.1, 0.2]), {0.5: (1, 2), 0.9: (2, 2)}, {"together": -5.0, "push": -4.0})
    text = "\n".join(checked_words(content, found))
    assert "not a forecast in the dark" in text
    assert "90 % interval: 2 of 2 steps inside" in text
    assert text.index("push") < text.index("together")


def test_the_figure_has_both_fans_and_what_came(pushed):
    ranking, foreseen, came = pushed
    made = draw(ranking, foreseen, came)
    labels = [text.get_text() for text in made.axes[0].get_legend().get_texts()]
    assert labels == ["counted, and used in the fit", ranking.rows[0].name, ranking.rows[1].name, "came later"]
    line = next(line for line in made.axes[0].lines if line.get_label() == "push")
    np.testing.assert_array_equal(line.get_xdata(), foreseen.steps)
