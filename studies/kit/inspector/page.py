"""The inspector's page: one HTML file that carries its data and its script, and opens without a server.

Rollout text is untrusted. It enters the page as data alone (`studies.kit.inspector.encode`), the script writes it with
``textContent``, and a content policy admits that one script by its hash and no network.
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from studies.kit.inspector.data import Inspected
from studies.kit.inspector.encode import blocks, harmless, index
from studies.kit.report import environment

__all__ = ["page", "write"]

_FOLDER = Path(__file__).parents[1] / "templates"
_SCRIPTS = ("make", "store", "chart", "list", "tokens", "episode", "pane", "main")


def page(runs: Sequence[Inspected], title: str) -> str:
    """Return the page that shows ``runs``, any two of which can be read side by side.

    ValueError if there is no run.
    """
    if not runs:
        raise ValueError("a page of no runs: give at least one")
    style = "\n" + _read("inspector.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_read(f"inspector/{name}.js") for name in _SCRIPTS) + "})();\n"
    return (
        environment()
        .get_template("inspector.html.j2")
        .render(
            title=title,
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
            index=harmless({"runs": [index(run) for run in runs]}),
            blocks=[(f"r{at}-{step}", packed) for at, run in enumerate(runs) for step, packed in blocks(run).items()],
        )
    )


def write(path: Path, runs: Sequence[Inspected], title: str) -> Path:
    """Write the page to ``path``, making its folder, and return the path."""
    text = page(runs, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the source expression that admits an inline element of this text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
