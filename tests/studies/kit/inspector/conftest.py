import os
import shutil
from pathlib import Path

import pytest

from studies.kit.inspector.page import write
from tests.studies.kit.inspector.pages import trained

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def sample():
    """The run worked by hand that most tests read: steps 0, 10, .. 40 of eight rollouts."""
    return trained()


def _browser_path():
    named = os.environ.get("CHROMIUM")
    return named or next((path for path in map(shutil.which, BROWSERS) if path), None)


def _without(reason):
    """A browser must be there in continuous integration; elsewhere the tests that need one are skipped."""
    if os.environ.get("CI") or os.environ.get("METASTABLE_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")  # while it runs, no test of the process can start an event loop of its own
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _without("no Playwright: install metastable[dev]")
    path = _browser_path()
    if path is None:
        _without(f"no browser: none of {', '.join(BROWSERS)} is on the path; install one or set CHROMIUM")
    sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # chromium refuses root its own
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield started
        started.close()


@pytest.fixture
def show(browser, tmp_path):
    """``show(runs, link, **context)`` writes the page and opens it from its file.

    Afterwards no script may have failed, nothing may have been logged, and nothing but the file may have been asked for.
    """
    contexts, wrong, asked = [], [], set()

    def opened(runs, link="", title="Rollouts", **context):
        context = {"viewport": {"width": 1280, "height": 900}, **context}
        contexts.append(browser.new_context(**context))
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: asked.add(request.url.partition("#")[0]))
        path = runs if isinstance(runs, Path) else write(tmp_path / f"page{len(contexts)}.html", runs, title)
        page.goto(path.as_uri() + link)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert all(url.startswith("file:///") and url.endswith(".html") for url in asked), asked
