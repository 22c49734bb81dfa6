"""Write what is on record for the kernels into docs/kernels.md and README.md: ``python docs/make_kernels.py``.

Both are files with prose; only what stands between two marks is written. A figure of speed on a card may stand nowhere else.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from fullscale.kernels.unlocking import SOURCES, Record, read_all, shortfall, source_hash
from fullscale.validate_gpu.table import table

FOLDER = Path(__file__).resolve().parent
RECORDS = FOLDER.parent / "fullscale" / "records"
MARKS = {
    "records": ("<!-- records: written by `python docs/make_kernels.py` -->", "<!-- end of records -->"),
    "figures": ("<!-- gpu figures: written by `python docs/make_kernels.py` -->", "<!-- end of gpu figures -->"),
}
NO_FIGURE = "No record on a card, so no figure."

_CARD = r"\b(?:[ABHV][1-3]00|RTX|GH200|L40S?|CUDA|GPU)\b"
_QUANTITY = r"\d\s*(?:ms|µs|GB/s|TB/s|TFLOP)|\d[\d.]* times as fast|\d\s*%"
FIGURE = re.compile(rf"TFLOP|{_CARD}[^.]*(?:{_QUANTITY})|(?:{_QUANTITY})[^.]*{_CARD}")
"""A figure of speed on a card, in a sentence: a rate in TFLOP/s, or a quantity and a card named together."""


def passed(folder: Path = RECORDS) -> list[Record]:
    """Return the committed records that show something on a card, newest first; ValueError for a file that is none."""
    found, damaged = read_all((folder,))
    if damaged:
        raise ValueError("; ".join(damaged))
    real = [r for r in found if not r.header["dry_run"] and r.header["card"] and shortfall(r) is None]
    return sorted(real, key=lambda r: r.header["date"], reverse=True)


def records(found: Sequence[Record]) -> str:
    """Return the table: for each backend the newest record that passed on each card."""
    lines = ["| backend | card | passed on | Triton | code | |", "|---|---|---|---|---|---|"]
    for backend in (name for name in SOURCES if name != "reference"):  # what the others are held against, on a CPU
        newest: dict[str, Record] = {}
        for record in found:
            if record.header["backend"] == backend:
                newest.setdefault(record.header["card"], record)
        if not newest:
            lines.append(f"| `{backend}` | | never run on a card | | | |")
        for card, record in newest.items():
            its = record.header
            same = "this code" if its["source_hash"] == source_hash(backend) else "other code: unlocks nothing now"
            lines.append(
                f"| `{backend}` | {card} | {its['date'][:10]} | {its['versions']['triton']} | "
                f"`{its['source_hash'][:12]}` | {same} |"
            )
    return "\n".join(lines)


def figures(found: Sequence[Record]) -> str:
    """Return the newest record's own table, or that there is none."""
    measured = [r for r in found if r.header["backend"] == "triton" and any(c["phase"] == "bench" for c in r.cases)]
    if not measured:
        return NO_FIGURE
    return "\n".join([f"From `fullscale/records/{measured[0].path.name}`:", "", "```", *table(measured[0]), "```"])


def between(text: str, which: str) -> str | None:
    """Return what stands between two marks; None where they are not, ValueError where one is missing."""
    start, end = MARKS[which]
    if start not in text and end not in text:
        return None
    _, mark, rest = text.partition(start)
    inner, other, _ = rest.partition(end)
    if not (mark and other):
        raise ValueError(f"a mark of {which} is missing; there must be both, {start} first")
    return inner.strip("\n")


def outside(text: str) -> str:
    """Return the text without what stands between the marks of figures."""
    inner = between(text, "figures")
    return text if not inner else text.replace(inner, "")


def write(path: Path, which: str, content: str) -> None:
    """Put `content` between two marks of a file, if it has them."""
    text = path.read_text(encoding="utf-8")
    if between(text, which) is None:
        return
    start, end = MARKS[which]
    before, after = text.partition(start)[0], text.partition(end)[2]
    path.write_text(f"{before}{start}\n\n{content}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    on_record = passed()
    write(FOLDER / "kernels.md", "records", records(on_record))
    for page in (FOLDER / "kernels.md", FOLDER.parent / "README.md"):
        write(page, "figures", figures(on_record))
