"""Write what the third rung costs and has on record into docs/gpu.md, docs/fullscale.md: ``python docs/make_gpu.py``.

Draws docs/smollm2.svg from the record in fullscale/records/cpu. Only what stands between two marks is written.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fullscale.agent.estimating import estimated, hours
from fullscale.presets import PRESETS
from sim.records.run import RunRecord
from sim.records.store import Store
from studies.kit.figures import COLOURS, style, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).resolve().parent
STORE = FOLDER.parent / "fullscale" / "records" / "cpu"
MARKS = {
    "costs": ("<!-- costs: written by `python docs/make_gpu.py` -->", "<!-- end of costs -->"),
    "record": ("<!-- record: written by `python docs/make_gpu.py` -->", "<!-- end of record -->"),
}
RANKS = 8
COMMAND = "python -m fullscale.train smollm2_cpu --study smollm2 --store fullscale/records/cpu"


def costs() -> str:
    """Return the table: memory and hours of each preset for GPUs."""
    rows = [f"| preset | memory on each of {RANKS} | GPU hours |", "|---|---|---|"]
    for name, preset in PRESETS.items():
        if name != "smollm2_cpu":
            config = preset()
            found = hours(config)
            rows.append(
                f"| `{name}` | {estimated(config, RANKS).peak / 2**30:.0f} GiB | {found.total:,.0f} "
                f"({found.sampling:,.0f} sampling, {found.learning:,.0f} learning) |"
            )
    return "\n".join(rows)


def on_record(record: RunRecord) -> str:
    """Return what a record says, in words and numbers."""
    s, config = record.steps, record.manifest["config"]
    every = np.flatnonzero(~np.isnan(s["eval/solved_share"]))
    held_out = _episodes(record)
    parts = record.provenance["cpu_s_by_part"]
    table = [
        "| before step | held-out questions solved with tools | without any tool | episodes that use a tool |",
        "|---|---|---|---|",
    ]
    for i in every:
        shares = (s[f"eval/{name}"][i] for name in ("solved_share", "closed_book", "tool_share"))
        table.append(f"| {int(s['step'][i])} | " + " | ".join(f"{x:.2f}" for x in shares) + " |")
    total, first, last = sum(parts.values()), np.mean(s["train/reward"][:5]), np.mean(s["train/reward"][-5:])
    spent = ", ".join(f"{name} {share / total:.0%}" for name, share in parts.items())
    words = (
        f"`{COMMAND}`: run `{record.key}`, seed {record.seed}, {len(s)} steps of {config['prompts']} questions x "
        f"{config['group']} episodes. One seed: a demonstration, and no claim. Without any tool means the likeliest "
        "answer, with tools what is sampled."
    )
    numbers = (
        f"Shares of {held_out} episodes, on other questions each time, standard error up to {0.5 / np.sqrt(held_out):.2f}. "
        f"Mean reward {first:.2f} over the first five steps, {last:.2f} over the last five; groups without signal "
        f"{np.mean(s['train/degenerate_share']):.2f}. |Engine - learner| at most {np.max(s['mismatch/mean']):.0e} nats in "
        f"the mean of a step, {np.max(s['mismatch/max']):.0e} anywhere. CPU time: {spent} of {total / 3600:.1f} hours."
    )
    return "\n".join([words, "", *table, "", numbers])


def _episodes(record: RunRecord) -> int:
    """Return the held-out episodes of an evaluation."""
    evaluation = record.manifest["config"]["evaluation"]
    found: int = evaluation["prompts"] * evaluation["group"]
    return found


def drawn(record: RunRecord) -> "Figure":
    """Return the run as a figure: reward and search by turn; held-out accuracy; drift and entropy."""
    from matplotlib.figure import Figure

    s = record.steps
    step, turns = s["step"], record.manifest["config"]["task"]["world"]["turns"]
    with style():
        figure = Figure(figsize=(8.6, 3.1), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        for t in range(turns):
            left.plot(step, s[f"behaviour/search_share/turn{t}"], color=COLOURS[t], label=f"search, turn {t}")
        left.plot(step, s["train/reward"], color="0.2", ls="--", label="reward")
        left.set(ylim=(-0.02, 1.02), title="share of all episodes", xlabel="step")
        there = ~np.isnan(s["eval/solved_share"])
        for name, label, colour in (
            ("eval/solved_share", "with tools", COLOURS[0]),
            ("eval/closed_book", "without", COLOURS[1]),
        ):
            p = s[name][there]
            bars = 1.96 * np.sqrt(p * (1 - p) / _episodes(record))
            middle.errorbar(step[there], p, bars, fmt="o-", color=colour, label=label, capsize=2)
        middle.set(ylim=(-0.02, 1.02), title="held-out questions solved", xlabel="step")
        right.plot(step, s["drift/kl_decisions"], color=COLOURS[0], label="at decisions")
        right.plot(step, s["drift/kl_content"], color=COLOURS[1], label="at content")
        right.set(title="KL to the start, nats", xlabel="step")
        for axes in (left, middle, right):
            axes.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return figure


def written(text: str, which: str, inner: str) -> str:
    """Return the text with something else between two marks."""
    start, end = MARKS[which]
    before, _, rest = text.partition(start)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"a mark of {which} is missing; there must be both, {start} first")
    return f"{before}{start}\n{inner}\n{end}{after}"


def main() -> None:
    """Write both."""
    page = FOLDER / "gpu.md"
    page.write_text(written(page.read_text(encoding="utf-8"), "costs", costs()), encoding="utf-8")
    keys = Store(STORE).keys()
    if keys:
        (record,) = (Store(STORE).load(key) for key in keys)
        page = FOLDER / "fullscale.md"
        figure = "![The run, step by step](smollm2.svg)\n\n*Bars: 95 % intervals of a proportion.*"
        inner = f"{on_record(record)}\n\n{figure}"
        page.write_text(written(page.read_text(encoding="utf-8"), "record", inner), encoding="utf-8")
        text = svg(drawn(record)).replace("<svg ", '<svg style="background: white" ', 1)
        (FOLDER / "smollm2.svg").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
