import json
import math
import os

import pytest
from making import most_memory

from cyctr import json_files
from cyctr.limits import JSON_DEPTH, JSON_GROWTH


@pytest.mark.parametrize("content", [b"[" * 10**5, b'{"a":' * 10**5, b"[" * 500 + b"]" * 500, b"[" * 65 + b"]" * 65])
def test_what_is_nested_too_deep_is_refused(content):
    with pytest.raises(ValueError, match=f"nested more than {JSON_DEPTH} deep"):
        json_files.parse(content)


@pytest.mark.parametrize("open_close", ["[]", '{"a": []}'])
def test_what_is_nested_as_deep_as_allowed_is_read(open_close):
    made = 1
    for _ in range(JSON_DEPTH):
        made = [made] if open_close == "[]" else {"a": made}
    assert json_files.parse(json.dumps(made)) == made


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_text_of_every_encoding_that_json_has_is_read(encoding):
    assert json_files.parse('{"name": "Käse"}'.encode(encoding)) == {"name": "Käse"}


@pytest.mark.parametrize("content", [b"\xff", b'{"a": "\xff"}', b"", b"{", b"1" * 5000, b"\xff\xfe\0"])
def test_what_is_no_json_is_a_value_error(content):
    with pytest.raises(ValueError, match=r".+"):
        json_files.parse(content)


def test_what_is_no_object_is_refused_by_its_type():
    with pytest.raises(ValueError, match="it is a list, not an object"):
        json_files.parse_object("[1]")


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "a.json").write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="it holds 9 bytes, expected at most 8"):
        json_files.read(tmp_path / "a.json", largest=8)


@pytest.mark.parametrize(
    "part",
    [
        "[],", "{},", '{"":1},', '{"":{"":{}}},', "[1.5],", "[[0.1]],", "0.1,", "1000000000000,", '"a1",', '"\u00e9\u4e2d",',
        r'"\u4e2d",', '{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6},', '{"a":"","b":"","c":"","d":"","e":"","f":""},', '"\U0001f600",'
    ],
)  # fmt: skip
def test_no_document_takes_more_memory_than_is_expected_of_it(part):
    for content in ("[" + part * 30_000 + "1]", '["' + 300_000 * "a" + '",' + part + "1]"):
        document = content.encode()
        assert len(document) + most_memory(lambda document=document: json.loads(document)) <= json_files.memory(document)


def test_keys_that_are_all_different_take_no_more_either():
    document = json.dumps({f"{key:x}": 1 for key in range(50_000)}).encode()
    assert len(document) + most_memory(lambda: json.loads(document)) <= json_files.memory(document)


def test_a_small_file_made_to_fill_the_memory_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "JSON_MEMORY", 2**21)
    (tmp_path / "a.json").write_text("[" + "[]," * 10_000 + "1]")
    assert len(json_files.read(tmp_path / "a.json")) == 10_001
    (tmp_path / "a.json").write_text("[" + "[]," * 20_000 + "1]")
    with pytest.raises(ValueError, match="it would take 4 MiB of memory, more than a document of its size should"):
        json_files.read(tmp_path / "a.json", growth=50)
    assert len(json_files.read(tmp_path / "a.json", growth=100)) == 20_001


def test_outlines_as_cocos_own_are_no_such_file(monkeypatch):
    polygon = [round(100 * math.sin(place) + 200, 2) for place in range(56)]
    annotation = {"segmentation": [polygon], "area": 702.1057499999998, "iscrowd": 0, "image_id": 289343, "id": 1768}
    boxes = {"bbox": [473.07, 395.93, 38.65, 28.67], "category_id": 18}
    content = json.dumps([annotation | boxes] * 1000).encode()
    assert json_files.memory(content) < JSON_GROWTH * len(content) / 2
    content = json.dumps(
        [{"id": 1, "image_id": 7, "area": 1107.9, "iscrowd": 0} | boxes] * 1000, separators=(",", ":")
    ).encode()
    assert json_files.memory(content) < JSON_GROWTH * len(content)


def test_a_document_longer_than_any_of_ours_is_refused_before_it_is_parsed():
    with pytest.raises(ValueError, match="it holds 33,554,433 bytes, expected at most 33,554,432"):
        json_files.parse_object(b"[" * (2**25 + 1))


def test_damaged_lines_are_none_and_the_others_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n\xff\n[\n' + b"[" * 9000 + b"\n2\n3")
    assert [value for _, value in json_files.read_lines(tmp_path / "a.jsonl")] == [{"a": 1}, None, None, None, 2, None]


def test_what_is_longer_than_a_line_may_be_comes_in_damaged_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "NOTES_BYTES", 4)
    (tmp_path / "a.jsonl").write_bytes(b"1\n" + bytes(10) + b"\n2\n")
    assert list(json_files.read_lines(tmp_path / "a.jsonl")) == [
        (b"1\n", 1),
        *((piece, None) for piece in (bytes(4), bytes(4), b"\0\0\n")),
        (b"2\n", 2),
    ]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is not a regular file"):
        json_files.read(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        list(json_files.read_lines(tmp_path / "pipe"))


@pytest.mark.parametrize("values", [["key", {"a": 0.1, "b": [None, True]}], ["\udcff", {"é": 2**60}], [[], {}]])
def test_what_was_sealed_comes_back_and_nothing_else(values):
    line = json_files.sealed(values)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert json_files.unsealed(json_files.parse_line(line), 2) == values
    assert json_files.unsealed([*values, "0" * 16], 2) is None
    assert json_files.unsealed(values, 2) == values  # as earlier versions wrote it
    assert json_files.unsealed([*values, "more", "still more"], 2) is None
