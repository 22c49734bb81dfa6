"""A record in 25 lines, targets beside what was found."""

from fullscale.validate_gpu import cases
from fullscale.validate_gpu.table import LINES, table
from fullscale.validate_gpu.targets import CARD, TARGETS, Target
from tests.fullscale.validate_gpu import made


def point(operation, counting, **providers):
    name = cases.Point(*cases.RECORD, counting, operation).name
    return made.case(name, phase="bench", values=providers, bounds={})


def timed(ms, **more):
    return {"ms": [ms, ms * 1.01], "rounds": 20, **more}


OURS = {"ours": timed(25.0, extra_mb=20.0), "products alone": timed(23.0), "Liger": {"absent": "is not installed"}}
PASSED = [made.case(n) for n in made.CASES]


def row(lines, *words):
    (found,) = [line for line in lines if all(w in line for w in words)]
    return found


def test_every_target_is_a_point_of_the_grid():
    names = {p.name for p in cases.grid(dry=False)}
    assert {t.point for t in TARGETS} <= names
    assert CARD == made.CARD


def test_targets_for_part_of_the_rows_follow_from_those_for_all():
    """That share of the time, 5 % and 0.4 ms more."""
    whole = {(t.operation, t.provider): t.must for t in TARGETS if t.counting == 1 and t.quantity == "ms"}
    for t in TARGETS:
        if t.counting < 1:
            allowed = t.counting * whole[t.operation, t.provider] * 1.05 + 0.4
            assert abs(t.must - allowed) < 0.06


def test_what_was_found_stands_beside_its_target(tmp_path):
    slow = {"ours": timed(130.0, extra_mb=550.0), "ours, head_loss": {"error": "RuntimeError: no"}}
    record = made.record(
        tmp_path, [*PASSED, point("forward+entropy", 1.0, **OURS), point("forward+backward", 1.0, **slow)]
    )
    lines = table(record)
    assert " 707 " in row(lines, "forward+entropy, all", "25.25 ms")  # 17.858 TFLOP in the slower of two series
    assert row(lines, "forward+entropy, all", "25.25 ms").endswith("yes")
    assert row(lines, "forward+backward, all", "131.3 ms").endswith("NO")
    assert "550 MB" in row(lines, "forward+backward, all", " MB")
    assert "RuntimeError: no" in row(lines, "head_loss")
    assert "products alone 23" in row(lines, "forward+entropy, ms:")
    assert "Liger" not in row(lines, "forward+entropy, ms:")
    assert "correct  triton   3 passed" in lines


def test_another_card_is_shown_and_not_judged(tmp_path):
    lines = table(made.record(tmp_path, [*PASSED, point("forward+entropy", 1.0, **OURS)], card="NVIDIA H100"))
    assert row(lines, "25.25 ms").endswith("of NVIDIA H200")


def test_it_never_has_more_than_25_lines_and_the_last_one_stays(tmp_path):
    everything = {t.point: {} for t in TARGETS}
    for t in TARGETS:
        everything[t.point][t.provider] = timed(50.0, extra_mb=1.0)
    timings = [made.case(name, phase="bench", values=values, bounds={}) for name, values in everything.items()]
    failures = [made.case(f"wrong {i}", status="failed", values={"logp": "nan"}) for i in range(30)]
    others = [made.case(f"chunked: {i}", backend="chunked") for i in range(3)]
    tools = [made.case("memcheck", phase="profile", status="skipped", reason="absent")]
    lines = table(made.record(tmp_path, [*PASSED, *failures, *others, *timings, *tools], {"passed": False}))
    assert len(lines) <= LINES
    assert max(len(line) for line in lines) <= 130
    assert "FAILED wrong 0: logp nan > 2e-05" in lines
    assert "... and 27 more that did not pass" in lines
    assert lines[-1].startswith("nothing is unlocked: the record has 30 that did not pass")


def test_what_it_unlocks_is_the_last_word(tmp_path):
    unlocks = {"backend": "triton", "card": CARD, "source_hash": made.SOURCE, "triton": "3.6.0"}
    assert table(made.record(tmp_path, closing={"unlocks": unlocks}))[-1].startswith(
        'UNLOCKED: backend="auto" uses triton'
    )


def test_the_products_of_an_operation():
    assert Target("forward", 1.0, "ours", "ms", 1.0).products == 1
    assert Target("forward+backward", 1.0, "ours", "ms", 1.0).products == 4
    assert Target("forward+backward", 1.0, "ours, head_loss", "ms", 1.0).products == 3
