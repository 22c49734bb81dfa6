"""Each known fault of records and random streams put into the shipped code; see ``known_fault_mutations.py``."""

import math
from dataclasses import replace

import numpy as np

from sim.mdp.sampling import Sampler
from sim.records import staleness as staleness_module
from sim.records.rng import BlockStream
from tests.mutations import Mutation, around, entering, everywhere, put

MUTATIONS: list[tuple[str, str, Mutation]] = []
"""(name of a test, the fault in words, mutation that makes it fail)."""

fails = entering(MUTATIONS)


# --- records ----------------------------------------------------------------------------------------------------------

F23 = "test_f23_staleness_is_judged_by_token"


def judge(wrong):
    """Replace what staleness returns by `wrong(shipped result, rollouts, learner_version)`."""
    shipped = staleness_module.staleness
    return everywhere(shipped, lambda rollouts, now=None: wrong(shipped(rollouts, now), rollouts, now))


fails(F23)(
    judge(lambda found, rollouts, now: replace(found, oldest=found.newest, token_mean=found.newest)),
    "judged by the last version",
)


@fails(F23)
def the_mean_is_over_versions(patch, tests):
    def wrong(found, rollouts, now):
        version = rollouts.tokens.version
        return replace(found, token_mean=float(np.mean(now - np.unique(version[version >= 0]))))

    judge(wrong)(patch, tests)


@fails(F23)
def a_missing_version_is_no_lag(patch, tests):
    shipped = staleness_module._spans

    def spans(rollouts):
        weight, _, _, segment = shipped(rollouts)
        version = rollouts.tokens.version
        version = np.where(version < 0, rollouts.segments.take_version[segment], version)
        return weight, version, version, segment

    patch.setattr(staleness_module, "_spans", spans)


fails(F23)(
    judge(lambda found, rollouts, now: replace(found, coverage=math.ceil(found.coverage))),
    "coverage forgets what is unlabelled",
)


# --- randomness -------------------------------------------------------------------------------------------------------

F28_STREAMS = "test_f28_every_sample_of_a_group_has_a_stream_of_its_own"
F28_ORDER = "test_f28_neither_the_order_nor_the_number_of_workers_changes_a_sample"
F29 = "test_f29_the_same_seed_gives_the_same_bytes_under_every_hash_seed"


@fails(F28_STREAMS)
def one_stream_per_group(patch, tests):
    shipped = BlockStream.uniforms

    def uniforms(self, step, shape, out=None):
        found = shipped(self, step, shape, out)
        return np.repeat(found[..., :1, :], shape[-2], axis=-2) if len(shape) == 4 else found

    patch.setattr(BlockStream, "uniforms", uniforms)


fails(F28_STREAMS)(
    around(Sampler, "__call__", lambda shipped, self, p, kind, u: shipped(self, p, kind, 0 * u + u[..., :1, :])),
    "a group samples one rollout",
)
fails(F28_STREAMS)(
    around(BlockStream, "_aim", lambda shipped, self, seed, step: shipped(self, 0, step)), "the seed is ignored"
)
fails(F28_STREAMS)(
    around(BlockStream, "_aim", lambda shipped, self, seed, step: shipped(self, seed, 0)), "the step is ignored"
)
fails(F28_ORDER)(put(BlockStream, "_aim", lambda self, seed, step: None), "one generator is read in the order of work")
fails(F28_ORDER)(
    around(BlockStream, "_aim", lambda shipped, self, seed, step: shipped(self, self.seeds.index(seed), step)),
    "the seed is the place in the block",
)


def in_the_child(mutation):
    """Put the mutation before the program that runs under each hash seed."""
    return lambda patch, tests: patch.setitem(tests, "PROGRAM", mutation + tests["PROGRAM"])


ACTIONS_OF_A_SET = """
from sim.mdp.graph import ToolGraph
from dataclasses import replace
shipped = ToolGraph.compiled
ToolGraph.compiled = lambda self: shipped(replace(self, actions=tuple(n[3:] for n in {f"do/{a}" for a in self.actions})))
"""
HASHED_NAMES = """
import sim.records.rng
sim.records.rng.stream_key = lambda stream: hash(stream) % 2**64
"""
fails(F29)(in_the_child(ACTIONS_OF_A_SET), "actions are in the order of a set")
fails(F29)(in_the_child(HASHED_NAMES), "streams are keyed by the hash of their name")
