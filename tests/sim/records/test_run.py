import io
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sim
from sim.records.npz import digest, npz_bytes, read_npz
from sim.records.run import RunRecord, Runs, StepTable, run_key

CONFIG = {"type": "toy", "rate": 0.5, "turns": 4}
FLOATS = st.floats(allow_nan=True, allow_infinity=True, width=64)


def table(rows=5, **columns):
    return StepTable({"step": np.arange(rows), **columns})


def block(seeds=(0, 1, 2), rows=4, config=CONFIG, **changes):
    values = np.array([[seed + row / 10 for row in range(rows)] for seed in seeds])
    columns = {"step": np.tile(np.arange(rows), (len(seeds), 1)), "reward/mean": values}
    return Runs(
        **{"config": config, "seeds": seeds, "study": "toy", "rung": "sim", "fingerprint": "f0", "columns": columns}
        | changes
    )


# --- the step table ---------------------------------------------------------------------------------------------------


def test_columns_become_float64_or_int64_and_cannot_be_written():
    got = table(3, share=np.array([0.5, 1, 0], dtype=np.float32), flag=np.array([True, False, True]))
    assert got.names == ("flag", "share", "step")
    assert got["share"].dtype == np.float64
    assert got["flag"].dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        got["share"][0] = 1.0


def test_the_table_does_not_follow_the_array_it_was_made_from():
    source = np.zeros(5)
    got = table(5, share=source)
    source[:] = 7.0
    assert got["share"].sum() == 0.0
    assert got["step"].sum() == 10


def test_an_unknown_column_names_the_near_miss():
    got = table(2, **{"behaviour/search_share/turn0": np.ones(2)})
    with pytest.raises(KeyError, match="did you mean behaviour/search_share/turn0"):
        got["behavior/search_share/turn0"]


def test_tail_keeps_the_last_rows():
    assert table(5).tail(2)["step"].tolist() == [3, 4]
    assert len(table(5).tail(9)) == 5
    assert len(table(5).tail(0)) == 0


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"share": np.ones(3)}, "no column 'step'"),
        ({"step": np.arange(3), "share": np.ones(4)}, r"'share' has shape \(4,\)"),
        ({"step": np.array([0, 2, 2])}, "'step' is 2 in row 2, after 2"),
        ({"step": np.array([0.0, np.nan])}, "'step' is nan in row 1"),
        ({"step": np.arange(2), "name": np.array(["a", "b"])}, "'name' is of type <U1"),
        ({"step": np.zeros((2, 2))}, "must have 1 axes"),
    ],
)
def test_a_table_that_contradicts_itself_is_refused(columns, message):
    with pytest.raises(ValueError, match=message):
        StepTable(columns)


def test_equality_is_of_bits():
    nan, zero, minus = table(1, x=np.array([np.nan])), table(1, x=np.array([0.0])), table(1, x=np.array([-0.0]))
    assert nan.equals(table(1, x=np.array([np.nan])))
    assert not zero.equals(minus)
    assert not zero.equals(table(1, x=np.array([0])))
    assert not zero.equals(table(1, y=np.array([0.0])))


@settings(deadline=None, max_examples=40)
@given(hnp.arrays(np.float64, st.integers(0, 6), elements=FLOATS), st.permutations(["a", "b/c", "step"]))
def test_a_table_survives_its_bytes_whatever_the_order_of_columns(values, order):
    columns = {"step": np.arange(len(values)), "a": values, "b/c": values[::-1]}
    got = StepTable(columns)
    assert StepTable(read_npz(got.to_bytes())).equals(got)
    assert StepTable({name: columns[name] for name in order}).to_bytes() == got.to_bytes()


