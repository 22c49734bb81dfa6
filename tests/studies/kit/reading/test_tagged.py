import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from studies.kit.episodes import workflow
from studies.kit.reading.formats import Source
from studies.kit.reading.replies import SAID, blocks
from studies.kit.reading.tagged import CHAT_NOTE, Cutter, call_name

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'


def cut(text, prompt="", tools=()):
    source = Source("verl", [], tools)
    return source, [(turn.action, turn.generated, turn.observed) for turn in Cutter(source)(text, prompt)]


def actions(text, prompt="", tools=()):
    return [action for action, _, _ in cut(text, prompt, tools)[1]]


def test_tags_are_cut_into_what_was_written_and_what_came_back():
    source, found = cut("<think>a</think><search> q </search>\n<information>D</information>\n<answer> x </answer>")
    assert found == [
        ("search", "<think>a</think><search> q </search>\n", "<information>D</information>"),
        ("answer", "\n<answer> x </answer>", ""),
    ]
    assert not source.counts
    assert not source.notes


def test_chat_without_special_tokens_is_cut_at_the_markers_of_roles():
    source, found = cut(f"hm\n{CALL}\nuser\n<tool_response>\nD\n</tool_response>\nassistant\nIt is x.")
    assert found == [
        ("search", f"hm\n{CALL}", "\nuser\n<tool_response>\nD\n</tool_response>\nassistant\n"),
        ("answer", "It is x.", ""),
    ]
    assert source.notes == [CHAT_NOTE]


def test_chat_with_special_tokens_is_cut_alike():
    reply = "<|im_start|>user\n<tool_response>\nD\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    _, found = cut(f"{CALL}<|im_end|>\n{reply}It is x.<|im_end|>")
    assert found == [("search", f"{CALL}<|im_end|>\n", reply), ("answer", "It is x.<|im_end|>", "")]


def test_several_calls_in_one_message_have_one_reply_each_where_counts_match():
    two = CALL + "\n" + CALL.replace("search", "verify")
    one, other = "\nuser\n<tool_response>1</tool_response>\n", "<tool_response>2</tool_response>\nassistant\n"
    _, found = cut(two + one + other + "done")
    assert [(action, observed) for action, _, observed in found] == [("search", one), ("verify", other), ("answer", "")]
    _, found = cut(two + "\nuser\n<tool_response>1</tool_response>\nassistant\ndone")
    assert [bool(observed) for _, _, observed in found] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{5}", ["none"]),
        ("It is 5.", ["none"]),
        ("  \n", []),
        ("<ANSWER>5</ANSWER>", ["answer"]),
        ("<\u017fearch>q</\u017fearch>", ["none"]),  # a long s is no s
        ("<final_answer>5</final_answer>", ["answer"]),
        ("<answer>5</answer><|im_end|>\n", ["answer"]),
        ("<answer>5</answer> or so", ["answer", "none"]),
        ("<think>or <search> maybe</think> no", ["none"]),
        ("<think>so</think><search>q</search><search>r</search>", ["search", "search"]),
        ("<search> <answer>5</answer> </search>", ["search"]),
        ("<search> q <answer>5</answer>", ["answer"]),
        ("<python>1+1</python>\n<result>2</result><answer>2</answer>", ["python", "answer"]),
        ("<b>bold</b> <answer>2</answer>", ["answer"]),
        ("<b>bold</b> and then\n<information>D</information>", ["none"]),
        ("<information>D</information><answer>2</answer>", ["none", "answer"]),
        ("<tool_call>\n<function=Search>\n<parameter=q>x\n</tool_call>", ["search"]),
        ("<tool_call>{'name'}</tool_call>", ["none"]),
        (f"Zola?{SAID[0]}{SAID[1]}<answer>Z</answer>", ["none", "answer"]),
    ],
)
def test_what_is_an_action_and_what_is_none(text, expected):
    assert actions(text) == expected


def test_a_plain_answer_is_the_answer_where_the_prompt_offers_tools():
    assert actions("It is 5.", prompt="... within <tool_call></tool_call> tags") == ["answer"]
    assert actions("<think>It is", prompt="<tool_call>") == ["none"]
    assert actions(f"{CALL}\nuser\nTry again\nassistant\nhm\nuser\nAgain\nassistant\n5") == ["search", "none", "answer"]
    assert workflow(actions("It is 5.", prompt="<tool_call>")) == "guess"


def test_what_is_cut_short_is_counted():
    source, found = cut("<think>a</think><search> who wr")
    assert found == [("search", "<think>a</think><search> who wr", "")]
    assert source.counts == {"cut short": 1}
    source, found = cut("<search> q <information>D")  # an engine that drops its stop string
    assert [action for action, _, _ in found] == ["search"]
    assert source.counts == {"tags left open": 1, "replies cut short": 1}
    source, found = cut('<tool_call>{"name": "sear')
    assert [action for action, _, _ in found] == ["none"]
    source, found = cut('<tool_call>{"name": "search", "argu')
    assert [action for action, _, _ in found] == ["search"]


