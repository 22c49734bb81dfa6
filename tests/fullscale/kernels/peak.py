"""Ways to go forward and backward through a head, and the memory that each takes at its worst.

Memory is what the operating system says this process held at most, beyond what it held before: tensors, the libraries' own
buffers, everything. That number is reproducible (to a tenth of a megabyte, in any order) in a process that was started with
`ENVIRONMENT`, in which every block of 64 KB or more is handed back as soon as it is freed; `fresh_peaks` starts one.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from fullscale.kernels.head_loss import head_loss
from fullscale.kernels.linear_logprob import linear_logprob
from fullscale.kernels.problem import Coefficients

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MKL_DISABLE_FAST_MM": "1", "OMP_NUM_THREADS": "1"}

Gradients = tuple[Tensor, Tensor]
Heads = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True)
class Shape:
    """A problem's size."""

    rows: int
    """Tokens that count, n."""
    hidden: int
    """H."""
    vocabulary: int
    """V."""
    tokens: int | None = None
    """All tokens, of which `rows` count; None for no others."""


class Case:
    """A head in float32, and the derivatives g and h of a loss by log-prob and entropy of the tokens that count."""

    def __init__(self, shape: Shape) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=generator)

        M = shape.tokens or shape.rows
        self.weight = normal(shape.vocabulary, shape.hidden).mul_(2 / shape.hidden**0.5)  # logits spread by 2
        self.hidden, self.targets = normal(M, shape.hidden), torch.randint(shape.vocabulary, (M,), generator=generator)
        self.rows = torch.randperm(M, generator=generator)[: shape.rows].sort().values
        self.some = self.rows if shape.tokens else None
        self.g, self.h = normal(shape.rows), 0.1 * normal(shape.rows)
        self.compact = self.hidden[self.rows], self.targets[self.rows]

    def gradients(self, hidden: Tensor, run: Callable[[Tensor, Tensor], Tensor]) -> Gradients:
        """Return dX and dW of the loss that `run` makes of two leaves."""
        leaves = hidden.detach().requires_grad_(), self.weight.detach().requires_grad_()
        run(*leaves).backward()
        found = tuple(x.grad for x in leaves)
        assert len(found) == 2
        return found

    def ours(self, keep: float = 0.0) -> Gradients:
        """`linear_logprob`: all tokens are there, `rows` says which count."""

        def run(hidden: Tensor, weight: Tensor) -> Tensor:
            out = linear_logprob(hidden, weight, self.targets, rows=self.some, need_entropy=True, keep=keep)
            return self.g @ out.logp + self.h @ out.entropy

        return self.gradients(self.hidden, run)

    def some_kept(self) -> Gradients:
        """`linear_logprob` that keeps two fifths of the logits."""
        return self.ours(keep=0.4)

    def in_three_products(self) -> Gradients:
        """`head_loss`, on the same."""

        def coefficients(s):
            return Coefficients(self.g[s.rows], self.h[s.rows])

        return self.gradients(
            self.hidden,
            lambda *leaves: head_loss(*leaves, self.targets, coefficients, rows=self.some, need_entropy=True).loss,
        )

    def of(self, heads: Heads) -> Gradients:
        """A peer, given the tokens that count and no others."""
        hidden, targets = self.compact

        def run(*leaves: Tensor) -> Tensor:
            logp, entropy = heads(*leaves, targets)
            return self.g @ logp if entropy is None else self.g @ logp + self.h @ entropy

        return self.gradients(hidden, run)


def log_softmax(hidden, weight, targets):
    lp = torch.log_softmax(hidden @ weight.T, -1)
    return lp.gather(1, targets[:, None])[:, 0], -torch.linalg.vecdot(lp.exp(), lp)


def log_softmax_and_sum(hidden, weight, targets):
    lp = torch.log_softmax(hidden @ weight.T, -1)
    return lp.gather(1, targets[:, None])[:, 0], -(lp.exp() * lp).sum(-1)


def logsumexp(hidden, weight, targets):
    z = hidden @ weight.T
    lse = torch.logsumexp(z, -1)
    return z.gather(1, targets[:, None])[:, 0] - lse, lse - torch.linalg.vecdot(torch.softmax(z, -1), z)


