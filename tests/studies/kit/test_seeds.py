import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.seeds import CAPS, FRESH_FROM, parse


def test_by_default_each_claim_has_its_own():
    assert list(parse(None).of(8)) == list(range(8))
    assert parse(None).option == ""


@given(st.integers(6, 10**6))
def test_a_number_counts_for_every_claim(n):
    assert parse(str(n)).of(8) == range(n)
    assert parse(parse(str(n)).option.split()[1]) == parse(str(n))


def test_fresh_seeds_are_new_each_time_and_can_be_had_again():
    drawn = [parse("fresh") for _ in range(20)]
    assert len({seeds.base for seeds in drawn}) == 20  # of two million bases
    for seeds in drawn:
        assert seeds.fresh
        assert FRESH_FROM <= seeds.base < 2**31 - 1000
        assert parse(seeds.option.split()[1]) == seeds
        assert seeds.of(8) == range(seeds.base, seeds.base + 8)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "6 or more"),
        ("0", "6 or more"),
        ("-8", "takes a number"),
        ("fresh:8", "1000000 or above"),
        ("fresh:", "takes a number"),
        ("stale", "takes a number"),
        ("8.0", "takes a number"),
        ("fresh:2000000:5", "6 or more"),
        ("fresh:2000000:8:1", "takes a number"),
        ("until-decided:7", "a cap of 8 to 1000"),
        ("until-decided:1001", "a cap of 8 to 1000"),
        ("until-decided:64:8", "1000000 or above"),
        ("until-decided:", "takes a number"),
        ("until-decide", "takes a number"),
    ],
)
def test_others_are_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


@given(st.integers(6, 1000), st.integers(FRESH_FROM, 2**31))
def test_so_many_fresh_seeds(n, base):
    assert parse(f"fresh:{base}:{n}").of(8) == range(base, base + n)
    assert parse(f"fresh:{base}:{n}").option == f"--seeds fresh:{base}:{n}"


@pytest.mark.parametrize("rung", list(CAPS))
def test_until_decided_uses_fresh_seeds_up_to_a_cap_of_the_rung(rung):
    seeds = parse("until-decided", rung)
    assert seeds.fresh
    assert seeds.cap == CAPS[rung]
    assert parse(seeds.option.split()[1], "sim") == seeds
    assert parse("until-decided:12", rung).cap == 12
