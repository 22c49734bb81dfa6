import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from minimodel.model.transformer import SIZES, Size, Transformer

V, T = 20, 12
SMALL = Size(width=16, layers=2, heads=2)
PRIVATE = Size(width=16, layers=2, heads=2, decision="private")
DECISIONS = (3, 8)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def net(size=SMALL, positions=T, seed=0):
    """A network whose weights are larger than at the start: predictions that differ, as after training."""
    model = Transformer(size, V, positions, decisions=DECISIONS, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 2:
                p.mul_(3)
    return model


def some_ids(batch=5, length=T, seed=1):
    return torch.randint(0, V, (batch, length), generator=torch.Generator().manual_seed(seed))


def stepwise(model, ids, cuts=None):
    """Log-probs of the next token from the cache, fed in pieces that end at `cuts`."""
    cache, out, at = model.start(len(ids)), {}, 0
    for cut in cuts or range(1, ids.shape[1] + 1):
        out[cut - 1] = model.extend(ids[:, at:cut], cache).log_softmax(-1)
        at = cut
    return out


@pytest.mark.parametrize(
    ("name", "count"), [("35k", 35_104), ("119k", 119_360), ("218k", 217_920), ("435k", 435_328), ("829k", 829_056)]
)
def test_presets_have_the_parameters_their_names_say(name, count):
    model = Transformer(SIZES[name], 144, 36, generator=torch.Generator().manual_seed(0))
    assert model.parameter_count == count
    assert abs(count - 1000 * int(name[:-1])) < 500


def test_a_private_decision_network_doubles_them():
    assert net(PRIVATE).parameter_count == 2 * net(SMALL).parameter_count


@pytest.mark.parametrize("size", [SMALL, PRIVATE])
@pytest.mark.parametrize("t", [0, 3, 7, T - 1])
def test_a_token_changes_no_logit_before_it(size, t):
    model, ids = net(size), some_ids()
    other = ids.clone()
    other[:, t] = (ids[:, t] + 1) % V
    with torch.no_grad():
        a, b = model(ids), model(other)
    assert torch.equal(a[:, :t], b[:, :t])
    assert (a[:, t] - b[:, t]).abs().max() > 0.1
    if size is SMALL:
        assert ((a[:, t:] - b[:, t:]).abs().amax((0, 2)) > 1e-3).all()


@pytest.mark.parametrize("size", [SMALL, PRIVATE])
@pytest.mark.parametrize("cuts", [None, (4, 5, 6, 9, 10, 12), (12,), (2, 7, 8, 11)])
def test_cached_predictions_are_those_of_the_full_forward(size, cuts):
    model, ids = net(size), some_ids()
    with torch.no_grad():
        full = model(ids).log_softmax(-1)
    assert full.std() > 0.5
    for i, logp in stepwise(model, ids, cuts).items():
        assert (logp - full[:, i]).abs().max() < 1e-5


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_rows_that_leave_do_not_disturb_those_that_stay(data):
    model, ids = net(data.draw(st.sampled_from([SMALL, PRIVATE]))), some_ids(batch=6)
    with torch.no_grad():
        full = model(ids).log_softmax(-1)
    cache, left, at = model.start(6), torch.arange(6), 0
    while at < T:
        step = min(data.draw(st.integers(1, 4)), T - at)
        logp = model.extend(ids[left, at : at + step], cache).log_softmax(-1)
        at += step
        assert (logp - full[left, at - 1]).abs().max() < 1e-5
        stay = torch.tensor(data.draw(st.lists(st.sampled_from(range(len(left))), min_size=1, unique=True)))
        cache.keep(stay)
        left = left[stay]
        assert cache.rows == len(left)


def sampled_logp(logits, ids):
    """Log-prob of each token after the first, under the convention that logits[:, i] predicts ids[:, i + 1]."""
    return logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]


def test_sampler_and_learner_shift_alike():
    """Sampling and scoring with the same weights give ratio 1; a shift by one on either side is seen at once."""
    model, ids = net(), some_ids()
    with torch.no_grad():
        learner = sampled_logp(model(ids), ids)
    steps = stepwise(model, ids)
    sampler = torch.stack([steps[i].gather(-1, ids[:, i + 1, None])[:, 0] for i in range(T - 1)], 1)
    assert (learner - sampler).abs().max() < 1e-5
    assert (learner - sampler.roll(1, dims=1)).abs().max() > 0.5


def test_it_learns_to_predict_the_next_token_and_not_the_one_it_sees():
    model = Transformer(SMALL, V, T, generator=torch.Generator().manual_seed(0))
    ids = (torch.arange(T) * 3 + torch.arange(8)[:, None]) % V  # every token is the one before plus 3
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(60):
        adam.zero_grad()
        cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        adam.step()
    assert (model(ids)[:, :-1].argmax(-1) == ids[:, 1:]).all()


@pytest.mark.parametrize("at", ["content", "decision"])
def test_gradients_of_content_and_decisions_stay_apart(at):
    model, ids = net(PRIVATE), some_ids()
    predicts_decision = torch.zeros(T, dtype=torch.bool)
    predicts_decision[[2, 7]] = True  # one before the decision tokens
    chosen = predicts_decision if at == "decision" else ~predicts_decision
    model(ids)[:, chosen].log_softmax(-1)[..., 5].sum().backward()
    own, other = (model.decider, model.trunk) if at == "decision" else (model.trunk, model.decider)
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in own.parameters())
    assert all(p.grad is None or (p.grad == 0).all() for p in other.parameters())


def test_a_sequence_that_ends_before_the_first_decision_is_read_all_the_same():
    model, ids = net(PRIVATE), some_ids(length=2)
    assert model(ids).shape == (5, 2, V)


def test_the_generator_alone_makes_the_weights():
    a, b, c = (net(seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["trunk.word.weight"], c["trunk.word.weight"])
    fresh = Transformer(Size(), 144, 36, generator=torch.Generator().manual_seed(0)).state_dict()
    assert fresh["trunk.word.weight"].std().item() == pytest.approx(0.06, rel=0.03)
    assert fresh["trunk.blocks.1.narrow.weight"].std().item() == pytest.approx(0.03, rel=0.03)  # 0.06 / sqrt(4)


def test_the_state_goes_through_numpy_and_back():
    model, other, ids = net(PRIVATE), net(PRIVATE, seed=5), some_ids()
    arrays = {name: p.numpy() for name, p in model.state_dict().items()}
    assert all(a.dtype == "float32" for a in arrays.values())
    other.load_state_dict({name: torch.from_numpy(a) for name, a in arrays.items()})
    assert torch.equal(model(ids), other(ids))


def test_what_does_not_fit_is_named():
    model, ids = net(), some_ids()
    cache = model.start(5, 6)
    with pytest.raises(ValueError, match="7 positions do not fit a cache of 6"):
        model.extend(ids[:, :7], cache)
    with pytest.raises(ValueError, match="ids have 4 rows, the cache 5"):
        model.extend(ids[:4, :2], cache)
    with pytest.raises(ValueError, match="24 positions exceed the 12"):
        model(torch.cat([ids, ids], 1))
    with pytest.raises(ValueError, match="needs decisions="):
        Transformer(PRIVATE, V, T, generator=torch.Generator())
    with pytest.raises(ValueError, match="decision position 0"):
        Transformer(PRIVATE, V, T, decisions=[0], generator=torch.Generator())
    with pytest.raises(ValueError, match="heads = 3 must divide"):
        Size(heads=3)
    with pytest.raises(ValueError, match="decision = 'own'"):
        Size(decision="own")
