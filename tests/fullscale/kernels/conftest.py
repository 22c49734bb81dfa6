"""States of the process that a kernel must do without, or under, put back afterwards."""

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.fullscale.kernels.small import unwritten_is_nan


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Problems this small are slower on two threads, and far slower where other processes keep them waiting."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that nobody has written holds NaN."""
    with unwritten_is_nan():
        yield


@pytest.fixture
def threads(one_thread: None) -> Callable[[int], None]:
    """Set the number of threads of a matrix product, until the test is over."""
    return torch.set_num_threads


@pytest.fixture
def precision() -> Iterator[Callable[[str], None]]:
    """Set what float32 means in a matrix product."""
    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)