def test_a_reply_whose_tag_is_never_closed_ends_where_the_policy_begins():
    source, found = cut(
        "<search>q</search><information>D<think>t</think><search>r</search><information>E</information>"
    )
    assert found == [
        ("search", "<search>q</search>", "<information>D"),
        ("search", "<think>t</think><search>r</search>", "<information>E</information>"),
    ]
    assert source.counts == {"replies cut short": 1}


def test_tools_that_are_known_are_tags_and_others_are_counted():
    text = "<browse>x</browse><information>D</information><search>q</search><information>D</information>"
    source, found = cut(text, tools=["Browse"])
    assert [action for action, _, _ in found] == ["browse", "search"]
    assert source.counts == {"unknown tool: search": 1}
    name = "evil\x1b[2J" + "x" * 100
    source, found = cut(CALL.replace("search", name.replace("\x1b", "\\u001b")), tools=["search"])
    assert found[0][0] == name.lower()
    assert list(source.counts) == ["unknown tool: " + "evil\\x1b[2j" + "x" * 52 + "..."]


def test_names_of_calls():
    assert call_name('{"name": " "}') is None
    assert call_name("[1]") is None
    assert call_name("[" * 100_000) is None
    assert call_name(" <function=web.search>{}") == "web.search"


PIECES = ["search", "answer", "think", "information", "tool_call", "tool_response", "result", "b", "verify", "python"]
WORDS = st.one_of(
    st.sampled_from([f"<{slash}{name}>" for name in PIECES for slash in ("", "/")]),
    st.sampled_from(
        ["\nuser\n", "\nassistant\n", "user\n", "tool\n", "assistant\n", "<|im_start|>user\n", "<|im_end|>\n"]
    ),
    st.sampled_from(["<|im_start|>assistant\n", "<|im_start|>tool\n", '{"name": "search"}', *SAID, " ", "\n", "</s>"]),
    st.text(max_size=5),
)


@given(st.lists(WORDS, max_size=25).map("".join), st.sampled_from(["", "<tool_call>"]))
@example("\nuser\n\nuser\n\nassistant\n", "")
def test_nothing_of_a_text_is_lost(text, prompt):
    source = Source("verl", [])
    cutter = Cutter(source)
    turns = cutter(text, prompt)
    chat = bool(prompt or "<tool_call>" in text or "<|im_start|>" in text)
    found = list(blocks(text, cutter.tags(text), cutter.replies, chat=chat))
    if not text.strip():
        assert turns == ()
        return
    ends = [end for block in found for end in (block.end, *block.replies)]
    assert ends == sorted(ends)
    assert [block.start for block in found] == [0, *(block.replies[-1] for block in found[:-1])]
    assert ends[-1] == len(text)
    written = "".join(text[block.start : block.end] for block in found)
    replied = "".join(text[block.end : block.replies[-1]] for block in found if block.replies)
    assert "".join(turn.generated for turn in turns) == written
    assert "".join(turn.observed for turn in turns) == replied
    if all(len(block.replies) < 2 for block in found):
        assert "".join(turn.generated + turn.observed for turn in turns) == text


@given(st.lists(st.tuples(st.sampled_from(["search", "verify"]), st.text("abc \n", min_size=1)), max_size=6))
def test_a_transcript_is_cut_back_into_its_turns(rounds):
    pairs = [(f"<{tool}>{words}</{tool}>", f"<information>{words}</information>") for tool, words in rounds]
    text = "".join(a + b for a, b in pairs) + "<answer>x</answer>"
    assert [(g, o) for _, g, o in cut(text)[1]] == [*pairs, ("<answer>x</answer>", "")]
    chat = "".join(
        f'<tool_call>{{"name": "{tool}"}}</tool_call>\nuser\n<tool_response>{words}</tool_response>\nassistant\n'
        for tool, words in rounds
    )
    assert actions(chat + "done", prompt="<tool_call>") == [*(tool for tool, _ in rounds), "answer"]


@pytest.mark.parametrize(
    "text",
    [
        "<search>" * 40_000,
        "<information>" * 40_000,
        "<information><result><observation><tool_response>" * 10_000,
        "\nuser\n" * 60_000,
        "\nuser\n\nassistant\n" * 20_000,
        "<search>q</search>" * 20_000,
        "<think>" * 60_000,
        "<search><verify><answer></search>" * 10_000,
        SAID[0] * 10_000,
        " " * 400_000 + "x",
    ],
)
def test_odd_texts_take_no_longer_than_their_length(text):
    began = time.process_time()
    cut(text)
    assert time.process_time() - began < 5  # s; quadratic time would be minutes
