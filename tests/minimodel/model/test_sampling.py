import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minimodel.model.sampling import inverse_cdf


def test_inverse_cdf_by_hand():
    logp = torch.tensor([[0.5, 0.25, 0.25]]).log().expand(6, 3)
    u = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.76, 1 - 2**-24])
    assert inverse_cdf(logp, u).tolist() == [0, 0, 1, 1, 2, 2]


def test_inverse_cdf_gives_each_word_its_share():
    p = torch.tensor([0.1, 0.0, 0.55, 0.3, 0.05])
    u = (torch.arange(1000) + 0.5) / 1000
    found = inverse_cdf(p.log().expand(1000, 5), u)
    assert torch.bincount(found, minlength=5).tolist() == [100, 0, 550, 300, 50]


@given(st.lists(st.floats(-90, 90), min_size=2, max_size=40), st.integers(0, 2**24 - 1))
@settings(max_examples=30)
def test_a_word_without_probability_is_never_drawn(logits, place):
    logp = torch.log_softmax(torch.tensor([logits], dtype=torch.float32), -1)
    drawn = inverse_cdf(logp, torch.tensor([place / 2**24]))
    assert logp[0, drawn].exp() > 0
