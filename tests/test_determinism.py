"""A seed of a config is the same bytes: in any process, under any hash seed, alone, in any block, on any executor."""

import hashlib
import json
from dataclasses import replace

import pytest

from sim.learning.loop import train
from sim.learning.optimisers import Adam
from sim.learning.setup import Drive, Evaluation, Features, GradientNoise, Training
from sim.mdp.worlds import read_more_world
from sim.records.config import canonical_json, to_dict
from sim.records.fingerprint import code_fingerprint
from sim.records.run import run_key
from sim.records.store import Store
from studies.kit.executors import inline, processes
from studies.kit.sweep import sweep

BASE = Training(prompts=16, group=4, steps=8)
CONFIGS = {
    "plain": BASE,
    "noise through shared weights": replace(
        BASE, features=Features(shared=16, private=0.0), optimiser=Adam(0.6), noise=GradientNoise(0.5)
    ),
    "drive, behind, evaluated": replace(BASE, drive=Drive(0.4), lag=2, evaluation=Evaluation(3, 8, 2)),
    "many tools": replace(
        BASE, world=read_more_world(), habit=(("start/answer", -1.0), ("fresh/verify", 0.5)), inner_updates=2
    ),
}
SEEDS = (0, 1, 5)


def digests(runs):
    """The bytes of each record, manifest and step table, hashed."""
    return [hashlib.sha256(r.manifest_bytes() + r.steps.to_bytes()).hexdigest() for r in runs.records()]


PROGRAM = """
import hashlib, json
from sim.learning.loop import train
from sim.records.config import from_dict
for name, plain in json.loads(CONFIGS).items():
    runs = train(from_dict(plain), (0, 1, 5), study="determinism")
    print(name, *[hashlib.sha256(r.manifest_bytes() + r.steps.to_bytes()).hexdigest() for r in runs.records()], sep="|")
"""


def test_processes_and_hash_seeds(fresh_python):
    configs = json.dumps({name: to_dict(config) for name, config in CONFIGS.items()})
    expected = ["|".join([name, *digests(train(c, SEEDS, study="determinism"))]) for name, c in CONFIGS.items()]
    assert len({d for line in expected for d in line.split("|")[1:]}) == 12  # none of them is like another
    for hash_seed in (0, 1, 2):
        assert fresh_python(f"CONFIGS = {configs!r}\n{PROGRAM}", hash_seed=hash_seed).splitlines() == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_alone_and_in_blocks(name):
    whole = digests(train(CONFIGS[name], SEEDS, study="determinism"))
    alone = [digests(train(CONFIGS[name], (seed,), study="determinism"))[0] for seed in SEEDS]
    assert alone == whole
    for block in (1, 2, 3):
        assert digests(train(CONFIGS[name], SEEDS, study="determinism", block=block)) == whole
    assert digests(train(CONFIGS[name], SEEDS[::-1], study="determinism"))[::-1] == whole


def test_executors_and_blocks_of_a_sweep():
    points = {name: CONFIGS[name] for name in ("plain", "noise through shared weights")}
    expected = {name: digests(train(c, SEEDS, study="determinism")) for name, c in points.items()}
    with processes(2) as two:
        for executor, block in ((inline, 1), (inline, 8), (two, 1), (two, 2)):
            found = sweep(train, points, SEEDS, executor=executor, block=block, study="determinism")
            assert {name: digests(runs) for name, runs in found.items()} == expected


def test_the_order_of_points_does_not_matter():
    names = ["plain", "drive, behind, evaluated"]
    one, other = (
        sweep(train, {n: CONFIGS[n] for n in order}, SEEDS, study="determinism") for order in (names, names[::-1])
    )
    assert {n: digests(one[n]) for n in names} == {n: digests(other[n]) for n in names}


def test_what_the_store_gives_back_is_what_was_computed(tmp_path):
    points = {"plain": CONFIGS["plain"]}
    first = sweep(train, points, SEEDS[:2], store=Store(tmp_path), study="determinism")

    def only_the_new_seed(config, seeds, study):
        assert seeds == (5,)
        return train(config, seeds, study=study)

    resumed = sweep(only_the_new_seed, points, SEEDS, store=Store(tmp_path), study="determinism")
    assert digests(resumed["plain"])[:2] == digests(first["plain"])
    assert digests(resumed["plain"]) == digests(train(CONFIGS["plain"], SEEDS, study="determinism"))


def test_the_key_of_a_run_is_known_before_it_runs():
    config = CONFIGS["drive, behind, evaluated"]
    (record,) = train(config, (5,), study="determinism").records()
    assert record.key == run_key(to_dict(config), "determinism", 5, "sim", code_fingerprint("sim"))
    assert canonical_json(record.manifest["config"]) == canonical_json(config)
    others = [train(replace(config, steps=7), (5,), study="determinism"), train(config, (6,), study="determinism")]
    others.append(train(config, (5,), study="another"))
    assert len({record.key, *(runs.records()[0].key for runs in others)}) == 4


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_long_runs_stay_together(name):
    """A difference in the last bit grows with every step: 200 of them, and blocks as large as a sweep's."""
    config, seeds = replace(CONFIGS[name], steps=200), tuple(range(33))
    whole = digests(train(config, seeds, study="determinism"))
    for block in (1, 8, 33):
        assert digests(train(config, seeds, study="determinism", block=block)) == whole
