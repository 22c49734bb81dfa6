import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.learning.optimisers import Sgd
from sim.mdp.worlds import PRESETS, Verify, World
from sim.records.config import (
    ConfigError,
    canonical_json,
    config,
    difference,
    flatten,
    from_dict,
    grid,
    near_misses,
    replace,
    to_dict,
)


@config
class Inner:
    rate: float = 0.5
    steps: int = 3


@config
class Outer:
    name: str
    inner: Inner = Inner()
    parts: tuple[Inner, ...] = ()
    spare: Inner | None = None


@config
class Band:
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low} must be below high = {self.high}")


# --- strict and frozen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Inner(raet=1.0), "Inner has no field 'raet'; did you mean rate"),
        (lambda: Inner(rate="0.5"), "Inner.rate = '0.5'"),
        (lambda: Inner(steps=3.0), "Inner.steps = 3.0"),
        (lambda: Inner(steps=True), "Inner.steps = True"),
        (lambda: Inner(rate=math.nan), "Inner.rate = nan"),
        (lambda: Inner(rate=math.inf), "Inner.rate = inf"),
        (lambda: Outer(), "Outer needs a value for 'name'"),
        (lambda: Outer("x", inner=3), "Outer.inner = 3"),
        (lambda: Outer("x", parts=[Inner()]), "Outer.parts"),
        (lambda: Band(low=2.0), "Band: low = 2.0 must be below high = 1.0"),
    ],
)
def test_refusals_name_the_field_and_the_value(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_it_cannot_be_changed():
    with pytest.raises(AttributeError):
        Inner().rate = 2.0


def test_equal_configs_are_equal_and_hash_alike():
    assert Outer("a", Inner(0.25)) == Outer("a", Inner(0.25))
    assert hash(Outer("a")) == hash(Outer("a"))
    assert Outer("a") != Outer("b")


def test_an_int_in_a_float_field_is_that_float():
    assert canonical_json(Inner(rate=2)) == canonical_json(Inner(rate=2.0))


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_canonical_text_by_hand():
    text = canonical_json(Inner(rate=0.1))
    assert text == '{"rate":0.1,"steps":3,"type":"' + f"{Inner.__module__}.Inner" + '"}'
    assert canonical_json({"b": (1, 2.0), "a": "é"}) == '{"a":"é","b":[1,2.0]}'


@pytest.mark.parametrize("bad", [math.nan, math.inf, {"x": [math.nan]}])
def test_numbers_that_json_cannot_hold_are_refused(bad):
    with pytest.raises(ConfigError, match="finite numbers only"):
        canonical_json(bad)


def test_values_without_a_json_form_are_named_by_path():
    with pytest.raises(ConfigError, match=r"config\['x'\]\[1\] = "):
        to_dict({"x": [1, np.zeros(2)]})


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_built_again_from_what_they_wrote(name):
    world = PRESETS[name]()
    assert from_dict(json.loads(canonical_json(world))) == world


PROBABILITY = st.floats(0.01, 0.99)


@given(
    st.builds(
        World, known=PROBABILITY, hit_unknown=PROBABILITY, turns=st.integers(1, 9), verify=st.none() | st.just(Verify())
    )
)
def test_text_and_back(world):
    again = from_dict(json.loads(canonical_json(world)))
    assert again == world
    assert canonical_json(again) == canonical_json(world)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_canonical_text_is_json_of_the_same_value(value):
    text = canonical_json(value)
    assert json.loads(text) == value
    assert canonical_json(json.loads(text)) == text


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=2), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(mapping, random):
    keys = list(mapping)
    random.shuffle(keys)
    assert canonical_json({k: mapping[k] for k in keys}) == canonical_json(mapping)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"type": "os.system", "command": "true"}, "not of this project"),
        (
            {"type": "sim.learning.optimisers.Sdg", "rate": 1.0},
            "does not exist; did you mean sim.learning.optimisers.Sgd",
        ),
        ({"type": "sim.learning.nowhere.Sgd"}, "does not exist"),
        ({"type": "sim.records.config.to_dict"}, "is not a config class"),
        ({"type": "sim.learning.optimisers.Sgd", "raet": 1.0}, "Sgd has no field 'raet'; did you mean rate"),
        ({"type": "sim.learning.optimisers.Sgd"}, "Sgd needs a value for 'rate'"),
        ({"type": "sim.learning.optimisers.Sgd", "rate": "1"}, "Sgd.rate = '1'"),
        ({"type": 3}, "not of this project"),
    ],
)
def test_a_record_names_only_configs_of_the_project(data, message):
    with pytest.raises(ConfigError, match=message):
        from_dict(data)