class InPlace(torch.autograd.Function):
    """Logits, log-probs and their gradient in one array, the gradient by its formula."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        z = hidden @ weight.T
        lp = z.sub_(torch.logsumexp(z, -1, keepdim=True))
        p = lp.exp()
        entropy = -torch.linalg.vecdot(p, lp)
        ctx.save_for_backward(hidden, weight, targets, lp, p, entropy)
        return lp.gather(1, targets[:, None])[:, 0], entropy

    @staticmethod
    def backward(ctx, g, h):
        hidden, weight, targets, lp, p, entropy = ctx.saved_tensors
        dz = lp.mul_(h[:, None]).add_((g + h * entropy)[:, None]).mul_(p).neg_()
        dz.scatter_add_(1, targets[:, None], g[:, None])
        return dz @ weight, dz.T @ hidden, None


def liger_chunked(hidden, weight, targets):
    from liger_kernel.chunked_loss.fused_linear_ppo import _ChunkedSelectiveLogProbFunction as Peer

    return Peer.apply(hidden, weight, targets, None, 1.0, 4096), None


def liger_scaled(hidden, weight, targets):
    from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction as Peer

    nll, entropy = Peer.apply(hidden, weight, targets, 1.0, -100, 1, True)
    return -nll, entropy


def torch_chunked(hidden, weight, targets):
    options = torch.nn.LinearCrossEntropyOptions()
    return -functional.linear_cross_entropy(hidden, weight, targets, reduction="none", options=options), None


def cut(hidden, weight, targets):
    from cut_cross_entropy import linear_cross_entropy as peer

    with torch.compiler.set_stance("force_eager"):
        return -peer(hidden, weight, targets, reduction="none", impl="torch_compile"), None


OURS = {"ours": Case.ours, "some_kept": Case.some_kept, "in_three_products": Case.in_three_products}
PLAIN = {"log_softmax": log_softmax, "log_softmax_and_sum": log_softmax_and_sum, "logsumexp": logsumexp}
"""What one writes in torch without a formula for the gradient."""
PEERS = PLAIN | {
    "in_place": InPlace.apply,
    "liger_chunked": liger_chunked,
    "liger_scaled": liger_scaled,
    "torch_chunked": torch_chunked,
    "cut": cut,
}


def work(way: str, case: Case) -> Callable[[], Gradients]:
    """Return forward and backward of a case, in one of the ways: `OURS` or `PEERS`."""
    return OURS[way].__get__(case) if way in OURS else lambda: case.of(PEERS[way])


def peak_bytes(run: Callable[[], object]) -> int:
    """Return how much more memory this process held at most during a call than before it; Linux only."""

    def kib(field: str) -> int:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        assert found
        return int(found[1])

    Path("/proc/self/clear_refs").write_text("5")  # the highest so far is forgotten
    before = kib("VmRSS")
    kept = run()
    most = kib("VmHWM")
    del kept
    return 1024 * (most - before)


def peaks(wanted: Iterable[tuple[str, Shape]]) -> list[int]:
    """Return the workspace of each way at a shape, bytes: the peak beyond the two gradients, which the caller must hold."""
    found = []
    for way, shape in wanted:
        work(
            way, Case(replace(shape, rows=256, tokens=None, vocabulary=16_384))
        )()  # what is set up once is not workspace
        run = work(way, Case(shape))
        tokens = shape.tokens if way in OURS and shape.tokens else shape.rows
        found.append(peak_bytes(run) - 4 * shape.hidden * (shape.vocabulary + tokens))
    return found


def fresh_peaks(wanted: Iterable[tuple[str, Shape]]) -> list[int]:
    """Return `peaks` of a fresh process, in which freed memory is handed back at once."""
    asked = [(way, vars(shape)) for way, shape in wanted]
    program = (
        "import json, sys; from tests.fullscale.kernels.peak import Shape, peaks; "
        "print(json.dumps(peaks((way, Shape(**shape)) for way, shape in json.load(sys.stdin))))"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT)} | ENVIRONMENT
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(asked), env=env, cwd=ROOT, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found
