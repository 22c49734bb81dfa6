import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.importing import TraceError, best_fit, exponential, fit, interarrivals, read_column, read_trace, replay

DATA = Path(__file__).resolve().parents[2] / "data"


@pytest.fixture
def written(tmp_path):
    """Write a trace; return its path."""

    def write(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


TOOLS = 'tool,took\nsearch,0.5\n"read, on",3\nsearch,1e1\n'


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_column_is_read_in_the_order_of_the_file(written):
    assert read_column(written("a.csv", TOOLS), "took").tolist() == [0.5, 3.0, 10.0]
    lines = '{"took": 2, "tool": "x"}\n{"tool": null, "took": 0.25}'
    assert read_column(str(written("a.jsonl", lines)), "took").tolist() == [2.0, 0.25]


def test_where_keeps_the_rows_of_one_tool(written):
    path = written("a.csv", TOOLS + "read,\n")  # the row left out need hold no number
    assert read_column(path, "took", where=lambda row: row["tool"] == "search").tolist() == [0.5, 10.0]


def test_columns_come_under_the_names_asked_for(written):
    found = read_trace(written("a.csv", "at,n\n0,7\n1.5,8\n"), {"arrived_s": "at", "tokens": "n"})
    assert {name: column.tolist() for name, column in found.items()} == {"arrived_s": [0, 1.5], "tokens": [7, 8]}


def test_a_byte_order_mark_and_windows_lines_are_no_part_of_a_name(written):
    assert read_column(written("a.csv", b"\xef\xbb\xbftook\r\n1\r\n2\r\n"), "took").tolist() == [1, 2]


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp("trace")
    (folder / "a.csv").write_text("x\n" + "".join(f"{v!r}\n" for v in values))
    (folder / "a.jsonl").write_text("".join(json.dumps({"x": v}) + "\n" for v in values))
    assert read_column(folder / "a.csv", "x").tolist() == values
    assert read_column(folder / "a.jsonl", "x").tolist() == values


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,took\nx,1\n", None),
        ("a,tok\nx,1\n", "line 2: no column 'took'; did you mean tok?"),
        ("a,took\nx,1\nx,\n", "line 3, column 'took' is empty; leave the row out"),
        ("a,took\nx,  \n", "line 2, column 'took' is empty"),
        ("a,took\nx,1\nx,fast\n", "line 3, column 'took' = 'fast' is not a number"),
        ("a,took\nx,1_0\n", "line 2, column 'took' = '1_0' is not a number"),
        ("a,took\nx,nan\n", "line 2, column 'took' = nan is not a finite number of at least 0"),
        ("a,took\nx,inf\n", "line 2, column 'took' = inf is not a finite"),
        ("a,took\nx,1e999\n", "line 2, column 'took' = 1e999 is not a finite"),
        ("a,took\nx,-0.5\n", "line 2, column 'took' = -0.5 is not a finite number of at least 0"),
        ("a,took\nx,1\n\nx,2\n", "line 3 has 0 fields, its header 2"),
        ("a,took\nx,1,2\n", "line 2 has 3 fields, its header 2"),
        ('a,took\n"x\ny",1\nx,no\n', "line 4, column 'took' = 'no'"),
        ('a,took\n"x"y,1\n', "line 2 is not CSV"),
        ("took,took\n1,2\n", "line 1: column 'took' stands there twice"),
        ("a,took\n", "has 0 rows"),
        ("", "has 0 rows"),
    ],
)
def test_nothing_in_a_csv_is_skipped_silently(written, text, message):
    path = written("a.csv", text)
    if message is None:
        assert read_column(path, "took").tolist() == [1.0]
        return
    with pytest.raises(TraceError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        read_column(path, "took")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"took": 1}\n', None),
        ('{"took": 1}\n{"tok": 1}\n', "line 2: no column 'took'; did you mean tok?"),
        ('{"took": null}\n', "line 1, column 'took' is empty"),
        ('{"took": "1"}\n', "line 1, column 'took' = '1' is not a number"),
        ('{"took": true}\n', "line 1, column 'took' = True is not a number"),
        ('{"took": [1]}\n', "line 1, column 'took' = [1] is not a number"),
        ('{"took": NaN}\n', "line 1, column 'took' = nan is not a finite"),
        ('{"took": -1}\n', "line 1, column 'took' = -1 is not a finite"),
        ('{"took": 1' + "0" * 400 + "}\n", "line 1, column 'took' = 1000"),
        ('{"took": 1}\n\n{"took": 2}\n', "line 2 is not JSON"),
        ('{"took": 1}\n{"took": \n', "line 2 is not JSON"),
        ('{"took": 1, "took": 2}\n', "field 'took' stands there twice"),
        ("[1]\n", "line 1 is '[1]', not a JSON object"),
        ("", "has 0 rows"),
    ],
)
def test_nothing_in_a_jsonl_is_skipped_silently(written, text, message):
    path = written("a.jsonl", text)
    if message is None:
        assert read_column(path, "took").tolist() == [1.0]
        return
    with pytest.raises(TraceError, match=re.escape(str(path)) + ".*" + re.escape(message)):
        read_column(path, "took")


