"""One call of a backend, for a tool that watches it: ``python -m fullscale.validate_gpu.one_call M H V triton backward``.

Everything is done once to compile; then once more between the marks that a profiler may start and stop at.
"""

import sys

import torch

from fullscale.kernels.linear_logprob import linear_logprob

__all__ = ["main"]


def main(words: list[str]) -> None:
    """Call, with ``backward`` last for both directions; on the card if there is one."""
    *sizes, backend, direction = words
    M, H, V = map(int, sizes)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learns = direction == "backward"
    hidden = torch.randn(M, H, device=device, dtype=torch.bfloat16).requires_grad_(learns)
    weight = torch.randn(V, H, device=device, dtype=torch.bfloat16).requires_grad_(learns)
    targets = torch.randint(V, (M,), device=device)

    def call() -> None:
        out = linear_logprob(hidden, weight, targets, need_entropy=True, backend=backend)
        if learns:
            out.logp.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    call()
    if device == "cuda":
        torch.cuda.profiler.start()
    call()
    if device == "cuda":
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
