import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet as pq

from sim.records.rollouts import Groups, Pauses, Rollouts, Segments, Tokens, Trajectories, Turns
from sim.records.steps import StepTable
from studies.kit.export.folder import ExportError
from studies.kit.export.parquet import PARENTS, write
from tests.studies.kit.runs.stores import config, record, rollouts

TABLES = {"groups": Groups, "trajectories": Trajectories, "segments": Segments}
TABLES |= {"turns": Turns, "tokens": Tokens, "pauses": Pauses}


def exported(folder, *records):
    """The tables of an export, read with pyarrow, by name."""
    assert write(lambda: records, folder) == []
    return {path.stem: pq.read_table(path) for path in folder.rglob("*.parquet")}


def load_steps(tables, key):
    """A run's step table from an export alone."""
    (about,) = tables["runs"].filter(pa.compute.equal(tables["runs"]["run"], key)).to_pylist()
    rows = tables["steps"].filter(pa.compute.equal(tables["steps"]["run"], key))
    return StepTable({name: _values(rows[name], name in about["integers"]) for name in about["columns"]})


def load_rollouts(tables, key):
    """A run's rollouts from an export alone; offsets from the rows of the parents."""
    (about,) = tables["runs"].filter(pa.compute.equal(tables["runs"]["run"], key)).to_pylist()
    if not about["rollouts"]:
        return None
    rows = {name: tables[name].filter(pa.compute.equal(tables[name]["run"], key)) for name in TABLES if name in tables}
    columns = {name: {} for name in TABLES}
    for name, table in rows.items():
        skip = {"run", "row", PARENTS[name][0] if name in PARENTS else ""}
        whole = {"task"} if "groups/task" in about["integers"] else set()
        columns[name] = {c: _values(table[c], c in whole) for c in table.column_names if c not in skip}
        assert table["row"].to_pylist() == list(range(len(table)))
    for name, (parent, offsets) in PARENTS.items():
        above, field = offsets.split("/")
        parents = rows[name][parent].to_numpy() if name in rows else np.zeros(0, dtype=int)
        columns[above][field] = np.searchsorted(parents, np.arange(len(rows[above]) + 1))
    if not about["tokens"]:
        columns.pop("tokens")
    return Rollouts(**{name: TABLES[name](**found) for name, found in columns.items()})


def _values(column, whole):
    assert column.null_count == 0
    values = column.to_numpy()
    if values.dtype.kind == "O":
        values = np.array(values.tolist(), dtype=np.str_ if column.type == pa.string() else None)
    return values.astype(np.int64) if whole else values


def same_runs(tables, records):
    """Whether an export holds these runs bit for bit: digests and manifests are those of the store."""
    for each in records:
        assert load_steps(tables, each.key).digest() == each.manifest["steps_digest"]
        found = load_rollouts(tables, each.key)
        assert (None if found is None else found.digest()) == each.manifest["rollouts_digest"]
    texts = dict(zip(tables["runs"]["run"].to_pylist(), tables["runs"]["manifest"].to_pylist(), strict=True))
    assert {key: text.encode() for key, text in texts.items()} == {r.key: r.manifest_bytes() for r in records}
    assert len(tables["steps"]) == sum(len(each.steps) for each in records)


def test_two_runs_by_hand(tmp_path):
    a = record(seed=1, recorded_at="2026-03-04T05:06:07+00:00", wall_s=2, cpu_s=1.5)
    b = record("dwell", made_of=config(known=0.25, drive=None, keep=True), rung="minimodel")
    tables = exported(tmp_path, a, b)
    assert sorted(tables) == ["runs", "steps"]
    first, second = tables["runs"].to_pylist()
    assert (first["run"], first["study"], first["rung"], first["seed"]) == (a.key, "fold", "sim", 1)
    assert (first["config.world.known"], second["config.world.known"]) == (0.5, 0.25)
    assert (first["config.keep"], second["config.keep"]) == (None, True)
    assert (first["wall_s"], first["cpu_s"], second["wall_s"]) == (2.0, 1.5, None)
    assert json.loads(second["manifest"])["config"]["drive"] is None
    assert tables["steps"].column_names == ["run", "study", "rung", "seed", "step", "train/count", "train/reward"]
    assert tables["steps"].to_pylist()[2] == {
        "run": a.key, "study": "fold", "rung": "sim", "seed": 1, "step": 2, "train/count": 4, "train/reward": 1.2
    }  # fmt: skip
    same_runs(tables, [a, b])


def test_a_column_that_a_run_has_not_is_null_and_nan_is_nan(tmp_path):
    a = record(columns={"step": np.arange(2), "x": np.array([np.nan, 1.0])})
    b = record(columns={"step": np.arange(2), "y": np.arange(2)}, seed=1)
    tables = exported(tmp_path, a, b)
    assert tables["steps"]["x"].null_count == 2
    x = tables["steps"]["x"].to_pylist()
    assert np.isnan(x[0])
    assert x[1:] == [1.0, None, None]
    assert tables["steps"]["y"].to_pylist() == [None, None, 0, 1]
    same_runs(tables, [a, b])