def test_a_plain_record_is_no_config():
    """`Terminal` is a dataclass of the project, but not one that is checked: a record may not build it."""
    with pytest.raises(ConfigError, match=r"'sim.mdp.graph.Terminal' is not a config"):
        from_dict({"type": "sim.mdp.graph.Terminal", "name": "end", "reward": "much"})


# --- variants ---------------------------------------------------------------------------------------------------------


def test_replace_goes_down_dotted_paths_and_leaves_the_original():
    base = Outer("a")
    changed = replace(base, {"inner.rate": 0.75, "name": "b"})
    assert (changed.name, changed.inner) == ("b", Inner(0.75))
    assert base == Outer("a")
    assert replace(base, {}) is base


def test_fields_that_depend_on_each_other_are_replaced_together():
    assert replace(Band(), {"low": 2.0, "high": 3.0}) == Band(2.0, 3.0)
    assert replace(Band(2.0, 3.0), {"low": 0.0, "high": 1.0}) == Band()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("inner.raet", 1.0, "'inner.raet': Inner has no field 'raet'; did you mean rate"),
        ("iner.rate", 1.0, "Outer has no field 'iner'; did you mean inner"),
        ("name.x", 1, "has no fields"),
        ("spare.rate", 1.0, "None has no fields"),
        ("inner.steps", "4", "Inner.steps = '4'"),
    ],
)
def test_replace_refuses(path, value, message):
    with pytest.raises(ConfigError, match=message):
        replace(Outer("a"), {path: value})


def test_differences_by_path():
    a = Outer("a", parts=(Inner(),))
    b = Outer("b", Inner(0.75), parts=(Inner(), Inner(steps=9)))
    found = difference(a, b)
    assert found["name"] == ("a", "b")
    assert found["inner.rate"] == (0.5, 0.75)
    assert found["parts.1.steps"] == (None, 9)
    assert "inner.steps" not in found
    assert difference(a, a) == {}


@given(st.floats(0.1, 5), st.floats(0.1, 5))
def test_differences_turn_round(x, y):
    a, b = Sgd(x), Sgd(y)
    assert difference(b, a) == {k: (v, u) for k, (u, v) in difference(a, b).items()}
    assert bool(difference(a, b)) == (x != y)


def test_every_leaf_has_a_path():
    assert flatten(Outer("a", spare=None)) == {
        "type": f"{Outer.__module__}.Outer",
        "name": "a",
        "inner.type": f"{Inner.__module__}.Inner",
        "inner.rate": 0.5,
        "inner.steps": 3,
        "spare": None,
    }


def test_a_grid_is_every_combination_by_label():
    points = grid(Outer("a"), {"inner.rate": (0.1, 0.2), "inner.steps": (1, 2, 3)})
    assert len(points) == 6
    assert points["inner.rate=0.2, inner.steps=3"].inner == Inner(0.2, 3)
    named = grid(Inner(), {"steps": (1, 2)}, label=lambda point: f"{point['steps']} steps")
    assert list(named) == ["1 steps", "2 steps"]


def test_a_grid_does_not_lose_points_of_one_label():
    with pytest.raises(ValueError, match="same"):
        grid(Inner(), {"steps": (1, 2)}, label=lambda point: "same")


def test_near_misses():
    assert near_misses("serch", ("answer", "search", "verify")).startswith("; did you mean search")
    assert near_misses("rate", ("rate",)) == "; did you mean rate?"
    assert near_misses("zzz", ("search", "answer")) == "; known: search, answer"
    assert near_misses("zzz", ()) == ""
