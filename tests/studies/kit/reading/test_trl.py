"""Files that TRL's own trainer wrote (tests/data/reading/make_trl.py), and small ones by hand."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from sim.records.tables import Outcome
from studies.kit.episodes import workflow
from studies.kit.reading.fold import fold
from studies.kit.reading.formats import ReadError, open_run
from studies.kit.reading.tagged import CHAT_NOTE
from studies.kit.reading.trl_rewards import advantages

pa = pytest.importorskip("pyarrow", reason="the extra parquet brings it")
pq = pytest.importorskip("pyarrow.parquet")

DATA = Path(__file__).parents[3] / "data" / "reading" / "trl"
SEARCH, TOOLS = DATA / "search", DATA / "tools"


def row(**fields):
    return {"step": 1, "prompt": "q", "completion": "<answer>x</answer>", "right": 1.0, "advantage": 0.0, **fields}


def write(folder, step, *rows, **options):
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path, **options)
    return path


def run(folder, *rows, **options):
    write(folder, 1, *rows)
    source = open_run(folder, **options)
    return source, list(source)


@pytest.fixture(scope="module")
def flip():
    return fold(open_run(SEARCH, tools=("search",)))


def test_a_run_of_forty_steps_is_read_as_it_went(flip):
    assert flip.format == "trl"
    assert flip.step.tolist() == list(range(1, 41))
    assert set(flip.rollouts.tolist()) == {32}
    assert flip.actions == ("search", "answer")
    assert not flip.problems
    assert {"tokens", "KL", "staleness"} <= flip.absent.keys()
    assert "studies.kit.trl" in flip.absent["log-probabilities"]


def test_it_flips_long_after_its_reward_was_swapped(flip):
    """From step 20 on only an answer without a search was paid."""
    searching, reward = flip.steps["behaviour/search_share/turn0"], flip.steps["train/reward"]
    assert 0.3 < searching[0] < 0.8
    assert searching[10:19].min() > 0.8
    assert reward[10:19].mean() > 0.7
    assert reward[19:29].mean() < 0.05
    assert searching[19:29].min() > 0.8
    assert searching[-1] < 0.2
    assert reward[-1] > 0.3


def test_groups_share_a_prompt_and_their_advantages_are_those_of_their_rewards(flip):
    for step in (1, 20, 40):
        of_step = [each for each in flip.episodes if each.step == step]
        _, group, sizes = np.unique([each.task for each in of_step], return_inverse=True, return_counts=True)
        assert sizes.tolist() == [8, 8, 8, 8]
        given = [each.extras["advantage"] for each in of_step]
        assert np.allclose(advantages(np.array([each.reward for each in of_step]), group, "group"), given, atol=1e-4)
        assert np.abs(given).max() > 0.3 or step == 20


def test_texts_are_cut_at_their_tags(flip):
    shown = next(each for each in flip.episodes if workflow(turn.action for turn in each.turns) == "search-answer")
    thing = shown.prompt.removeprefix("Where is the ").removesuffix("? ")
    assert shown.turns[0].generated == f"<think>I look.</think><search>{thing}</search>"
    assert shown.turns[0].observed.startswith(f"<information>The {thing} is in the ")
    assert shown.turns[1].generated.startswith("<answer>")
    assert shown.turns[0].tokens is None
    assert shown.outcome in (Outcome.SOLVED, Outcome.WRONG)


def test_tool_calls_of_a_chat_are_turns():
    source = open_run(TOOLS, tools=("search",))
    episodes = [each for each in source if each.step == 1]
    assert [workflow(turn.action for turn in each.turns) for each in episodes[:4]] == [
        "search-answer", "guess", "search+-answer", "find-answer",
    ]  # fmt: skip
    first, _, both, unknown = episodes[:4]
    assert first.turns[0].generated == 'I look.<tool_call>{"name": "search", "arguments": {"thing": "key"}}</tool_call>'
    assert first.turns[0].observed == "The key is in the attic."
    assert first.turns[1].generated == "In the garden."
    assert both.turns[1].observed == "The map is in the cellar.The cup is in the garden."
    assert unknown.turns[0].observed == "{'error': 'Tool find not found.'}"
    assert source.counts["unknown tool: find"] == 4
    assert CHAT_NOTE in source.notes


def test_the_sum_of_several_rewards_is_recognised_by_the_advantages():
    source = open_run(TOOLS)
    first = next(iter(source))
    assert source.notes[0] == "the reward is what TRL logs as answered + brief, whose sum gives the advantages"
    assert first.reward == pytest.approx(1 + 1 / 3)
    assert first.extras == {
        "answered": 1.0, "brief": pytest.approx(1 / 3), "messages": "3", "advantage": pytest.approx(-0.4172, abs=1e-4),
    }  # fmt: skip


def test_a_lone_reward_is_the_reward(tmp_path):
    source, episodes = run(tmp_path, row(right=0.0, kind="a"), row(right=1.0, kind="b"), row(right=None, kind="c"))
    assert [each.reward for each in episodes] == [0.0, 1.0, None]
    assert [each.outcome for each in episodes] == [Outcome.WRONG, Outcome.SOLVED, Outcome.NOT_RECORDED]
    assert episodes[1].extras == {"kind": "b", "advantage": 0.0}
    assert source.counts["episodes without a reward"] == 1
    assert source.notes == ["the reward is what TRL logs as right"]


@pytest.mark.parametrize(
    ("weights", "scale", "summed"),
    [
        ((1, 1), "group", True),
        ((1, 1), "batch", True),
        ((1, 1), "none", True),
        ((1, 3), "none", False),
        ((1, 3), "group", False),
    ],
)
def test_rewards_without_weights_are_summed_only_where_the_advantages_say_so(tmp_path, weights, scale, summed):
    right, short = np.array([0, 1, 1, 0, 0, 1.0]), np.array([0.5, 0.0, 1.0, 0.25, 0.75, 0.0])
    total = weights[0] * right + weights[1] * short
    given = advantages(total, np.array([0, 0, 0, 1, 1, 1]), scale)
    rows = [row(prompt=f"q{k // 3}", right=right[k], short=short[k], advantage=given[k]) for k in range(6)]
    source, episodes = run(tmp_path, *rows)
    if summed:
        assert [each.reward for each in episodes] == total.tolist()
        assert source.notes == ["the reward is what TRL logs as right + short, whose sum gives the advantages"]
    else:
        assert [each.reward for each in episodes] == [None] * 6
        assert source.absent["reward"].startswith("TRL logs right, short without their weights, and none of the sums")
    assert episodes[2].extras == {"right": 1.0, "short": 1.0, "advantage": pytest.approx(given[2])}


def test_a_number_that_is_no_reward_is_told_from_one_by_the_advantages_or_nothing_is_said(tmp_path):
    """`log_extra` adds columns after the rewards."""
    rows = [row(right=r, length=n, advantage=a) for r, n, a in ((0.0, 5.0, -0.7070), (1.0, 9.0, 0.7070))]
    source, episodes = run(
        tmp_path, *rows, row(right=0.0, length=1.0, prompt="p"), row(right=0.0, length=2.0, prompt="p")
    )
    assert [each.reward for each in episodes] == [0.0, 1.0, 0.0, 0.0]
    assert source.notes == ["the reward is what TRL logs as right, whose sum gives the advantages"]
    (tmp_path / "b").mkdir()
    source, episodes = run(tmp_path / "b", row(right=0.0, hard=1.0), row(right=0.0, hard=1.0))
    assert "several of the sums" in source.absent["reward"]
    assert [each.reward for each in episodes] == [None, None]


def test_advantages_by_hand():
    reward, group = np.array([1.0, 0, 0, np.nan, 3, 5]), np.array([0, 0, 0, 0, 1, 1])
    sd = np.sqrt(1 / 3)
    assert advantages(reward, group, "none") == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0, -1, 1])
    expected = [2 / 3 / (sd + 1e-4), -1 / 3 / (sd + 1e-4), -1 / 3 / (sd + 1e-4), 0, -0.70706, 0.70706]
    assert advantages(reward, group, "group") == pytest.approx(expected, abs=1e-5)
    assert advantages(reward, group, "batch")[4] == pytest.approx(-1 / (np.std([1, 0, 0, 3, 5], ddof=1) + 1e-4))


def test_steps_are_in_the_order_of_their_numbers(tmp_path):
    for step in (100_000, 99_999, 7):
        write(tmp_path, step, row(step=step))
    (tmp_path / "completions" / "notes.txt").write_text("not a log")
    source = open_run(tmp_path / "completions")
    assert [each.step for each in source] == [7, 99_999, 100_000]


def test_files_of_one_step_from_several_processes_are_one_step(tmp_path):
    first = write(tmp_path, 3, row(step=3, prompt="a"), row(step=3, prompt="b"))
    write(tmp_path, 4, row(step=4))
    shutil.copy(first, first.with_name("completions_00003_rank1.parquet"))
    assert fold(open_run(tmp_path)).rollouts.tolist() == [4, 1]


def test_a_file_that_is_named_may_be_called_anything(tmp_path):
    path = write(tmp_path, 1, row(step=1), row(step=2)).rename(tmp_path / "all.parquet")
    source = open_run(path)
    assert source.format == "trl"
    assert [each.step for each in source] == [1, 2]
    other = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist([{"x": 1}]), other)
    with pytest.raises(ReadError, match=r"other\.parquet has no layout that is known"):
        open_run(other)


def test_a_batch_that_serves_two_steps_is_told_of(tmp_path):
    same = [row(completion="<answer>x</answer>"), row(completion="<search>y</search>")]
    write(tmp_path, 1, *same)
    write(tmp_path, 2, *[each | {"step": 2} for each in same])
    write(tmp_path, 3, row(step=3, completion="<answer>z</answer>"))
    source = open_run(tmp_path)
    assert [each.step for each in source] == [1, 1, 2, 2, 3]
    assert source.counts["steps with the rollouts of the step before"] == 1


def test_messages_may_be_kept_as_json_and_brackets_alone_are_text(tmp_path):
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "Search", "arguments": {"q": 1}}}]},
        {"role": "tool", "content": [{"type": "text", "text": "found"}, {"type": "image"}]},
        {"role": "assistant", "content": "done"},
    ]
    prompt = json.dumps([{"role": "system", "content": "be brief"}, {"role": "user", "content": "q"}])
    _, (chat, text) = run(
        tmp_path, row(prompt=prompt, completion=json.dumps(messages)), row(completion="[1] <answer>x</answer>")
    )
    assert [(turn.action, turn.observed) for turn in chat.turns] == [("search", "found[image]"), ("answer", "")]
    assert chat.prompt == chat.task == "system: be brief\nuser: q"
    assert [(turn.action, turn.generated) for turn in text.turns] == [("answer", "[1] <answer>x</answer>")]


def test_what_a_row_must_have_and_has_not_is_told_of_and_the_rest_is_read(tmp_path):
    rows = [row(), row(completion=None), row(step=None), row(prompt=None), row(completion="")]
    source, episodes = run(tmp_path, *rows)
    assert [[turn.action for turn in each.turns] for each in episodes] == [["answer"], ["none"]]
    assert source.counts["lines"] == 5
    assert source.counts["damaged"] == 3
    assert [(each.line, each.what) for each in source.problems] == [
        (2, "a row must have a completion, a text or messages"),
        (3, "step is None: it must be a whole number of 0 or more"),
        (4, "a row must have a prompt, a text or messages"),
    ]


def test_a_completion_that_begins_with_a_reply_is_damaged(tmp_path):
    source, episodes = run(tmp_path, row(completion='[{"role": "tool", "content": "x"}]'), row())
    assert len(episodes) == 1
    assert source.problems[0].what == "the completion does not begin with a message of the assistant"


def test_a_file_that_was_cut_is_told_of_and_the_others_are_read(tmp_path):
    shutil.copytree(SEARCH / "completions", tmp_path / "completions")
    files = sorted((tmp_path / "completions").iterdir())
    files[0].write_bytes(files[0].read_bytes()[:-100])
    files[4].write_bytes(b"")
    source = open_run(tmp_path)
    assert sorted({each.step for each in source}) == [s for s in range(1, 41) if s not in (1, 5)]
    assert source.counts["damaged files"] == 2
    assert [Path(each.path).name for each in source.problems] == [files[0].name, files[4].name]
    assert all("cut off, or no completions of TRL" in each.what for each in source.problems)
    assert source.bytes_read == source.bytes_total


def test_damage_inside_a_file_costs_its_row_group_only(tmp_path):
    rows = [row(prompt=f"q{k}", completion=f"<answer>{k:0200d}</answer>") for k in range(30)]
    path = write(tmp_path, 1, *rows, row_group_size=10, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(2)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = bytes(
        column.total_compressed_size
    )
    path.write_bytes(content)
    source = open_run(tmp_path)
    assert [each.task for each in source] == [f"q{k}" for k in (*range(10), *range(20, 30))]
    assert source.counts["damaged"] == 10
    assert source.problems[0].line == 11
    assert source.problems[0].what.startswith("damaged from here, 10 rows")


def test_a_file_without_the_columns_is_told_of(tmp_path):
    write(tmp_path, 1, {"step": 1, "text": "x"})
    write(tmp_path, 2, row(step=2))
    source = open_run(tmp_path)
    assert [each.step for each in source] == [2]
    assert "no column prompt and no column completion" in source.problems[0].what


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    for name in [each for each in sys.modules if each.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    source = open_run(SEARCH)
    with pytest.raises(ReadError, match=re.escape("install metastable[parquet]")):
        list(source)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(ReadError, match=re.escape("install metastable[parquet]")):
        open_run(tmp_path / "x.parquet")


def test_no_more_rows_are_in_memory_than_a_batch(tmp_path, monkeypatch):
    """A row group may be a whole run: it is decoded in parts."""
    from studies.kit.reading import trl

    monkeypatch.setattr(trl, "ROWS", 7)
    path = write(tmp_path, 1, *[row(prompt=f"q{k}") for k in range(50)])
    sizes = []

    class Spy(pq.ParquetFile):
        def iter_batches(self, *args, **kwargs):
            for batch in super().iter_batches(*args, **kwargs):
                sizes.append(batch.num_rows)
                yield batch

    monkeypatch.setattr(pq, "ParquetFile", Spy)
    assert [each.task for each in open_run(path)] == [f"q{k}" for k in range(50)]
    assert max(sizes) == 7
