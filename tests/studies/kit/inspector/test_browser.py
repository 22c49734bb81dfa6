"""The page in a real browser: open, choose, read, compare."""

import re

import numpy as np

from sim.records.tables import Outcome
from studies.kit.episodes import Episode, Turn
from studies.kit.inspector.data import Inspected, workflow_of
from tests.studies.kit.inspector.pages import left, linked, right, says, stop_at, trained


def test_it_opens_with_the_first_rollout(show, sample):
    page = show([sample], title="Rollouts of sample")
    assert page.title() == page.locator("h1").inner_text() == "Rollouts of sample"
    reader = left(page).locator("article")
    says(reader, "Turn 0")
    assert page.locator(".where").first.inner_text() == "step 0 · 8 rollouts"
    assert reader.locator(".chip").inner_text() == "solved"
    assert reader.locator(".turn").count() == 2  # search, answer
    assert "Question 0: which colour?" in reader.locator(".prompt").inner_text()
    assert "uncalibrated" in left(page).locator(".marks").inner_text()
    assert "Made by hand." in page.locator("header").inner_text()


def test_a_click_on_the_stack_chooses_the_step(show, sample):
    page = show([sample])
    stack = left(page).locator(".stack svg")
    box = stack.bounding_box()
    for share, step in ((0.99, 40), (0.53, 20), (0.02, 0)):  # of the width: the axis has a margin on its left
        stack.click(position={"x": box["width"] * share, "y": box["height"] / 2})
        says(left(page), f"step {step} · 8 rollouts")
    left(page).get_by_role("button", name="step 20: guessing rises").click()
    says(left(page), "step 20 · 8 rollouts")


def test_the_stack_shows_the_shares(show, sample):
    page = show([sample], "#step=30")
    label = left(page).locator(".stack svg").get_attribute("aria-label")
    assert label.endswith("at step 30: search-answer 50 %, guess 38 %, guess-search-answer 13 %")
    assert left(page).locator(".stack .band").count() == 3


def test_a_click_on_a_workflow_leaves_its_rollouts(show, sample):
    page = show([sample], "#step=30")
    left(page).locator(".flow", has_text="guess-search-answer").click()
    says(left(page), "1 of 8 rollouts")
    assert left(page).locator("article .turn").count() == 3
    left(page).get_by_role("button", name=re.compile(r"^guess\b(?!-)")).click()
    says(left(page), "3 of 8 rollouts")
    left(page).get_by_role("button", name=re.compile("^all")).click()
    says(left(page), "8 rollouts")


def test_search_and_outcome_narrow_the_list(show, sample):
    page = show([sample], "#step=30")
    search = left(page).get_by_role("searchbox")
    search.fill("FACT 5 is")
    says(left(page), "1 of 8 rollouts")
    says(left(page).locator("article"), "Rollout 30")
    search.fill("no such words")
    says(left(page), "0 of 8 rollouts")
    says(left(page), "No rollout is open")
    search.fill("")
    left(page).get_by_label("Outcome").select_option("wrong")
    says(left(page), "3 of 8 rollouts")
    left(page).get_by_label("all steps").check()
    says(left(page), "10 of 40 rollouts")  # 0 + 1 + 2 + 3 + 4
    left(page).get_by_label("Outcome").select_option("any outcome")
    left(page).get_by_label("Order").select_option("most turns first")
    says(left(page), "40 rollouts")
    left(page).get_by_role("listbox").press("Home")
    says(left(page).locator("article"), "Rollout 8")  # the first of those with three turns
    assert left(page).locator("article .turn").count() == 3


def test_tokens_are_coloured_and_tell_their_values(show, sample):
    page = show([sample])
    reader = left(page).locator("article")
    token = reader.locator(".tok[data-at]").nth(1)
    assert token.inner_text() == " up"
    assert "s3" in token.get_attribute("class").split()  # 1.5 nats lie between 1 and 2
    token.hover()
    says(
        reader,
        "log-prob −1.5 · at the update −1.5 (ratio 1) · reference −1 · KL −.5 · entropy of the turn .7 · version 3",
    )
    reader.get_by_role("button", name="KL").click()
    assert "n2" in reader.locator(".tok[data-at]").nth(1).get_attribute("class").split()
    reader.get_by_role("button", name="version").click()
    assert "s1" in reader.locator(".tok[data-at]").nth(1).get_attribute("class").split()  # 3, taken at 4
    reader.get_by_role("button", name="entropy").click()
    assert "s3" in reader.locator(".tok[data-at]").nth(1).get_attribute("class").split()
    assert reader.locator(".tok[data-at]").nth(3).get_attribute("class") == "tok"  # it came back
    reader.get_by_role("button", name="words").click()
    says(reader, "fact 0 is blue")


def test_rollouts_of_one_prompt_lead_to_each_other(show, sample):
    page = show([sample], "#step=20")
    mates = left(page).locator(".mate")
    assert mates.all_inner_texts() == ["0", "0", "1", "1"]
    mates.nth(3).click()
    says(left(page).locator("article"), "Rollout 20")
    assert left(page).locator(".mate[aria-current]").inner_text() == "1"


