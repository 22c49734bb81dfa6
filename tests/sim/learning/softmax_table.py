"""A batch of token sequences whose policies are softmax tables, for losses that are differentiated.

Every token is a (context, action) pair of a small table of logits, so log-probs, entropies and exact KLs are functions of
one tensor. The batch is built to be awkward: ragged, with observations between the turns, one rollout excluded (its reward
is NaN), one group whose rewards are all equal, and nonsense where the mask is false.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from sim.learning.batch import Batch

torch = pytest.importorskip("torch")

NONSENSE = -300.0
"""What stands at masked entries of every log-prob: its ratios to anything else over- or underflow."""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Arrays of a hundred numbers are not worth a second thread: waiting for it takes most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Case:
    """One batch, and the tables behind it."""

    batch: Batch
    """In torch, float64."""
    context: torch.Tensor
    """Row of each token, [Q, G, T]."""
    action: torch.Tensor
    """Column of each token, [Q, G, T]."""
    reference: torch.Tensor
    """Logits of the reference, [C, V]."""
    old: torch.Tensor
    """Logits of the learner when the batch began, [C, V]."""

    def logp(self, theta):
        """log pi of every token, nonsense where masked."""
        found = torch.log_softmax(theta, -1)[self.context, self.action]
        return torch.where(self.batch.mask, found, NONSENSE)

    def scalars(self, theta):
        """Every scalar of the network that a rule may ask for, [Q, G, T] each."""
        log_p = torch.log_softmax(theta, -1)
        p, log_ref = log_p.exp(), torch.log_softmax(self.reference, -1)
        entropy, kl = -(p * log_p).sum(-1), (p * (log_p - log_ref)).sum(-1)
        return {"logp": self.logp(theta), "entropy": entropy[self.context], ("kl", "ref"): kl[self.context]}


def make(seed=0, Q=4, G=4, T=8, C=6, V=4, spread=0.45):
    """Return a case: three policies around each other, `spread` logits apart, and a reference further off."""
    rng = np.random.default_rng(seed)

    def table(sd, around=0.0):
        return torch.from_numpy(around + rng.normal(0, sd, (C, V)))

    old = table(1.0)
    behaviour, reference = table(spread, old.numpy()), table(0.8)
    # turns of 2 tokens with 1 observation between: 0 0 . 1 1 . 2 2
    place = np.arange(T)
    lengths = rng.integers(1, T + 1, (Q, G, 1))
    mask = (place % 3 != 2) & (place < lengths)
    turn = np.broadcast_to(place // 3, mask.shape)
    reward = rng.normal(0.3, 1, (Q, G))
    reward[1] = 0.7
    valid = np.ones((Q, G), bool)
    valid[2, 1], reward[2, 1] = False, np.nan
    context = torch.from_numpy(rng.integers(0, C, mask.shape))
    action = torch.from_numpy(rng.integers(0, V, mask.shape))
    case = Case(Batch(torch.from_numpy(reward), torch.from_numpy(mask)), context, action, reference, old)
    batch = Batch(
        reward=torch.from_numpy(reward),
        mask=torch.from_numpy(mask),
        valid=torch.from_numpy(valid),
        behaviour=case.logp(behaviour),
        proximal=case.logp(old),
        reference=case.logp(reference),
        turn=torch.from_numpy(turn.copy()),
        state=torch.from_numpy(np.repeat(rng.integers(0, 3, (Q, G, -(-T // 3))), 3, -1)[..., :T].copy()),
        process_reward=torch.from_numpy(rng.normal(size=mask.shape)),
        greedy_reward=torch.from_numpy(rng.normal(size=Q)),
        running_reward=torch.tensor(0.2, dtype=torch.float64),
        duration_s=torch.from_numpy(rng.lognormal(size=(Q, G))),
    )
    return replace(case, batch=batch)


def as_numpy(batch):
    """The same batch in numpy."""
    return replace(batch, **{name: x.numpy() for name, x in vars(batch).items() if x is not None})


def as_float32(batch):
    """The same batch, floating-point fields in float32."""
    floating = {name: x.float() for name, x in vars(batch).items() if x is not None and x.is_floating_point()}
    return replace(batch, **floating)


@dataclass(frozen=True)
class Rollout:
    """One usable rollout without padding: its own tokens, one after the other."""

    reward: float
    place: int
    """Its number in recorded order, excluded ones counted."""
    now: torch.Tensor
    old: torch.Tensor
    mu: torch.Tensor
    ref: torch.Tensor
    entropy: torch.Tensor | None
    turn: list[int]
    state: list[int]
    process: torch.Tensor
    duration: float

    def __len__(self):
        return len(self.now)


def groups(case, logp, entropy=None):
    """Return the usable rollouts of every question, unpadded; `logp` (and `entropy`) may carry a gradient."""
    b = case.batch
    Q, G, _ = b.mask.shape

    def rollout(q, g):
        m = b.mask[q, g]
        return Rollout(
            float(b.reward[q, g]),
            q * G + g,
            logp[q, g][m],
            b.proximal[q, g][m],
            b.behaviour[q, g][m],
            b.reference[q, g][m],
            None if entropy is None else entropy[q, g][m],
            b.turn[q, g][m].tolist(),
            b.state[q, g][m].tolist(),
            b.process_reward[q, g][m],
            float(b.duration_s[q, g]),
        )

    return [[rollout(q, g) for g in range(G) if b.valid[q, g]] for q in range(Q)]


def surrogate(coefficients, scalars):
    """Return the loss whose gradient is minus the rule's: -sum of coefficient x scalar."""
    return -sum((c * scalars[name]).sum() for name, c in coefficients.items())


def gradient(loss, theta):
    """Return d loss / d theta."""
    (found,) = torch.autograd.grad(loss, theta)
    return found