def test_a_file_of_another_kind_is_refused(written):
    with pytest.raises(TraceError, match=r"ends in '.parquet'; a trace is one of .csv, .jsonl"):
        read_column(written("a.parquet", "x"), "took")
    with pytest.raises(TraceError, match="not UTF-8 text"):
        read_column(written("a.csv", b"took\n\xff\n"), "took")


def test_a_selection_of_nothing_is_refused(written):
    with pytest.raises(TraceError, match="`where` keeps 0 of 3 rows"):
        read_column(written("a.csv", TOOLS), "took", where=lambda row: row["tool"] == "Search")


# --- gaps -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(0, 100))
def test_gaps_add_up_to_the_arrivals(gaps, start):
    arrived = start + np.concatenate([[0], np.cumsum(gaps)])
    assert interarrivals(arrived).tolist() == gaps
    assert interarrivals(arrived + 5).tolist() == gaps


@pytest.mark.parametrize(
    ("arrived", "message"),
    [
        ([1.0], "arrivals of shape (1,); gaps need a column of at least 2"),
        ([0.0, 2.0, 1.5], "arrival 2 at 1.5 lies before its predecessor at 2.0; sort them"),
        ([0.0, float("nan"), 1.0], "arrival 1 is nan; it must be finite"),
    ],
)
def test_arrivals_without_gaps_are_refused(arrived, message):
    with pytest.raises(TraceError, match=re.escape(message)):
        interarrivals(arrived)


# --- files of others --------------------------------------------------------------------------------------------------

AZURE = {"arrived_s": "arrived_at", "prompt": "num_prefill_tokens", "output": "num_decode_tokens"}


@pytest.mark.parametrize(
    ("name", "last", "output_tokens"),
    [("azure_llm_2023_code.csv", 199.089585, 4907), ("azure_llm_2023_conv.csv", 61.263537, 47050)],
)
def test_the_traces_of_azure_are_read(name, last, output_tokens):
    trace = read_trace(DATA / name, AZURE)
    assert {len(column) for column in trace.values()} == {200}
    assert trace["arrived_s"][-1] == last
    assert trace["output"].sum() == output_tokens
    gaps = interarrivals(trace["arrived_s"])
    assert gaps.sum() == pytest.approx(last)
    assert best_fit(gaps).best.n == 199


def test_the_arrivals_of_mooncake_are_memoryless_and_in_milliseconds():
    trace = read_trace(DATA / "mooncake_synthetic.jsonl", {"arrived_ms": "timestamp", "output": "output_length"})
    gaps_s = interarrivals(trace["arrived_ms"]) / 1000
    found = fit(gaps_s, exponential)
    assert found.law.mean == pytest.approx(58.501 / 199)
    assert found.ks < found.ks_expected
    assert replay(trace["output"]).mean_s() == pytest.approx(38364 / 200)


def test_a_misspelt_column_of_a_real_trace_is_answered_with_the_right_one():
    with pytest.raises(TraceError, match="did you mean num_decode_tokens"):
        read_column(DATA / "azure_llm_2023_code.csv", "num_decoded_tokens")
