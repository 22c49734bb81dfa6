"""What the fused backend is meant to reach on an H200, written down before there was any measurement.

At the shape of record, bf16, against 790 TFLOP/s and 4.3 TB/s of that card: `must` is about 78 % of the matrix products'
own time, `aim` about 92 %. Rows that do not count must cost next to nothing.
"""

from dataclasses import dataclass

from fullscale.validate_gpu.cases import RECORD, Point

__all__ = ["CARD", "TARGETS", "Target"]

CARD = "NVIDIA H200"
"""The card they are of; on another they are shown and not judged."""


@dataclass(frozen=True)
class Target:
    """One bound on one number of the record."""

    operation: str
    """Of the point at the shape of record."""
    counting: float
    """Share of the rows that count."""
    provider: str
    """Whose number."""
    quantity: str
    """``ms`` or ``extra_mb``."""
    must: float
    """The most it may be."""
    aim: float | None = None
    """What would be excellent."""

    @property
    def point(self) -> str:
        """Name of the point in the record."""
        return Point(*RECORD, self.counting, self.operation).name

    @property
    def products(self) -> int:
        """Matrix products that the work takes."""
        if self.operation != "forward+backward":
            return 1
        return 4 if self.provider == "ours" else 3


TARGETS = (
    Target("forward+entropy", 1.0, "ours", "ms", 29.0, 24.3),
    Target("forward+entropy", 0.3, "ours", "ms", 9.5, 7.7),
    Target("forward+entropy", 0.1, "ours", "ms", 3.4, 2.8),
    Target("forward+backward", 1.0, "ours", "ms", 116.0, 100.0),
    Target("forward+backward", 0.3, "ours", "ms", 36.9, 31.0),
    Target("forward+backward", 0.1, "ours", "ms", 12.6, 11.0),
    Target("forward+backward", 1.0, "ours, head_loss", "ms", 85.0, 74.0),
    Target("forward+entropy", 1.0, "ours", "extra_mb", 25.0),
    Target("forward+backward", 1.0, "ours", "extra_mb", 600.0),
)
"""Times of part of the rows: that share of the whole, 5 % and 0.4 ms more; memory beyond inputs and gradients."""
