"""Rollout text is untrusted: in a real browser it is shown, and nothing of it runs."""

from dataclasses import replace

import numpy as np

from sim.records.tables import Outcome
from studies.kit.episodes import Episode, Turn
from studies.kit.inspector.data import Mark, from_episodes
from studies.kit.inspector.page import write
from tests.studies.kit.inspector.pages import left, says

HOSTILE = (
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    "<!--<script>",
    "javascript:window.pwned=1",
    "\"'><svg onload=window.pwned=1>",
    "{{7*7}}${window.pwned=1}",
    "\u2028window.pwned=1//",
    "__proto__",
)


def hostile_run():
    """A run every text of which tries to get out."""

    def turn(text):
        return Turn(text, text, text, context=text, pieces=())

    episodes = [
        Episode(
            step=at, task=text, turns=(turn(text), Turn("answer", text)), reward=0.0, outcome=Outcome.WRONG, prompt=text,
            role=text,
            extras={text: text},
        )
        for at, text in enumerate(HOSTILE)
    ]  # fmt: skip
    everything = "".join(HOSTILE)
    return from_episodes(
        everything, episodes, HOSTILE, columns={text: np.zeros(len(HOSTILE)) for text in HOSTILE},
        marks=[Mark(1, everything, calibrated=True, signal=everything)], absent={everything: everything}, notes=HOSTILE,
    )  # fmt: skip


def test_what_a_rollout_wrote_is_shown_and_not_run(show, sample):
    run = hostile_run()
    pieces = replace(sample.episodes[0].turns[0], pieces=HOSTILE[:4])
    told = replace(sample.episodes[0], step=0, turns=(pieces,))
    run = replace(run, episodes=[*run.episodes, told])
    page = show([run, sample], title=HOSTILE[0])
    assert page.locator("h1").inner_text() == HOSTILE[0]
    article = left(page).locator("article")
    for at, text in enumerate(HOSTILE):
        seen = text.replace("\u2028", "U+2028")
        says(left(page), f"step {at} ·")
        page.wait_for_function(
            "text => document.querySelector('article').textContent.includes(text)", arg=f"Turn 0 {seen}"
        )
        assert article.locator(".prompt .words").text_content() == seen
        assert article.locator(".wrote .words").first.text_content() == seen
        assert article.locator(".back .words").text_content() == seen
        assert [each for each in article.locator("dt").all_inner_texts() if each == seen]
        page.keyboard.press("]")
    page.goto(page.url.partition("#")[0] + f"#episode={2}")
    page.wait_for_function("() => document.querySelectorAll('.tok[data-at]').length === 4")
    assert article.locator(".tok[data-at]").all_inner_texts() == list(HOSTILE[:4])
    article.locator(".tok[data-at]").first.hover()
    says(article, f"“{HOSTILE[0]}”")
    page.keyboard.press("c")
    left(page).get_by_label("Curve").select_option(HOSTILE[1])
    page.get_by_role("searchbox").first.fill("<img")
    page.wait_for_timeout(300)
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("({}).pwned") is None
    assert page.locator("img, svg svg, iframe, a, [onerror], [onload]").count() == 0
    assert (
        page.locator("script").count()
        == page.evaluate("[...document.scripts].filter(s => s.type === 'application/json').length") + 1
    )


def test_the_policy_of_the_page_stops_scripts_and_requests(browser, sample, tmp_path):
    context = browser.new_context()
    page = context.new_page()
    page.goto(write(tmp_path / "page.html", [sample], "x").as_uri())
    found = page.evaluate(
        """async () => {
          const script = document.createElement('script');
          script.textContent = 'window.pwned = 1';
          document.body.append(script);
          const bad = '<img src=x onerror="window.pwned = 2"><a href="javascript:window.pwned = 3">x</a>';
          document.body.insertAdjacentHTML('beforeend', bad);
          document.querySelector('a').click();
          await new Promise((done) => setTimeout(done, 200));
          const refused = await fetch('https://example.invalid/').then(() => 'sent', (error) => error.name);
          return [window.pwned ?? null, refused];
        }"""
    )
    context.close()
    assert found == [None, "TypeError"]


def test_what_cannot_be_seen_is_named(show):
    turn = Turn("search", "a\u202eevil\u202c b\x1b[31m c\u200bd\U000e0041", "first\r\nsecond")
    run = from_episodes("unseen", [Episode(0, 0, (turn,), 1.0, Outcome.SOLVED)], ("search", "answer"))
    page = show([run])
    says(left(page).locator("article"), "Turn 0")
    assert left(page).locator(".wrote .words").text_content() == "aU+202EevilU+202C b\u241b[31m cU+200BdU+E0041"
    assert left(page).locator(".back .words").text_content() == "first\u240d\nsecond"
    assert left(page).locator(".wrote .unseen").count() == 5


def test_long_texts_are_cut_and_can_be_had_whole(show):
    long = "".join(f"word{at} " for at in range(15_000)) + "the end"
    run = from_episodes(
        "long", [Episode(0, 0, (Turn("search", long, long),), 1.0, Outcome.SOLVED, prompt=long)], ("search",)
    )
    page = show([run])
    says(left(page).locator("article"), "Turn 0")
    assert len(long) > 100_000
    left(page).locator(".prompt summary").click()  # a long prompt is folded
    for block in (".prompt", ".wrote", ".back"):
        assert len(left(page).locator(f"{block} .words").text_content()) < 7_000
        left(page).locator(f"{block} .rest").click()
        assert left(page).locator(f"{block} .words").text_content() == long
    left(page).get_by_role("searchbox").fill("word14999 the end")
    says(left(page), "1 rollout")
