"""Takes docs/page.png: the rollouts of a small run of TRL that flips, as `metastable read` shows them.

Run from the repository's root: ``python docs/make_page.py``. It needs chromium; ``CHROMIUM`` names another one.
"""

import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from studies.kit.read_cli import read

RUN = Path("tests/data/reading/trl/search")
SHOWN = "step=36&workflow=search-answer&episode=0&with.step=38&with.workflow=guess"


def main() -> None:
    """Read the run into a temporary folder and photograph two of its steps side by side."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        out = Path(folder, "search")
        read(RUN, tools=("search",), out=out)
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1280, "height": 1230})
        page.goto(f"{(out / 'index.html').as_uri()}#{SHOWN}")
        page.wait_for_timeout(1000)  # for the words of both steps
        page.screenshot(path="docs/page.png")
        chromium.close()


if __name__ == "__main__":
    main()
