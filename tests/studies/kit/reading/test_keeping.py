import gzip
import hashlib
import json
from dataclasses import replace

import pytest

from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome
from studies.kit.episodes import Turn
from studies.kit.reading import keeping
from studies.kit.reading.fold import fold
from studies.kit.reading.formats import Problem, open_run
from studies.kit.reading.keeping import InputFile, KeepingError, Origin, check, inputs, is_kept, load, write
from studies.kit.reading.showing import inspected
from studies.kit.reading.transitions import transitions
from tests.studies.kit.reading.hand import Stream, episode, tokens

ORIGIN = Origin("by hand", ("search",), None, 100, (InputFile("a.jsonl", 3, "0" * 64),))
WORDS = (
    Turn("search", "find <it>", "found\u2028\x00", 3, 2, "start", -0.5, -0.75, 0.25),
    Turn("none", "hm"),
    Turn("answer", "it", ""),
)
EPISODES = (
    episode(step=2, task="q", turns=WORDS, prompt="Who?", extras={"acc": 1.0, "reward": "odd", "data": "nq"}),
    episode("answer", step=2, task="q", reward=0.0, version_oldest=1, version_newest=2, take_version=4),
    episode("search answer", step=12, task="r", reward=0.25, role="main", outcome=Outcome.TRUNCATED),
    episode("search", step=12, task="s", reward=None),
    episode("search", step=12, task="s", reward=None, outcome=Outcome.INFRASTRUCTURE_FAILURE),
)


@pytest.fixture
def reading():
    problems = [Problem("a.jsonl", 3, "no JSON", '{"x'), Problem("b.jsonl", None, "cut off")]
    return fold(Stream(EPISODES, problems=problems, notes=["a choice"], absent={"KL": "none"}), name="hand")


def test_what_was_written_is_loaded(reading, tmp_path):
    folder = write(reading, tmp_path / "runs" / "hand", ORIGIN)
    again = load(folder)
    assert again.steps.equals(reading.steps)
    for name in ("name", "format", "actions", "workflows", "absent", "problems", "counts", "notes"):
        assert getattr(again, name) == getattr(reading, name), name
    wrote = list(reading.episodes)
    place = next(i for i, each in enumerate(wrote) if each.extras)
    assert "reward" in wrote[place].extras  # the name of a field of the layout, so it is kept under another
    wrote[place] = replace(wrote[place], extras={"acc": 1.0, "reward (extra)": "odd", "data": "nq"})
    assert list(again.episodes) == wrote
    assert load(folder, words=False).episodes == ()


def test_numbers_beside_a_rollout_that_json_has_not_are_kept(tmp_path):
    """Python writes NaN where a reward function has no value, and reads it back."""
    path = tmp_path / "1.jsonl"
    path.write_text(
        '{"input": "q", "output": "<answer>x</answer>", "score": 1, "step": 1, "f1": NaN, "uid": 9007199254740993}\n'
    )
    read = fold(open_run(path))
    (kept,) = load(write(read, tmp_path / "kept", ORIGIN, inspected=[inspected(read, ())])).episodes
    assert kept.extras == {"f1": "nan", "uid": "9007199254740993"}


def test_rollouts_of_each_step_are_our_record(reading, tmp_path):
    folder = write(reading, tmp_path / "hand", ORIGIN)
    assert sorted(path.name for path in (folder / "rollouts").iterdir()) == ["step_12.npz", "step_2.npz"]
    record = Rollouts.load(folder / "rollouts" / "step_2.npz")
    codes = json.loads((folder / "reading.json").read_text())["codes"]
    turns = [
        [codes[t.action] if t.action >= 0 else "none" for s in record.trajectory(row).segments for t in s.turns]
        for row in range(len(record))
    ]
    assert sorted(turns) == [["answer"], ["search", "none", "answer"]]
    assert record.trajectories.reward.tolist() == [0.0, 1.0]


def test_tokens_are_in_the_record(tmp_path):
    turn = Turn("answer", generated_tokens=2, tokens=tokens([0, 1, 1], behaviour=[0, -1, -2]))
    folder = write(fold(Stream([episode(turns=(turn,))])), tmp_path / "hand", ORIGIN)
    record = Rollouts.load(folder / "rollouts" / "step_0.npz")
    assert record.tokens.id.tolist() == [0, 1, 2]


def test_rollouts_that_contradict_themselves_are_left_out_and_told_of(tmp_path):
    wrong = episode("answer", step=1, turns=(Turn("answer", logp=0.5),))
    folder = write(fold(Stream([wrong, episode(step=2)])), tmp_path / "hand", ORIGIN)
    assert [path.name for path in (folder / "rollouts").iterdir()] == ["step_2.npz"]
    about = json.loads((folder / "reading.json").read_text())
    assert "logp_behaviour" in about["absent"]["record of the rollouts of step 1"]


