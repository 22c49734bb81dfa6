"""Draw the figure of the README: ``python docs/make_figures.py`` writes docs/flip.svg (about ten seconds)."""

from pathlib import Path

from sim.learning.loop import train
from sim.learning.presets import drive
from sim.learning.setup import Evaluation
from sim.mdp.published import SEED_A
from sim.records.config import replace
from studies.kit.figures import svg
from studies.kit.flip import flip


def main() -> None:
    """Train 32 seeds under a push of 34 steps and draw them beside the published table."""
    config = replace(drive(), {"drive.duration": 34, "steps": 200, "evaluation": Evaluation()})
    runs = train(config, tuple(range(32)), study="tabular_never_flips")
    title = "A push flips the first decision in about twenty updates; the return takes it back"
    figure = flip(runs, SEED_A, (20, 54), title)
    text = svg(figure).replace("<svg ", '<svg style="background: white" ', 1)
    Path(__file__).with_name("flip.svg").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
