"""Log-probs, entropy and KL of a language model's head without its logits."""

from fullscale.kernels.head_loss import HeadLoss, Scalars, head_loss
from fullscale.kernels.linear_logprob import LogprobOut, linear_logprob, scatter
from fullscale.kernels.problem import Coefficients, Head

__all__ = ["Coefficients", "Head", "HeadLoss", "LogprobOut", "Scalars", "head_loss", "linear_logprob", "scatter"]
