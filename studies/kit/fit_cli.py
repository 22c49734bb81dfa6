"""``metastable fit``: fit a world to a run, rank rival mechanisms by what each predicted, and foretell the next steps."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from studies.kit.words import CommandError

if TYPE_CHECKING:
    from studies.kit.fitting.data import Observed

__all__ = ["fit"]

STORE = Path("runs/store")
FORECASTS = Path("forecasts")
_Run = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]


def fit(
    run: _Run,
    horizon: int = 10,
    until: int | None = None,
    since: int | None = None,
    out: Path | None = None,
    check: Path | None = None,
    rollouts: int | None = None,
    group: int = 8,
    store: Path = STORE,
) -> int:
    """Fit a world to a run, rank rival mechanisms by what each predicts for the next steps, and register the forecast.

    Args:
        run: A folder that ``metastable read`` wrote, an .npz of steps, or a run's key in the store.
        horizon: Steps to forecast.
        until: Last step to use; by default all that there are.
        since: First step to use.
        out: File of the forecast (.toml), never overwritten; by default forecasts/RUN-stepN.toml. A figure is put beside it.
        check: A registered forecast to hold the run's later steps against; nothing is fitted.
        rollouts: Rollouts a step, where the run does not say.
        group: Rollouts a question, over which advantages are taken.
        store: Folder of runs in which keys are looked up.
    """
    from studies.kit.fitting.data import FitError, load

    try:
        observed = load(run, store=store, rollouts=rollouts)
        if check is not None:
            _check(observed, check)
        else:
            path = _fit(observed, horizon, since, until, out, group)
            again = ["metastable", "fit", run, "--check", str(path)]
            again += [] if rollouts is None else ["--rollouts", str(rollouts)]
            again += [] if store == STORE else ["--store", str(store)]
            _say(f"Later: {shlex.join(again)}")
    except FitError as error:
        raise CommandError(str(error)) from error
    return 0


def _check(observed: "Observed", path: Path) -> None:
    from studies.kit.fitting import registration, words

    content = registration.read(path)
    _say("\n".join(words.checked_words(content, registration.check(content, observed))))


def _fit(
    observed: "Observed", horizon: int, since: int | None, until: int | None, out: Path | None, group: int
) -> Path:
    from studies.kit.figures import style
    from studies.kit.fitting.data import FitError
    from studies.kit.fitting.figure import draw
    from studies.kit.fitting.forecast import forecast
    from studies.kit.fitting.rank import rank
    from studies.kit.fitting.registration import register
    from studies.kit.fitting.words import report

    used = observed.between(since, until)
    path = out or FORECASTS / f"{observed.name}-step{used.steps[-1]}.toml"
    if path.suffix != ".toml":
        raise FitError(f"{path} should end in .toml")
    if horizon < 1:
        raise FitError(f"horizon = {horizon} must be at least 1")
    if group < 2:
        raise FitError(f"group = {group} must be at least 2: advantages are taken over a group")
    if path.exists():
        raise FitError(f"{path} is there already, and a forecast is never overwritten: name another with --out")
    ranking = rank(used, group=group)
    foreseen = forecast(ranking, horizon)
    later = int((observed.steps > used.steps[-1]).sum())
    register(path, ranking, foreseen, later_steps=later, group=group)
    picture = path.with_suffix(".svg")
    with style():
        draw(ranking, foreseen).savefig(picture)
    _say("\n".join(report(ranking, foreseen, later)))
    _say(f"\nRegistered in {path}; figure in {picture}.")
    return path


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
