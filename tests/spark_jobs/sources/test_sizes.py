"""Nothing that is read needs memory for more than one message: documents, lines and frames of any number."""

import io
import json

import pytest
import zstandard

from bridge.otlp import containers, detect
from bridge.otlp.containers import Bad, Document, Message, Tail, read_messages
from bridge.otlp.detect import Layout, Side
from bridge.otlp.spans import parse_message
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources import files
from spark_jobs.sources.files import last_line, source_files

REQUEST = {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "ab" * 16, "spanId": "cd" * 8, "name": "s"}]}]}]}


@pytest.fixture
def short_lines(monkeypatch):
    """Let no line be longer than a thousand bytes, so that a small file is a large one."""
    for module in (detect, files, containers):
        monkeypatch.setattr(module, "LONGEST_LINE_BYTES", 1000)


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
    first = next(read)
    assert first.is_document
    assert file.tell() <= 2 << 20
    assert sum(1 for _ in read) == 19_999


def test_endless_line_is_refused_in_one_sentence(tmp_path, short_lines):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(REQUEST)[:-1] + " " * 2000 + "}", encoding="utf-8")
    with pytest.raises(UnreadableInputError, match=r"x\.jsonl has a line of more than .*one message of a batch"):
        source_files([str(path)], Side.OTLP)
    with pytest.raises(UnreadableInputError, match="has a line of more than"):
        list(read_messages(path, Layout.JSON_LINES, parse=parse_message))
    packed = tmp_path / "x.zst"
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    with pytest.raises(UnreadableInputError, match="has a line of more than"):
        list(read_messages(packed, Layout.JSON_LINES_ZSTD, parse=parse_message))


def test_last_line_is_found_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK_BYTES", 3)
    path = tmp_path / "x"
    for text, tail in (("ab\ncdefgh", "cdefgh"), ("abcdefgh", "abcdefgh"), ("abc\n", ""), ("", ""), ("a\n\nb", "b")):
        path.write_text(text, encoding="utf-8")
        assert last_line(path).decode() == tail


def test_frames_in_a_zstd_file_are_found_through_damage(tmp_path):
    message = b"\x0a\x00"
    frame = len(message).to_bytes(4, "big") + message
    path = tmp_path / "x.zst"
    path.write_bytes(zstandard.compress(frame + b"\x00\x00\x00\x09junk" + frame + b"\x00\x00\x00\x20\x0a"))
    types = [type(item) for item in read_messages(path, Layout.PROTO_FRAMED_ZSTD, parse=parse_message)]
    assert types == [Message, Bad, Message, Tail]
