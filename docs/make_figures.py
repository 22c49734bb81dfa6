"""Draw the figures of the README: ``python docs/make_figures.py``.

docs/flip.svg and docs/cluster.svg take about ten seconds each; docs/network.svg and docs/rest.svg are drawn from the runs
that the studies left in runs/store, and without them take seven and forty CPU-minutes of training.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.cluster.gantt import gantt
from sim.cluster.presets import areal
from sim.cluster.run import simulate
from sim.cluster.spans import Names
from sim.learning.loop import train
from sim.learning.presets import drive
from sim.learning.setup import Evaluation
from sim.mdp.published import SEED_A
from sim.records.config import replace
from sim.records.store import Store
from studies import study_length_weight, study_recovery, study_seed_a_batch, study_verify_emerges
from studies.kit.executors import processes
from studies.kit.figures import COLOURS, bands, style, svg
from studies.kit.flip import flip
from studies.kit.sweep import sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STORE = Path(__file__).parents[1] / "runs" / "store"


def main() -> None:
    """Draw them all."""
    write("flip", pushed())
    write("network", network())
    write("rest", rest())
    write("cluster", cluster())


def write(name: str, figure: "Figure") -> None:
    """Write a figure beside this file."""
    text = svg(figure).replace("<svg ", '<svg style="background: white" ', 1)
    Path(__file__).with_name(f"{name}.svg").write_text(text + "\n", encoding="utf-8")


def pushed() -> "Figure":
    """Train 32 seeds under a push of 34 steps and draw them beside the published table."""
    config = replace(drive(), {"drive.duration": 34, "steps": 200, "evaluation": Evaluation()})
    runs = train(config, tuple(range(32)), study="tabular_never_flips")
    return flip(
        runs, SEED_A, (20, 54), "A push flips the first decision in about twenty updates; the return takes it back"
    )


def cluster() -> "Figure":
    """Simulate AReaL's schedule and draw five hundred seconds of it."""
    config = replace(areal(eta=2), {"steps": 12})
    run = simulate(config, 0, record=True)
    assert run.log is not None
    names = Names(engines=tuple(f"engine {i}" for i in range(config.engines.count)), pools=("search",))
    return gantt(run.log, start_s=400.0, end_s=900.0, names=names, title="AReaL's capacity rule, eta = 2")


def network() -> "Figure":
    """Draw both transitions of the tiny transformer, from the runs of the two studies that are about them."""
    return side_by_side(
        (study_length_weight, "length_weight", study_length_weight.GUESS, "P(answer | start)", "Guess first"),
        (study_verify_emerges, "verify_emerges", study_verify_emerges.VERIFY, "P(verify | document)", "Verify"),
    )


def rest() -> "Figure":
    """Draw where flips of the tiny transformer come to rest and what takes them back, with the predicted levels."""
    made = side_by_side(
        (
            study_seed_a_batch,
            "seed_a_batch",
            study_seed_a_batch.GUESS,
            "P(answer | start)",
            "Where a flip comes to rest",
        ),
        (study_recovery, "recovery", study_recovery.GUESS, "P(answer | start)", "What brings searching first back"),
    )
    levels = [study_seed_a_batch.at_rest(config) for config in study_seed_a_batch.arms().values()]
    for ax, zeros in zip(made.axes, (levels, [study_recovery.ZERO]), strict=True):
        for level, colour in zip(zeros, COLOURS, strict=False):
            ax.axhline(level, color=colour, linestyle=":", linewidth=1.2)
    return made


def side_by_side(*panels: tuple[Any, str, str, str, str]) -> "Figure":
    """Draw one column of the runs of each study: (its module, its name, column, label of the axis, title)."""
    from matplotlib.figure import Figure

    with style(), processes(2) as executor:
        made = Figure(figsize=(9.2, 3.7), layout="constrained")
        for ax, (study, name, column, ylabel, title) in zip(made.subplots(1, 2), panels, strict=True):
            runs = sweep(
                None,
                study.arms(),
                range(study.SEEDS),
                store=Store(STORE),
                executor=executor,
                study=name,
                rung="minimodel",
            )
            bands(runs, column, ylabel=ylabel, title=title, limits=(0, 1), axes=ax)
            ax.set_title(title, loc="left", fontsize=11, fontweight="bold")
    return made


if __name__ == "__main__":
    main()
