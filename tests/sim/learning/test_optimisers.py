import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.optimisers import Adam, Natural, Optimiser, OptimiserState, Sgd
from sim.records.config import ConfigError

GRADIENT = hnp.arrays(float, (3, 4), elements=st.integers(-500, 500).map(lambda n: n / 100))
ALL = np.ones(3, bool)


def identity_fisher(S=3, P=4):
    return np.tile(np.eye(P), (S, 1, 1))


def run(optimiser, gradients, active=None):
    """Return the parameters after the gradients, and the last state."""
    S, P = gradients[0].shape
    w, state = np.zeros((S, P)), OptimiserState.zeros((S, P))
    for i, g in enumerate(gradients):
        on = np.ones(S, bool) if active is None else active[i]
        change, state = optimiser.step(state, g, on, identity_fisher(S, P))
        w = w + change
    return w, state


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_sgd_goes_uphill():
    w, _ = run(Sgd(0.5), [np.array([[2.0, -4.0]])])
    assert w.tolist() == [[1, -2]]


def test_adam_by_hand():
    # g = 3 then 1, b1 = .5, b2 = .75. Means 1.5/.5 = 3, squares 2.25/.25 = 9: a first step of 1.
    # Then first = .5 x 1.5 + .5 = 1.25 over .75; second = .75 x 2.25 + .25 = 1.9375 over .4375.
    w, _ = run(Adam(1.0, b1=0.5, b2=0.75, epsilon=1e-300), [np.array([[3.0]]), np.array([[1.0]])])
    assert w.item() == pytest.approx(1 + (1.25 / 0.75) / np.sqrt(1.9375 / 0.4375), rel=1e-12)


def test_the_first_step_of_adam_has_full_size_whatever_the_gradient():
    w, _ = run(Adam(0.3), [np.array([[1e-4, -7.0, 1e5]])])
    assert w[0] == pytest.approx([0.3, -0.3, 0.3], rel=1e-3)


@pytest.mark.parametrize("z", [-6.0, -2.0, 0.0, 3.0])
def test_natural_is_the_replicator_for_one_private_logit(z):
    """Gradient p (1 - p) Delta and Fisher p (1 - p): the step is rate x Delta, however rare the action."""
    p = 1 / (1 + np.exp(-z))
    gap = 0.25
    change, _ = Natural(0.4, damping=1e-12).step(
        OptimiserState.zeros((1, 1)), np.array([[p * (1 - p) * gap]]), np.ones(1, bool), np.array([[[p * (1 - p)]]])
    )
    assert change.item() == pytest.approx(0.4 * gap, rel=1e-6)
    plain, _ = Sgd(0.4).step(OptimiserState.zeros((1, 1)), np.array([[p * (1 - p) * gap]]), np.ones(1, bool), None)
    assert plain.item() == pytest.approx(0.4 * gap * p * (1 - p))


def test_natural_solves_with_the_fisher_matrix():
    fisher = np.array([[[2.0, 1.0], [1.0, 3.0]]])
    change, _ = Natural(1.0, damping=1e-15).step(
        OptimiserState.zeros((1, 2)), np.array([[3.0, 4.0]]), np.ones(1, bool), fisher
    )
    assert change[0] == pytest.approx([1.0, 1.0])


def test_natural_needs_the_fisher_matrix():
    assert [o.needs_fisher for o in (Natural(1.0), Sgd(1.0), Adam(1.0))] == [True, False, False]
    with pytest.raises(ValueError, match=r"needs the Fisher matrix, \[S, P, P\]; got None"):
        Natural(1.0).step(OptimiserState.zeros((1, 1)), np.ones((1, 1)), np.ones(1, bool), None)


# --- properties -------------------------------------------------------------------------------------------------------


@given(
    st.lists(GRADIENT, min_size=1, max_size=6),
    st.lists(hnp.arrays(bool, 3), min_size=6, max_size=6),
    st.sampled_from((Sgd(0.7), Adam(0.3), Natural(0.3))),
)
def test_an_inactive_seed_keeps_parameters_and_state_bitwise(gradients, active, optimiser):
    w, state = run(optimiser, gradients, active)
    for s in range(3):
        own = [g[s : s + 1] for g, on in zip(gradients, active, strict=False) if on[s]]
        alone, kept = run(optimiser, own) if own else (np.zeros((1, 4)), OptimiserState.zeros((1, 4)))
        np.testing.assert_array_equal(w[s], alone[0])
        for name in ("first", "second", "steps"):
            np.testing.assert_array_equal(getattr(state, name)[s], getattr(kept, name)[0])


@given(st.lists(GRADIENT, min_size=1, max_size=5))
def test_adam_without_memory_is_the_sign(gradients):
    w, _ = run(Adam(0.1, b1=0.0, b2=0.0, epsilon=1e-300), gradients)
    np.testing.assert_allclose(w, 0.1 * sum(np.sign(g) for g in gradients), atol=1e-12)


@given(st.lists(GRADIENT, min_size=2, max_size=5), st.integers(1, 4))
def test_a_run_resumes_from_its_state(gradients, cut):
    cut = min(cut, len(gradients) - 1)
    for optimiser in (Sgd(0.7), Adam(0.3)):
        whole, _ = run(optimiser, gradients)
        w, state = run(optimiser, gradients[:cut])
        for g in gradients[cut:]:
            change, state = optimiser.step(state, g, ALL, None)
            w = w + change
        np.testing.assert_array_equal(w, whole)


def test_with_momentum_a_zero_gradient_still_moves():
    g = np.ones((1, 2))
    _, state = run(Adam(0.1), [g])
    change, _ = Adam(0.1).step(state, np.zeros((1, 2)), np.ones(1, bool), None)
    assert np.all(change > 0.01)
    kept, same = Adam(0.1).step(state, np.zeros((1, 2)), np.zeros(1, bool), None)
    assert np.all(kept == 0)
    assert same.steps.item() == 1


# --- agreement --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Sgd(0.7), lambda torch, p: torch.optim.SGD(p, lr=0.7, maximize=True)),
        (Adam(0.05), lambda torch, p: torch.optim.Adam(p, lr=0.05, maximize=True)),
        (
            Adam(0.3, b1=0.5, b2=0.95, epsilon=1e-6),
            lambda torch, p: torch.optim.Adam(p, lr=0.3, betas=(0.5, 0.95), eps=1e-6, maximize=True),
        ),
    ],
    ids=["sgd", "adam", "adam with other constants"],
)
def test_torch_agrees(ours, theirs):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    gradients = [rng.normal(size=(1, 6)) * 10.0 ** rng.integers(-6, 3, (1, 6)) for _ in range(40)]
    parameter = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    optimiser = theirs(torch, [parameter])
    for g in gradients:
        parameter.grad = torch.from_numpy(g[0].copy())
        optimiser.step()
    w, _ = run(ours, gradients)
    assert np.abs(w).min() > 0.001
    np.testing.assert_allclose(w[0], parameter.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sgd(-1.0), "rate = -1.0 must be at least 0"),
        (lambda: Adam(0.0), "rate = 0.0 must be positive; .* use steps=0"),
        (lambda: Adam(1.0, b1=1.0), r"b1 = 1.0 must lie in \[0, 1\)"),
        (lambda: Adam(1.0, b2=-0.1), r"b2 = -0.1 must lie in \[0, 1\)"),
        (lambda: Natural(1.0, damping=0.0), "damping = 0.0 must be positive"),
    ],
)
def test_refusals(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_they_are_optimisers():
    assert all(isinstance(o, Optimiser) for o in (Sgd(1.0), Adam(1.0), Natural(1.0)))
