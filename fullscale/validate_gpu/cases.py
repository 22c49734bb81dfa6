"""What is checked and what is timed, as plain data: one list for a card and for a dry run, at other sizes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

__all__ = ["DRY", "FULL", "RECORD", "SMOKE", "Case", "Point", "Sizes", "correctness", "grid"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the small cases."""

    rows: int
    """Rows of an ordinary case."""
    odd_rows: int
    """Rows that fill no tile."""
    hidden: int
    """Hidden units, whole steps of a tile."""
    odd_hidden: int
    """Hidden units that are none."""
    vocabulary: int
    """Columns, whole tiles in every block."""
    odd_vocabulary: int
    """Columns that are none."""
    long_vocabulary: int
    """Columns with several strips in a block, the last of them short."""
    company: tuple[int, ...]
    """Numbers of rows among which one row must keep its bits."""
    heads: tuple[tuple[int, int, int], ...]
    """(rows, hidden, vocabulary) of the large cases: heads of language models, the last one that of record."""


FULL = Sizes(
    rows=256,
    odd_rows=129,
    hidden=256,
    odd_hidden=200,
    vocabulary=4096,
    odd_vocabulary=1100,
    long_vocabulary=40_003,
    company=(1, 2, 17, 64, 127, 128, 129, 1000),
    heads=((4096, 1024, 151_936), (4096, 4096, 151_936), (16_384, 3584, 152_064)),
)
"""On a card."""
DRY = Sizes(
    rows=6,
    odd_rows=5,
    hidden=64,
    odd_hidden=40,
    vocabulary=512,
    odd_vocabulary=300,
    long_vocabulary=17_000,
    company=(1, 2, 5),
    heads=((9, 48, 1003),),
)
"""On a processor, where a kernel is interpreted: every path at a size that takes a second or so."""


@dataclass(frozen=True)
class Case:
    """One question about a backend's numbers."""

    name: str
    """How the record calls it."""
    rows: int
    """M, rows of the hidden states."""
    hidden: int
    """H."""
    vocabulary: int
    """V."""
    check: str = "values"
    """Which function of `checks` answers it."""
    dtype: str = "bfloat16"
    """Of hidden states and weight."""
    spread: float = 2.0
    """Standard deviation of the logits, before softcap and temperature."""
    offset: float = 0.0
    """What all logits have in common."""
    pattern: str = "random"
    """``random``; ``equal``, all logits the same; ``peaked``, the target's logit near 30; ``unlikely``, near -30."""
    targets: str = "any"
    """``any``, ``first``, ``last`` (the column most likely lost in a tail)."""
    temperature: float | str = 1.0
    """One number, or ``each``: from 0.1 to 10 over the rows."""
    softcap: float | None = None
    """Cap of the logits."""
    bias: bool = False
    """Whether the head has one."""
    entropy: bool = True
    """Whether the entropy is asked for."""
    kl: bool = False
    """Whether a reference and the exact KL to it are."""
    counting: float = 1.0
    """Share of the rows that count; the others hold NaN, infinity and targets that are none."""
    coefficients: str = "logp entropy"
    """Scalars of which a gradient is taken, kl among them; with ``some``, half of the rows have none."""
    keep: float = 0.0
    """Share of the logits kept for the backward."""
    ranks: tuple[int, ...] = ()
    """Into how many shards the vocabulary is split."""
    company: tuple[int, ...] = ()
    """As in `Sizes`."""
    may_refuse: bool = False
    """Whether a backend may decline it."""
    large: bool = False
    """Whether it is a case of a language model's own size, compared on part of the rows."""


SMOKE = ("tails everywhere", "gradients", "bits: in company")
"""The three to look at first."""


def correctness(sizes: Sizes) -> tuple[Case, ...]:
    """Return all cases, the small ones first."""
    whole = Case("whole tiles", sizes.rows, sizes.hidden, sizes.vocabulary)
    odd = Case("tails everywhere", sizes.odd_rows, sizes.odd_hidden, sizes.odd_vocabulary)
    return (
        whole,
        odd,
        *(replace(case, check="values") for case in _values(odd, sizes)),
        *(replace(case, check="gradients") for case in _gradients(whole, odd)),
        *_promises(odd, sizes),
        *_large(sizes),
    )


def _values(odd: Case, sizes: Sizes) -> Iterator[Case]:
    """Log-prob, entropy, log-partition, reference and KL against float64."""
    yield replace(odd, name="one row", rows=1)
    yield replace(odd, name="one column", vocabulary=1)
    yield replace(odd, name="five columns", vocabulary=5)
    yield replace(odd, name="several strips a block", vocabulary=sizes.long_vocabulary)
    yield replace(odd, name="hidden not a multiple of 8", hidden=sizes.odd_hidden + 3, may_refuse=True)
    for offset in (-300.0, -6.0, 6.0, 300.0):
        yield replace(odd, name=f"logits shifted by {offset:+g}", offset=offset)
    yield replace(odd, name="logits shifted by -300, last target", offset=-300.0, targets="last")
    yield replace(odd, name="equal logits", pattern="equal")
    yield replace(odd, name="peaked at the target", pattern="peaked")
    yield replace(odd, name="peaked away from the target", pattern="unlikely")
    yield replace(odd, name="wide logits", spread=20.0)
    yield replace(odd, name="first target", targets="first")
    yield replace(odd, name="last target", targets="last")
    for temperature in (0.01, 0.6, 10.0):
        yield replace(odd, name=f"temperature {temperature:g}", temperature=temperature)
    yield replace(odd, name="temperature by row", temperature="each")
    yield replace(odd, name="softcap", softcap=5.0, spread=6.0)
    yield replace(odd, name="softcap, shifted", softcap=30.0, offset=-300.0, temperature="each")
    yield replace(odd, name="bias", bias=True)
    yield replace(odd, name="no entropy", entropy=False)
    yield replace(odd, name="kl", kl=True)
    yield replace(
        odd, name="kl, shifted, softcap, bias", kl=True, offset=6.0, softcap=30.0, bias=True, temperature="each"
    )
    yield replace(odd, name="some rows count", counting=0.4)
    yield replace(odd, name="float32", dtype="float32", may_refuse=True)
    yield replace(odd, name="float16", dtype="float16", may_refuse=True)