def test_a_column_of_whole_numbers_here_and_reals_there_comes_back_as_both(tmp_path):
    a = record(columns={"step": np.arange(2), "x": np.array([2**53, -3])})
    b = record(columns={"step": np.arange(2), "x": np.array([0.5, -0.0])}, seed=1)
    tables = exported(tmp_path, a, b)
    assert tables["steps"]["x"].type == pa.float64()
    assert [row["integers"] for row in tables["runs"].to_pylist()] == [["step", "x"], ["step"]]
    same_runs(tables, [a, b])


@pytest.mark.parametrize("order", [1, -1])
def test_whole_numbers_that_are_no_floats_are_not_rounded(tmp_path, order):
    a = record(columns={"step": np.arange(2), "x": np.array([2**53 + 1, 0])})
    b = record(columns={"step": np.arange(2), "x": np.array([0.5, 0.5])}, seed=1)
    with pytest.raises(ExportError, match=r"column 'x' .* 9007199254740993 is no float: export these runs apart"):
        exported(tmp_path, *[a, b][::order])
    same_runs(exported(tmp_path, a), [a])


def test_a_column_named_as_what_names_runs_is_refused(tmp_path):
    with pytest.raises(ExportError, match="has a column 'seed'"):
        exported(tmp_path, record(columns={"step": np.arange(2), "seed": np.arange(2)}))


def test_rollouts_with_and_without_tokens_and_with_tasks_of_either_kind(tmp_path):
    made = [
        record(rollouts=rollouts()),
        record(seed=1, rollouts=rollouts(tasks=("what", "who"), tokens=True)),
        record(seed=2),
    ]
    tables = exported(tmp_path, *made)
    assert sorted(tables) == ["groups", "pauses", "runs", "segments", "steps", "tokens", "trajectories", "turns"]
    assert tables["groups"]["task"].to_pylist() == ["3", "5", "what", "who"]
    assert tables["trajectories"]["group"].to_pylist() == [0, 0, 1] * 2
    assert tables["turns"]["segment"].to_pylist() == [0, 0, 1, 2] * 2
    assert tables["tokens"]["turn"].to_pylist() == [0, 0, 1, 2, 2, 3]
    same_runs(tables, made)


def test_settings_keep_their_types_or_become_json(tmp_path):
    made = [record(made_of={"a": 1, "b": 1, "c": True, "d": "x", "e": 2**70, "f": 2**60, "g": None, "h": 1})]
    made += [record(made_of={"a": 2, "b": 0.5, "c": False, "d": "y", "e": 1, "f": 0.5, "g": None, "h": "one"})]
    runs = exported(tmp_path, *made)["runs"]
    found = {name: runs[f"config.{name}"].to_pylist() for name in "abcdefgh"}
    assert found == {
        "a": [1, 2],
        "b": [1.0, 0.5],
        "c": [True, False],
        "d": ["x", "y"],
        "e": [str(2**70), "1"],
        "f": [str(2**60), "0.5"],
        "g": [None, None],
        "h": ["1", '"one"'],
    }
    assert runs["config.a"].type == pa.int64()


def test_the_same_runs_give_the_same_bytes(tmp_path):
    made = [record(rollouts=rollouts(tokens=True)), record(seed=1)]
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(lambda: made, tmp_path / name)
    for path in (tmp_path / "one").rglob("*.parquet"):
        again = tmp_path / "two" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == again.read_bytes()


def test_many_rows_go_into_few_row_groups(tmp_path):
    made = [record(columns={"step": np.arange(50_000)}, seed=seed) for seed in range(6)]
    tables = exported(tmp_path, *made)
    assert pq.read_metadata(tmp_path / "steps.parquet").num_row_groups == 2
    same_runs(tables, made)


# Any bits, and often NaN of both signs and several kinds, infinities, and zeros.
_BITS = st.integers(0, 2**64 - 1) | st.sampled_from(
    [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 5, 0x7FF0 << 48, 1 << 63]
)
_REALS = st.lists(_BITS, min_size=3, max_size=3).map(lambda bits: np.array(bits, dtype=np.uint64).view(np.float64))
_WHOLES = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=3, max_size=3).map(lambda x: np.array(x, dtype=np.int64))


@given(
    st.lists(
        st.tuples(st.dictionaries(st.sampled_from("abc"), _REALS), st.dictionaries(st.sampled_from("xyz"), _WHOLES)),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_the_bits_are_they_come_back(tables):
    made = [
        record(columns={"step": np.arange(3) + seed, **reals, **wholes}, seed=seed)
        for seed, (reals, wholes) in enumerate(tables)
    ]
    with tempfile.TemporaryDirectory() as folder:
        same_runs(exported(Path(folder), *made), made)