def test_the_same_reading_has_the_same_identity_and_the_same_bytes(reading, tmp_path):
    one, other = write(reading, tmp_path / "one", ORIGIN), write(reading, tmp_path / "other", ORIGIN)
    names = ("manifest.json", "steps.npz", "reading.json", "episodes.jsonl.gz", "rollouts/step_2.npz")
    assert [(one / name).read_bytes() for name in names] == [(other / name).read_bytes() for name in names]
    manifest = json.loads((one / "manifest.json").read_text())
    assert manifest["rung"] == "read"
    assert manifest["config"]["files"][0]["sha256"] == "0" * 64
    changed = replace(ORIGIN, solved_at=0.5)
    third = json.loads((write(reading, tmp_path / "third", changed) / "manifest.json").read_text())
    assert third["key"] != manifest["key"]


def test_the_words_are_our_plain_layout(reading, tmp_path):
    folder = write(reading, tmp_path / "hand", ORIGIN)
    source = open_run(folder / "episodes.jsonl.gz", "jsonl")
    again = fold(source)
    assert not source.problems
    for name in ("behaviour/search_share/turn0", "train/turns", "behaviour/no_search_share"):
        assert again.steps[name].tolist() == reading.steps[name].tolist()


def test_the_page_and_the_text_are_in_the_folder(reading, tmp_path):
    shown = inspected(reading, transitions(reading))
    folder = write(reading, tmp_path / "hand", ORIGIN, report="the table\n", inspected=[shown])
    assert "<!doctype html>" in (folder / "index.html").read_text().lower()
    assert (folder / "report.txt").read_text() == "the table\n"


# --- what is in the way -----------------------------------------------------------------------------------------------


def test_an_earlier_reading_is_replaced_whole(reading, tmp_path):
    folder = write(reading, tmp_path / "hand", ORIGIN, report="first")
    (folder / "left over").write_text("x")
    write(fold(Stream([episode(step=7)])), folder, ORIGIN)
    assert load(folder).step.tolist() == [7]
    assert not (folder / "left over").exists()
    assert not (folder / "report.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["hand"]


def test_what_is_not_ours_is_refused_and_left_as_it_is(reading, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("all of it")
    with pytest.raises(KeepingError, match="holds something else than a reading"):
        write(reading, other, ORIGIN)
    (other / "manifest.json").write_text('{"rung": "sim"}')
    with pytest.raises(KeepingError, match="name another with --out"):
        check(other)
    assert (other / "thesis.tex").read_text() == "all of it"
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(KeepingError, match="is no folder"):
        check(file)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KeepingError, match="is no folder"):
        check(tmp_path / "link")
    check(tmp_path / "not there yet")


def test_an_empty_folder_may_be_filled(reading, tmp_path):
    (tmp_path / "empty").mkdir()
    assert is_kept(write(reading, tmp_path / "empty", ORIGIN))


def test_a_write_that_fails_leaves_the_earlier_reading(reading, tmp_path, monkeypatch):
    folder = write(reading, tmp_path / "hand", ORIGIN)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeping, "_write_words", full)
    with pytest.raises(OSError, match="No space"):
        write(fold(Stream([episode(step=7)])), folder, ORIGIN)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["hand"]


def test_damage_is_told(reading, tmp_path):
    folder = write(reading, tmp_path / "hand", ORIGIN)
    whole = (folder / "steps.npz").read_bytes()
    (folder / "steps.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(KeepingError, match="cannot be read"):
        load(folder)
    fold(Stream([episode(step=7)])).steps.save(folder / "steps.npz")
    with pytest.raises(KeepingError, match="does not agree with its manifest"):
        load(folder)
    (folder / "steps.npz").write_bytes(whole)
    lines = gzip.decompress((folder / "episodes.jsonl.gz").read_bytes()).splitlines(keepends=True)
    (folder / "episodes.jsonl.gz").write_bytes(gzip.compress(lines[0] + lines[1][:20]))
    with pytest.raises(KeepingError, match="line 2"):
        load(folder)
    with pytest.raises(KeepingError, match="holds no reading"):
        load(tmp_path)


def test_files_are_named_inside_their_folder_with_size_and_hash(tmp_path):
    paths = []
    for name, content in (("step_1/a.jsonl", b"one"), ("step_2/a.jsonl", b"two" * 10)):
        paths.append(tmp_path / name)
        paths[-1].parent.mkdir()
        paths[-1].write_bytes(content)
    told = []
    found = inputs(paths, told.append)
    assert [(each.name, each.bytes) for each in found] == [("step_1/a.jsonl", 3), ("step_2/a.jsonl", 30)]
    assert found[0].sha256 == hashlib.sha256(b"one").hexdigest()
    assert told == [3, 33]
    assert inputs(paths[:1])[0].name == "a.jsonl"
