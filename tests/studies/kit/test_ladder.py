import pytest

from studies.kit.ladder import Rung, climb, next_rung

ALL = ("sim", "minimodel", "fullscale")
HELD = Rung("supported", 8, 3, 3)


@pytest.mark.parametrize(
    ("known", "following", "why"),
    [
        ({}, "sim", "not run yet"),
        ({"sim": HELD}, "minimodel", "supported at sim"),
        ({"sim": Rung("supported", 8)}, None, "waits at sim: fresh seeds first"),
        ({"sim": Rung("supported", 8, 2, 3)}, None, "waits at sim: held on fresh seeds 2 of 3"),
        ({"sim": Rung("refuted", 8)}, None, "stops at sim: refuted"),
        ({"sim": Rung("undecided", 8)}, None, "stops at sim: undecided"),
        ({"sim": HELD, "minimodel": HELD}, "fullscale", "supported at minimodel"),
        ({"sim": HELD, "minimodel": Rung("undecided", 8)}, None, "stops at minimodel: undecided"),
        # Fixed sequence: what a later rung says does not count once an earlier one has failed.
        ({"sim": Rung("undecided", 8), "minimodel": HELD}, None, "stops at sim: undecided"),
        ({"sim": HELD, "minimodel": HELD, "fullscale": HELD}, None, "supported at every rung it claims"),
    ],
)
def test_the_sequence_is_fixed_and_stops_at_the_first_failure(known, following, why):
    assert next_rung(ALL, known) == (following, why)


def test_climb_says_what_comes_next():
    text = climb("kl-leads", ("sim", "minimodel"), {"sim": HELD})
    assert text == (
        "kl-leads  sim S (8) -> minimodel not run; supported at sim: pytest studies -k kl-leads --rung minimodel"
    )
    text = climb("kl-leads", ("sim", "minimodel"), {"sim": Rung("supported", 8)})
    assert text.endswith("fresh seeds first: pytest studies -k kl-leads --seeds fresh --record")
    assert climb("kl-leads", ("sim", "minimodel"), {"sim": Rung("refuted", 8)}).endswith("stops at sim: refuted")
