"""Write docs/family.md and docs/weights.svg from the modules of :mod:`sim.learning.family`: ``python docs/make_family.py``.

What each rule is composed of is read from the rule; equation, source and what is ours from its docstring.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.learning import family
from sim.learning.batch_weights import BatchNormalised, SecondMoment
from sim.learning.credit import (
    GreedyBaseline,
    GroupCredit,
    LeaveOneOut,
    LogPartition,
    NoBaseline,
    RunningBaseline,
)
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState, KlToGo, LikelihoodFloor, SampledKl, SquaredLogRatio
from sim.learning.rule import Rule
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.learning.view import View
from sim.learning.weights import Bounded, Product, Region, Unweighted
from studies.kit.figures import COLOURS, figure, style, svg

FOLDER = Path(__file__).parent
RATIO = {"now/proximal": "ρ", "now/behaviour": "ρ′", "proximal/behaviour": "κ", "now/reference": "π/π_ref"}
LEVEL = {"token": "{}", "turn": "∏_turn {}", "sequence": "∏ {}", "geometric": "(∏ {})^(1/T)", "least": "min_t {}"}

INTRODUCTION = """# The family

<!-- written by `python docs/make_family.py` from sim/learning/family; do not edit -->

Every objective is an expression: `from sim.learning.family import cispo`, then `cispo()` is a rule.
[rules.md](rules.md) says how to compose one, use it in torch, and add one here. The update direction of each is
(1/Z) Σ_t w_t A_t ∇ log π_t plus penalties; **w is never differentiated**, whatever it is made of.

ρ = π / π_old is the learner now against the learner when the batch began; κ = π_old / μ the same weights in learner and
engine; ρ′ = π / μ. r is the reward, r̄ its mean over the group, σ its standard deviation (one degree of freedom taken off).
*Scope* is what must be in view at once: a trainer keeps that unit in one micro-batch, or computes the coefficients in a
scoring pass first; a cut that would divide it is refused by name. *Scalars* are what the coefficients multiply. Marked
*ours*: what the owner has not printed.
"""


def number(x: float) -> str:
    """Return a number as short as it can be told."""
    return f"{x:.5g}"


def region(r: Region, ratio: str) -> str:
    """Return where a ratio is kept, and what becomes of it outside."""
    if r.low == r.high:
        return number(r.low)
    if r.outside == "truncate":
        kept = ratio if not r.low else f"max({ratio}, {number(r.low)})"
        return kept if r.high is None else f"min({kept}, {number(r.high)})"
    if not r.low and r.high is None:
        return ratio
    inside = f"≤ {number(r.high)}" if r.high is not None and not r.low else ""
    inside = inside or (f"≥ {number(r.low)}" if r.high is None else f"in [{number(r.low)}, {number(r.high)}]")
    return f"{ratio} if {inside}, else 0"


def bounded(w: Bounded) -> str:
    """Return a bounded ratio in words."""
    ratio = LEVEL[w.level].format(RATIO[w.ratio])
    up, down = w.regions()
    words = [region(r, ratio) for r in (up, down)]
    if w.inside == "one":
        words = ["1" if x == ratio else "1 if " + x.replace(f"{ratio} if ", f"{ratio} ", 1) for x in words]
    return words[0] if up == down else f"A>0: {words[0]}; A<0: {words[1]}"


def weight(w: Any) -> str:
    """Return a weight in words."""
    match w:
        case Unweighted():
            return "1"
        case Bounded():
            return bounded(w)
        case Product():
            return " × ".join(f"({weight(f)})" for f in w.factors)
        case SecondMoment():
            r = RATIO[w.ratio]
            return f"{r}, else 0: largest (log {r})² masked until their mean < {number(w.threshold)}"
        case BatchNormalised():
            return f"({weight(w.weight)}) / batch mean"
    raise TypeError(f"{type(w).__name__} has no words in docs/make_family.py; add a case to weight()")


def credit(c: Any) -> str:
    """Return a credit in words."""
    match c:
        case GroupCredit():
            return "(r − r̄) / σ" if c.std else "r − r̄"
        case LeaveOneOut():
            return "r − r̄ of the others" + (", / σ of the others" if c.std else "")
        case NoBaseline():
            return "r"
        case RunningBaseline():
            return f"r − running mean ({number(c.decay)})"
        case GreedyBaseline():
            return "r − r(greedy)"
        case LogPartition():
            return "r − τ log mean exp(r / τ)"
        case RewardToGo():
            return "rewards to go − mean return"
        case StateGroups():
            return f"{credit(c.episode)} + {number(c.omega)} × the same among equal states"
    raise TypeError(f"{type(c).__name__} has no words in docs/make_family.py; add a case to credit()")


def normaliser(n: Any) -> str:
    """Return what the sum is divided by, in words."""
    match n:
        case TokenMean():
            return "tokens of the batch"
        case SequenceMean():
            return "rollouts × own length"
        case ConstantLength():
            return f"rollouts × {number(n.length)}"
        case BatchMean():
            return "rollouts"
        case MicrobatchMean():
            return f"micro-batches of {n.size} × their tokens"
    raise TypeError(f"{type(n).__name__} has no words in docs/make_family.py; add a case to normaliser()")


def penalty(p: Any) -> str:
    """Return a penalty in words."""
    match p:
        case EntropyBonus():
            return f"+ {number(p.strength)} H"
        case KlPerState():
            return f"− {number(p.strength)} KL"
        case KlToGo():
            return f"− {number(p.strength)} KL to go"
        case SampledKl():
            return f"− {number(p.strength)} {p.estimator}"
        case SquaredLogRatio():
            inside = f"Σ log {RATIO[p.ratio]}" if p.level == "sequence" else f"log {RATIO[p.ratio]}"
            return f"− {number(p.strength)} ({inside})²"
        case LikelihoodFloor():
            return f"− {number(p.strength)} max(0, −log ρ) gated"
    raise TypeError(f"{type(p).__name__} has no words in docs/make_family.py; add a case to penalty()")


def scalars(rule: Rule) -> str:
    """Return the scalars a rule puts coefficients on."""
    keys = ["logp", *(p.scalar for p in rule.penalties)]
    return ", ".join(dict.fromkeys(k if isinstance(k, str) else "KL" for k in keys))


def members() -> dict[str, Callable[..., Rule]]:
    """Return every rule of the family by name."""
    return {name: getattr(family, name) for name in family.__all__}


def said(make: Callable[..., Rule]) -> dict[str, str]:
    """Return the parts of a rule's docstring: what it is, its equation, source, and what is ours."""
    head, *rest = inspect.cleandoc(make.__doc__ or "").split("\n\n")
    text = re.sub(r":\w+:`([^`]*)`", r"`\1`", " ".join("\n\n".join(rest).split())).replace("``", "`")
    body, _, ours = text.partition(" Ours: ")
    equation, _, source = body.partition(" Source: ")
    return {"what": " ".join(head.split()), "equation": equation, "source": source, "ours": ours}


