"""What the tests of the tiny transformer share: one thread, as in a run."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def single_threaded() -> Iterator[None]:
    """Sums in another order are other bits, and several workers share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
