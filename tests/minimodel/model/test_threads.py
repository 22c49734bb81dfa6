import pytest
import torch

from minimodel.model.threads import one_thread


def interrupted():
    with one_thread():
        raise RuntimeError(f"on {torch.get_num_threads()} thread")


def test_threads_are_given_back_even_after_an_error():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="on 1 thread"):
        interrupted()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
