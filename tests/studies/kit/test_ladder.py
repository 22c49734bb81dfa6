import pytest

from studies.kit.ladder import Rung, barrier, climb, next_rung, on_record, remedy
from studies.kit.records import append_fresh, record

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
    assert text == ("kl-leads  sim S (8) -> minimodel not run; supported at sim: metastable escalate kl-leads")
    text = climb("kl-leads", ("sim", "minimodel"), {"sim": Rung("supported", 8)})
    assert text.endswith("fresh seeds first: pytest studies -k kl-leads --seeds fresh --record")
    assert climb("kl-leads", ("sim", "minimodel"), {"sim": Rung("refuted", 8)}).endswith("stops at sim: refuted")
    assert climb("kl-leads", ("sim",), {}).endswith("not run yet: pytest studies -k kl-leads")
    assert climb("kl-leads", ("sim", "minimodel"), {"sim": HELD}, "mine").endswith("escalate kl-leads --folder mine")


@pytest.mark.parametrize(
    ("known", "why", "way_out"),
    [
        ({"sim": HELD}, "", ""),
        ({"sim": HELD, "minimodel": Rung("refuted", 8)}, "", ""),  # what lies above does not bar
        ({}, "not run yet at sim", "`metastable run kl-leads --record`"),
        ({"sim": Rung("refuted", 8, 3, 3)}, "stops at sim: refuted", "`metastable show kl-leads`"),
        ({"sim": Rung("undecided", 8)}, "stops at sim: undecided", "--seeds until-decided`"),
        ({"sim": Rung("no verdict", 8)}, "stops at sim: no verdict", "--seeds until-decided`"),
        ({"sim": Rung("supported", 8)}, "waits at sim: fresh seeds first", "run kl-leads --seeds fresh --record`"),
        ({"sim": Rung("supported", 8, 1, 2)}, "waits at sim: held on fresh seeds 1 of 2", "raise seeds="),
    ],
)
def test_what_bars_a_rung_and_what_takes_it_away(known, why, way_out):
    assert barrier(ALL, known, "minimodel") == why
    assert way_out in remedy("kl-leads", ALL, known, "minimodel")
    assert (remedy("kl-leads", ALL, known, "minimodel") == "") == (why == "")


def test_every_rung_below_must_hold():
    assert barrier(ALL, {"sim": HELD, "minimodel": HELD}, "fullscale") == ""
    assert barrier(ALL, {"minimodel": HELD}, "fullscale") == "not run yet at sim"
    assert barrier(ALL, {"sim": HELD}, "fullscale") == "not run yet at minimodel"
    lost = {"sim": HELD, "minimodel": Rung("undecided", 8)}
    assert barrier(ALL, lost, "fullscale") == "stops at minimodel: undecided"
    assert "run kl-leads --rung minimodel --all" in remedy("kl-leads", ALL, lost, "fullscale", " --all")


def test_the_records_say_what_is_known(tmp_path, finding):
    found = finding(claim="kl-leads")
    record(tmp_path / "records", found, "abc")
    append_fresh(tmp_path / "records", finding(claim="kl-leads", base=10**6))
    append_fresh(tmp_path / "records", finding(claim="kl-leads", base=2 * 10**6, verdict="undecided"))
    assert on_record(tmp_path, "kl-leads", ALL) == {"sim": Rung("supported", 64, 1, 2)}
    assert on_record(tmp_path, "other", ALL) == {}
