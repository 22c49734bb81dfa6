"""Our scalars and gradients against those of the packages that others train with, on the same operands.

What each has of what `linear_logprob` has, at the versions that `constraints.txt` pins:

| | rows that do not count | temperature | entropy, its gradient | 16-bit operands |
|---|---|---|---|---|
| ours | left out of every product | one a token | float32, yes | logits float32 |
| Liger, chunked log-prob (its GRPO) | - | one | - | logits rounded to 16 bits |
| Liger, scaled cross-entropy off a GPU | computed, masked | one | in the operands' dtype, yes | rounded |
| Liger, linear cross-entropy (Triton) | computed, masked | - | - | rounded |
| torch, `F.linear_cross_entropy` | computed, masked | - | - | rounded, the result too |
| cut-cross-entropy, its torch path | left out | - | - | rounded |

A peer without a temperature is given hidden states that were divided by it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fullscale.kernels.linear_logprob import linear_logprob

M, H, V = 60, 48, 1100  # strips, tiles and chunks all end in the middle of something
IGNORED = -100
NEAR = 1e-5
"""Agreement in float32, nats, and of the largest gradient: logits up to 16 are 2e-6 apart, and sums have their own order."""
HALF_UNIT = 2.0**-8
"""Largest relative error of rounding to bfloat16."""

Scalars = Callable[..., Tensor]


def ours(hidden, weight, targets, **more):
    rows = (targets != IGNORED).nonzero()[:, 0]
    return linear_logprob(hidden, weight, targets, rows=rows, backend="chunked", **more).logp


def liger_chunked(hidden, weight, targets, bias=None, temperature=1.0):
    from liger_kernel.chunked_loss.fused_linear_ppo import _ChunkedSelectiveLogProbFunction as Peer

    counts = targets != IGNORED  # its callers mask afterwards
    return Peer.apply(hidden[counts], weight, targets[counts], bias, temperature, 512)


def liger_scaled(hidden, weight, targets, temperature=1.0):
    return liger_scaled_with_entropy(hidden, weight, targets, temperature)[0]


def liger_scaled_with_entropy(hidden, weight, targets, temperature=1.0):
    from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction as Peer

    counts = targets != IGNORED
    nll, entropy = Peer.apply(hidden, weight, targets, temperature, IGNORED, 1, True)
    return -nll[counts], entropy[counts]


def liger_linear(hidden, weight, targets, bias=None):
    from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction as Peer

    return -Peer.apply(hidden, weight, targets, bias, None, IGNORED, 0.0, 0.0, "none")[0][targets != IGNORED]


def torch_whole(hidden, weight, targets, bias=None, options=None):
    nll = functional.linear_cross_entropy(hidden, weight, targets, linear_bias=bias, reduction="none", options=options)
    return -nll[targets != IGNORED]


def torch_chunked(hidden, weight, targets, bias=None):
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=16, chunking_method=None, acc_policy="accurate")
    return torch_whole(hidden, weight, targets, bias, options)


def cut(hidden, weight, targets, softcap=None):
    with torch.compiler.set_stance("force_eager"):  # its arithmetic without half a minute of compiling it
        return cut_compiled(hidden, weight, targets, softcap)


def cut_compiled(hidden, weight, targets, softcap=None):
    from cut_cross_entropy import linear_cross_entropy as peer

    nll = peer(hidden, weight, targets, reduction="none", impl="torch_compile", softcap=softcap)
    return -nll[targets != IGNORED]


PACKAGE = {
    liger_chunked: "liger_kernel",
    liger_scaled: "liger_kernel",
    liger_linear: "liger_kernel",
    cut: "cut_cross_entropy",
}
PEERS = (liger_chunked, liger_scaled, liger_linear, torch_whole, torch_chunked, cut)


def needed(peer: Scalars) -> Scalars:
    """Return a peer; skip the test where a peer's package is not installed."""
    if peer in PACKAGE:
        pytest.importorskip(PACKAGE[peer], reason="`make` installs what the kernels are measured against")
    elif not hasattr(functional, "linear_cross_entropy"):
        pytest.skip(f"torch {torch.__version__} has no linear_cross_entropy yet")
    return peer


@pytest.fixture(params=PEERS, ids=lambda peer: peer.__name__)
def peer(request):
    return needed(request.param)


