import pytest

from studies.kit.guard import Failure
from studies.kit.phase.places import GridError
from studies.kit.phase.points import PointStudy, Request, advance, scout
from studies.kit.phase.target import find
from studies.kit.seeds import Seeds

EIGHT = {"rung": "sim", "seeds": Seeds(0, 8)}


def made(request):
    """The runs asked for."""
    return {label: request.run(config, request.seeds, study="toy") for label, config in request.configs.items()}


def test_a_study_is_asked_for_its_configs_without_running(toys):
    request = scout(find("pair", "sim", toys), **EIGHT)
    assert [(label, config.n) for label, config in request.configs.items()] == [("low", 4), ("high", 8)]
    assert request.seeds == tuple(range(8))
    assert (request.run.__name__, request.block) == ("train", None)


def test_a_point_goes_from_asking_to_concluding(toys):
    target = find("twice", "sim", toys)

    def with_answers(n):
        left = [n]

        def answer(request):
            left[0] -= 1
            return made(request) if left[0] >= 0 else None

        return advance(target, {"inner.level": 2.0}, arms="all", answer=answer, **EIGHT)

    first, second, end = (with_answers(n) for n in range(3))
    assert isinstance(first, Request)
    assert isinstance(second, Request)
    assert (list(first.configs), list(second.configs)) == (["one"], ["two"])
    assert {config.inner.level for config in (*first.configs.values(), *second.configs.values())} == {2.0}
    (found,) = end
    assert (found.claim, found.verdict, found.n) == ("twice", "supported", 8)
    assert found.low < found.effect < found.high
    assert found.low > 1


def test_a_contradiction_in_a_later_sweep_fails_the_point(toys):
    """Its second sweep sets the spread to another value than its first."""
    found = advance(find("twice", "sim", toys), {"spread": 0.3}, arms="all", answer=made, **EIGHT)
    assert isinstance(found, Failure)
    assert "the study itself sets it to 0.1 and, in arm 'two', to 0.2" in found.error
    (found,) = advance(find("twice", "sim", toys), {"spread": 0.3}, arms="some", answer=made, **EIGHT)
    assert found.verdict == "supported"


def test_other_work_sees_the_overrides_too(toys):
    target = find("toy", "sim", toys)
    study = PointStudy(target, {"inner.level": 3.0}, arms="all", answer=made, **EIGHT)
    base = next(iter(scout(target, **EIGHT).configs.values()))

    def work(config, seeds, *, study):
        return [(config.inner.level, seed) for seed in seeds]

    assert study.spread(work, base, range(3)) == [(3.0, 0), (3.0, 1), (3.0, 2)]
    plain = PointStudy(target, {"inner.level": 3.0}, arms="all", answer=made, **EIGHT)
    assert plain.spread(lambda config, seeds, study: [config] * len(seeds), "a text", range(2)) == ["a text", "a text"]


def test_a_value_that_the_config_refuses_fails_the_point(toys):
    found = advance(find("toy", "sim", toys), {"inner.level": "high"}, arms="all", answer=made, **EIGHT)
    assert isinstance(found, Failure)
    assert found.error.startswith("ConfigError: ")
    assert "level = 'high'" in found.error


def test_a_study_without_a_verdict_says_why(toys):
    (toys / "study_silent.py").write_text("""
from studies.kit import above, claim, median
from study_toy import Toy, train
@claim("silent", says="It says nothing.", kind=median(), region=above(0))
@claim("still", says="It does not move.", kind=median(), region=above(0))
def study_silent(study):
    runs = study.sweep({"only": Toy()}, run=train)["only"]
    study.conclude("still", values=runs["x"][:, -1], moved=[False] * 8)
""")
    found = advance(find("silent", "sim", toys), {"n": 3}, arms="all", answer=made, **EIGHT)
    reasons = {each.claim: (each.verdict, each.reason) for each in found}
    assert reasons["still"] == ("no verdict", "the learner did not move")
    assert reasons["silent"] == ("no verdict", "the study ended without concluding this claim")


def test_a_study_with_nothing_to_vary_is_refused(toys):
    with pytest.raises(GridError, match="makes no sweep"):
        scout(find("exact", "sim", toys), **EIGHT)
