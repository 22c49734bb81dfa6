"""Places in a config: what stands at a dotted path, what may stand there, and how it is read from text."""

import ast
import dataclasses
import math
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.dataclasses import is_pydantic_dataclass

from studies.kit.words import near

__all__ = ["GridError", "Place", "has", "locate", "paths"]

_WORDS = {"true": True, "false": False, "none": None}


class GridError(ValueError):
    """What a sweep was asked to vary cannot be varied; the message says why and what can."""


@dataclass(frozen=True)
class Place:
    """A field of a config."""

    path: str
    """Dotted path from the config to the field."""
    owner: type
    """The class whose field it is."""
    hint: Any
    """Its annotation."""
    value: Any
    """What stands there."""

    def read(self, text: str) -> Any:
        """Return the value that a text means here.

        Numbers, ``true``, ``false``, ``none`` and text as the field's type has them; an object of a config class by its
        name and literal arguments, such as ``MicrobatchMean(8)``. Nothing is evaluated. GridError says what the field
        takes.
        """
        plain = text.strip()
        if plain.lower() in _WORDS and _fits(_WORDS[plain.lower()], self.hint):
            return _WORDS[plain.lower()]
        if _fits(plain, self.hint):
            return plain
        try:
            tree = ast.parse(plain, mode="eval").body
        except SyntaxError:
            raise self._refused(repr(plain)) from None
        return self.checked(self._built(tree, plain))

    def checked(self, value: Any) -> Any:
        """Return a value as the field takes it: a whole number as a float where that is the type, numpy's as builtins."""
        value = value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
        if type(value) is int and not _fits(value, self.hint) and _fits(float(value), self.hint):
            value = float(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise GridError(f"{self.path} = {value}: a config holds finite numbers only")
        if not _fits(value, self.hint):
            raise self._refused(repr(value))
        return value

    @property
    def whole(self) -> bool:
        """Whether it takes whole numbers and no others."""
        return _fits(1, self.hint) and not _fits(1.0, self.hint)

    @property
    def numeric(self) -> bool:
        """Whether it takes numbers."""
        return _fits(1, self.hint) or _fits(1.0, self.hint)

    @property
    def takes(self) -> str:
        """What the field takes, in words."""
        names = sorted(_classes(self))
        if not names:
            return _name(self.hint)
        inside = [field.name for field in dataclasses.fields(self.value)] if has_fields(self.value) else []
        single = f"; for one of its fields give its path, as in {self.path}.{inside[0]}" if inside else ""
        return f"{_name(self.hint)}: {', '.join(f'{name}(...)' for name in names)}{single}"

    def _refused(self, shown: str) -> GridError:
        return GridError(f"{self.path} = {shown}: {self.owner.__name__}.{self.path.split('.')[-1]} takes {self.takes}")

    def _built(self, tree: ast.expr, text: str) -> Any:
        """Build what a syntax tree says: a literal, or a call of a config class with such arguments."""
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            known = _classes(self)
            name = tree.func.id
            if name not in known:
                raise GridError(f"{self.path} = {text!r}: there is no {name} to put here; {near(name, known)}")
            keywords = {str(word.arg): self._built(word.value, text) for word in tree.keywords if word.arg}
            if len(keywords) < len(tree.keywords):
                raise self._refused(repr(text))
            try:
                return known[name](*(self._built(item, text) for item in tree.args), **keywords)
            except (TypeError, ValueError) as error:
                raise GridError(f"{self.path} = {text!r}: {error}") from None
        try:
            return ast.literal_eval(tree)
        except ValueError:
            raise self._refused(repr(text)) from None


def locate(config: Any, path: str) -> Place:
    """Return the place at a dotted path. GridError with the near misses where the config has no such field."""
    owner, place = config, None
    for depth, name in enumerate(path.split(".")):
        at = ".".join(path.split(".")[:depth])
        if not dataclasses.is_dataclass(owner) or isinstance(owner, type):
            raise GridError(f"{path!r}: {at or 'the config'} is {owner!r} and has no field {name!r}")
        names = [field.name for field in dataclasses.fields(owner)]
        if name not in names:
            raise GridError(
                f"{path!r}: {type(owner).__name__} has no field {name!r}; {_elsewhere(config, name, names)}"
            )
        hint = get_type_hints(type(owner))[name]
        owner, place = getattr(owner, name), Place(path, type(owner), hint, getattr(owner, name))
    assert place is not None  # a path has a name in it
    return place


def has_fields(value: Any) -> bool:
    """Whether a value is a config with fields."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and bool(dataclasses.fields(value))


def has(config: Any, path: str) -> bool:
    """Whether a config has a field at a dotted path."""
    for name in path.split("."):
        if not has_fields(config) or name not in {field.name for field in dataclasses.fields(config)}:
            return False
        config = getattr(config, name)
    return True


def paths(config: Any, at: str = "") -> Iterator[str]:
    """Yield the dotted paths of a config's fields, those of nested configs after their own."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        for field in dataclasses.fields(config):
            path = f"{at}.{field.name}" if at else field.name
            yield path
            yield from paths(getattr(config, field.name), path)


def _elsewhere(config: Any, name: str, names: list[str]) -> str:
    """Say what is near: a field of that name elsewhere in the config, or the like-named fields here."""
    same = [path for path in paths(config) if path.split(".")[-1] == name][:3]
    return "did you mean " + " or ".join(map(repr, same)) + "?" if same else near(name, names)


def _classes(place: Place) -> Mapping[str, type]:
    """Return the config classes that a place can hold, by name: those its owner's module or its value's knows."""
    modules = {place.owner.__module__, type(place.value).__module__}
    modules |= {part.__module__ for part in _parts(place.hint) if isinstance(part, type)}
    known = [item for module in modules & sys.modules.keys() for item in vars(sys.modules[module]).items()]
    return {
        name: value
        for name, value in known
        if isinstance(value, type) and is_pydantic_dataclass(value) and _holds(value, place.hint)
    }


def _holds(known: type, hint: Any) -> bool:
    """Whether an object of a class may stand where the annotation does."""
    return any(isinstance(part, type) and part not in _PLAIN and _subclass(known, part) for part in _parts(hint))


def _subclass(known: type, part: type) -> bool:
    try:
        return issubclass(known, part)
    except TypeError:  # a protocol with members that are not methods
        return False


_PLAIN = (int, float, bool, str, type(None), object)


def _parts(hint: Any) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the annotated type, strictly: an int is no float here and a bool no int."""
    for part in _parts(hint):
        origin = get_origin(part)
        if part is Any:
            return True
        if origin is Literal:
            if any(type(value) is type(item) and value == item for item in get_args(part)):
                return True
        elif part in _PLAIN[:4]:
            if type(value) is part:
                return True
        elif part is None or part is type(None):
            if value is None:
                return True
        elif isinstance(origin or part, type) and _instance(value, origin or part):
            return True
    return False


def _instance(value: Any, part: type) -> bool:
    try:
        return isinstance(value, part)
    except TypeError:  # a protocol that cannot be asked at run time: the config decides
        return dataclasses.is_dataclass(value)


def _name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(repr(item) for item in get_args(hint))
    if len(_parts(hint)) > 1:
        return " or ".join(_name(part) for part in _parts(hint))
    return "none" if hint is type(None) else getattr(hint, "__name__", str(hint))
