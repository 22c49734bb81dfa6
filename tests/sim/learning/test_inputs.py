"""What a rule does with input that does not fit: a clear error, never a broadcast, a wrong device or a NaN."""

import numpy as np
import pytest

from sim.learning import family
from sim.learning.batch import Batch
from sim.learning.batch_weights import BatchNormalised, SecondMoment
from sim.learning.credit import GroupCredit, LeaveOneOut, LogPartition, NoBaseline
from sim.learning.logprobs import token_log_probability, top_p
from sim.learning.rule import Rule
from sim.learning.step_credit import StateGroups
from sim.learning.view import over_level
from sim.learning.weights import Bounded, Product, Region, Unweighted, ppo_clip
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
        whole(**{name: np.ones(WRONG[name])})


@pytest.mark.parametrize("credit", [GroupCredit(), LeaveOneOut(), NoBaseline(), LogPartition(0.5)], ids=repr)
@pytest.mark.parametrize("dtype", [int, bool])
def test_rewards_that_are_no_floats_are_refused(credit, dtype):
    with pytest.raises(ValueError, match=r"rewards are (int64|bool); advantages are fractions of them"):
        credit(Batch(np.array([[1, 1, 0]], dtype), valid=np.array([[True, True, False]])))


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


@pytest.mark.parametrize("name", family.__all__)
@pytest.mark.parametrize("engines", [1, 2])
def test_no_array_is_made_on_another_device(name, engines):
    """Every array a rule makes is made where the batch is: nothing in torch is created without naming a device."""
    torch = pytest.importorskip("torch")
    from torch.overrides import TorchFunctionMode

    made = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if getattr(function, "__name__", "") in {"ones", "zeros", "eye", "arange", "full", "empty", "tensor"}:
                made.append((function.__name__, kwargs.get("device")))
            return function(*args, **kwargs)

    batch = whole(proximal=None) if engines == 1 else whole()
    as_torch = {n: torch.from_numpy(np.ascontiguousarray(x)) for n, x in vars(batch).items() if x is not None}
    rule = getattr(family, name)()
    with Watch():
        prepared = rule.prepare(Batch(**as_torch))
        values = {("kl", "ref"): torch.ones_like(prepared.sampled)}
        for shift in (0.0, 0.1):
            rule.coefficients(prepared, as_torch["behaviour"] + shift, values)
        rule.coefficients(prepared, as_torch["behaviour"], values)
    assert [f for f, device in made if device is None] == []


def test_the_watch_sees_an_array_without_a_device():
    torch = pytest.importorskip("torch")
    view = Unweighted()
    assert view.scope == "token"
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        seen = None

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Watch.seen = function.__name__, (kwargs or {}).get("device")
            return function(*args, **(kwargs or {}))

    with Watch():
        torch.ones(3)
    assert Watch.seen == ("ones", None)
