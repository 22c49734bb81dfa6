"""The fact base: what is asked, what is right, what is known beforehand, and how hard each fact is to find.

Every pair of an entity and a relation is one question. Kinds of question are those of the world, and the drawn base holds
each in its share: what training does depends on the world that was drawn, so it is drawn exactly. Who is known, which
answers are right and how questions are split depend on the seed, the vocabulary, the share known and the split alone, so
that worlds that differ in their retrieval share one set of facts.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from minimodel.model.vocabulary import Vocabulary
from minimodel.tasks.structure import compiled
from sim.mdp.compiled import CompiledGraph
from sim.mdp.worlds import World
from sim.records.config import near_misses
from sim.records.rng import uniforms

__all__ = ["Facts", "draw_facts"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
SPLITS = ("train", "held_out")


@dataclass(frozen=True, eq=False)
class Facts:
    """N = entities x relations questions, in the order of their entity, then relation."""

    entity: I64
    """Entity each question is about, [N]; a number, not a token."""
    relation: I64
    """Relation asked for, [N]."""
    answer: I64
    """The right answer, [N]; every answer is right for as many questions, up to one."""
    kind: I64
    """Kind of each question, an index into ``world.kinds()``, [N]."""
    known: NDArray[np.bool_]
    """Whether the model is to know the answer beforehand, [N]."""
    train: I64
    """Questions that reinforcement learning may use, rising."""
    held_out: I64
    """Questions that it never sees, rising; every kind has the same share of them."""

    def split(self, name: str) -> I64:
        """Return the questions of ``"train"`` or ``"held_out"``.

        Raises
        ------
        ValueError
            For another name, and for a split that is empty.
        """
        if name not in SPLITS:
            raise ValueError(f"there is no split {name!r}{near_misses(name, SPLITS)}")
        questions: I64 = getattr(self, name)
        if not len(questions):
            raise ValueError(f"the split {name!r} is empty; draw facts with held_out above 0")
        return questions

    def shares(self, split: str = "train") -> F64:
        """Return the share of each kind in a split, [H]."""
        questions = self.split(split)
        return np.bincount(self.kind[questions], minlength=int(self.kind.max()) + 1) / len(questions)

    def graph(self, world: World, split: str = "train") -> CompiledGraph:
        """Return the tool graph of `world` with the shares as drawn, for exact theory about the world that was drawn.

        Its nodes are those of the environment. Actions generate 1 token each: a length counts turns.

        Raises
        ------
        ValueError
            When the facts were not drawn for the kinds of this world.
        """
        shares, kinds = self.shares(split), world.kinds()
        asked = np.array([share for _, share, _ in kinds])
        known = np.array([name == "known" for name, _, _ in kinds])
        if len(kinds) != len(shares) or not np.array_equal(known[self.kind], self.known):
            raise ValueError(
                f"facts of {len(shares)} kinds do not fit a world of {len(kinds)}, {known.sum()} of them known; "
                "draw them for this world"
            )
        if np.abs(shares - asked).max() >= 1 / len(self.split(split)):
            raise ValueError(
                f"facts with shares {shares.round(3)} do not fit a world whose kinds have {asked.round(3)}; draw them for "
                "this world"
            )
        return replace(compiled(world), share=shares)


def draw_facts(world: World, vocabulary: Vocabulary, held_out: float, seed: int) -> Facts:
    """Draw a fact base for `world`; the stream is ``minimodel/facts``.

    The kinds of a split are laid end to end by their shares and cut at whole questions, in the order of ``world.kinds()``:
    known ones, then unknown ones by rising hit rate. So each kind's share is off by less than one question, and the mean
    hit rate of the unknown by half a question at most, which rounding each share by itself would not give.

    Parameters
    ----------
    world
        Its kinds and their shares.
    vocabulary
        What there is to ask and to answer.
    held_out
        Share of questions, in [0, 1), that go into the split of that name.
    seed
        Which base.

    Raises
    ------
    ValueError
        When a split is too small to hold one question of every kind.
    """
    if not 0 <= held_out < 1:
        raise ValueError(f"held_out = {held_out} must lie in [0, 1): something must be left to train on")
    N = vocabulary.entities * vocabulary.relations
    by_answer, order = np.argsort(uniforms(seed, "minimodel/facts", 0, (2, N)), kind="stable")
    answer = np.empty(N, np.int64)
    answer[by_answer] = np.arange(N) % vocabulary.answers
    cut = N - round(held_out * N)
    kind = np.empty(N, np.int64)
    for name, questions in zip(SPLITS, (order[:cut], order[cut:]), strict=True):
        if len(questions) or name == "train":
            kind[questions] = np.repeat(np.arange(len(world.kinds())), _counts(world, len(questions), name))
    names = np.array([name for name, _, _ in world.kinds()])
    return Facts(
        entity=np.arange(N) // vocabulary.relations,
        relation=np.arange(N) % vocabulary.relations,
        answer=answer,
        kind=kind,
        known=names[kind] == "known",
        train=np.sort(order[:cut]),
        held_out=np.sort(order[cut:]),
    )


def _counts(world: World, questions: int, split: str) -> I64:
    """Return the questions of each kind, [H]: every running total of shares is rounded to a whole number."""
    total = np.cumsum([share for _, share, _ in world.kinds()])
    ends = np.floor(total / total[-1] * questions + 0.5).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    for (name, share, _), count in zip(world.kinds(), counts, strict=True):
        if count == 0:
            raise ValueError(
                f"{questions} questions to split {split!r} hold none of kind {name!r}, whose share is {share:.3g}; enlarge "
                "the vocabulary (entities x relations), change held_out, or use fewer unknown_kinds"
            )
    return counts
