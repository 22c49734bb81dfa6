import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit import (
    ClaimError,
    Control,
    Prediction,
    above,
    agreement,
    below,
    claim,
    identity,
    mean,
    rank,
    rate,
    rate_difference,
    time,
    trend,
    within,
)
from studies.kit.claims import build

GOOD = {"says": "It flips.", "kind": rate(), "region": above(0.5)}


def made(**changes):
    return build("it-flips", {**GOOD, **changes})


def test_a_claim_is_a_mark_and_claims_stack():
    @claim("it-flips", **GOOD)
    @claim("it-stays", says="It stays.", kind=rate(), region=below(0.5), seeds=64)
    def study():
        pass

    ids = [mark.args[0].id for mark in study.pytestmark]
    assert sorted(ids) == ["it-flips", "it-stays"]
    assert {mark.name for mark in study.pytestmark} == {"claim"}


def test_defaults():
    plain = made()
    assert (plain.seeds, plain.expect, plain.rungs, plain.long) == (8, None, ("sim",), False)
    assert made(kind=agreement(1e-9), region=None).seeds == 1  # nothing random


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expects": "supported"}, "no keyword 'expects'; did you mean 'expect'"),
        ({"predict": 1}, "did you mean 'predicts'"),
        ({"says": ""}, "needs says="),
        ({"kind": None}, "needs kind="),
        ({"kind": rate}, r"call it, as in kind=rate\(\)"),
        ({"region": None}, "needs region="),
        ({"region": 0.5}, "use above, below or within"),
        ({"expect": "suported"}, "did you mean 'supported'"),
        ({"expect": "no verdict"}, "cannot be on record"),
        ({"seeds": 5}, "6 or more"),
        ({"seeds": True}, "6 or more"),
        ({"seeds": 8.0}, "6 or more"),
        ({"rungs": "sim"}, "must be a tuple"),
        ({"rungs": ()}, "must be a tuple"),
        ({"rungs": ("simm",)}, "did you mean 'sim'"),
        ({"predicts": 0.5}, "must be a Prediction"),
        ({"region": {"sim": above(0)}, "rungs": ("sim", "minimodel")}, "says nothing about 'minimodel'"),
        ({"seeds": {"sim": 8, "minimodel": 4}, "rungs": ("sim", "minimodel")}, "6 or more"),
    ],
)
def test_a_claim_that_is_not_well_formed_is_refused(changes, message):
    with pytest.raises(ClaimError, match=message):
        made(**changes)


@pytest.mark.parametrize(
    ("kind", "region", "message"),
    [
        (rate(), above(1.5), r"'it-flips': region > 1.5 for kind=rate, whose values run from 0 to 1: put"),
        (rate(), above(1), "> 1 for kind=rate"),  # holds none of the values
        (rate(), below(0), "< 0 for kind=rate"),
        (rank(), within(-0.5, 0.5), "from 0 to 1"),
        (rate_difference(), below(-1.1), "from -1 to 1"),
        (trend(), above(2), "from -1 to 1"),
        (time(), above(-1), "0 or more"),
        (mean(scale="log"), above(-1), "0 or more"),
    ],
)
def test_a_region_beyond_what_the_kind_can_give_is_refused(kind, region, message):
    with pytest.raises(ClaimError, match=message):
        made(kind=kind, region=region)


def test_a_region_may_reach_the_ends_of_the_range():
    for kind, region in ((rate(), within(0.9, 1)), (rate_difference(), below(1)), (mean(symmetric=True), above(-9))):
        assert made(kind=kind, region=region).region == region


@pytest.mark.parametrize("name", ["It-flips", "it_flips", "it--flips", "-it", "it-", "", "it flips", 3])
def test_ids_are_kebab_case(name):
    with pytest.raises(ClaimError, match="kebab"):
        build(name, GOOD)


@given(st.lists(st.text("abcdefghij0123456789", min_size=1, max_size=5), min_size=1, max_size=6))
def test_words_joined_by_hyphens_are_an_id(words):
    assert build("-".join(words), GOOD).id == "-".join(words)


def test_values_by_rung():
    both = made(
        rungs=("minimodel", "sim"),
        region={"sim": above(0.5), "minimodel": above(0.2)},
        seeds={"sim": 64, "minimodel": 8},
        expect={"sim": "supported", "minimodel": "undecided"},
        predicts={"sim": Prediction(1.0), "minimodel": Prediction(0.6)},
        long=("minimodel",),
    )
    assert both.rungs == ("sim", "minimodel")  # in the order of the ladder
    assert (both.region_at("minimodel"), both.seeds_at("minimodel")) == (above(0.2), 8)
    assert (both.expect_at("minimodel"), both.predicts_at("minimodel").value) == ("undecided", 0.6)
    assert (both.is_long("sim"), both.is_long("minimodel")) == (False, True)


def test_exact_kinds_imply_their_region():
    from_prediction = made(kind=identity(0.5), region=None, predicts=Prediction(15))
    assert from_prediction.region == within(14.5, 15.5)
    assert from_prediction.kind.target == 15.0
    assert made(kind=identity(0.5, target=3), region=None).region == within(2.5, 3.5)
    assert made(kind=agreement(1e-12), region=None).region == within(0, 1e-12)
    with pytest.raises(ClaimError, match=r"target=.*predicted value.*region="):
        made(kind=identity(0.5), region=None)
    stated = made(kind=identity(0.5), region=below(3))
    assert stated.kind.target is None


def test_predictions():
    assert Prediction(0.0, 0.0, 0.0).agrees(0.0, 0.056)
    assert not Prediction(0.1).agrees(0.0, 0.056)
    assert Prediction(0.1, 0.05, 0.2).agrees(0.0, 0.056)
    with pytest.raises(ClaimError, match="neither"):
        Prediction(1.0, low=0.0)
    with pytest.raises(ClaimError, match="outside"):
        Prediction(1.0, low=2.0, high=3.0)


@given(*[st.floats(-10, 10)] * 3)
def test_a_prediction_agrees_with_an_interval_that_holds_it(value, low, reach):
    assert Prediction(value).agrees(low, low + abs(reach)) == (low <= value <= low + abs(reach))


def test_controls_are_kept():
    controls = (Control("drive on", above(0.5)),)
    assert made(controls=list(controls), kind=mean(symmetric=True)).controls == controls
