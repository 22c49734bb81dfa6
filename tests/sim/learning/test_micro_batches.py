"""One gradient however a batch is cut up to execute it: the parts add up to the whole, or the cut is refused.

A rule that must see more than a part holds is scored on the whole batch first, without gradients; its coefficients are then
cut instead. Either way the gradient through a softmax table is that of the whole batch.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sim.learning import family
from sim.learning.batch_weights import BatchNormalised
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import KlToGo, SquaredLogRatio
from sim.learning.rule import Rule
from sim.learning.weights import Bounded, Region, ppo_clip
from tests.sim.learning.softmax_table import gradient, make, one_thread, surrogate  # noqa: F401

torch = pytest.importorskip("torch")

SIZES = {"groups": 4, "rollouts": 4, "tokens": 8}
AXIS = {"groups": -3, "rollouts": -2, "tokens": -1}
FITS = {
    "groups": {"token", "turn", "sequence", "group"},
    "rollouts": {"token", "turn", "sequence"},
    "tokens": {"token"},
}

BY_TURN = Bounded(level="turn", positive=Region(low=0.7, high=1.3))
RULES = {name: getattr(family, name)() for name in family.__all__} | {
    f"GRPO with {type(n).__name__}": Rule(GroupCredit(), ppo_clip(), n)
    for n in (TokenMean(), SequenceMean(), ConstantLength(5.0), BatchMean(), MicrobatchMean(3))
}
RULES |= {
    "by turn": Rule(weight=BY_TURN),
    "normalised": Rule(weight=BatchNormalised(ppo_clip())),
    "KL to go": Rule(penalties=(KlToGo(0.3),)),
    "square of the sequence": Rule(penalties=(SquaredLogRatio(0.2),)),
}
SCOPES = {
    "gspo": "sequence",
    "mis": "sequence",
    "opsm": "sequence",
    "topr": "sequence",
    "kimi_k15": "sequence",
    "kimi_k15_tilt": "sequence",
    "kimi_k2": "sequence",
    "KL to go": "sequence",
    "square of the sequence": "sequence",
    "llds": "turn",
    "by turn": "turn",
    "m2po": "batch",
    "normalised": "batch",
}
"""What a rule must have in view; a token where it is not listed."""

CASE = make(5)


def parts(along, n):
    """`n` consecutive slices along an axis."""
    width = SIZES[along] // n
    return [slice(i * width, (i + 1) * width) for i in range(n)]


def cut(x, along, index):
    """The part of a full-sized array."""
    return x.narrow(AXIS[along] % x.ndim, index.start, index.stop - index.start)


def off_policy():
    rng = np.random.default_rng(6)
    return (CASE.old + torch.from_numpy(rng.normal(0, 0.4, CASE.old.shape))).requires_grad_()


THETA = off_policy()
SCALARS = {name: x.detach() for name, x in CASE.scalars(THETA).items()}


def gradient_of_parts(along, found):
    """Sum of the gradients of the parts; `found` holds (slice, its coefficients)."""
    total = torch.zeros_like(THETA)
    for index, coefficients in found:
        now = {name: cut(x, along, index) for name, x in CASE.scalars(THETA).items()}
        total += gradient(surrogate(coefficients, now), THETA)
    return total.numpy()


def joined(along, found):
    """The coefficients of the parts, put together again."""
    return {name: torch.cat([c[name] for _, c in found], AXIS[along]) for name in found[0][1]}


@pytest.mark.parametrize("name", RULES)
def test_parts_add_up_to_the_whole_or_are_refused(name):
    rule = RULES[name]
    assert rule.scope == SCOPES.get(name, "token")
    prepared = rule.prepare(CASE.batch)
    whole = rule.coefficients(prepared, SCALARS["logp"], SCALARS)
    expected = gradient(surrogate(whole.scalars, CASE.scalars(THETA)), THETA).numpy()
    assert np.abs(expected).max() > 1e-3
    for along, n in itertools.product(SIZES, (1, 2, 4)):
        found = [(index, whole.cut(along, index)) for index in parts(along, n)]
        if rule.scope in FITS[along]:
            for index in parts(along, n):
                now = {name: cut(x, along, index) for name, x in SCALARS.items()}
                found.append((index, rule.coefficients(prepared.cut(along, index), now["logp"], now).scalars))
        else:
            with pytest.raises(ValueError, match=f"needs a whole {rule.scope} in view and a cut along {along}"):
                prepared.cut(along, parts(along, n)[0])
        for way in (found[:n], found[n:]):  # scored as a whole and then cut; cut and then scored
            for scalar, c in joined(along, way).items() if way else ():
                np.testing.assert_allclose(c.numpy(), whole.scalars[scalar].numpy(), rtol=1e-12, atol=1e-16)
            if way and n == 4:
                np.testing.assert_allclose(gradient_of_parts(along, way), expected, rtol=1e-11, atol=1e-14)


def test_a_cut_along_nothing_known_is_refused():
    prepared = Rule().prepare(CASE.batch)
    with pytest.raises(ValueError, match="along = 'turns' must be one of 'groups', 'rollouts', 'tokens'"):
        prepared.cut("turns", slice(0, 1))


def test_what_the_refusal_prevents():
    """Halves of a sequence have other geometric means than the whole: cut all the same, the parts do not add up."""
    rule = RULES["gspo"]
    prepared = rule.prepare(CASE.batch)
    forced = replace(prepared, scope="token")
    halves = [
        rule.coefficients(forced.cut("tokens", index), cut(SCALARS["logp"], "tokens", index)).scalars["logp"]
        for index in parts("tokens", 2)
    ]
    expected = rule.coefficients(prepared, SCALARS["logp"]).scalars["logp"]
    assert (torch.cat(halves, -1) - expected).abs().max() > 1e-3