def test_two_steps_side_by_side(show, sample):
    page = show([sample], "#step=10")
    page.get_by_role("button", name="Compare").click()
    says(right(page), "step 40 · 8 rollouts")
    assert left(page).bounding_box()["y"] == right(page).bounding_box()["y"]
    guess = right(page).get_by_role("button", name=re.compile(r"^guess\b(?!-)")).inner_text().split()
    assert guess == ["guess", "50", "%", "+38", "4"]  # 4 of 8 against 1 of 8: 37.5 points
    right(page).get_by_role("button", name="Previous step").click()
    says(right(page), "step 30 · 8 rollouts")
    says(left(page), "step 10 · 8 rollouts")
    says(right(page).locator("article"), "Rollout 25")
    says(left(page).locator("article"), "Rollout 9")
    page.get_by_role("button", name="Compare").click()
    assert right(page).is_hidden()


def test_two_runs_side_by_side(show, sample):
    page = show([sample, trained(steps=3, name="other")], "#run=1&step=20")
    page.get_by_role("button", name="Compare").click()
    says(right(page), "step 20 · 8 rollouts")
    assert right(page).get_by_label("Run", exact=True).locator("option:checked").inner_text() == "other"
    assert left(page).locator(".curve .other").count() == 1  # the other run's curve, on the same axes
    says(left(page), "thin: other")
    left(page).get_by_label("Run", exact=True).select_option("other")
    linked(page, "#run=2")


def test_a_link_leads_back(show, sample):
    page = show([sample], "#step=30&workflow=guess&episode=26&with.step=10&with.outcome=solved&with.words=fact+3")
    says(left(page), "3 of 8 rollouts")
    says(left(page).locator("article"), "Rollout 26")
    says(right(page), "1 of 8 rollouts")
    page.keyboard.press("j")
    linked(page, "episode=27")
    other = show([sample], page.evaluate("location.hash"))
    says(left(other).locator("article"), "Rollout 27")
    says(right(other), "1 of 8 rollouts")
    for nonsense in (
        "#step=x&workflow=nothing&episode=9999&order=constructor&tokens=__proto__",
        "#episode=-1",
        "#=&&%",
    ):
        page.evaluate("hash => { location.hash = hash }", nonsense)
        says(left(page).locator("article"), "Rollout 1")


def test_the_keyboard_is_enough(show, sample):
    page = show([sample])
    says(left(page).locator("article"), "Rollout 1")
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").is_hidden()
    stop_at(page, "input[type=range]")
    page.keyboard.press("ArrowRight")
    says(left(page), "step 10 · 8 rollouts")
    page.keyboard.press("]")
    page.keyboard.press("]")
    page.keyboard.press("[")
    says(left(page), "step 20 · 8 rollouts")
    page.keyboard.press("j")
    says(left(page).locator("article"), "Rollout 18")
    page.keyboard.press("g")
    says(left(page).locator("article"), "Rollout 19")
    page.keyboard.press("w")
    says(left(page), "5 of 8 rollouts")
    page.keyboard.press("Escape")
    says(left(page), "8 rollouts")
    page.keyboard.press("/")
    page.keyboard.type("jet blue")  # letters that are keys elsewhere
    says(left(page), "0 of 8 rollouts")
    page.keyboard.press("Escape")
    says(left(page), "8 rollouts")
    assert page.evaluate("document.activeElement.getAttribute('role')") == "listbox"
    page.keyboard.press("End")
    says(left(page).locator("article"), "Rollout 24")
    page.keyboard.press("ArrowUp")
    says(left(page).locator("article"), "Rollout 23")
    assert page.evaluate(
        "document.getElementById(document.activeElement.getAttribute('aria-activedescendant')).innerText"
    ).startswith("23")
    stop_at(page, ".tok")
    page.keyboard.press("ArrowRight")
    says(left(page).locator("article"), "token 2 of 4")
    page.keyboard.press("t")
    assert left(page).locator(".looks [aria-pressed=true]").inner_text() == "KL"
    page.keyboard.press("c")
    says(right(page), "step 40 · 8 rollouts")
    page.keyboard.press("[")
    says(right(page), "step 30 · 8 rollouts")
    page.keyboard.press("o")
    page.keyboard.press("[")
    says(left(page), "step 10 · 8 rollouts")
    page.keyboard.press("c")
    assert right(page).is_hidden()


def test_what_is_not_there_is_said(show, sample):
    bare = Inspected(
        name="bare", actions=("answer",), steps=(0, 5, 9), rollouts=(4, 4, 0), workflows=("guess",),
        shares=np.array([[1.0], [1.0], [np.nan]]), columns={"train/reward": np.array([np.nan] * 3)},
        episodes=[Episode(5, "x", (Turn("answer"),), None, Outcome.NOT_RECORDED)], absent={"words": "the file holds none"},
        folded={"2 problems in reading": ("line 3: no JSON", "line 4: <b>no step</b>")},
    )  # fmt: skip
    assert workflow_of(bare.episodes[0]) == "guess"
    says(left(show([bare])), "step 5 · 4 rollouts, 1 kept")  # it opens where there is something to read
    page = show([bare], "#step=0")
    says(left(page), "step 0 · 4 rollouts, 0 kept")
    left(page).get_by_role("button", name="go to step 5").click()
    says(left(page).locator("article"), "Its words were not kept.")
    assert left(page).locator(".facts").inner_text().split()[:2] == ["reward", "–"]
    page.get_by_text("Not here: words").click()
    says(page, "words: the file holds none")
    assert page.get_by_text("line 4: <b>no step</b>").is_hidden()
    page.get_by_text("2 problems in reading").click()
    assert page.get_by_text("line 4: <b>no step</b>").is_visible()
    nothing = Inspected("none", ("answer",), (), (), (), np.zeros((0, 0)), {}, [])
    says(left(show([nothing])), "no steps")
