"""Files are cut into splits at any byte; lines and documents are read once, and need memory for one only."""

import io
import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from bridge.otlp import containers, detect
from bridge.otlp.containers import Document, read_messages
from bridge.otlp.detect import Layout, Side
from bridge.otlp.spans import parse_message
from bridge.storage.paths import as_path
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources import files, splits
from spark_jobs.sources.files import SourceFile, last_line, source_files
from spark_jobs.sources.native import body_batches, plan_bodies
from spark_jobs.sources.splits import line_numbers, read_lines, split_file


def file_of(path, content, layout=Layout.JSON_LINES):
    path.write_bytes(content)
    return SourceFile(path, layout)


TEXTS = st.lists(st.binary(max_size=6).map(lambda text: text.replace(b"\n", b"")), max_size=9)


@given(TEXTS, st.integers(1, 20), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_line_is_read_once_wherever_a_file_is_cut(tmp_path_factory, texts, size, mark):
    """A byte order mark before the first is none of it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(splits, "UNCUT_BYTES", 0)
        patched.setattr(splits, "_LEAST_TASK_BYTES", size)
        file = file_of(tmp_path_factory.mktemp("cut") / "x", mark + b"\n".join([b"first", *texts]))
        read = [line.text for split in split_file(file) for line in read_lines(split)]
        assert read == [text for text in (b"first", *texts) if text.strip()]


def test_lines_have_numbers_in_a_file_that_one_task_reads(tmp_path, monkeypatch):
    file = file_of(tmp_path / "x", b"\xef\xbb\xbfa\r\n\n \nb\xff\n\x00")
    (split,) = split_file(file)
    assert [(line.number, line.text) for line in read_lines(split)] == [(1, b"a\r"), (4, b"b\xff"), (5, b"\x00")]
    monkeypatch.setattr(splits, "UNCUT_BYTES", 3)
    assert {line.number for split in split_file(file) for line in read_lines(split)} == {None}


def test_file_that_is_not_of_lines_is_never_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "UNCUT_BYTES", 150)
    monkeypatch.setattr(splits, "_LEAST_TASK_BYTES", 100)
    (split,) = split_file(file_of(tmp_path / "packed", b"x" * 250, Layout.PROTO_FRAMED))
    assert (split.begin, split.end) == (0, 250)


@pytest.fixture
def path(tmp_path):
    """Six lines: one begins like another, one holds U+2028 and a carriage return, one is no UTF-8."""
    written = tmp_path / "traces.jsonl"
    written.write_bytes("first\nsecond one\nsecond two\n\u2028 odd\rline\n".encode() + b"\xff\xfe bytes\nlast")
    return written


@pytest.mark.parametrize(
    ("begin", "numbers"),
    [
        ("first", [1]),
        ("second", [2, 3]),
        ("second two", [3]),
        ("nowhere", []),
        ("\u2028 odd", [4]),
        ("\ufffd\ufffd bytes", [5]),
    ],
)
def test_line_is_found_by_its_beginning(path, begin, numbers):
    """Numbers count U+000A only, as the reader does."""
    assert line_numbers(path, {begin}) == {begin: numbers}
    assert line_numbers(path, {begin, "last"})[begin] == numbers
    for other in (path.with_name("elsewhere"), as_path("no-store://bucket/key")):
        assert line_numbers(other, {begin}) == {begin: []}


REQUEST = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "s"}]}]}]}


def documents_in(text, **options):
    return list(containers.documents(io.BytesIO(text.encode()), **options))


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_documents_are_read_one_by_one_across_pieces(monkeypatch, piece_bytes):
    monkeypatch.setattr(containers, "_PIECE_BYTES", piece_bytes)
    one, other, torn = json.dumps(REQUEST, indent=2), json.dumps({"text": 'é "}{" \\', "number": 9}), '{"resourceS'
    assert documents_in(f"\ufeff{one}\n{other},{other} no document {torn}\n\n{one} {torn}") == [
        Document(one, True, False),
        Document(other, True, False),
        Document(other, True, False),
        Document(f"no document {torn}\n", False, False),
        Document(one, True, False),
        Document(torn, False, True),
    ]


def test_endless_document_is_given_up_at_the_limit():
    documents = documents_in("[" + "1," * 900 + "\n" + json.dumps(REQUEST), most_characters=1000)
    assert [split.is_document for split in documents if split.text == json.dumps(REQUEST)] == [True]


def test_many_documents_need_no_more_memory_than_one():
    file = io.BytesIO((json.dumps(REQUEST, indent=1) + "\n").encode() * 20_000)
    read = containers.documents(file)
    assert next(read).is_document
    assert file.tell() <= 2 << 20
    assert sum(1 for _ in read) == 19_999


def test_endless_line_is_refused_in_one_sentence(tmp_path, monkeypatch):
    for module in (detect, containers):
        monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 1000)
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(REQUEST)[:-1] + " " * 2000 + "}", encoding="utf-8")
    with pytest.raises(UnreadableInputError, match=r"x\.jsonl has a line of more than .*one message of a batch"):
        list(read_messages(path, Layout.JSON_LINES, parse=parse_message))
    packed = tmp_path / "x.zst"
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    with pytest.raises(UnreadableInputError, match="has a line of more than"):
        list(read_messages(packed, Layout.JSON_LINES_ZSTD, parse=parse_message))


def test_native_line_that_is_too_long_is_named_with_the_advice_for_a_landing(tmp_path, monkeypatch):
    for module in (files, splits):
        monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 1000)
    path = tmp_path / "x.jsonl"
    long, short = ('{"body_base64": "%s"}' % ("A" * size) for size in (2000, 4))
    advice = "write each JSON object with body_base64 on a line of its own"
    texts = (f"{long}\n{short}\n", "at byte 0"), (f"{{}}\n{long}\n", "at byte 3"), (f"{short}\n{long}", "the last one")
    for text, place in texts:
        path.write_text(text)
        with pytest.raises(UnreadableInputError, match=rf"x\.jsonl has a line of more than .*\({place}\): {advice}$"):
            list(map(list, map(body_batches, plan_bodies(source_files([str(path)], Side.NATIVE), parallelism=1).tasks)))


def test_last_line_is_found_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK_BYTES", 3)
    path = tmp_path / "x"
    for text, tail in (("ab\ncdefgh", "cdefgh"), ("abcdefgh", "abcdefgh"), ("abc\n", ""), ("", ""), ("a\n\nb", "b")):
        path.write_text(text, encoding="utf-8")
        assert last_line(SourceFile(path, Layout.JSON_LINES)).decode() == tail
