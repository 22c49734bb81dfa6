"""Two ways of working, one reward: behaviour tells them apart, reward does not (A7).

Why. Reward is one number of a trajectory and behaviour is the trajectory. A search-first policy that sometimes searches
once too often and a policy that mostly guesses first can be worth exactly the same.

Design. The guess-first policy of step 297 in seed A's world; a search-first policy whose decision on fresh evidence is set,
by root finding on the exact return, to earn the same. Batches of 128 x 8 rollouts from each; a statistic tells the two
apart if its AUROC over batches is far from one half. Control: two sets of batches from one policy.
"""

import numpy as np
from scipy.optimize import brentq

from sim.learning.optimisers import Sgd
from sim.learning.presets import null
from sim.mdp.exact import expected_return
from sim.mdp.policy import free_logits, tables
from sim.records.config import replace
from sim.records.nested import describe
from studies.kit import Control, Prediction, above, claim, figures, rank, within

SEEDS, BATCHES = 8, 25  # batches of a policy that does not learn are independent draws
GUESSER = (("start/answer", 0.74), ("fresh/answer", 4.85), ("failed/answer", -2.7))


@claim(
    "reward-cannot-tell-two-workflows",
    says="The reward of a batch does not tell a search-first policy from a guess-first one of equal value.",
    kind=rank(),
    region=within(0.35, 0.65),
    predicts=Prediction(
        0.5,
        source="equal exact return by construction; the spread of a batch mean could still tell",
    ),
    unit="AUROC over batches",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A7",
    reverses="the return: policies .14 apart are told every time",
    controls=(Control("reward of policies that do differ in value", above(0.9)),),
)
@claim(
    "behaviour-tells-two-workflows",
    says="The share of searches at the first turn of a batch tells apart two workflows that reward does not.",
    kind=rank(),
    region=above(0.95),
    predicts=Prediction(1.0, source="first-turn search shares .98 and .32"),
    unit="AUROC over batches",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A7",
    reverses="one policy against itself",
)
def study_reward_cannot_tell(study):
    guesser = replace(null(), {"habit": GUESSER, "optimiser": Sgd(0.0), "steps": BATCHES, "watch_workflows": True})
    graph = guesser.graph()
    value = _value(graph, GUESSER)
    hesitant = float(brentq(lambda z: _value(graph, _searcher(z)) - value, -4.0, 6.0))
    searcher = replace(guesser, {"habit": _searcher(hesitant)})
    better = replace(guesser, {"habit": null().habit})
    seeds = study.seeds()
    runs = study.sweep({"guess first": guesser}, seeds=seeds)
    others = range(seeds.stop, 2 * seeds.stop - seeds.start)  # a batch must not share its questions with its rival
    runs |= study.sweep(
        {"search first": searcher, "search first, better": better, "guess first again": guesser}, seeds=others
    )

    def of(label, column):
        return runs[label][column].ravel()

    reward, search = "train/reward", "behaviour/search_share/turn0"
    study.conclude(
        "reward-cannot-tell-two-workflows", positive=of("search first", reward), negative=of("guess first", reward)
    )
    study.control(
        "reward-cannot-tell-two-workflows",
        "reward of policies that do differ in value",
        positive=of("search first, better", reward),
        negative=of("guess first", reward),
    )
    study.conclude(
        "behaviour-tells-two-workflows", positive=of("search first", search), negative=of("guess first", search)
    )
    study.control(
        "behaviour-tells-two-workflows",
        "one policy against itself",
        region=within(0.35, 0.65),
        positive=of("guess first again", search),
        negative=of("guess first", search),
    )
    columns = (
        "train/reward",
        "train/turns",
        *(f"behaviour/search_share/turn{t}" for t in range(4)),
        "behaviour/no_search_share",
    )
    study.table(
        "reward-cannot-tell-two-workflows",
        ("mean over batches", "search first", "guess first"),
        [(c, float(of("search first", c).mean()), float(of("guess first", c).mean())) for c in columns],
    )
    study.figure(
        "behaviour-tells-two-workflows",
        _figure(of, reward, search),
        caption=f"One dot a batch of 128 x 8 rollouts, {SEEDS * BATCHES} batches a policy.",
    )
    shown = {"search first": searcher, "guess first": guesser}
    kept = study.sweep(
        {label: replace(c, {"keep_rollouts": 0, "steps": 1}) for label, c in shown.items()}, seeds=seeds[:1]
    )
    for label in shown:
        study.rollouts("behaviour-tells-two-workflows", _three(kept[label], graph), f"Three rollouts of {label}.")
    study.note(
        "reward-cannot-tell-two-workflows",
        f"Exact return of both: {value:.4f}; P(answer | fresh) of the searcher {1 / (1 + np.exp(-hesitant)):.3f}.",
    )


def _three(runs, graph):
    kept = runs.rollouts[runs.seeds[0]]
    names = {"action": graph.actions.__getitem__, "context": graph.contexts.__getitem__}
    return "\n".join(describe(kept, row, **names) for row in (0, 8, 16))


def _searcher(fresh):
    return (("start/answer", -4.14), ("fresh/answer", fresh), ("failed/answer", -4.2))


def _value(graph, habit):
    return expected_return(graph, tables(graph, free_logits(graph, habit)))


def _figure(of, reward, search):
    made, ax = figures.figure(title="Equal reward, different work: only behaviour separates the two policies")
    for label, colour in zip(("search first", "guess first"), figures.COLOURS, strict=False):
        ax.plot(of(label, reward), of(label, search), "o", color=colour, alpha=0.6, label=label)
    ax.set_xlabel("reward of the batch")
    ax.set_ylabel("share that searches at the first turn")
    ax.set_ylim(0, 1.02)
    ax.legend()
    return made
