"""A few passages and places, small enough to know by heart."""

from typing import Any

from fullscale.world.geography import Gazetteer
from fullscale.world.passages import Passage

PASSAGES = [
    Passage("fr", "France", "France is a country in Europe. It borders Spain. Its capital and largest city is Paris."),
    Passage("paris", "Paris", "Paris is the capital of France, a city on the Seine."),
    Passage("es", "Spain", "Spain lies in Europe and partly in Africa, and borders France. Its capital is Madrid."),
    Passage("lyon", "Lyon", "Lyon is a city in France."),
    Passage("st", "São Tomé and Príncipe", "An island country in Africa, whose capital city is São Tomé."),
    Passage("lux", "Luxembourg (country)", "Luxembourg lies in Europe; its capital is Luxembourg."),
    Passage(
        "bo",
        "Bolivia",
        "Bolivia is in South America. Sucre is the constitutional capital, La Paz the seat of government.",
    ),
    Passage("valencia", "Valencia", "Valencia is a city on the coast of Spain."),
    Passage("boston", "Boston", "Boston is a city in Massachusetts, United States."),
    Passage("hendaye", "Hendaye", "Hendaye is a city on the border of France and Spain."),
    Passage("mercury", "Mercury", "Mercury is a planet."),
]


def country(name: str, capital: str, continent: str, neighbours: str = "") -> dict[str, Any]:
    return {"name": name, "capital": capital, "continentcode": continent, "neighbours": neighbours}


def city(name: str, code: str, *others: str, state: str = "", people: int = 10**5) -> dict[str, Any]:
    names = {"name": name, "alternatenames": list(others)}
    return {**names, "countrycode": code, "admin1code": state, "population": people}


PLACES = Gazetteer(
    countries={
        "FR": country("France", "Paris", "EU", "ES"),
        "ES": country("Spain", "Madrid", "EU", "FR"),
        "ST": country("Sao Tome and Principe", "Sao Tome", "AF"),
        "LU": country("Luxembourg", "Luxembourg", "EU"),
        "BO": country("Bolivia", "Sucre", "SA"),
        "VE": country("Venezuela", "Caracas", "SA"),
        "US": country("United States", "Washington", "NA"),
    },
    continents={"EU": "Europe", "AF": "Africa", "SA": "South America", "NA": "North America"},
    cities=[
        city("Paris", "FR", "PAR", "Lutetia", "Париж", "parizh"),
        city("Lyon", "FR"),
        city("Hendaye", "FR"),
        city("Hendaye", "ES"),
        city("Valencia", "ES"),
        city("Valencia", "VE", people=10**6),
        city("Boston", "US", state="MA"),
        city("Mercury", "US", state="NV"),
    ],
    states={"MA": "Massachusetts", "NV": "Nevada"},
    other_names={"USA": "United States", "French Republic": "France"},
)