def test_saved_tables_are_ordinary_npz_files_with_a_fixed_date(tmp_path):
    got = table(3, x=np.array([0.1, 0.2, 0.3]))
    got.save(tmp_path / "steps.npz")
    with np.load(tmp_path / "steps.npz") as archive:
        assert archive["x"].tolist() == [0.1, 0.2, 0.3]
        assert {member.date_time for member in archive.zip.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert StepTable.load(tmp_path / "steps.npz").equals(got)
    # Mutation: numpy.savez keeps the order of the call, so two equal tables differ on disk.
    first, second = io.BytesIO(), io.BytesIO()
    np.savez(first, a=np.ones(1), b=np.zeros(1))
    np.savez(second, b=np.zeros(1), a=np.ones(1))
    assert first.getvalue() != second.getvalue()
    ours = [npz_bytes(dict(pairs)) for pairs in ((("a", np.ones(1)), ("b", np.zeros(1))),) * 2]
    assert ours[0] == ours[1]
    assert ours[0] == npz_bytes({"b": np.zeros(1), "a": np.ones(1)})


def test_the_digest_sees_names_types_shapes_and_bits():
    base = digest({"a": np.array([1, 2]), "b": np.array([3])})
    assert base == digest({"b": np.array([3]), "a": np.array([1, 2])})
    others = [
        {"a": np.array([1, 2]), "c": np.array([3])},
        {"a": np.array([1.0, 2.0]), "b": np.array([3])},
        {"a": np.array([[1, 2]]), "b": np.array([3])},
        {"a": np.array([1]), "b": np.array([2, 3])},
    ]
    assert len({base, *map(digest, others)}) == 5


# --- records and blocks -----------------------------------------------------------------------------------------------


def test_the_key_depends_on_all_that_determines_a_run_and_on_nothing_else():
    base = run_key(CONFIG, "toy", 0, "sim", "f0")
    assert len(base) == 16
    assert base == run_key(dict(reversed(CONFIG.items())), "toy", 0, "sim", "f0")
    changed = [
        run_key({**CONFIG, "rate": 0.25}, "toy", 0, "sim", "f0"),
        run_key(CONFIG, "other", 0, "sim", "f0"),
        run_key(CONFIG, "toy", 1, "sim", "f0"),
        run_key(CONFIG, "toy", 0, "minimodel", "f0"),
        run_key(CONFIG, "toy", 0, "sim", "f1"),
    ]
    assert len({base, *changed}) == 6


def test_the_manifest_holds_no_time_host_or_path():
    records = [
        RunRecord.create(CONFIG, "toy", 0, "sim", "f0", table(3), provenance)
        for provenance in ({"wall_s": 1.0, "host": "a"}, {"wall_s": 2.0, "host": "b"})
    ]
    assert records[0].manifest_bytes() == records[1].manifest_bytes()
    assert records[0].equals(records[1])
    identity = {"config", "fingerprint", "key", "rung", "schema", "seed", "study"}
    assert set(records[0].manifest) == identity | {"columns", "rows", "rollouts_digest", "steps_digest"}


def test_a_record_differs_from_one_with_another_bit():
    first = RunRecord.create(CONFIG, "toy", 0, "sim", "f0", table(1, x=np.array([0.1])))
    second = RunRecord.create(CONFIG, "toy", 0, "sim", "f0", table(1, x=np.array([np.nextafter(0.1, 1)])))
    assert first.key == second.key
    assert not first.equals(second)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True), st.data())
def test_a_seed_has_the_same_bytes_in_any_block(seeds, data):
    whole = block(tuple(seeds))
    cut = data.draw(st.integers(1, len(seeds) - 1))
    parts = [block(tuple(seeds[:cut])), block(tuple(seeds[cut:]))]
    assert Runs.concatenate(parts).equals(whole)
    alone = {seed: block((seed,)).records()[0] for seed in seeds}
    for record in whole.records():
        assert record.manifest_bytes() == alone[record.seed].manifest_bytes()
        assert record.steps.to_bytes() == alone[record.seed].steps.to_bytes()
    shuffled = data.draw(st.permutations(seeds))
    assert whole.select(shuffled).equals(block(tuple(shuffled)))
    assert Runs.from_records(whole.records(), CONFIG).equals(whole)


def test_values_of_a_seed_stay_with_the_seed():
    runs = block((5, 2))
    assert runs["reward/mean"][:, 0].tolist() == [5.0, 2.0]
    assert runs.select([2])["reward/mean"].tolist() == [[2.0, 2.1, 2.2, 2.3]]
    assert [record.seed for record in runs.records()] == [5, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": (0, 0, 1)}, "repeat"),
        ({"columns": {"step": np.zeros((2, 1))}}, "2 rows for 3 seeds"),
        ({"columns": {"step": np.arange(4)}}, r"must have 2 axes, \[seeds, T\]"),
        ({"rollouts": {9: None}}, r"rollouts of seeds \[9\]"),
    ],
)
def test_a_block_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        block(**changes)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (block((7,), study="else"), "another study"),
        (block((7,), fingerprint="f1"), "another fingerprint"),
        (block((7,), config={**CONFIG, "rate": 0.25}), "another config"),
        (block((7,), rows=5), "another rows"),
        (block((1,)), "repeat"),
    ],
)
def test_runs_of_different_kinds_do_not_mix(other, message):
    with pytest.raises(ValueError, match=message):
        Runs.concatenate([block(), other])


def test_a_seed_that_is_not_there_is_named():
    with pytest.raises(KeyError, match=r"seeds \[4\] are not in the block"):
        block().select([0, 4])


def test_blocks_travel_between_processes():
    runs = block()
    assert pickle.loads(pickle.dumps(runs)).equals(runs)


def test_bytes_do_not_depend_on_the_process_or_its_hash_seed():
    program = (
        "import hashlib, numpy as np\n"
        "from sim.records.run import Runs\n"
        "names = ['step', *{f'c{i}' for i in range(20)}]\n"
        "columns = {n: np.arange(8).reshape(2, 4) * (1 if n == 'step' else .1) for n in names}\n"
        "runs = Runs({k: 1 for k in {'a', 'b', 'c'}}, (0, 1), 'toy', 'sim', 'f', columns)\n"
        "total = b''.join(r.manifest_bytes() + r.steps.to_bytes() for r in runs.records())\n"
        "print(hashlib.sha256(total).hexdigest(), ' '.join(names))\n"
    )
    outputs = []
    for seed in ("0", "1", "2"):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(sim.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
        outputs.append(done.stdout.split(" ", 1))
    assert len({order for _, order in outputs}) > 1  # the sets did come in different orders
    assert len({value for value, _ in outputs}) == 1
