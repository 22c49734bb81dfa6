"""``metastable cite``: what to write where a claim is used."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from studies import FOLDER
from studies.kit.words import CommandError

__all__ = ["cite"]

_Claim = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CLAIM")]


def cite(
    claim: _Claim,
    format: Literal["text", "bibtex", "json"] = "text",  # noqa: A002 -- the name of the option
    rung: Literal["sim", "minimodel", "fullscale"] | None = None,
    folder: Path = FOLDER,
) -> int:
    """Print how to cite a claim: its sentence, verdict, effect, interval, n, seeds, code, and the command to make it again.

    Args:
        claim: Id of the claim, as `metastable list` prints it.
        format: In words, as a BibTeX entry, or as JSON.
        rung: The rung to cite; by default each that is on record.
        folder: Folder of the studies.
    """
    from studies.kit import cite as citing
    from studies.kit.records import RecordError

    if not folder.is_dir():
        raise CommandError(f"no folder {str(folder)!r}: give the one that holds study_*.py with --folder")
    try:
        cited = citing.cite(claim, folder, rung)
    except RecordError as error:
        raise CommandError(str(error)) from error
    about = citing.project()
    if format == "json":
        sys.stdout.write(citing.as_json(cited, about) + "\n")
        return 0
    form = citing.as_text if format == "text" else citing.as_bibtex
    sys.stdout.write("\n\n".join(form(each, about) for each in cited) + "\n")
    return 0
