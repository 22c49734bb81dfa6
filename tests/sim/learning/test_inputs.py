"""What a rule does with input that does not fit: a clear error, never a broadcast, a wrong device or a NaN."""

import numpy as np
import pytest

from sim.learning import family
from sim.learning.batch import Batch
from sim.learning.batch_weights import BatchNormalised, SecondMoment
from sim.learning.credit import LeaveOneOut
from sim.learning.logprobs import token_log_probability, top_p
from sim.learning.rule import Rule
from sim.learning.step_credit import StateGroups
from sim.learning.view import over_level
from sim.learning.weights import Bounded, Product, Region, ppo_clip
from sim.records.config import ConfigError

Q, G, T = 3, 4, 5
WRONG = {
    "valid": (G,), "duration_s": (Q, 1), "greedy_reward": (Q, 1), "running_reward": (1,), "lengths": (G, T),
    "proximal": (Q, G, T + 1), "reference": (Q, G, 1), "turn": (T,), "state": (Q, G), "process_reward": (1, G, T),
    "mask": (Q, G + 1, T), "behaviour": (Q, T),
}  # fmt: skip


def whole(**changes):
    ones = np.ones((Q, G, T))
    given = {
        "reward": np.arange(12.0).reshape(Q, G) % 5, "mask": ones > 0, "behaviour": -ones, "proximal": -ones * 1.1,
        "reference": -ones * 1.2, "turn": np.arange(T) // 2 + np.zeros((Q, G, T), int),
        "state": np.arange(T) % 2 + np.zeros((Q, G, T), int), "greedy_reward": np.ones(Q),
        "duration_s": 1 + np.arange(12.0).reshape(Q, G), "process_reward": ones / 10,
    }  # fmt: skip
    return Batch(**(given | changes))


@pytest.mark.parametrize("name", WRONG)
def test_nothing_is_broadcast(name):
    with pytest.raises(ValueError, match=rf"{name} \(.*does not fit the (reward|mask)|does not fit the reward"):
        whole(**{name: np.ones(WRONG[name], bool if name in ("mask", "valid") else float)})


@pytest.mark.parametrize("dtype", [int, bool])
def test_rewards_that_are_no_floats_are_refused(dtype):
    with pytest.raises(ValueError, match=r"rewards are (int64|bool); advantages are fractions of them"):
        Batch(np.array([[1, 1, 0]], dtype), valid=np.array([[True, True, False]]))


def test_a_rule_reads_what_its_weight_reads():
    assert Rule(weight=Bounded("now/reference")).reads == {"reference"}
    assert Rule(weight=Product((ppo_clip(), Bounded(level="turn")))).reads == {"turn"}
    assert Rule(weight=BatchNormalised(Bounded("now/reference", "turn"))).reads == {"reference", "turn"}
    assert Rule(weight=SecondMoment(ratio="now/reference")).reads == {"reference"}
    with pytest.raises(ValueError, match="this rule reads 'turn'; supply"):
        Rule(weight=Bounded(level="turn")).prepare(whole(turn=None))


def test_the_least_ratio_of_a_sequence_does_not_see_its_padding():
    x = np.log([[[2.0, 3.0, 1.0]], [[1.0, 1.0, 1.0]]])
    mask = np.array([[[True, True, False]], [[False] * 3]])
    assert np.exp(over_level(x, "least", mask)).ravel() == pytest.approx([2.0, 1.0])


def test_states_may_be_any_integers():
    reward = np.array([[1.0, 0.0]])
    state, turn = np.array([[[-5, -9], [-7, -11]]]), np.array([[[0, 1], [0, 1]]])
    mask = np.ones(state.shape, bool)
    found = [StateGroups()(Batch(reward, mask, state=state + shift, turn=turn)).value for shift in (0, 100)]
    np.testing.assert_allclose(found[0], found[1])
    assert found[0].ravel() == pytest.approx(
        np.array([1, 1, -1, -1]) / np.sqrt(2)
    )  # all states differ: the episode's alone


def test_the_whole_nucleus_keeps_every_token():
    logits = np.array([0.0, -50, -1])
    assert top_p(logits, 1.0).all()
    assert np.isfinite(token_log_probability(logits, np.array(1), support=top_p(logits, 1.0)))
    with pytest.raises(ValueError, match="temperature = 0 must be positive"):
        top_p(logits, 0.5, temperature=0)


def test_a_mask_has_no_bound_to_truncate_to():
    with pytest.raises(ConfigError, match='inside = "one" makes a mask'):
        Bounded(inside="one", positive=Region(high=2.0, outside="truncate"))


