"""Between forward and backward: what a caller may change, and what a graph may hold on to."""

import gc
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fullscale.kernels.chunked import Chunked
from tests.fullscale.kernels.small import SCALARS, call, leaves_of, ours, same_bits, small, total, upstream_of


@pytest.mark.parametrize("name", SCALARS)
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_a_scalar_changed_in_place_changes_no_gradient(name, keep):
    """As `clamp_` or `div_` by ln V for a plot: what the backward needs of a scalar is not the caller's copy."""
    case, leaves = small(101), leaves_of(small(101))
    out = call(case, leaves, keep=keep)
    loss = total(out, upstream_of(case))
    with torch.no_grad():
        getattr(out, name).fill_(7)
    loss.backward()
    alone = ours(case, upstream_of(case))
    assert [k for k, x in leaves.items() if not same_bits(x.grad, alone[f"d_{k}"])] == []


def targets_of(case):
    return case.targets


def temperature_of(case):
    return case.temperature


def rows_of(case):
    return case.rows


def reference_of(case):
    return case.reference.weight


@pytest.mark.parametrize("of", [targets_of, temperature_of, rows_of, reference_of])
@pytest.mark.parametrize("whole", [False, True])
def test_an_argument_changed_in_place_is_not_taken_for_the_one_there_was(of, whole):
    """A data loader's buffer that is filled again before the backward: autograd refuses for hidden states and weight."""

    def fresh():
        case = small(101)
        rows = torch.arange(17 if whole else 9)
        return replace(case, rows=None if whole and of is not rows_of else rows, targets=case.targets.clone())

    case, upstream = fresh(), upstream_of(fresh())
    leaves = leaves_of(case)
    loss = total(call(case, leaves), upstream)
    of(case).copy_(of(case).flip(0).clone())
    try:
        loss.backward()
    except RuntimeError as refused:
        assert "modified by an inplace operation" in str(refused)  # noqa: PT017
    else:
        alone = ours(fresh(), upstream)
        assert [k for k, x in leaves.items() if not same_bits(x.grad, alone[f"d_{k}"])] == []


@pytest.mark.parametrize("name", ["hidden", "weight"])
def test_an_operand_changed_in_place_is_refused(name):
    case, leaves = small(101), leaves_of(small(101))
    loss = call(case, leaves).logp.sum()
    with torch.no_grad():
        leaves[name].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@dataclass(frozen=True)
class Watched(Chunked):
    """Holds on to nothing it kept, but knows whether others do."""

    seen: list = field(default_factory=list)

    def partials(self, problem, wanted, *, strict, keep=0.0):
        found, kept = super().partials(problem, wanted, strict=strict, keep=keep)
        self.seen.append(StorageWeakRef(kept.strips[0].untyped_storage()))
        return found, kept


@pytest.mark.parametrize("backward", [False, True])
def test_kept_logits_go_with_the_graph(no_collector, backward):
    """At once, by reference counts: n x V numbers a step until the collector runs would be the largest thing there is."""
    case, backend = small(1003), Watched()
    out = call(case, leaves_of(case), backend=backend, keep=1.0)
    assert not backend.seen[0].expired()
    if backward:
        out.logp.sum().backward()
    del out
    assert backend.seen[0].expired()


def test_kept_logits_go_with_the_backward(no_collector):
    """Scalars are looked at after the step; autograd lets go of what it saved, and so does this."""
    case, backend = small(1003), Watched()
    out = call(case, leaves_of(case), backend=backend, keep=1.0)
    out.logp.sum().backward()
    assert backend.seen[0].expired()


def test_hidden_states_go_with_the_backward(no_collector):
    """Autograd lets go of them; a view of no rows would hold on to all of them."""
    case = small(101)
    hidden = case.hidden.clone().requires_grad_() * 1
    out = call(case, leaves_of(case) | {"hidden": hidden})
    storage = StorageWeakRef(hidden.untyped_storage())
    del hidden
    assert not storage.expired()
    out.logp.sum().backward()
    assert storage.expired()
