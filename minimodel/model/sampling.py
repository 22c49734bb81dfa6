"""Drawing tokens by inverse CDF: a uniform and a distribution name a token, whatever was drawn before it."""

import torch
from torch import Tensor

__all__ = ["inverse_cdf"]


def inverse_cdf(logp: Tensor, uniforms: Tensor) -> Tensor:
    """Return the ids at which the cumulative probability passes the uniforms: logp [R, V], uniforms [R] -> [R].

    >>> inverse_cdf(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([0.6])).item()
    1
    """
    mass = logp.exp().cumsum(-1)
    total = mass[:, -1:]  # a float32 sum is not quite 1, and u x total may be rounded up to it
    at = torch.minimum(uniforms[:, None] * total, torch.nextafter(total, torch.zeros(())))
    return torch.searchsorted(mass, at, right=True)[:, 0]
