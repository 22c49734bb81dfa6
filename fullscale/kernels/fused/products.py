"""The two products of the backward, summed in float32 whatever the operands are."""

import torch
from torch import Tensor

from fullscale.kernels import row_blocks
from fullscale.kernels.row_blocks import operand, product

__all__ = ["add_product", "put_product"]


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `out`; rounded once, to the precision of `out`."""
    if a.is_cuda and a.dtype != out.dtype == torch.float32:
        torch.addmm(out, a, b, out_dtype=torch.float32, out=out)
    else:
        row_blocks.add_product(out, a, b)


def put_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Write a @ b to `out`; rounded once, to the precision of `out`."""
    if a.is_cuda and a.dtype != out.dtype == torch.float32:
        torch.mm(a, b, out_dtype=torch.float32, out=out)
    else:
        out.copy_(product(operand(a), operand(b)))
