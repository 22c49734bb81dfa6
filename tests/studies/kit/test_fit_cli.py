"""``metastable fit``: registers once, checks later, and refuses what it cannot do with the way out."""

import numpy as np
import pytest

from sim.records.steps import StepTable
from studies.kit.fit_cli import fit
from studies.kit.fitting.registration import read
from studies.kit.words import CommandError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A simulated run as a file: pushed from step 20 on."""
    from sim.learning import presets
    from sim.learning.loop import train
    from sim.records.config import replace

    made = train(replace(presets.drive(), {"steps": 60}), (41,), study="test/fit-cli")
    columns = {name: values[0] for name, values in made.columns.items() if name.startswith(("step", "behaviour/"))}
    path = tmp_path_factory.mktemp("run") / "pushed.npz"
    StepTable({**columns, "rollouts": np.full(60, 1024)}).save(path)
    return path


@pytest.fixture(scope="module")
def registered(run):
    out = run.parent / "first.toml"
    assert fit(str(run), until=33, out=out, horizon=5) == 0
    return out


def test_it_registers_and_says_so(run, registered, capsys):
    content = read(registered)
    assert content["first"] == "push"
    assert content["run"] == "pushed"
    assert content["data"]["last_step"] == 33
    assert content["data"]["later_steps_at_hand"] == 26
    assert [row["step"] for row in content["forecast"]] == [34, 35, 36, 37, 38]
    assert registered.with_suffix(".svg").read_text().startswith("<?xml")


def test_later_steps_are_held_against_it(run, registered, capsys):
    assert fit(str(run), check=registered) == 0
    text = capsys.readouterr().out
    assert "held against 5 steps, 34 to 38" in text
    assert "not a forecast in the dark" in text
    assert "90 % interval: 5 of 5" in text


def test_by_default_it_stands_in_the_folder_of_forecasts(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert fit(str(run), since=5, until=32, horizon=2) == 0
    assert sorted(path.name for path in (tmp_path / "forecasts").iterdir()) == [
        "pushed-step32.svg",
        "pushed-step32.toml",
    ]
    text = capsys.readouterr().out
    assert "pushed: 28 steps, 5 to 32, 1024 rollouts a step; 27 later steps were at hand" in text
    assert "What this does not show" in text
    assert "metastable fit" in text
    with pytest.raises(CommandError, match="never overwritten"):
        fit(str(run), since=5, until=32, horizon=2)


def test_refusals_name_the_way_out(run, registered, tmp_path):
    for message, options in (
        ("no run 'nothing'", {"run": "nothing"}),
        ("12 are the fewest", {"until": 7}),
        ("should end in .toml", {"out": tmp_path / "a.txt"}),
        ("no step from 90", {"since": 90}),
        ("horizon = 0", {"horizon": 0}),
        ("group = 1", {"group": 1}),
        (r"no registered forecast .*absent.toml: No such file", {"check": tmp_path / "absent.toml"}),
        (r"is no registered forecast: .*line 1", {"check": registered.with_suffix(".svg")}),
    ):
        with pytest.raises(CommandError, match=message):
            fit(**{"run": str(run), "store": tmp_path, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_reading_of_another_trainers_run(tmp_path, capsys):
    """From rollouts on disk, as `metastable read` keeps them, to a registered forecast."""
    from studies.kit.reading.fold import fold
    from studies.kit.reading.keeping import Origin, write
    from tests.studies.kit.reading.hand import Stream, episode

    rng = np.random.default_rng(0)
    ways = ("search answer", "search answer search answer", "answer search answer", "answer")
    episodes = []
    for step in range(14):
        guess = 0.05 + 0.02 * step
        chance = ((1 - guess) * 0.7, (1 - guess) * 0.3, guess * 0.8, guess * 0.2)
        for task, way in enumerate(rng.choice(4, 64, p=chance)):
            episodes.append(episode(ways[way], step=step, task=task // 8, reward=float(rng.random() < 0.8)))
    folder = write(fold(Stream(episodes), name="theirs"), tmp_path / "theirs", Origin("by hand", (), None, 10, ()))
    assert fit(str(folder), out=tmp_path / "theirs.toml", horizon=3) == 0
    assert read(tmp_path / "theirs.toml")["data"]["rollouts"] == 64
    assert "theirs: 14 steps, 0 to 13, 64 rollouts a step" in capsys.readouterr().out


def test_the_command_for_later_has_all_that_it_needs(run, tmp_path, capsys):
    table = StepTable.load(run)
    StepTable({name: table[name] for name in table.names if name != "rollouts"}).save(tmp_path / "a b.npz")
    assert fit(str(tmp_path / "a b.npz"), until=33, out=tmp_path / "f.toml", rollouts=1024, store=tmp_path) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    where = f"'{tmp_path}/a b.npz' --check {tmp_path}/f.toml --rollouts 1024 --store {tmp_path}"
    assert last == f"Later: metastable fit {where}"


def test_a_reading_without_accuracy_says_why(tmp_path):
    from studies.kit.reading.fold import fold
    from studies.kit.reading.keeping import Origin, write
    from tests.studies.kit.reading.hand import Stream, episode

    episodes = [episode("search answer", step=step, reward=None) for step in range(14)]
    folder = write(fold(Stream(episodes), name="theirs"), tmp_path / "theirs", Origin("by hand", (), None, 10, ()))
    with pytest.raises(CommandError, match="theirs has no accuracy by turn, which a fit needs: "):
        fit(str(folder))
