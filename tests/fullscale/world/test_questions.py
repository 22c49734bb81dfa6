import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.world.questions import Question, read_questions, search_r1_questions, split

HELD = ["0", "1", "3", "4", "8"]


def lines(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def row(content="Use <answer> tags. Question: Who? Question: who wrote Emma?\n", target=("Jane Austen",), **more):
    return {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": content}],
        "reward_model": {"style": "rule", "ground_truth": {"target": list(target)}},
        "extra_info": {"split": "train", "index": 5},
        **more,
    }


def test_a_line_is_a_question_with_one_answer_or_several(tmp_path):
    path = lines(
        tmp_path / "own.jsonl",
        {"question": "Who?", "answer": "Ann"},
        {"question": "Where?", "answer": ["UK", "U.K.", "UK"], "id": "w", "kind": "place"},
    )
    who, where = read_questions(path)
    assert who == Question("1", "Who?", ("Ann",))
    assert where == Question("w", "Where?", ("UK", "U.K."), "place")


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"answer": "x"}, "there is no 'question'"),
        ({"question": "x"}, "the answer None must be a text or several"),
        ({"question": "x", "answer": []}, r"the answer \[\] must"),
        ({"question": "x", "answer": ["a", " "]}, "none of them blank"),
        ({"question": "x", "answer": 3}, "the answer 3 must"),
        ({"question": "x", "answer": "a", "id": 1}, "id '1' is that of line 1 too"),
        ({"question": "x", "answer": "a", "kind": 3}, "'kind' = 3 must be a text"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, bad, says):
    path = lines(tmp_path / "bad.jsonl", {"question": "q", "answer": "a"}, bad)
    with pytest.raises(ValueError, match=rf"bad\.jsonl:2: .*{says}"):
        read_questions(path)


def test_search_r1s_rows(tmp_path):
    path = lines(tmp_path / "train.jsonl", row(), row(id="train_6", question="who else?"), row(data_source="hotpotqa"))
    first, second, third = search_r1_questions(path)
    assert first == Question("nq/5", "who wrote Emma?", ("Jane Austen",), "nq")
    assert (second.id, second.text) == ("nq/train_6", "who else?")
    assert third.id == "hotpotqa/5"  # an index begins anew with every source


def test_search_r1s_parquet_is_the_same(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="needs pyarrow (the extra `parquet`)")
    import pyarrow.parquet as parquet

    rows = [row(), row(target=("A", "B"), extra_info={"split": "train", "index": 6})]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    assert search_r1_questions(tmp_path / "train.parquet") == search_r1_questions(lines(tmp_path / "t.jsonl", *rows))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (row(reward_model={"ground_truth": "x"}), "no 'reward_model.ground_truth.target'"),
        (row(prompt="Question: x"), "neither 'question' nor 'prompt'"),
        (row(content="who?"), "does not say 'Question:'; it ends 'who\\?'"),
        (row(target=()), "the answer"),
    ],
)
def test_what_is_not_search_r1s_layout_is_named(tmp_path, bad, says):
    with pytest.raises(ValueError, match=rf"bad\.jsonl:1: .*{says}"):
        search_r1_questions(lines(tmp_path / "bad.jsonl", bad))


@pytest.mark.parametrize(("text", "answers"), [(" ", ("a",)), ("q", ()), ("q", ("a", " "))])
def test_a_question_has_a_text_and_answers(text, answers):
    with pytest.raises(ValueError, match="question 'x' has"):
        Question("x", text, answers)


def many(count):
    return [Question(f"geography/{kind}/{i}", "?", ("a",), kind) for i in range(count) for kind in ("capital", "of")]


def test_a_third_is_held_out_and_facts_stay_together():
    train, held = split(many(3000), 1 / 3)
    assert abs(len(held) / 6000 - 1 / 3) < 0.03
    facts = [{each.id.rpartition("/")[2] for each in side} for side in (train, held)]
    assert not facts[0] & facts[1]
    assert len(facts[0]) + len(facts[1]) == 3000


def test_the_split_is_on_record():
    assert [each.id[-1] for each in split(many(10))[1][::2]] == HELD
    assert [each.id[-1] for each in split(many(10), seed=1)[1][::2]] != HELD


@given(st.sets(st.integers(0, 99)))
def test_where_a_question_goes_does_not_depend_on_the_others(kept):
    alone = [question for i, question in enumerate(many(50)) if i in kept]
    assert split(alone)[1] == [question for question in split(many(50))[1] if question in alone]


def test_something_is_left_to_train_on():
    with pytest.raises(ValueError, match=r"held_out = 1.0 must lie in \[0, 1\)"):
        split(many(1), 1.0)