@dataclass(frozen=True, eq=False)
class Case:
    """A head, tokens of which a third do not count, and the derivative of a loss by the log-probs of the others."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    upstream: Tensor

    def to(self, dtype: torch.dtype) -> "Case":
        return replace(self, hidden=self.hidden.to(dtype), weight=self.weight.to(dtype))

    def through(self, logp: Scalars, **more: object) -> list[Tensor]:
        """Return the log-probs, then the gradients by hidden states, weight and each tensor of `more` that learns."""
        leaves = [x.clone().requires_grad_() for x in (self.hidden, self.weight)]
        found = logp(*leaves, self.targets, **more)
        (self.upstream.to(found.dtype) @ found).backward()
        return [x.detach() for x in (found, *(x.grad for x in leaves))]

    def exact(self) -> list[Tensor]:
        """Return the same in float64, of the very operands."""
        return self.to(torch.float64).through(written_out)


def written_out(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    counts = targets != IGNORED
    return torch.log_softmax(hidden[counts] @ weight.T, -1).gather(1, targets[counts, None])[:, 0]


def case(common: float = 0.0) -> Case:
    """Return a case whose logits spread by 2 about `common`; a column that is taken for logit 0 shows where it is not 0."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(M, H, generator=generator), 0.3 * torch.randn(V, H, generator=generator)
    hidden[:, 0], weight[:, 0] = 1.0, common
    targets = torch.randint(0, V, (M,), generator=generator)
    targets[:3] = torch.tensor([0, V - 1, V // 8])
    targets[torch.randperm(M - 3, generator=generator)[: M // 3] + 3] = IGNORED
    return Case(hidden, weight, targets, torch.randn(M - M // 3, generator=generator))


def off(found: Tensor, by: Tensor) -> float:
    """Return the largest difference, as a share of the largest number."""
    return float((found.double() - by.double()).abs().max() / by.double().abs().max())


def assert_near(mine: list[Tensor], theirs: list[Tensor], tolerance: float = NEAR) -> None:
    assert mine[0].abs().min() > 0.1
    assert (mine[0] - theirs[0]).abs().max() < tolerance
    for a, b in zip(mine[1:], theirs[1:], strict=True):
        assert b.abs().max() > 0.1
        assert off(a, b) < tolerance


@pytest.mark.parametrize("common", [0.0, -6.0, 6.0])
def test_log_probs_and_gradients_in_float32(peer, common):
    given = case(common)
    mine = given.through(ours)
    assert_near(mine, given.through(peer))
    assert_near(mine, given.exact())


@pytest.mark.parametrize("peer", [liger_chunked, liger_scaled], ids=lambda peer: peer.__name__)
@pytest.mark.parametrize("temperature", [0.6, 1.7])
def test_one_temperature(peer, temperature):
    given = case()
    warm, cold = (given.through(needed(peer), temperature=t) for t in (temperature, 1.0))
    assert_near(given.through(ours, temperature=temperature), warm)
    assert off(warm[0], cold[0]) > 0.1


def test_a_temperature_for_each_token(peer):
    given, generator = case(), torch.Generator().manual_seed(1)
    temperature = torch.tensor([0.5, 1.0, 2.0])[torch.randint(0, 3, (M,), generator=generator)]  # division is exact
    divided = given.through(lambda hidden, *rest: peer(hidden / temperature[:, None], *rest))
    assert_near(given.through(ours, temperature=temperature), divided)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(("of_logp", "of_entropy"), [(0.0, 1.0), (1.0, -0.3)], ids=["entropy", "both"])
def test_entropy_and_its_gradient(temperature, of_logp, of_entropy):
    needed(liger_scaled)
    given = case()
    weights = torch.linspace(-1, 2, M - M // 3)

    def mine(hidden, weight, targets):
        rows = (targets != IGNORED).nonzero()[:, 0]
        out = linear_logprob(hidden, weight, targets, rows=rows, temperature=temperature, need_entropy=True)
        return of_logp * out.logp + of_entropy * weights * out.entropy

    def theirs(hidden, weight, targets):
        logp, entropy = liger_scaled_with_entropy(hidden, weight, targets, temperature)
        return of_logp * logp + of_entropy * weights * entropy

    found, expected = given.through(mine), given.through(theirs)
    for a, b in zip(found, expected, strict=True):
        assert b.abs().max() > 0.1
        assert off(a, b) < NEAR


@pytest.mark.parametrize("peer", [liger_chunked, liger_linear, torch_whole, torch_chunked], ids=lambda p: p.__name__)
def test_bias(peer):
    given, peer = case(), needed(peer)
    start = torch.linspace(-2, 2, V)
    mine, theirs = start.clone().requires_grad_(), start.clone().requires_grad_()
    assert_near(given.through(ours, bias=mine), given.through(peer, bias=theirs))
    assert theirs.grad.abs().max() > 0.1
    assert off(mine.grad, theirs.grad) < NEAR


def test_softcap():
    given = case(6.0)
    mine, theirs = (given.through(logp, softcap=5.0) for logp in (ours, needed(cut)))
    assert_near(mine, theirs)
    assert off(mine[0], given.through(ours)[0]) > 0.1


def test_bfloat16_operands_cost_us_the_rounding_of_the_gradients_and_peers_that_of_the_logits(peer):
    given = case(-6.0).to(torch.bfloat16)
    mine, theirs, exact = given.through(ours), given.through(peer), given.exact()
    assert mine[0].dtype == torch.float32
    assert (mine[0] - exact[0]).abs().max() < NEAR
    largest = float((given.hidden.double() @ given.weight.double().T).abs().max())
    rounded = HALF_UNIT * 2 * largest  # one logit and the log-partition of all, each off by half a unit at most
    if theirs[0].dtype == torch.bfloat16:
        rounded += HALF_UNIT * float(exact[0].abs().max())
    assert 1e-3 < (theirs[0] - exact[0]).abs().max() < rounded
    for a, b, e in zip(mine[1:], theirs[1:], exact[1:], strict=True):
        assert a.dtype == b.dtype == torch.bfloat16
        assert ((a - e).abs() <= HALF_UNIT * e.abs() + NEAR * e.abs().max()).all()
        assert off(a, e) <= off(b, e)


def test_entropy_of_bfloat16_operands_is_float32():
    needed(liger_scaled)
    given = case().to(torch.bfloat16)
    rows = (given.targets != IGNORED).nonzero()[:, 0]
    z = given.hidden[rows].double() @ given.weight.double().T
    exact = torch.distributions.Categorical(logits=z).entropy()
    mine = linear_logprob(given.hidden, given.weight, given.targets, rows=rows, need_entropy=True).entropy
    theirs = liger_scaled_with_entropy(given.hidden, given.weight, given.targets)[1]
    assert (mine - exact).abs().max() < NEAR
    assert theirs.dtype == torch.bfloat16
    assert 1e-3 < (theirs - exact).abs().max() < 2 * HALF_UNIT * exact.max()


def kept_and_poisoned(logp: Scalars) -> tuple[list[Tensor], list[Tensor]]:
    """Return what comes of a case, and what when the hidden states that do not count are NaN."""
    given = case()
    hidden = given.hidden.where((given.targets != IGNORED)[:, None], torch.nan)
    return given.through(logp), replace(given, hidden=hidden).through(logp)


@pytest.mark.parametrize("logp", [ours, cut], ids=lambda logp: logp.__name__)
def test_rows_that_do_not_count_are_not_read(logp):
    kept, poisoned = kept_and_poisoned(logp if logp is ours else needed(logp))
    assert all(torch.equal(a, b) for a, b in zip(kept, poisoned, strict=True))


@pytest.mark.parametrize("peer", [liger_scaled, liger_linear, torch_whole, torch_chunked], ids=lambda p: p.__name__)
def test_other_peers_do_read_them(peer):
    kept, poisoned = kept_and_poisoned(needed(peer))
    assert torch.equal(kept[0], poisoned[0])
    assert poisoned[2].isnan().any()


def test_what_peers_refuse():
    needed(liger_scaled)
    given, one_each = case(), torch.ones(M)
    with pytest.raises(TypeError, match="temperature must be a real number"):
        given.through(liger_scaled, temperature=one_each)
    assert torch.equal(given.through(ours, temperature=one_each)[0], given.through(ours)[0])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch, of what its compiler imports
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # and of its compiler's own look
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_cut_cross_entropy_as_its_package_runs_it(dtype):
    needed(cut)
    given = case().to(dtype)
    compiled, eager = given.through(cut_compiled), given.through(cut)
    if dtype == torch.float32:
        assert_near(given.through(ours), compiled)
    else:
        assert off(compiled[0], eager[0]) < HALF_UNIT
        assert off(given.through(ours)[1], compiled[1]) < 3 * HALF_UNIT
