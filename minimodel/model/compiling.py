"""C++ that is compiled where it runs: on first use, with the machine's own compiler, into the user's cache folder."""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["FLAGS", "build", "cache_folder"]

FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC")
"""No -ffast-math: it turns x / (1 + exp(large)) into NaN, and lets a sum depend on where it stands."""


def cache_folder() -> Path:
    """Return where this user's programs keep what they can make again: XDG_CACHE_HOME, or the platform's default.

    Raises
    ------
    RuntimeError
        When the user has no home.
    """
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "metastable"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "metastable"


def build(sources: Sequence[Path], folder: Path) -> Path:
    """Compile the first of `sources`, which includes the others, into a shared library in `folder`; return its path.

    Its name is a hash of the sources, the flags and the processor; what is there already is not compiled again. It
    appears under that name only when it is whole, so that processes which build at once never meet half a library.

    Raises
    ------
    RuntimeError
        When there is no compiler, or it fails.
    OSError
        When the folder cannot be written.
    subprocess.TimeoutExpired
        When the compiler takes more than five minutes.
    """
    whole = hashlib.blake2b(repr((FLAGS, _processor())).encode(), digest_size=12)
    for source in sources:
        whole.update(source.read_bytes())
    made = folder / f"{sources[0].stem}-{whole.hexdigest()}.so"
    if made.exists():
        return made
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "c++", "clang++"))), None)
    if compiler is None:
        raise RuntimeError("there is no C++ compiler on the PATH; install g++, or name one in CXX")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as scratch:
        target = Path(scratch) / made.name
        command = [compiler, *FLAGS, "-o", str(target), str(sources[0])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode or not target.exists():
            raise RuntimeError(f"{compiler} could not compile {sources[0].name}: {done.stderr.strip()[-500:]}")
        target.replace(made)
    return made


def _processor() -> str:
    """Return what -march=native depends on, as a home folder may be shared by unlike machines."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return f"{platform.platform()} {platform.machine()} {platform.processor()}"
    named = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU", "Features")
    return "\n".join(line for line in first if line.startswith(named))
