import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minimodel.model import compiled
from minimodel.model.compiled import CompiledDecoder, available, why_not
from minimodel.model.threads import one_thread
from minimodel.model.transformer import SIZES, Size, Transformer
from sim.records.rng import uniforms

needs_compiled = pytest.mark.skipif(not available(), reason=why_not())

V, T = 22, 20  # no multiple of what weights are packed by
ODD = Size(width=12, layers=3, heads=3, feedforward=3)
PRIVATE = Size(width=16, heads=2, decision="private")
DECISIONS = (7, 12)


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def net(size=ODD, words=V, scale=1.0):
    """A network with another weight in every place, as after training: norms too."""
    generator = torch.Generator().manual_seed(0)
    model = Transformer(size, words, T, decisions=DECISIONS, generator=generator)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * 0.08 * torch.randn(p.shape, generator=generator) if p.ndim == 2 else p)
            if p.ndim == 1:
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return model


def some_ids(batch, words=V, seed=1):
    return torch.randint(0, words, (batch, T), generator=torch.Generator().manual_seed(seed))


@needs_compiled
@pytest.mark.parametrize(
    ("size", "batch"),
    [(ODD, 1), (ODD, 33), (PRIVATE, 5), *zip(SIZES.values(), (257, 32, 5, 32, 5), strict=True)],
)
def test_logits_are_those_of_the_transformer_while_rows_leave(size, batch):
    model, ids = net(size, 144), some_ids(batch, 144)
    decoder = CompiledDecoder(model)
    caches = [m.start(batch) for m in (model, decoder)]
    left, at = torch.arange(batch), 0
    for step, S in enumerate((4, 1, 1, 3, 1, 2, 1, 5)):
        theirs, ours = (
            m.extend(ids[left, at : at + S], c).log_softmax(-1) for m, c in zip((model, decoder), caches, strict=True)
        )
        at += S
        assert ours.std() > 0.1
        assert (ours - theirs).abs().max() < 1e-5
        luck = uniforms(0, "tests/compiled", step, (len(left),))
        keep = torch.from_numpy(np.argsort(luck)[: max(1, len(left) * 4 // 5)])  # in another order, too
        for cache in caches:
            cache.keep(keep)
        left = left[keep]
        assert caches[1].rows == len(left)
        assert caches[1].length == at


@needs_compiled
def test_the_private_network_is_read_before_decisions_alone():
    model, ids = net(PRIVATE), some_ids(3)
    shared = Transformer(Size(width=16, heads=2), V, T, generator=torch.Generator())
    shared.load_state_dict({k: p for k, p in model.state_dict().items() if k.startswith("trunk")})
    decoders = [CompiledDecoder(m) for m in (model, shared)]
    caches = [d.start(3) for d in decoders]
    differs = []
    for i in range(T):
        a, b = (d.extend(ids[:, i : i + 1], c) for d, c in zip(decoders, caches, strict=True))
        if (a - b).abs().max() > 0.1:
            differs.append(i)
        else:
            assert torch.equal(a, b)
    assert differs == [d - 1 for d in DECISIONS]


@needs_compiled
def test_far_out_activations_and_logits_are_no_further_off_than_in_pytorch():
    """Hidden units and attention scores of hundreds and logits beyond 80 overflow in no exponential."""
    model, ids = net(PRIVATE, scale=120.0), some_ids(9)
    decoder, prompt = CompiledDecoder(model), ids[:, :3]
    ours, theirs = (m.extend(prompt, m.start(9)) for m in (decoder, model))
    exact = net(PRIVATE, scale=120.0).double()(prompt)[:, -1].detach()
    assert exact.min() < -80
    assert exact.max() > 80
    off, usual = ((x - exact).abs().max().item() for x in (ours, theirs))
    assert off < 2 * usual + 3e-4
    drawn = decoder.extend_and_draw(prompt, decoder.start(9), 1, np.full((1, 9), 0.5, np.float32))
    logp = exact.log_softmax(-1)
    assert logp.min() < -150
    assert (drawn.logp - logp.gather(-1, drawn.ids)).abs().max() < 2 * usual + 3e-4
    assert (drawn.entropy[:, 0] + (logp.exp() * logp).sum(-1)).abs().max() < 2 * usual + 3e-4


@needs_compiled
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_row_has_the_same_bits_in_any_company_at_any_place(data):
    decoder, ids = CompiledDecoder(net()), some_ids(60)
    luck = uniforms(0, "tests/company", 0, (2, 6, 60))

    def play(rows, kept):
        """Two turns; `kept` of the rows play the second."""
        cache = decoder.start(len(rows))
        first = decoder.extend_and_draw(ids[rows, :4], cache, 6, luck[0][:, rows], temperature=0.8)
        at = torch.tensor([rows.index(r) for r in kept])
        cache.keep(at)
        fed = torch.cat([first.ids[at, -1:], ids[kept, 4:6]], 1)
        return decoder.extend_and_draw(fed, cache, 6, luck[1][:, kept], watch=(3, (0, 21)))

    rows = data.draw(st.permutations(range(60)))[: data.draw(st.integers(1, 60))]
    kept = data.draw(st.permutations(rows))[: data.draw(st.integers(1, len(rows)))]
    together = play(rows, kept)
    assert together.entropy.min() > 0.1
    for i in data.draw(st.lists(st.integers(0, len(kept) - 1), min_size=1, max_size=3)):
        alone = play([kept[i]], [kept[i]])
        for name in ("ids", "logp", "entropy", "watched"):
            assert torch.equal(getattr(together, name)[i], getattr(alone, name)[0])


@needs_compiled
def test_reading_at_once_and_piece_by_piece_gives_the_same_bits():
    decoder, ids = CompiledDecoder(net()), some_ids(5)
    once, pieces = decoder.start(5), decoder.start(5, 10)
    whole = decoder.extend(ids[:, :10], once)
    parts = [decoder.extend(ids[:, a:b], pieces) for a, b in ((0, 1), (1, 6), (6, 10))]
    assert torch.equal(whole, parts[-1])
    assert not torch.equal(whole, parts[-2])


@needs_compiled
def test_draws_worked_by_hand():
    """A head of zeros: four words alike. Then log 3 on word 1: (1, 3, 1, 1) / 6; at temperature 1/2 (1, 9, 1, 1) / 12."""
    model = net(words=4)
    torch.nn.init.zeros_(model.trunk.head.weight)
    decoder, prompt = CompiledDecoder(model), torch.zeros(5, 3, dtype=torch.int64)
    luck = np.array([[0, 0.24, 0.26, 0.7, 0.99]] * 3, np.float32)

    def draw(**options):
        return decoder.extend_and_draw(prompt, decoder.start(5), 3, luck, **options)

    even = draw()
    assert even.ids.tolist() == [[0] * 3, [0] * 3, [1] * 3, [2] * 3, [3] * 3]
    assert even.logp == pytest.approx(np.full((5, 3), -math.log(4)), abs=1e-6)
    assert even.entropy == pytest.approx(np.full((5, 3), math.log(4)), abs=1e-6)
    pushed = draw(push=(4, 1, math.log(3)), watch=(1, (1, 3)))  # position 4 holds the second token drawn
    assert pushed.ids.tolist() == [[0, 0, 0], [0, 1, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]]
    assert pushed.logp[2].tolist() == pytest.approx([-math.log(4), -math.log(2), -math.log(4)], abs=1e-6)
    assert pushed.entropy[0, 1].item() == pytest.approx(math.log(6) - math.log(3) / 2, abs=1e-6)
    assert pushed.watched == pytest.approx(np.tile(np.log([1 / 2, 1 / 6]), (5, 1)), abs=1e-6)
    colder = draw(push=(4, 1, math.log(3)), watch=(1, (1, 3)), temperature=0.5)
    assert colder.watched == pytest.approx(np.tile(np.log([9 / 12, 1 / 12]), (5, 1)), abs=1e-6)
    assert colder.ids[:, 1].tolist() == [0, 1, 1, 1, 3]


@needs_compiled
def test_what_has_no_probability_is_never_drawn():
    model = net(words=6)
    torch.nn.init.zeros_(model.trunk.head.weight)
    decoder, prompt = CompiledDecoder(model), torch.zeros(2, 3, dtype=torch.int64)
    luck = np.array([[0.0, 1 - 2**-24]], np.float32)  # the least and the largest uniform there is

    def drawn(word):
        return decoder.extend_and_draw(prompt, decoder.start(2), 1, luck, push=(3, word, -200.0)).ids[:, 0].tolist()

    assert drawn(0) == [1, 5]
    assert drawn(5) == [0, 4]


@needs_compiled
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_draws_are_those_of_the_logits(temperature):
    """Every draw of a turn against logits fed one by one: the uniform lies within the drawn word's share."""
    decoder, prompt = CompiledDecoder(net(scale=3.0)), some_ids(40)[:, :4]
    luck = uniforms(0, "tests/draws", 0, (6, 40))
    drawn = decoder.extend_and_draw(prompt, decoder.start(40), 6, luck, temperature=temperature, watch=(2, (5, 0)))
    assert len(drawn.ids.unique()) > 10
    cache = decoder.start(40)
    logits = decoder.extend(prompt, cache)
    for i in range(6):
        logp = (logits.double() / temperature).log_softmax(-1)
        upto, of = logp.exp().cumsum(-1), drawn.ids[:, i : i + 1]
        high, mine = (x.gather(-1, of)[:, 0].numpy() for x in (upto, logp.exp()))
        assert (luck[i] < high + 1e-6).all()
        assert (luck[i] > high - mine - 1e-6).all()
        assert drawn.logp[:, i].numpy() == pytest.approx(np.log(mine), abs=1e-5)
        assert drawn.entropy[:, i].numpy() == pytest.approx(-(logp.exp() * logp).sum(-1).numpy(), abs=1e-5)
        if i == 2:
            assert drawn.watched.numpy() == pytest.approx(logp[:, [5, 0]].numpy(), abs=1e-5)
        logits = decoder.extend(of, cache)
    greedy = decoder.extend_and_draw(prompt, decoder.start(40), 1, None)
    assert torch.equal(greedy.ids[:, 0], decoder.extend(prompt, decoder.start(40)).argmax(-1))


@needs_compiled
def test_a_decoder_keeps_the_weights_it_was_made_with():
    model, ids = net(), some_ids(2)
    decoder = CompiledDecoder(model)
    before = decoder.extend(ids, decoder.start(2))
    with torch.no_grad():
        model.trunk.head.weight.mul_(2)
    assert torch.equal(before, decoder.extend(ids, decoder.start(2)))
    newer = CompiledDecoder(model)
    assert (newer.extend(ids, newer.start(2)) - 2 * before).abs().max() < 1e-5


@needs_compiled
def test_what_does_not_fit_is_named_and_changes_nothing():
    decoder, ids = CompiledDecoder(net()), some_ids(3)
    cache = decoder.start(3, 6)
    luck = np.zeros((4, 3), np.float32)
    for fault, call in [
        ("7 positions do not fit a cache of 6", lambda: decoder.extend(ids[:, :7], cache)),
        ("7 positions do not fit a cache of 6", lambda: decoder.extend_and_draw(ids[:, :4], cache, 4, luck)),
        ("ids have 2 rows, the cache 3", lambda: decoder.extend(ids[:2, :3], cache)),
        ("hold nothing to read", lambda: decoder.extend(ids[:, :0], cache)),
        ("not all among the 22 words", lambda: decoder.extend(ids[:, :2] + 20, cache)),
        ("not all among the 22 words", lambda: decoder.extend(ids[:, :2] - 22, cache)),
        ("not all among the 22 words", lambda: decoder.extend_and_draw(ids, cache, 1, None, watch=(0, (22,)))),
        ("not all among the 22 words", lambda: decoder.extend_and_draw(ids, cache, 1, None, push=(0, -1, 1.0))),
        (r"uniforms \[2, 3\]", lambda: decoder.extend_and_draw(ids[:, :2], cache, 2, luck)),
        ("0 tokens of 3 rows", lambda: decoder.extend_and_draw(ids[:, :2], cache, 0, None)),
        ("place 4 is not", lambda: decoder.extend_and_draw(ids[:, :2], cache, 4, luck, watch=(4, (1,)))),
        ("temperature = 0", lambda: decoder.extend_and_draw(ids[:, :2], cache, 4, luck, temperature=0)),
        ("named twice", lambda: cache.keep(torch.tensor([0, 2, 2]))),
        ("rows 0 to 3", lambda: cache.keep(torch.tensor([0, 3]))),
        ("rows -1 to 2", lambda: cache.keep(torch.tensor([-1, 2]))),
        ("21 positions exceed the 20", lambda: decoder.start(3, 21)),
        ("torch.float64 on cpu", lambda: CompiledDecoder(net().double())),
    ]:
        with pytest.raises(ValueError, match=fault):
            call()
    assert (cache.rows, cache.length) == (3, 0)
    assert torch.equal(decoder.extend(ids[:, :6], cache), decoder.extend(ids[:, :6], decoder.start(3)))


@needs_compiled
def test_a_cache_may_empty():
    decoder, ids = CompiledDecoder(net()), some_ids(3)
    cache = decoder.start(3)
    decoder.extend(ids[:, :2], cache)
    cache.keep(torch.tensor([], dtype=torch.int64))
    assert decoder.extend(ids[:0, :2], cache).shape == (0, V)
    assert cache.length == 4


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Nothing built, nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("METASTABLE_COMPILED", raising=False)
    remembered = (compiled._library, compiled.why_not)
    for found in remembered:
        found.cache_clear()
    yield tmp_path
    for found in remembered:
        found.cache_clear()


def refuses(reason):
    assert not available()
    assert reason in why_not()
    with pytest.raises(RuntimeError, match="no compiled decoding here"):
        CompiledDecoder(net())


def test_without_a_compiler_it_stands_aside(fresh, monkeypatch):
    monkeypatch.setenv("PATH", "")
    refuses("install g++")
    assert list(fresh.iterdir()) == []


def test_it_can_be_switched_off(fresh, monkeypatch):
    monkeypatch.setenv("METASTABLE_COMPILED", "0")
    refuses("METASTABLE_COMPILED=0")


def test_where_nothing_can_be_written_it_stands_aside(fresh, monkeypatch):
    (fresh / "metastable").write_text("a file where the folder should be")
    refuses("metastable")


def test_a_library_that_does_not_load_is_refused(fresh, monkeypatch):
    (fresh / "broken.so").write_text("half a library")
    monkeypatch.setattr(compiled, "build", lambda sources, folder: fresh / "broken.so")
    refuses("broken.so")


@needs_compiled
def test_compiled_code_that_gives_other_logits_is_not_believed(monkeypatch):
    compiled.why_not.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(CompiledDecoder, "extend", lambda self, ids, cache: torch.zeros(len(ids), self.words))
        assert "away from PyTorch's" in why_not()
    compiled.why_not.cache_clear()
    assert available()