def row(name: str, make: Callable[..., Rule]) -> str:
    """Return one line of the table."""
    rule, words = make(), said(make)
    extra = ", ".join([penalty(p) for p in rule.penalties] + [type(s).__name__ for s in rule.shaping])
    cells = (
        f"`{name}`", scalars(rule), rule.scope, weight(rule.weight), credit(rule.credit), normaliser(rule.normaliser),
        extra, words["source"].rstrip("."),
    )  # fmt: skip
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def default(value: Any) -> str:
    """Return a default as it is written."""
    return f"{type(value).__name__}()" if is_dataclass(value) else repr(value)


def entry(name: str, make: Callable[..., Rule]) -> str:
    """Return one paragraph: call, what it is, equation, and what is ours."""
    words = said(make)
    defaults = ", ".join(f"{p.name}={default(p.default)}" for p in inspect.signature(make).parameters.values())
    call = f"`{name}({defaults})`"
    ours = f" *Ours:* {words['ours']}" if words["ours"] else ""
    reads = sorted(make().reads)
    needs = f" *Reads* {', '.join(f'`{r}`' for r in reads)}." if reads else ""
    return f"- {call}. {words['what']} {words['equation']}{needs}{ours}"


def page() -> str:
    """Return the text of docs/family.md."""
    rules = members()
    header = "| rule | scalars | scope | w | A | Z | penalties, shaping | source |\n|---|---|---|---|---|---|---|---|"
    table = "\n".join(row(name, make) for name, make in rules.items())
    entries = "\n".join(entry(name, make) for name, make in rules.items())
    return (
        f"{INTRODUCTION}\n## The table\n\n{header}\n{table}\n\n## Weight against ratio\n\n"
        "![Weight of a token against its ratio for every rule of the family](weights.svg)\n\n"
        "*One-token sequences, A > 0 in blue and A < 0 in orange (dashed). Rules with the same curve share a panel. Where a "
        "rule corrects for the engine the panel is about κ at ρ = 1. GSPO is drawn around 1, where its bounds are; M2PO's "
        "mask depends on the batch, here log-ratios spread normally with a standard deviation of 0.3.*\n\n"
        f"## The rules\n\n{entries}\n"
    )


