"""Known faults of records and random streams, each with its mutations; the others are in ``test_known_faults.py``."""

import hashlib

import numpy as np
import pytest

from sim.learning.lookup import Lookup
from sim.learning.loop import train
from sim.learning.setup import Training
from sim.learning.tabular import draw
from sim.mdp.policy import tables
from sim.mdp.sampling import Sampler
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rng import BlockStream, uniforms
from sim.records.rollouts import Outcome, Rollouts, Tokens
from sim.records.staleness import staleness
from tests.known_fault_mutations_records import MUTATIONS
from tests.mutations import fails_under

Z2 = np.zeros((1, 2))


# --- records ----------------------------------------------------------------------------------------------------------


def sampled_by(*versions):
    """One trajectory that the learner took at version 6: (version, tokens) of each turn, -1 where nobody noted it."""
    turns = []
    for index, (version, count) in enumerate(versions):
        ones = np.ones(count, bool)
        tokens = Tokens(id=np.arange(count), sampled=ones, train=ones, version=np.full(count, version))
        turns.append(Turn(0, index, generated=count, tokens=tokens))
    segment = Segment(tuple(turns), take_version=6)
    return Rollouts.from_trajectories([Trajectory("task", (segment,), 0.0, Outcome.WRONG)])


def test_f23_staleness_is_judged_by_token():
    found = staleness(sampled_by((3, 10), (4, 30), (5, 60)), 6)
    assert (found.oldest, found.newest, found.token_mean, found.coverage) == (3, 1, 1.5, 1)
    part = staleness(sampled_by((3, 10), (4, 30), (5, 60), (-1, 10)), 6)
    assert (part.oldest, part.newest, part.token_mean) == (3, 1, 1.5)
    assert part.coverage == pytest.approx(100 / 110)


# --- randomness -------------------------------------------------------------------------------------------------------


def coin_flips(graph, seeds, group=8, prompts=4):
    """Actions and nodes of a policy that tosses coins, [2, K, S, G * Q]."""
    policy = tables(graph, np.zeros((len(seeds), len(graph.free_names))))
    streams = BlockStream(seeds, "f28/question"), BlockStream(seeds, "f28/turn")
    sampler = Sampler(graph)
    sample = draw(sampler, policy, streams, 0, prompts, group)
    return np.stack([sampler.actions(sample), sampler.nodes(sample)[1:]])


def test_f28_every_sample_of_a_group_has_a_stream_of_its_own(tiny):
    u = np.stack(
        [uniforms(*named, (2, 2, 8, 4)) for named in ((0, "f28", 0), (0, "f28", 1), (1, "f28", 0), (0, "g", 0))]
    )
    pairs = np.moveaxis(u, 2, -1).reshape(-1, 2)  # two uniforms by seed, stream and step, turn, sample and task
    assert len(np.unique(pairs, axis=0)) == len(pairs) == 4 * 2 * 8 * 4
    flips = coin_flips(tiny.compiled(), tuple(range(50)))[0].reshape(2, 50, 8, 4)
    kinds_of_group = {tuple(flips[:, s, :, q].ravel()) for s in range(50) for q in range(4)}
    assert all(len(set(zip(*np.array(k).reshape(2, 8), strict=True))) > 1 for k in kinds_of_group)


def test_f28_neither_the_order_nor_the_number_of_workers_changes_a_sample(tiny):
    graph = tiny.compiled()
    together = coin_flips(graph, (0, 1, 2, 3))
    for order in ((3, 1, 0, 2), (2,), (1, 3)):
        assert np.array_equal(coin_flips(graph, order), together[:, :, list(order)])


PROGRAM = """
import hashlib
from sim.learning.loop import train
from sim.learning.setup import Training
runs = train(Training(prompts=8, group=4, steps=5), (0, 1), study="f29")
for r in runs.records():
    print(hashlib.sha256(r.manifest_bytes() + r.steps.to_bytes()).hexdigest())
"""


def test_f29_the_same_seed_gives_the_same_bytes_under_every_hash_seed(fresh_python):
    here = [
        hashlib.sha256(r.manifest_bytes() + r.steps.to_bytes()).hexdigest()
        for r in train(Training(prompts=8, group=4, steps=5), (0, 1), study="f29").records()
    ]
    assert len(set(here)) == 2
    for hash_seed in (0, 1, 2):
        assert fresh_python(PROGRAM, hash_seed=hash_seed).splitlines() == here


def test_lookups_read_what_they_scatter(tiny):
    """A guard for all of the above: coefficients reach the decision they were given to, and no other."""
    graph = tiny.compiled()
    sampler = Sampler(graph)
    policy = tables(graph, Z2)
    sample = draw(sampler, policy, (BlockStream((0,), "a"), BlockStream((0,), "b")), 0, prompts=3, group=4)
    lookup = Lookup.of(sample, sampler.decisions)
    one = np.zeros((1, 3, 4, 2))
    one[0, 2, 1, 0] = 1.0
    found = lookup.scatter(one, policy.probability.shape)
    assert found.sum() == 1
    assert found[0, 0, sampler.actions(sample)[0, 0, 1 * 3 + 2]] == 1
    assert lookup.gather(policy.log_probability)[0] == pytest.approx(np.log(0.5))


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [(n, m) for n, _, m in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, _ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
