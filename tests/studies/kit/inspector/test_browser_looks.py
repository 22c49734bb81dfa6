"""The page in a real browser: focus, a narrow screen, contrast in both modes, and thousands of rollouts."""

import re

import numpy as np
import pytest

from sim.records.tables import Outcome
from studies.kit.episodes import Episode, Turn
from studies.kit.inspector.data import from_episodes
from tests.studies.kit.inspector.pages import left, right, says, trained


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_focus_can_be_seen(show, sample, scheme):
    page = show([sample], color_scheme=scheme)
    says(left(page).locator("article"), "Rollout 1")
    for _ in range(25):
        page.keyboard.press("Tab")
        width = page.evaluate(
            "() => document.activeElement === document.body"
            " ? 2 : parseFloat(getComputedStyle(document.activeElement).outlineWidth)"
        )
        assert width >= 2


def test_it_fits_on_a_telephone(show, sample):
    page = show(
        [sample, trained(name="another-run-with-a-name-that-is-long-and-has_no_spaces_" * 3)],
        viewport={"width": 400, "height": 800},
    )
    says(left(page).locator("article"), "Turn 0")
    page.get_by_role("button", name="Compare").click()
    says(right(page).locator("article"), "Turn 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    a, b = left(page).bounding_box(), right(page).bounding_box()
    assert a["x"] == b["x"]
    assert b["y"] >= a["y"] + a["height"]
    for each in page.get_by_role("button").all():
        box = each.bounding_box()
        assert box is None or box["x"] + box["width"] <= 400


CONTRAST = """() => {
  const parse = (text) => {
    const numbers = text.match(/-?[\\d.]+(e-?\\d+)?/g).map(Number);
    const unit = text.startsWith('color(') ? 1 : 255;
    return [...numbers.slice(0, 3).map((value) => value / unit), numbers[3] ?? 1];
  };
  const over = (top, under) => top.slice(0, 3).map((value, at) => value * top[3] + under[at] * (1 - top[3]));
  const ground = (element) => {
    const layers = [];
    for (let each = element; each; each = each.parentElement) layers.push(parse(getComputedStyle(each).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [1, 1, 1]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => (value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + .05) / (Math.min(light(a), light(b)) + .05);
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const said = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!said || !element.getClientRects().length || element.matches('script, style, .name, .value, :disabled')) continue;
    const style = getComputedStyle(element);
    const ink = parse(element.ownerSVGElement ? style.fill : style.color);
    const under = ground(element.ownerSVGElement ? element.ownerSVGElement.parentElement : element);
    found.push([ratio(over(ink, under), under), `${element.getAttribute('class')} ${element.textContent.slice(0, 30)}`]);
  }
  return { worst: found.sort((a, b) => a[0] - b[0]).slice(0, 5), count: found.length, ground: light(ground(document.body)) };
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(show, sample, scheme):
    page = show([sample, trained(name="other")], "#run=1&episode=1&with.run=2", color_scheme=scheme)
    says(right(page).locator("article"), "Turn 0")
    for view in ("words", "log-prob", "KL", "entropy", "version"):
        left(page).get_by_role("button", name=view, exact=True).click()
        found = page.evaluate(CONTRAST)
        assert found["count"] > 100
        assert found["worst"][0][0] >= 4.5, found["worst"]
        assert (found["ground"] < 0.05) == (scheme == "dark")


def many(count):
    """A run of so many rollouts of 2 kB at fifty steps."""
    generator = np.random.default_rng(0)
    letters = generator.integers(ord("a"), ord("z") + 1, (5_000, 6))  # packs worse than English
    words = np.array(["".join(map(chr, each)) for each in letters])

    def one(at):
        turns = (
            Turn("answer", "red"),
            Turn("search", " ".join(generator.choice(words, 60)), " ".join(generator.choice(words, 230))),
            Turn("answer", "needle" if at % 50 == 7 else "blue"),
        )
        outcome = Outcome(min(at % 3, 1))
        return Episode(
            at * 50 // count, at // 8, turns[at % 2 :], float(at % 3 == 0), outcome, prompt=f"question {at // 8}"
        )

    return from_episodes(f"{count} rollouts", [one(at) for at in range(count)], ("search", "answer"))


TIMED = """async () => {
  const pane = document.querySelector('section.pane');
  const painted = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  const opened = performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd;
  pane.querySelector('input[type=checkbox]').click();  // all steps: the longest list
  await painted();
  const key = async (name) => {
    document.body.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
    await painted();
  };
  const begin = performance.now();
  for (let at = 0; at < 30; at += 1) await key('j');
  const middle = performance.now();
  const list = pane.querySelector('[role=listbox]');
  for (let at = 0; at < 30; at += 1) { list.scrollTop = (list.scrollHeight * at) / 30; await painted(); }
  const lines = list.querySelectorAll('[role=option]').length;
  return { opened, read: (middle - begin) / 30, scrolled: (performance.now() - middle) / 30, lines };
}"""


def test_five_thousand_rollouts_are_no_slower_to_read(show, tmp_path):
    """Reading on and scrolling cost what they cost with fifty, give or take a frame; opening grows less than the data."""
    small, large = (show([many(count)]) for count in (50, 5_000))
    for page in (small, large):
        says(left(page).locator("article"), "Turn 0")
    few, lots = small.evaluate(TIMED), large.evaluate(TIMED)
    assert lots["lines"] < 60
    assert lots["read"] < 3 * few["read"] + 20, (few, lots)
    assert lots["scrolled"] < 3 * few["scrolled"] + 20, (few, lots)
    assert lots["opened"] < 20 * few["opened"] + 500, (few, lots)  # a hundred times the data
    left(large).get_by_role("searchbox").fill("needle")
    left(large).get_by_text(re.compile(r"^[\d,]+ of 5,000 rollouts")).wait_for()
