"""How weights reach a server, and how it is known that they did.

A publisher makes the server hold a version, then asks it which one it holds. Only what the server itself says is believed:
the engine stamps no version that was not confirmed.
"""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from fullscale.engine.http.chunk import ViolationError, part
from fullscale.engine.http.client import Client

__all__ = ["FixedWeights", "FromDisk", "Loader", "Publisher", "SglangWeights", "VllmWeights", "save_safetensors"]

Save = Callable[[Any, Path], None]
"""(a model, an empty folder): writes the weights into it."""


class Publisher(Protocol):
    """What makes a server hold weights."""

    def publish(self, version: int, model: Any) -> None:
        """Make the server hold `model` under this version; nothing is being sampled meanwhile."""
        ...

    def held(self) -> str:
        """Return the version that the server says it holds."""
        ...


class Loader(Protocol):
    """What makes a server read weights from a folder that it can see."""

    def load(self, version: int, folder: Path) -> None:
        """Make it read them."""
        ...

    def held(self) -> str:
        """Return the version that the server says it holds."""
        ...


class FixedWeights:
    """A server whose weights do not change: any version but the one it has is refused.

    Parameters
    ----------
    client
        The server.
    version
        The version it has.
    name
        Name under which its ``/v1/models`` lists the model first: how it is known for the server that is meant.
    """

    def __init__(self, client: Client, version: int, name: str) -> None:
        self.client, self.version, self.name = client, version, name

    def publish(self, version: int, model: Any) -> None:
        """Accept the version that the server has.

        Raises
        ------
        ValueError
            For any other.
        """
        if version != self.version:
            raise ValueError(
                f"the weights of {self.client.url} are fixed at version {self.version}, not {version}; to train, pass a "
                "publisher that loads weights (FromDisk)"
            )

    def held(self) -> str:
        """Return the version, if the server lists the model; else the name it lists."""
        found = part(self.client.get("/v1/models"), "data", 0, "id")
        return str(self.version) if found == self.name else f"another model, {found!r}"


class FromDisk:
    """Saves every version into a folder of its own, and makes the server load it from there.

    Parameters
    ----------
    folder
        Where the folders are made; the server must see it under the same name.
    loader
        How the server is told.
    save
        How a model is written: :func:`save_safetensors`, or as GGUF.
    keep
        Versions that stay on disk, the newest.
    """

    def __init__(self, folder: Path, loader: Loader, save: Save | None = None, *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep = {keep} must be at least 1: the server reads the newest version")
        self.folder, self.loader, self.keep = Path(folder), loader, keep
        self.save = save_safetensors if save is None else save
        self._made: list[Path] = []

    def publish(self, version: int, model: Any) -> None:
        """Save the model, and make the server load it."""
        place, building = self.folder / f"version-{version:06d}", self.folder / f".version-{version:06d}.part"
        for old in (place, building):
            shutil.rmtree(old, ignore_errors=True)
        building.mkdir(parents=True)
        self.save(merged(model), building)
        building.replace(place)
        self.loader.load(version, place.resolve())
        self._made = [each for each in self._made if each != place] + [place]
        for old in self._made[: -self.keep]:
            shutil.rmtree(old)
        self._made = self._made[-self.keep :]

    def held(self) -> str:
        """Return the version that the server says it holds."""
        return self.loader.held()


class VllmWeights:
    """Makes vLLM load weights from disk. It could not be run here: this is its documented form, and nothing more.

    The server must be started with ``VLLM_SERVER_DEV_MODE=1``. Its scheduler is paused while what runs ends, the weights are
    reloaded by all workers, the version is set, the prefix cache emptied, and the scheduler resumed.
    """

    def __init__(self, client: Client) -> None:
        self.client = client

    def load(self, version: int, folder: Path) -> None:
        """Make it read them."""
        self.client.post("/pause?mode=wait", {})
        try:
            self.client.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            self.client.post("/update_weight_version", {"new_version": str(version)})
            self.client.post("/reset_prefix_cache", {})
        finally:
            self.client.post("/resume", {})

    def held(self) -> str:
        """Return the version that the server says it holds."""
        return str(part(self.client.get("/weight_info"), "weight_version"))


class SglangWeights:
    """Makes SGLang load weights from disk. It could not be run here: this is its documented form, and nothing more."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def load(self, version: int, folder: Path) -> None:
        """Make it read them.

        Raises
        ------
        ViolationError
            When the server says that it could not.
        """
        answer = self.client.post(
            "/update_weights_from_disk",
            {"model_path": str(folder), "weight_version": str(version), "flush_cache": True},
        )
        if part(answer, "success") is not True:
            raise ViolationError("version", f"the server did not load version {version}: {answer.get('message')}")

    def held(self) -> str:
        """Return the version that the server says it holds."""
        return str(part(self.client.get("/model_info"), "weight_version"))


def save_safetensors(model: Any, folder: Path) -> None:
    """Write a Hugging Face model as safetensors."""
    model.save_pretrained(folder)


def merged(model: Any) -> Any:
    """Return a model as a server wants it: under an adapter, a copy with the adapter merged into the weights."""
    return copy.deepcopy(model).merge_and_unload() if hasattr(model, "merge_and_unload") else model
