import gzip
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from studies.kit.reading import lines
from studies.kit.reading.formats import Source
from studies.kit.reading.lines import extras, head, records


def read(path, content):
    path.write_bytes(content)
    source = Source("jsonl", [path])
    return source, [(number, record) for number, record, _ in records(source, path)]


def test_a_damaged_line_is_told_of_and_the_rest_is_read(tmp_path):
    source, found = read(tmp_path / "a.jsonl", b'{"a": 1}\n{"a": \x1b[31m 2}\n\n[3]\n{"a": 4}\n')
    assert found == [(1, {"a": 1}), (5, {"a": 4})]
    assert source.counts == {"lines": 4, "damaged": 2, "problems": 2}
    first, second = source.problems
    assert (first.line, first.text) == (2, r'{"a": \x1b[31m 2}\n')
    assert "no JSON" in first.what
    assert (second.line, second.what) == (4, "no object but a list")
    assert source.bytes_read == source.bytes_total == 38


def test_a_last_line_without_end_is_cut_off_unless_it_parses(tmp_path):
    source, found = read(tmp_path / "a.jsonl", b'{"a": 1}\n{"a": 2, "b": "some te')
    assert found == [(1, {"a": 1})]
    assert source.problems[0].what.startswith("cut off")
    source, found = read(tmp_path / "b.jsonl", b'{"a": 1}\n{"a": 2}')
    assert len(found) == 2
    assert not source.problems


def test_what_no_parser_expects_is_damage_and_no_crash(tmp_path):
    bad = [b"\xff\xfe{}", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b'{"a": "\xed\xa0\x80"}', b"null"]
    source, found = read(tmp_path / "a.jsonl", b"\n".join([*bad, b'{"a": 1}', b""]))
    assert [record for _, record in found] == [{"a": 1}]
    assert source.counts["damaged"] == len(bad)
    assert all(len(problem.text) <= 83 * 10 and problem.text.isprintable() for problem in source.problems)
    assert [problem.line for problem in source.problems] == [1, 2, 3, 4, 5]


def test_a_line_that_is_too_long_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 64)
    source, found = read(tmp_path / "a.jsonl", b'{"a": 1}\n' + b"x" * 1000 + b'\n{"a": 2}\n')
    assert [number for number, _ in found] == [1, 3]
    assert source.problems[0].what == "longer than 64 bytes"
    assert source.counts["lines"] == 3


def test_byte_order_mark_and_carriage_returns_are_no_damage(tmp_path):
    source, found = read(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    assert [record["a"] for _, record in found] == [1, 2]
    assert not source.problems


def test_compressed_files_are_read_and_their_damage_told(tmp_path):
    whole = gzip.compress("".join(json.dumps({"a": k, "b": "é" * k}) + "\n" for k in range(2000)).encode())
    source, found = read(tmp_path / "a.jsonl.gz", whole)
    assert [record["a"] for _, record in found] == list(range(2000))
    assert source.bytes_read == len(whole)
    source, found = read(tmp_path / "b.jsonl.gz", whole[: len(whole) // 2])
    assert 0 < len(found) < 2000
    assert source.counts["damaged files"] == 1
    assert f"after line {len(found)}" in source.problems[-1].what
    assert head(tmp_path / "a.jsonl.gz") == {"a": 0, "b": ""}
    source, found = read(tmp_path / "c.jsonl.gz", b"no gzip at all")
    assert not found
    assert source.counts["damaged files"] == 1


def test_the_first_whole_object_is_the_head(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"cut\n[1]\n{"a": 1}\n')
    assert head(path) == {"a": 1}
    path.write_text("")
    assert head(path) is None


@given(st.lists(st.one_of(st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")), st.none()), max_size=20))
def test_episodes_and_damaged_lines_are_all_lines(tmp_path_factory, damage):
    content = [json.dumps({"a": k}).encode() if bad is None else bad for k, bad in enumerate(damage)]
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    source, found = read(path, b"".join(line + b"\n" for line in content))
    assert [record["a"] for _, record in found if "a" in record][: damage.count(None)] == [
        k for k, bad in enumerate(damage) if bad is None
    ]
    assert len(found) + source.counts["damaged"] == source.counts["lines"]
    blank = 0
    for line in content:
        try:
            blank += not line.decode().strip()
        except UnicodeDecodeError:
            continue
    assert source.counts["lines"] == len(content) - blank


def test_other_fields_are_kept_as_numbers_or_text():
    kept = extras({"score": 1, "acc": True, "pred": ["é"], "none": None, "n": 3}, {"score"})
    assert kept == {"acc": 1.0, "pred": '["é"]', "n": 3.0}


def test_a_number_that_no_float_holds_is_kept_as_text():
    kept = extras({"nan": math.nan, "far": -math.inf, "uid": 2**53 + 1, "huge": 10**400, "id": 2**53, "big": 1e300}, ())
    assert kept == {
        "nan": "nan", "far": "-inf", "uid": "9007199254740993", "huge": "1" + "0" * 400, "id": 2.0**53, "big": 1e300,
    }  # fmt: skip
