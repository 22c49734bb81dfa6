"""The checks pass a right backend and catch every wrong one: each fault that kernels of this kind have had is put in."""

from dataclasses import replace

import pytest
import torch

from fullscale.kernels.chunked import Chunked
from fullscale.validate_gpu import cases, checks, oracle
from fullscale.validate_gpu.cases import DRY, FULL, Case, correctness
from fullscale.validate_gpu.checks import answer
from fullscale.validate_gpu.inputs import draw
from fullscale.validate_gpu.poison import Poisoned

BY_NAME = {case.name: case for case in correctness(DRY)}


# --- the list ---------------------------------------------------------------------------------------------------------


def test_a_card_and_a_dry_run_are_asked_the_same_but_for_sizes():
    alike = {"rows": 1, "hidden": 1, "vocabulary": 1, "company": ()}
    small = [[replace(c, **alike) for c in correctness(sizes) if not c.large] for sizes in (DRY, FULL)]
    assert small[0] == small[1]
    assert len(small[0]) > 40
    large = [c for c in correctness(FULL) if c.large]
    assert len(large) == 6
    assert {c.check for c in large} == {c.check for c in correctness(DRY) if c.large}


def test_names_are_distinct_and_checks_exist():
    for sizes in (DRY, FULL):
        names = [c.name for c in correctness(sizes)]
        assert len(set(names)) == len(names)
        assert {c.check for c in correctness(sizes)} == checks.CHECKS.keys()
        assert set(cases.SMOKE) <= set(names)


def test_the_grid_begins_with_the_shape_of_record():
    grid = cases.grid(dry=False)
    assert len({p.name for p in grid}) == len(grid) == 4 * 3 * 4 * 3
    assert {(p.rows, p.hidden, p.vocabulary) for p in grid[:12]} == {cases.RECORD}
    assert {p.operation for p in cases.grid(dry=True)} == {p.operation for p in grid}


# --- inputs and oracle ------------------------------------------------------------------------------------------------


def test_inputs_are_what_the_case_says():
    shifted = draw(replace(BY_NAME["logits shifted by +300"], dtype="float32"), "cpu")
    logits = shifted.hidden @ shifted.weight.T
    assert float((logits - 300).abs().max()) < 10
    assert float((logits - 300).std()) > 1
    peaked = draw(BY_NAME["peaked at the target"], "cpu")
    own = (peaked.hidden.float() * peaked.weight.float()[peaked.targets]).sum(1)
    assert torch.allclose(own, torch.full_like(own, 30.0), atol=1.5)
    some = draw(BY_NAME["some rows count"], "cpu")
    others = torch.ones(len(some.targets), dtype=bool).index_fill(0, some.rows, False)
    assert not some.hidden[others].isfinite().any()
    assert (some.targets[others] == -100).all()
    assert some.hidden[some.rows].isfinite().all()
    assert len(some.rows) == 2
    again = draw(BY_NAME["some rows count"], "cpu")
    assert torch.equal(again.hidden[again.rows], some.hidden[some.rows])


def test_the_oracle_by_hand():
    """Two columns with logits ln 3 and 0: p = 3/4, 1/4."""
    case = Case("by hand", rows=1, hidden=1, vocabulary=2, dtype="float32")
    inputs = replace(
        draw(case, "cpu"),
        hidden=torch.ones(1, 1),
        weight=torch.tensor([[3.0], [1.0]]).log(),
        targets=torch.tensor([1]),
        upstream={"logp": torch.ones(1)},
    )
    found = oracle.values(inputs)
    assert float(found.logp) == pytest.approx(-1.3862944)  # ln 1/4
    assert float(found.lse) == pytest.approx(1.3862944)
    assert float(found.entropy) == pytest.approx(0.5623351)  # 3/4 ln 4/3 + 1/4 ln 4
    slopes = oracle.gradients(inputs)
    assert slopes["weight"].ravel().tolist() == pytest.approx([-0.75, 0.75])  # 1(target) - p
    assert float(slopes["hidden"]) == pytest.approx(-0.75 * 1.0986123)


def test_memory_that_nobody_fills_holds_nan():
    like = torch.zeros(2)
    with Poisoned():
        made = [torch.empty(2, 3), torch.empty_like(like), like.new_empty(4), torch.empty(2, dtype=torch.bfloat16)]
        whole = torch.empty(2, dtype=torch.int64)
        zeros = torch.zeros(2)
    assert all(x.isnan().all() for x in made)
    assert (whole == torch.iinfo(torch.int64).max).all()
    assert (zeros == 0).all()


def test_memory_is_poisoned_in_a_backward_too():
    seen = []

    class Lazy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            seen.append(torch.empty(3))
            return g

    with Poisoned():
        Lazy.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert seen[0].isnan().all()


# --- a right backend, and wrong ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_the_chunked_backend_passes(name):
    outcome = answer(BY_NAME[name], Chunked(), "cpu")
    assert outcome.status == "passed", outcome
    assert outcome.bounds
    assert outcome.values.get("compared") != 0


class Wrong(Chunked):
    """A chunked backend with one fault."""