def curve(rule: Rule, log_ratio: np.ndarray, sign: int) -> np.ndarray:
    """Return w of one-token sequences with these log-ratios; of kappa where the weight has one, else of rho."""
    corrects = "proximal/behaviour" in {f.ratio for f in getattr(rule.weight, "factors", ()) if isinstance(f, Bounded)}
    now, zero = log_ratio.reshape(1, -1, 1), np.zeros((1, len(log_ratio), 1))
    mask = np.ones(now.shape, bool)
    view = View.of(now, zero, np.full(now.shape, float(sign)), mask, proximal=now if corrects else zero)
    return np.broadcast_to(rule.weight(view).value, now.shape).ravel()


def grid(rule: Rule) -> np.ndarray:
    """Return the log-ratios a rule is drawn at."""
    if isinstance(rule.weight, SecondMoment):
        return np.sort(np.random.default_rng(0).normal(0, 0.3, 2001))
    narrow = isinstance(rule.weight, Bounded) and rule.weight.level == "geometric"
    return np.linspace(-1e-3, 1e-3, 801) if narrow else np.log(np.linspace(0.02, 6, 2401))


def panels() -> dict[tuple[bytes, ...], tuple[list[str], Rule]]:
    """Return the distinct curves, each with the rules that have it."""
    found: dict[tuple[bytes, ...], tuple[list[str], Rule]] = {}
    for name, make in members().items():
        rule = make()
        x = grid(rule)
        key = (x.round(9).tobytes(), *(curve(rule, x, s).round(9).tobytes() for s in (1, -1)))
        found.setdefault(key, ([], rule))[0].append(name)
    return found


def draw() -> str:
    """Return the figure as SVG."""
    shown = list(panels().values())
    columns = 4
    rows = -(-len(shown) // columns)
    made, axes = figure(rows, columns, size=(11.0, 2.3 * rows))
    with style():
        for ax, (names, rule) in zip(np.ravel(axes), shown, strict=False):
            x = grid(rule)
            for sign, colour, line in ((1, COLOURS[0], "-"), (-1, COLOURS[1], "--")):
                ax.plot(np.exp(x), curve(rule, x, sign), color=colour, linestyle=line, linewidth=1.6)
            ax.plot(np.exp(x), np.exp(x), color="#bbbbbb", linewidth=0.8, zorder=0)
            ax.set_title(wrapped(names), fontsize=8)
            about = "κ at ρ = 1" if "κ" in weight(rule.weight) else "ρ′" if "ρ′" in weight(rule.weight) else "ρ"
            ax.set_xlabel(about, fontsize=8)
            ax.set_ylabel("w", fontsize=8)
            ax.tick_params(labelsize=7)
            top = max(curve(rule, x, 1).max(), curve(rule, x, -1).max())
            ax.set_ylim(-0.05 * top, 1.08 * top)
        for ax in np.ravel(axes)[len(shown) :]:
            ax.set_axis_off()
    return svg(made).replace("<svg ", '<svg style="background: white" ', 1) + "\n"


def wrapped(names: list[str]) -> str:
    """Return names in lines of at most 34 letters."""
    lines = [names[0]]
    for name in names[1:]:
        if len(lines[-1]) + len(name) > 32:
            lines.append(name)
        else:
            lines[-1] += f", {name}"
    return "\n".join(lines)


def main() -> None:
    """Write both files."""
    (FOLDER / "family.md").write_text(page(), encoding="utf-8")
    (FOLDER / "weights.svg").write_text(draw(), encoding="utf-8")
    print(f"wrote {FOLDER / 'family.md'} and weights.svg: {len(members())} rules")  # noqa: T201


if __name__ == "__main__":
    main()