def watch():
    """A mode that writes down the device named by every call of torch that makes an array, and that list."""
    torch = pytest.importorskip("torch")
    made = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if getattr(function, "__name__", "") in {"ones", "zeros", "eye", "arange", "full", "empty", "tensor"}:
                made.append((function.__name__, kwargs.get("device")))
            return function(*args, **kwargs)

    return Watch(), made


@pytest.mark.parametrize("name", family.__all__)
@pytest.mark.parametrize("engines", [1, 2])
def test_no_array_is_made_on_another_device(name, engines):
    """Every array a rule makes is made where the batch is: nothing in torch is created without naming a device."""
    torch = pytest.importorskip("torch")
    batch = whole(proximal=None) if engines == 1 else whole()
    as_torch = {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in vars(batch).items() if x is not None}
    rule = getattr(family, name)()
    mode, made = watch()
    with mode:
        prepared = rule.prepare(Batch(**as_torch))
        values = {("kl", "ref"): torch.ones_like(prepared.sampled)}
        for shift in (0.0, 0.1):
            rule.coefficients(prepared, as_torch["behaviour"] + shift, values)
        rule.coefficients(prepared, as_torch["behaviour"], values)
    assert [f for f, device in made if device is None] == []


def test_the_watch_sees_an_array_without_a_device():
    torch = pytest.importorskip("torch")
    mode, made = watch()
    with mode:
        torch.ones(3)
        torch.zeros(3, device="cpu")
    assert made == [("ones", None), ("zeros", "cpu")]


def test_a_gradient_is_not_followed():
    """The coefficients of an attached batch carry none, and the gradient is that of detached ones."""
    torch = pytest.importorskip("torch")
    batch = {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in vars(whole()).items() if x is not None}
    logp = (batch["behaviour"] + 0.3).requires_grad_()
    for rule in (family.cispo(), family.kimi_k25(), family.grpo(kl=0.1)):
        attached = rule.prepare(Batch(**(batch | {"behaviour": batch["behaviour"].clone().requires_grad_()})))
        found = rule.coefficients(attached, logp).scalars["logp"]
        plain = rule.coefficients(rule.prepare(Batch(**batch)), logp.detach()).scalars["logp"]
        assert not found.requires_grad
        assert found.abs().max() > 0
        torch.testing.assert_close(found, plain)


def test_log_probs_of_another_batch_are_refused():
    rule, batch = family.cispo(), whole()
    prepared = rule.prepare(batch)
    with pytest.raises(ValueError, match=r"logp \(3, 1, 5\) is not of this batch \(3, 4, 5\); cut both alike"):
        rule.coefficients(prepared, batch.behaviour[:, :1])
    with pytest.raises(ValueError, match=r"logp \(3, 4, 5\) is not of this batch \(1, 4, 5\)"):
        rule.coefficients(prepared.cut("groups", slice(0, 1)), batch.behaviour)


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (0, TypeError, "index = 0 must be a slice or an array of places"),
        ((0, 2), TypeError, r"index = \(0, 2\) must be a slice"),
        (slice(7, 9), ValueError, "takes none of the 3 groups"),
    ],
)
def test_a_cut_takes_a_slice_and_takes_something(index, error, message):
    with pytest.raises(error, match=message):
        family.cispo().prepare(whole()).cut("groups", index)


def test_masks_are_bools():
    with pytest.raises(ValueError, match="mask is float64; it must be bool"):
        whole(mask=np.ones((Q, G, T)))
    with pytest.raises(ValueError, match="valid is int64; it must be bool"):
        whole(valid=np.ones((Q, G), int))


def test_a_class_is_no_part_of_a_rule():
    with pytest.raises(ConfigError, match=r"Rule was given the class LeaveOneOut; call it: LeaveOneOut\(\)"):
        Rule(credit=LeaveOneOut)


def test_every_missing_array_is_named():
    bare = Batch(np.ones((Q, G)), np.ones((Q, G, T), bool), np.zeros((Q, G, T)))
    message = r"this rule reads 'reference' and 'state' and 'turn'; supply Batch\(reference=..., state=..., turn=...\)"
    with pytest.raises(ValueError, match=message):
        family.gigpo().prepare(bare)


def test_seeds_are_the_seeds_themselves():
    from sim.learning.loop import train
    from sim.learning.presets import null

    with pytest.raises(TypeError, match=r"seeds = 8: give the seeds themselves, as in tuple\(range\(8\)\)"):
        train(null(), 8, study="inputs")
