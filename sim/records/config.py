"""Strict frozen configs: what was asked for is what is checked, hashed and written down.

A config is a frozen dataclass whose fields are checked when it is built: an unknown key or a value of another type is
an error that names the field, the value and the nearest names. Nothing is coerced (``"3"`` is not ``3``). Configs nest,
a choice is an object (``Sgd(2.4)``), and each writes its own type into JSON, so that what is on record can be
built again.
"""

import dataclasses
import difflib
import importlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, dataclass_transform

from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as pydantic_dataclass
from pydantic.dataclasses import is_pydantic_dataclass

__all__ = [
    "ConfigError",
    "canonical_json",
    "config",
    "difference",
    "flatten",
    "from_dict",
    "grid",
    "near_misses",
    "replace",
    "to_dict",
]

T = TypeVar("T")

_STRICT = ConfigDict(
    extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False, validate_default=True
)


class ConfigError(ValueError):
    """A config was given a field it does not have, or a value its field cannot hold."""


def near_misses(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean a, b?"`` for the names closest to `name`, or the whole list where none is close."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; known: {', '.join(known)}" if known else ""


@dataclass_transform(frozen_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a strict frozen config.

    Raises
    ------
    ConfigError
        When an instance is built with an unknown field, a value of another type, a NaN, or a value its own
        ``__post_init__`` refuses.
    """
    made: Any = pydantic_dataclass(frozen=True, config=_STRICT)(cls)
    build = made.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        for value in (*args, *kwargs.values()):
            if isinstance(value, type):
                raise ConfigError(f"{cls.__name__} was given the class {value.__name__}; call it: {value.__name__}()")
        try:
            build(self, *args, **kwargs)
        except ValidationError as error:
            raise ConfigError(_explain(made, error)) from None

    __init__.__doc__ = build.__doc__
    __init__.__signature__ = inspect.signature(build)  # type: ignore[attr-defined]
    made.__init__ = __init__
    return made


def _explain(cls: type, error: ValidationError) -> str:
    names = [field.name for field in dataclasses.fields(cls)]
    lines = []
    for item in error.errors():
        first, *deeper = item["loc"] or ("",)
        if isinstance(first, int) and first < len(names):  # an argument given by position
            first = names[first]
        where = ".".join(map(str, (first, *deeper)))
        if item["type"] == "unexpected_keyword_argument":
            lines.append(f"{cls.__name__} has no field {where!r}{near_misses(where, names)}")
        elif item["type"] == "value_error":
            lines.append(
                f"{cls.__name__}: {item['ctx']['error']}" if "ctx" in item else f"{cls.__name__}: {item['msg']}"
            )
        elif item["type"] in {"missing", "missing_argument"}:
            lines.append(f"{cls.__name__} needs a value for {where!r}")
        else:
            shown = repr(item["input"])
            lines.append(f"{cls.__name__}.{where} = {shown[:80]}: {item['msg'][0].lower()}{item['msg'][1:]}")
    return "; ".join(lines)


def _is_config(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def type_name(cls: type) -> str:
    """Return the importable name that stands in JSON for `cls`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def to_dict(value: Any) -> Any:
    """Return `value` as plain JSON data; every config carries a ``"type"`` key naming its class.

    Raises
    ------
    ConfigError
        For a value that has no JSON form (a function, an array), named with its path.
    """
    return _plain(value, "config")


def _plain(value: Any, path: str) -> Any:
    if _is_config(value):
        body = {f.name: _plain(getattr(value, f.name), f"{path}.{f.name}") for f in dataclasses.fields(value)}
        return {"type": type_name(type(value)), **body}
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{path}[{key!r}]") for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ConfigError(f"{path} = {value!r} has no JSON form; use a config, a number, a string, a tuple or a mapping")


def from_dict(data: Any) -> Any:
    """Build the config that :func:`to_dict` wrote.

    Lists come back as tuples. Only classes that are configs of the packages ``sim``, ``minimodel``, ``fullscale`` and
    ``studies`` are built, so that a record from elsewhere cannot name arbitrary code.

    Raises
    ------
    ConfigError
        For an unknown type, an unknown field (with near misses), a missing field or a value of another type.
    """
    if isinstance(data, Mapping):
        if "type" not in data:
            return {key: from_dict(item) for key, item in data.items()}
        cls = _resolve(data["type"])
        return cls(**{key: from_dict(item) for key, item in data.items() if key != "type"})
    if isinstance(data, list | tuple):
        return tuple(from_dict(item) for item in data)
    return data


def _resolve(name: Any) -> type:
    module, _, qualname = str(name).rpartition(".")
    if module.split(".")[0] not in {"sim", "minimodel", "fullscale", "studies"}:
        raise ConfigError(f"config type {name!r} is not of this project; records may only name its own configs")
    try:
        found = getattr(importlib.import_module(module), qualname)
    except (ImportError, AttributeError):
        known = [f"{module}.{n}" for n in _names(module)]
        raise ConfigError(f"config type {name!r} does not exist{near_misses(str(name), known)}") from None
    if not (isinstance(found, type) and is_pydantic_dataclass(found)):
        raise ConfigError(f"config type {name!r} is not a config class")
    return found


def _names(module: str) -> list[str]:
    try:
        return [n for n, v in vars(importlib.import_module(module)).items() if dataclasses.is_dataclass(v)]
    except ImportError:
        return []


def canonical_json(value: Any) -> str:
    """Return the one JSON text of `value`: sorted keys, no white space, shortest round-trip floats.

    Raises
    ------
    ConfigError
        For NaN or an infinity, which JSON cannot hold.
    """
    try:
        return json.dumps(to_dict(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"not JSON: {error}; a config may hold finite numbers only") from None


def replace(cfg: T, changes: Mapping[str, Any]) -> T:
    """Return `cfg` with the fields at dotted paths replaced: ``replace(cfg, {"optimiser.rate": 1.2})``.

    Raises
    ------
    ConfigError
        For a path that does not exist (with near misses) or a value of another type.
    """
    if not changes:
        return cfg
    return _replaced(cfg, {tuple(path.split(".")): value for path, value in changes.items()}, "")


def _replaced(cfg: Any, changes: Mapping[tuple[str, ...], Any], at: str) -> Any:
    """Apply all changes of one level at once, so that fields that must fit each other can change together."""
    first = {parts[0] for parts in changes}
    if not _is_config(cfg):
        raise ConfigError(f"{at!r}: {cfg!r} has no fields, so {min(first)!r} cannot be set in it")
    names = [field.name for field in dataclasses.fields(cfg)]
    made = {}
    for name in sorted(first):
        path = f"{at}.{name}" if at else name
        if name not in names:
            raise ConfigError(f"{path!r}: {type(cfg).__name__} has no field {name!r}{near_misses(name, names)}")
        value = changes.get((name,), getattr(cfg, name))
        deeper = {parts[1:]: v for parts, v in changes.items() if parts[0] == name and len(parts) > 1}
        made[name] = _replaced(value, deeper, path) if deeper else value
    return dataclasses.replace(cfg, **made)


def grid(
    base: T, axes: Mapping[str, Iterable[Any]], label: Callable[[Mapping[str, Any]], str] | None = None
) -> dict[str, T]:
    """Return every combination of the values in `axes` (dotted path -> values) applied to `base`, by label.

    >>> from sim.records.config import config, grid
    >>> @config
    ... class Point:
    ...     x: int = 0
    >>> list(grid(Point(), {"x": (1, 2)}))
    ['x=1', 'x=2']
    """
    named = label or (lambda point: ", ".join(f"{path}={value}" for path, value in point.items()))
    points: Iterator[dict[str, Any]] = (
        dict(zip(axes, values, strict=True)) for values in itertools.product(*(tuple(v) for v in axes.values()))
    )
    found: dict[str, T] = {}
    for point in points:
        name = named(point)
        if name in found:
            raise ConfigError(f"two points of the grid have the same label {name!r}; make the labels tell them apart")
        found[name] = replace(base, point)
    return found


def flatten(cfg: Any) -> dict[str, Any]:
    """Return every leaf of `cfg` under its dotted path."""
    return dict(_leaves(to_dict(cfg), ""))


def _leaves(data: Any, path: str) -> Iterator[tuple[str, Any]]:
    items: Iterable[tuple[str, Any]]
    if isinstance(data, dict):
        items = data.items()
    elif isinstance(data, list):
        items = ((str(i), item) for i, item in enumerate(data))
    else:
        yield path, data
        return
    for key, item in items:
        yield from _leaves(item, f"{path}.{key}" if path else key)


def difference(a: Any, b: Any) -> dict[str, tuple[Any, Any]]:
    """Return the leaves in which two configs differ, by dotted path; a side without the path shows ``None``."""
    left, right = flatten(a), flatten(b)
    paths = list(left) + [p for p in right if p not in left]

    def same(x: Any, y: Any) -> bool:
        return bool(x == y or (isinstance(x, float) and isinstance(y, float) and math.isnan(x) and math.isnan(y)))

    return {p: (left.get(p), right.get(p)) for p in paths if not same(left.get(p), right.get(p))}
