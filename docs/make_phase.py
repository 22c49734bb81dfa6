"""Draw docs/phase.svg: ``python docs/make_phase.py``. The sweep takes half a CPU-minute, and nothing once it is done."""

from pathlib import Path

from studies.kit.executors import processes
from studies.kit.figures import svg
from studies.kit.phase import sweep_study
from studies.kit.phase.diagram import diagram, theory

RUNS = Path(__file__).parents[1] / "runs"
GRID = {"world.known": "0.05:0.65:13", "world.hit_known": "0.1:0.9:17"}


def main() -> None:
    """Sweep the plane of the page and draw it."""
    with processes(2) as executor:
        swept = sweep_study(
            "length_diagram", GRID, seeds=8, executor=executor, store=RUNS / "store", ledgers=RUNS / "sweeps"
        )
    text = svg(diagram(swept, foreseen=theory(swept))).replace("<svg ", '<svg style="background: white" ', 1)
    Path(__file__).with_name("phase.svg").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
