import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import metadata

from studies.kit.export.folder import ExportError
from studies.kit.export.tensorboard import FILE, place, write
from tests.studies.kit.runs.stores import config, record


def load(folder, made):
    """A run as TensorBoard's own reader has it: {tag: (steps, values)}, every event kept."""
    reader = EventAccumulator(str(folder / place(made)), size_guidance={"scalars": 0, "tensors": 0})
    reader.Reload()
    scalars = {tag: reader.Scalars(tag) for tag in reader.Tags()["scalars"]}
    return reader, {tag: ([e.step for e in events], [e.value for e in events]) for tag, events in scalars.items()}


def same_run(folder, made):
    """Whether the scalars are the store's, rounded to float32 and no further."""
    _, found = load(folder, made)
    assert sorted(found) == [name for name in made.steps.names if name != "step"]
    for name, (steps, values) in found.items():
        assert steps == made.steps["step"].tolist()
        with np.errstate(over="ignore"):
            expected = made.steps[name].astype(np.float32)
        np.testing.assert_array_equal(np.array(values), expected.astype(np.float64))
        assert (np.signbit(values) == np.signbit(expected))[~np.isnan(expected)].all()


def test_a_run_by_hand(tmp_path):
    made = record(seed=3, recorded_at="2026-03-04T05:06:07+00:00")
    assert write(lambda: [made], tmp_path) == []
    assert place(made) == f"fold/sim/seed3-{made.key}"
    reader, found = load(tmp_path, made)
    assert found["train/count"] == ([0, 1, 2, 3], [0.0, 2.0, 4.0, 6.0])
    assert found["train/reward"][1][1] == float(np.float32(3.1))
    times = {event.wall_time for event in reader.Scalars("train/reward")}
    assert times == {1772600767.0}
    same_run(tmp_path, made)


def test_nan_infinities_and_the_sign_of_zero_survive(tmp_path):
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-60])
    made = record(columns={"step": np.arange(5) * 10, "x": values})
    assert write(lambda: [made], tmp_path) == []
    same_run(tmp_path, made)
    steps, found = load(tmp_path, made)[1]["x"]
    assert steps == [0, 10, 20, 30, 40]
    np.testing.assert_array_equal(found, [np.nan, np.inf, -np.inf, 0.0, 0.0])


def test_what_float32_cannot_hold_is_told(tmp_path):
    columns = {
        "step": np.arange(2),
        "big": np.array([1e39, 1.0]),
        "count": np.array([2**24 + 1, 2**24]),
        "far": np.array([1e300, -1e300]),
    }
    made = record(columns=columns)
    notes = write(lambda: [made], tmp_path)
    assert notes == [
        f"run {made.key}, column big: 1 value beyond 3.4e+38, written as infinite",
        f"run {made.key}, column count: 1 value beyond 2**24 = 16777216, rounded",
        f"run {made.key}, column far: 2 values beyond 3.4e+38, written as infinite",
    ]
    same_run(tmp_path, made)


def test_settings_that_differ_are_hyperparameters(tmp_path):
    made = [record(seed=1), record(seed=2, made_of=config(known=0.25, keep=True, drive=None, name="x"))]
    write(lambda: made, tmp_path)
    found = []
    for each in made:
        reader, _ = load(tmp_path, each)
        content = reader.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        start = metadata.parse_session_start_info_plugin_data(content)
        assert start.group_name == each.key
        settings = start.hparams.items()
        found.append({name: getattr(value, value.WhichOneof("kind")) for name, value in settings})
    assert found == [
        {"study": "fold", "seed": 1.0, "world.known": 0.5},
        {"study": "fold", "seed": 2.0, "world.known": 0.25},
    ]


def test_the_same_runs_give_the_same_bytes(tmp_path):
    made = [record(made_of=config(known=k, **{f"s{i}": k for i in range(20)})) for k in (0.1, 0.2)]
    for name in ("one", "two"):
        write(lambda: made, tmp_path / name)
    for each in made:
        one, two = ((tmp_path / name / place(each) / FILE).read_bytes() for name in ("one", "two"))
        assert one == two
        assert len(one) > 500


def test_steps_that_are_no_whole_numbers_are_refused(tmp_path):
    whole = record(columns={"step": np.array([0.0, 2.0]), "x": np.arange(2)})
    assert write(lambda: [whole], tmp_path / "whole") == []
    assert load(tmp_path / "whole", whole)[1]["x"] == ([0, 2], [0.0, 1.0])
    for number, steps in enumerate(([0.0, 0.5], [0.0, np.inf])):
        with pytest.raises(ExportError, match="steps that are no whole numbers"):
            write(lambda steps=steps: [record(columns={"step": np.array(steps)})], tmp_path / str(number))


def test_names_that_would_lead_elsewhere_stay_below_the_folder(tmp_path):
    made = record(study="../../etc", rung=".")
    write(lambda: [made], tmp_path / "out")
    assert place(made).startswith("______etc/_/seed0-")
    assert len(list((tmp_path / "out").rglob(FILE))) == 1


@given(st.lists(st.floats(), min_size=1, max_size=8), st.integers(-3, 3))
def test_whatever_the_values_are_they_are_rounded_once(tmp_path_factory, values, first):
    made = record(columns={"step": np.arange(len(values)) + first, "x": np.array(values)})
    folder = tmp_path_factory.mktemp("out")
    write(lambda: [made], folder)
    same_run(folder, made)
