"""One point of a sweep: the study's own function, run outside pytest with the point's overrides in its configs.

The function runs until it asks for runs that nobody has. What it asks for is noted and the function left; once the runs
are there it is run again from the start, this time past that place. So a study that sweeps once is called twice, and one
that sweeps again, depending on what came before, once more for each sweep. A study's function must therefore do the same
whenever it is called, which pytest asks of it as well.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sim.records.config import canonical_json, to_dict
from sim.records.config import replace as replaced
from studies.kit.claims import Claim
from studies.kit.executors import inline
from studies.kit.fixture import Study
from studies.kit.guard import Failure
from studies.kit.phase.axes import Point
from studies.kit.phase.places import GridError, has, locate
from studies.kit.phase.target import Target
from studies.kit.seeds import Seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.records.run import Runs

__all__ = ["Arms", "Concluded", "PointStudy", "Request", "advance", "check", "scout"]

Arms = Literal["all", "some"]
"""``"all"``: every arm has every key of the grid, and the study itself sets it alike in all of them; ``"some"``: keys are
set in the arms that have them, whatever the study says."""


@dataclass(frozen=True)
class Request:
    """Runs that a study asks for."""

    configs: Mapping[str, Any]
    """Config of each arm, with the point's overrides, by label."""
    seeds: tuple[int, ...]
    """The seeds."""
    run: Callable[..., "Runs"] | None
    """What trains a block of seeds; ``None`` for the loop of the rung."""
    block: int | None
    """Seeds trained together; ``None`` for those of the rung."""


@dataclass(frozen=True)
class Concluded:
    """What a point says of one claim."""

    claim: str
    """Id of the claim."""
    verdict: str
    """``supported``, ``refuted``, ``undecided`` or ``no verdict``."""
    effect: float | None
    """The number; ``None`` where nothing was measured."""
    low: float | None
    """Lower end of its 95 % interval."""
    high: float | None
    """Upper end."""
    n: int
    """Independent units."""
    reason: str
    """Why there is no verdict; may be empty."""


class _Asked(BaseException):
    """Leaves a study at a sweep that cannot be answered yet. No ``except Exception`` of the study's may catch it."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request = request


Answer = Callable[[Request], "dict[str, Runs] | None"]
"""Gives the runs asked for, or ``None`` where some are missing."""


class PointStudy(Study):
    """What a study gets at one point: its sweeps are answered, and what it shows is not kept."""

    def __init__(self, target: Target, point: Point, *, rung: str, seeds: Seeds, arms: Arms, answer: Answer) -> None:
        claims = [replace(claim, expect=None) for claim in target.claims]  # a record is of the study's own configs
        super().__init__(
            target.path,
            claims,
            rung=rung,
            seeds=seeds,
            store_dir=Path(),
            executor=lambda: inline,
            progress=None,
            start=target.path.parent,
        )
        self.study_fingerprint = target.fingerprint
        self.point, self.arms, self.answer = point, arms, answer
        self.untouched = set(point)
        self._own: dict[str, str] = {}  # what the study itself sets at a key

    def sweep(
        self,
        points: Mapping[str, Any],
        seeds: Iterable[int] | None = None,
        *,
        run: Callable[..., "Runs"] | None = None,
        block: int | None = None,
    ) -> "dict[str, Runs]":
        """Return the runs of every arm with the point's overrides in its config."""
        configs = {label: self._overridden(label, config) for label, config in points.items()}
        wanted = self.seeds() if seeds is None else seeds
        request = Request(configs, tuple(int(seed) for seed in wanted), run, block)
        runs = self.answer(request)
        if runs is None:
            raise _Asked(request)
        return runs

    def spread(self, work: Callable[..., list[Any]], config: Any, seeds: Iterable[int]) -> list[Any]:
        """Return ``work(config, seeds, study=...)`` with the overrides in the config; done in this process."""
        here = {path: value for path, value in self.point.items() if has(config, path)}
        return super().spread(work, replaced(config, here) if here else config, seeds)

    def figure(
        self, claim: str, figure: "Figure | Callable[[], Figure]", caption: str = "", headline: bool = False
    ) -> None:
        """Draw nothing: a point shows numbers."""

    def table(self, claim: str, header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: str = "") -> None:
        """Keep nothing."""

    def note(self, claim: str, text: str) -> None:
        """Keep nothing."""

    def rollouts(self, claim: str, text: str, caption: str = "") -> None:
        """Keep nothing."""

    def concluded(self) -> tuple[Concluded, ...]:
        """Return what became of each claim."""
        return tuple(self._concluded(claim) for claim in self.claims.values())

    def _concluded(self, claim: Claim) -> Concluded:
        found = self._finding(claim)
        _, judged = self._judged.get(claim.id, (None, None))
        # Without a verdict on record a finding fails only where there can be no verdict, and then says why.
        reason = found.reason if found.fails or judged is None else judged.reason
        return Concluded(found.claim, found.verdict, found.effect, found.low, found.high, found.n, reason)

    def _on_record(self, claim: Claim) -> tuple[bool, bool]:
        return False, True

    def _overridden(self, label: str, config: Any) -> Any:
        """Return an arm's config with the point's overrides. GridError where they contradict the study."""
        if self.arms == "some":
            here = {path: value for path, value in self.point.items() if has(config, path)}
        else:
            here = dict(self.point)
            for path in here:
                self._alike(label, config, path)
        self.untouched -= here.keys()
        return replaced(config, here) if here else config

    def _alike(self, label: str, config: Any, path: str) -> None:
        """Refuse a key that this arm has not, or that the study sets to other values in other arms."""
        if not has(config, path):
            raise GridError(
                f"{path!r}: arm {label!r} has no such field, though others may; --arms some sets it where it is"
            )
        own = canonical_json(to_dict(locate(config, path).value))
        if self._own.setdefault(path, own) != own:
            raise GridError(
                f"{path!r}: the study itself sets it to {self._own[path][:60]} and, in arm {label!r}, to {own[:60]}; one "
                "value for all would erase what it compares. --arms some does so all the same"
            )


def scout(target: Target, *, rung: str, seeds: Seeds) -> Request:
    """Return what the study asks for first, as it stands. GridError where it asks for no runs."""
    study = PointStudy(target, {}, rung=rung, seeds=seeds, arms="all", answer=lambda _request: None)
    try:
        target.function(study)
    except _Asked as asked:
        if not asked.request.configs:
            raise GridError(f"study {target.name!r} sweeps over no arms") from None
        return asked.request
    raise GridError(f"study {target.name!r} makes no sweep: there is no config to vary (it may compute from theory)")


def check(target: Target, point: Point, *, rung: str, seeds: Seeds, arms: Arms) -> None:
    """Raise GridError where a point's keys contradict what the study does with its arms; nothing is run."""
    study = PointStudy(target, point, rung=rung, seeds=seeds, arms=arms, answer=lambda _request: None)
    try:
        target.function(study)
    except GridError:
        raise
    except (_Asked, Exception):
        return  # an error of its own is the point's, and told when it is run


def advance(
    target: Target, point: Point, *, rung: str, seeds: Seeds, arms: Arms, answer: Answer
) -> Request | Failure | tuple[Concluded, ...]:
    """Run the study's function at a point: to its conclusions, to what it needs first, or to its error."""
    study = PointStudy(target, point, rung=rung, seeds=seeds, arms=arms, answer=answer)
    try:
        target.function(study)
        if study.untouched:
            raise GridError(f"no arm of the study has {', '.join(map(repr, sorted(study.untouched)))}")
    except _Asked as asked:
        return asked.request
    except Exception as error:
        return Failure.of(error)
    return study.concluded()