class TailIsZero(Wrong):
    """Columns past the last enter the softmax with logit 0: right on whole tiles (an old fault of a public kernel)."""

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        missing = -(-len(problem.strips[-1]) // 64) * 64 - len(problem.strips[-1])
        mass = found.mass.clone()
        mass[:, -1] += missing * torch.exp(-found.top[:, -1])
        return replace(found, mass=mass), kept


class Rounded(Wrong):
    """Logits rounded to 16 bits before the softmax."""

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        return replace(found, target=found.target.bfloat16().float()), kept


class Unwritten(Wrong):
    """The last row of the last strip is never written."""

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        mass = torch.empty_like(found.mass)
        mass[:-1] = found.mass[:-1]
        return replace(found, mass=mass), kept


class Companionable(Wrong):
    """A row's sums are added in an order that depends on how many rows there are: right, and another number."""

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        return replace(found, mass=found.mass * (1 + (problem.rows > 1) * 2.0**-23)), kept


class Placed(Wrong):
    """A row's bits depend on where it stands."""

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        ulp = 1 + (torch.arange(problem.rows) == 1) * 2.0**-23
        return replace(found, top=found.top * ulp[:, None]), kept


class Restless(Wrong):
    """Sums through atomics: another number now and then."""

    count = 0

    def _again(self):
        Restless.count += 1
        return 1 + Restless.count % 2 * 2.0**-7

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        return (replace(found, mass=found.mass * self._again()), kept) if wanted.kl else (found, kept)

    def gradients(self, problem, statistics, coefficients, into, **more):
        super().gradients(problem, statistics, coefficients, into, **more)
        into.hidden.mul_(self._again())


class Straddling(Wrong):
    """Strips laid over what a rank holds, and not over the vocabulary."""

    def partials(self, problem, wanted, **more):
        found, kept = super().partials(problem, wanted, **more)
        return replace(found, top=found.top + problem.first * 1e-6), kept


class NoEntropySlope(Wrong):
    """The entropy's gradient without its own term."""

    def gradients(self, problem, statistics, coefficients, into, **more):
        super().gradients(problem, statistics, replace(coefficients, entropy=None), into, **more)


class Overwriting(Wrong):
    """The weight's gradient written where it should be added."""

    def gradients(self, problem, statistics, coefficients, into, **more):
        super().gradients(problem, statistics, coefficients, replace(into, accumulate=False), **more)


class NoSoftcapSlope(Wrong):
    """The cap's own derivative left out."""

    def gradients(self, problem, statistics, coefficients, into, **more):
        super().gradients(replace(problem, softcap=None), statistics, coefficients, into, **more)


class Scribbling(Wrong):
    """The backward writes into what it was given."""

    def gradients(self, problem, statistics, coefficients, into, **more):
        super().gradients(problem, statistics, coefficients, into, **more)
        problem.head.weight.data.mul_(1.5)  # as a kernel would, which autograd does not see


class UnwrittenGradient(Wrong):
    """The last column's row of the weight's gradient is never written."""

    def gradients(self, problem, statistics, coefficients, into, **more):
        part = replace(into, weight=torch.empty_like(into.weight))
        super().gradients(problem, statistics, coefficients, part, **more)
        into.weight[:-1] = part.weight[:-1]


CAUGHT = {
    TailIsZero: ("tails everywhere", "logits shifted by -6"),
    Rounded: ("tails everywhere", "temperature by row"),
    Unwritten: ("tails everywhere", "bits: again"),
    Companionable: ("bits: in company",),
    Placed: ("bits: permuted", "bits: in company"),
    Restless: ("bits: again", "bits: gradients again"),
    Straddling: ("bits: shards",),
    NoEntropySlope: ("gradients", "gradients of entropy alone", "gradients, everything"),
    Overwriting: ("gradient added to what is there",),
    NoSoftcapSlope: ("gradients, everything",),
    Scribbling: ("backward twice",),
    UnwrittenGradient: ("gradients", "bits: gradients again"),
}


@pytest.mark.parametrize(("fault", "name"), [(f, n) for f, names in CAUGHT.items() for n in names])
def test_a_fault_is_caught(fault, name):
    outcome = answer(BY_NAME[name], fault(), "cpu")
    assert outcome.status == "failed", outcome
    beyond = [k for k, bound in outcome.bounds.items() if not outcome.values[k] <= bound]
    assert beyond, "it failed for another reason than a value beyond its bound"


def test_a_fault_within_rounding_passes_against_the_oracle_and_fails_to_the_bit():
    """So the checks to the bit see what no tolerance does."""
    assert answer(BY_NAME["tails everywhere"], Companionable(), "cpu").status == "passed"
    assert answer(BY_NAME["bits: in company"], Companionable(), "cpu").status == "failed"


def test_a_refusal_is_a_failure_unless_the_case_allows_it():
    class Refusing(Chunked):
        def refusal(self, problem, *, strict):
            return "only on Tuesdays"

    assert answer(BY_NAME["gradients"], Refusing(), "cpu").status == "failed"
    outcome = answer(BY_NAME["float16"], Refusing(), "cpu")
    assert (outcome.status, outcome.reason, outcome.note) == ("skipped", "refused", "only on Tuesdays")
    assert answer(BY_NAME["gradients"], Refusing(), "cpu", may_refuse=True).status == "skipped"
