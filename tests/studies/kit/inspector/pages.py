"""A run worked by hand, and where things are on its page."""

import numpy as np

from sim.records.tables import Outcome, Tokens
from studies.kit.episodes import Episode, Turn
from studies.kit.inspector.data import Mark, from_episodes


def tokens(logp, reference, version=3):
    """Tokens of a turn in which all but the last are sampled."""
    count = len(logp) + 1
    return Tokens(
        id=np.arange(count) + 100,
        sampled=np.arange(count) < count - 1,
        train=np.arange(count) < count - 1,
        version=np.where(np.arange(count) < count - 1, version, -1),
        logp_behaviour=np.array([*logp, np.nan]),
        logp_proximal=np.array([*logp, np.nan]),
        logp_reference=np.array([*reference, np.nan]),
    )


def episode(step, number, kind):
    """A rollout: ``kind`` searches and answers right, guesses wrong, or guesses, searches and answers right."""
    search = Turn(
        "search", f"look up fact {number}", f"fact {number} is blue", 3, 1, entropy=0.7,
        tokens=tokens([-0.01, -1.5, -5.0], [-0.02, -1.0, -5.0]), pieces=("look", " up", f" fact{number}", "blue"),
    )  # fmt: skip
    guess = Turn(
        "answer", f"I guess {number}", "wrong", 1, 1, tokens=tokens([-0.3], [-2.0], 2), pieces=("guess", "wrong")
    )
    answer = Turn("answer", f"blue {number}", "", 1, 1, tokens=tokens([-0.2], [-0.2]), pieces=("blue", "."))
    turns = {"search": (search, answer), "guess": (guess,), "both": (guess, search, answer)}[kind]
    solved = kind != "guess"
    return Episode(
        step, number // 4, turns, float(solved), Outcome.SOLVED if solved else Outcome.WRONG,
        prompt=f"Question {number // 4}: which colour?",
        version_oldest=2, version_newest=3, take_version=4, extras={"format": 0.5},
    )  # fmt: skip


def trained(steps=5, each=8, name="sample"):
    """A run in which guessing replaces searching: at step s, the first s of each batch guess and the last one does both."""
    kinds = lambda step: ["guess"] * step + ["search"] * (each - 1 - step) + ["both"]  # noqa: E731
    episodes = [episode(10 * step, number, kind) for step in range(steps) for number, kind in enumerate(kinds(step))]
    mark = Mark(20, "guessing rises", calibrated=False, signal="behaviour/guess")
    return from_episodes(name, episodes, ("search", "answer"), marks=(mark,), notes=("Made by hand.",))


def left(page):
    return page.locator("section.pane").first


def right(page):
    return page.locator("section.pane").nth(1)


def says(place, text):
    """Wait until a place holds a text."""
    place.get_by_text(text).first.wait_for()


def linked(page, part):
    """Wait until the address holds a part: it follows what is open after a moment."""
    page.wait_for_function("part => location.hash.includes(part)", arg=part)


def stop_at(page, selector, limit=80):
    """Press Tab until an element has the focus."""
    for _ in range(limit):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"no tabulator stop at {selector}")
