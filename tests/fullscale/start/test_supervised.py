"""Teaching demonstrations to a tiny model: by hand, against autograd on plain logits, and to the end."""

import math

import pytest
import torch
from torch import nn

from fullscale.agent.policy import LanguagePolicy
from fullscale.start.start import Start
from fullscale.start.supervised import backward, padded, supervised
from tests.fullscale.agent.small import model
from tests.fullscale.start.small import by_hand, played, policy

LONG = by_hand([0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1])  # prompt 2, written 3, observation 4, written 2
SHORT = by_hand([0, 1, 1])
BATCH = (LONG, SHORT, by_hand([0, 0, 1, 1, 0, 1]), by_hand([0, 1, 0, 0, 0, 0, 0, 1]))


class Told(LanguagePolicy):
    """A policy whose token losses are what a test says, times its one parameter."""

    def __init__(self, *losses):
        self.losses, self.one = list(losses), nn.Parameter(torch.ones(()))

    def parameters(self):
        return iter([self.one])

    def scalars(self, ids, wanted, reference=None, where=None):
        found = torch.zeros(ids.shape)
        for row, length in enumerate(where.sum(1).tolist()):
            found[row, where[row]] = torch.tensor(self.losses.pop(0)[:length])
        return {"logp": -found * self.one}


class Leaf(LanguagePolicy):
    """A policy whose log-probs are a leaf, the first of a row included."""

    def __init__(self, shape):
        self.logp = nn.Parameter(torch.full(shape, -2.0))

    def scalars(self, ids, wanted, reference=None, where=None):
        return {"logp": torch.where(where, self.logp, 0.0)}


class Recording(LanguagePolicy):
    """A policy that remembers what it was asked for."""

    def scalars(self, ids, wanted, reference=None, where=None):
        self.asked = [*getattr(self, "asked", []), [tuple(row.tolist()) for row in ids]]
        return super().scalars(ids, wanted, reference, where)


def modes(of):
    return [module.training for module in of.scoring.modules()]


def gradients(of, batch, micro):
    of.scoring.zero_grad(set_to_none=True)
    loss = backward(of, batch, micro)
    return loss, torch.cat([p.grad.flatten() for p in of.parameters()])


# --- the gradient of one update ---------------------------------------------------------------------------------------


def test_padding_by_hand():
    ids, written = padded([SHORT, by_hand([0, 0, 0, 1])])
    assert ids.tolist() == [[3, 4, 5, 0], [3, 4, 5, 6]]
    assert written.tolist() == [[False, True, True, False], [False, False, False, True]]


@pytest.mark.parametrize("micro", [1, 2])
def test_a_mean_is_over_the_tokens_of_the_whole_update(micro):
    told = Told([5.0], [1.0, 1.0, 1.0, 1.0])
    loss = backward(told, [by_hand([0, 1, 1, 1, 1]), by_hand([0, 1])], micro)
    assert loss == pytest.approx(1.8)
    assert float(told.one.grad) == pytest.approx(1.8)


def test_what_was_read_has_no_gradient_and_all_that_was_written_has_one():
    leaf = Leaf((1, 11))
    assert backward(leaf, [LONG], 1) == pytest.approx(2.0)
    found = leaf.logp.grad[0]
    assert found.tolist() == pytest.approx([0, 0, -0.2, -0.2, -0.2, 0, 0, 0, 0, -0.2, -0.2])
    assert (found == 0).tolist() == (~torch.from_numpy(LONG.written)).tolist()


def test_the_gradient_is_that_of_the_models_own_logits_however_it_is_cut():
    network = model()
    total = torch.zeros(())
    for each in BATCH:
        ids, written = torch.from_numpy(each.ids)[None], torch.from_numpy(each.written)[None]
        logp = torch.log_softmax(network(input_ids=ids).logits[:, :-1].double(), -1)
        total = total - logp.gather(-1, ids[:, 1:, None])[..., 0][written[:, 1:]].sum()
    loss = total / sum(int(each.written.sum()) for each in BATCH)
    loss.backward()
    right = torch.cat([p.grad.flatten() for p in network.parameters()])
    for micro in (1, 2, 4, 99):
        mine, found = gradients(policy(), BATCH, micro)
        assert mine == pytest.approx(loss.item(), rel=1e-5)
        assert (found - right).norm() < 1e-5 * right.norm()
        assert (found - gradients(policy(), BATCH, 4)[1]).norm() < 1e-6 * right.norm()
    assert right.norm() > 1