def _gradients(whole: Case, odd: Case) -> Iterator[Case]:
    """By hidden states, weight and bias against float64."""
    yield replace(odd, name="gradients")
    yield replace(whole, name="gradients, whole tiles")
    for part in ("logp", "entropy"):
        yield replace(odd, name=f"gradients of {part} alone", coefficients=part)
    yield replace(odd, name="gradients of kl alone", kl=True, coefficients="kl")
    yield replace(odd, name="gradients, everything", kl=True, coefficients="logp entropy kl", softcap=5.0, bias=True,
                  temperature="each", offset=6.0)  # fmt: skip
    yield replace(odd, name="gradients, some rows count", counting=0.4)
    yield replace(odd, name="gradients, half of the logits kept", keep=0.5)
    yield replace(odd, name="gradients, logits kept", keep=1.0)
    yield replace(odd, name="gradients, softcap, logits kept", keep=1.0, softcap=5.0, temperature="each", bias=True)
    yield replace(
        odd, name="gradients, peaked at the target", pattern="peaked", temperature=4.0
    )  # 1 - p would be rounding
    yield replace(odd, name="gradients, peaked away from the target", pattern="unlikely")
    yield replace(odd, name="gradients, float32", dtype="float32", may_refuse=True)


def _promises(odd: Case, sizes: Sizes) -> Iterator[Case]:
    """What holds to the bit, and what holds at the edges."""
    yield replace(
        odd, name="bits: in company", check="company", rows=max(sizes.company), company=sizes.company, kl=True
    )
    yield replace(odd, name="bits: permuted", check="permuted", kl=True)
    yield replace(odd, name="bits: again", check="again", kl=True)
    yield replace(odd, name="bits: shards", check="shards", ranks=(2, 4, 8))
    yield replace(odd, name="bits: gradients again", check="gradients_again")
    yield replace(odd, name="rows without coefficients", check="dropped", coefficients="logp entropy some")
    yield replace(odd, name="gradient added to what is there", check="added")
    yield replace(odd, name="backward twice", check="twice")
    yield replace(odd, name="head_loss", check="head_loss", counting=0.8)
    yield replace(odd, name="no rows", check="empty", counting=0.0)
    yield replace(odd, name="a target outside the vocabulary", check="outside")


def _large(sizes: Sizes) -> Iterator[Case]:
    for rows, hidden, vocabulary in sizes.heads:
        base = Case(f"{rows} x {hidden} x {vocabulary}", rows, hidden, vocabulary, large=True)
        yield base
        if (rows, hidden, vocabulary) == sizes.heads[-1]:
            few = tuple(n for n in (1, 129, rows) if n <= rows)
            yield replace(base, name=f"{base.name}, bits: in company", check="company", rows=rows, company=few)
            yield replace(base, name=f"{base.name}, gradients", check="gradients", rows=min(rows, 4096), counting=0.3)
            yield replace(
                base, name=f"{base.name}, bits: gradients again", check="gradients_again", rows=min(rows, 4096)
            )


@dataclass(frozen=True)
class Point:
    """One row of the table of times."""

    rows: int
    """M."""
    hidden: int
    """H."""
    vocabulary: int
    """V."""
    counting: float
    """Share of the rows that count."""
    operation: str
    """``forward``, ``forward+entropy``, ``forward+backward``."""

    @property
    def name(self) -> str:
        """How the record calls it."""
        return f"{self.operation}, {self.rows} x {self.hidden} x {self.vocabulary}, {self.counting:g} of the rows"


RECORD = (16_384, 3584, 152_064)
"""Rows, hidden units and columns of the shape of record: the head of Qwen2.5-7B."""
_OPERATIONS = ("forward+entropy", "forward+backward", "forward")


def grid(dry: bool) -> tuple[Point, ...]:
    """Return all points, those that matter most first, since the time may not reach for all.

    First the shape of record at every share of rows, then the other heads, then fewer and more rows.
    """
    if dry:
        return tuple(Point(16, 32, 300, share, operation) for share in (1.0, 0.3) for operation in _OPERATIONS)
    _, hidden, vocabulary = RECORD
    heads = ((hidden, vocabulary), (4096, 151_936), (1024, 151_936))
    points = [
        Point(rows, *head, share, operation)
        for rows in (16_384, 8192, 2048, 32_768)
        for head in heads
        for share in (1.0, 0.3, 0.1, 0.5)
        for operation in _OPERATIONS
    ]
    return tuple(sorted(points, key=lambda p: (p.rows == 32_768, (p.hidden, p.vocabulary) != heads[0])))