def test_a_mark_moved_to_an_observation_is_another_gradient():
    moved = by_hand([0, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1])
    _, right = gradients(policy(), [LONG], 1)
    _, wrong = gradients(policy(), [moved], 1)
    assert (right - wrong).norm() > 0.05 * right.norm()


def test_checkpointing_changes_no_gradient():
    plain = gradients(policy(), BATCH, 2)[1]
    network = model()
    network.activation_checkpointing_enable({"use_reentrant": False})
    again = policy(network.train())
    assert network.is_activation_checkpointing
    torch.testing.assert_close(gradients(again, BATCH, 2)[1], plain, rtol=1e-5, atol=1e-7)


# --- a whole start ----------------------------------------------------------------------------------------------------


def test_it_learns_a_demonstration_by_heart():
    (one,) = played((played()[0].kept[0].question,))[0].kept
    network = policy()
    before = {name: p.clone() for name, p in network.scoring.named_parameters()}
    done, mode = [], modes(network)
    start = Start(epochs=30, batch=1, micro=1, rate=3e-3)
    taught = supervised(network, [one], start, 0, lambda *at: done.append(at))
    assert len(taught.losses) == len(taught.norms) == 30
    assert taught.losses[0] > 2
    assert taught.losses[-1] < 0.05
    assert (taught.tokens, taught.read) == (30 * one.written.sum(), 30 * len(one.ids))
    assert done == [(update + 1, 30) for update in range(30)]
    assert all(not torch.equal(p, before[name]) for name, p in network.scoring.named_parameters())
    assert all(p.grad is None for p in network.parameters())
    assert modes(network) == mode
    assert not all(mode)


def test_every_epoch_teaches_every_demonstration_once_in_another_order():
    batch = [by_hand([0, *[1] * n]) for n in range(1, 8)]
    network = Recording(policy().scoring)
    supervised(network, batch, Start(epochs=4, batch=3, micro=2), 5)
    assert [len(rows) for rows in network.asked] == [2, 1, 2, 1, 1] * 4
    lengths = [[sum(i > 0 for i in row) for row in rows] for rows in network.asked]
    epochs = [[n for rows in lengths[e : e + 5] for n in rows] for e in range(0, 20, 5)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(2, 9))] * 4
    assert len(set(map(tuple, epochs))) > 2
    for e in range(0, 20, 5):  # within an update from short to long, so that little is padding
        assert lengths[e] + lengths[e + 1] == sorted(lengths[e] + lengths[e + 1])


def test_a_rerun_gives_the_same_bits_and_another_seed_does_not():
    def weights(seed):
        network = policy()
        supervised(network, BATCH, Start(epochs=2, batch=2, micro=1), seed)
        return torch.cat([p.detach().flatten() for p in network.parameters()])

    luck = torch.get_rng_state()
    first = weights(0)
    torch.rand(3)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))
    torch.set_rng_state(luck)
    supervised(policy(), BATCH, Start(), 0)
    assert torch.equal(torch.get_rng_state(), luck)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers by an old name
def test_under_an_adapter_only_the_adapter_moves():
    peft = pytest.importorskip("peft", reason="needs peft (the extra `full`)")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.2)
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        network = policy(peft.get_peft_model(model(), config))
        before = {name: p.detach().clone() for name, p in network.model.named_parameters()}
        taught = supervised(network, BATCH, Start(epochs=20, rate=1e-2), 0)
        found.append(taught.losses)
        moved = {name for name, p in network.model.named_parameters() if not torch.equal(p, before[name])}
        assert moved == {name for name in before if "lora_" in name}
    assert found[0] == found[1]  # dropout is drawn from the seed
    assert found[0][-1] < found[0][0] - 1


def test_a_loss_that_is_not_finite_is_an_error_and_moves_nothing():
    network = policy()
    with torch.no_grad():
        network.model.model.norm.weight[0] = math.nan
    before, mode = [p.detach().clone() for p in network.parameters()], modes(network)
    with pytest.raises(FloatingPointError, match=r"update 0 of 1: the loss is nan.*lower the rate \(0.0001\)"):
        supervised(network, BATCH, Start(), 0)
    assert all(torch.equal(p, b) or p.isnan().any() for p, b in zip(network.parameters(), before, strict=True))
    assert modes(network) == mode


def test_what_cannot_be_taught_is_refused():
    with pytest.raises(ValueError, match="there are no demonstrations"):
        supervised(policy(), [], Start(), 0)
    with pytest.raises(ValueError, match="question 'f' has no token that was written"):
        supervised(policy(), [by_hand([0, 0])], Start(), 0)
    with pytest.raises(ValueError, match="no parameter wants a gradient"):
        supervised(policy().frozen(), BATCH, Start(), 0)
