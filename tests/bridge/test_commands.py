"""`mqtrace decode`, called as a user calls it, and what is common to the codec's commands."""

import base64
import bz2
import fcntl
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from itertools import product
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bridge.codec.files import LARGE_BYTES
from bridge.codec.records_json import RECORD_KEYS
from otel_mqtrace.cli import main
from otel_mqtrace.landing import claim
from otel_mqtrace.wire.native import decode_body
from otel_mqtrace.wire.native.decode import PART_BYTES
from tests.bridge.terminal import BAD, PUB, SUB_BEFORE, objects
from tests.support.landings import body_line
from tests.support.native_vectors import RECORDED, VECTORS, json_lines, recorded
from tests.support.programs import MQTRACE, run_program

LONG = PUB.replace(b"[bold]", b"x" * 8_000)


def test_raw_body_becomes_one_object_per_record(mqtrace):
    code, out, err = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    first, second = objects(out)
    assert (code, err) == (0, "")
    assert tuple(first) == RECORD_KEYS == tuple(second)
    assert first == {
        **dict.fromkeys(RECORD_KEYS),
        "body_index": 0,
        "record_index": 0,
        "dialect": "5.5.0",
        "written_by": [
            *("Java client 4.4.0 to 4.7.1", "Java client 4.9.0 to 5.5.0"),
            *("Go up to 2.1.0", "C++ 2.x, and Python on top of it", "ONS Java 2019"),
        ],
        "trace_type": "Pub",
        "timestamp_ms": 1700000000000,
        "region_id": "R",
        "group_name": "G",
        "topic": "T",
        "msg_id": "ID",
        "tags": "[bold]",
        "keys": "订单 😀",
        "store_host": "SH",
        "body_length": 26,
        "cost_ms": 5,
        "msg_type": "Normal_Msg",
        "offset_msg_id": "OFF",
        "success": True,
    }
    assert (second["record_index"], second["keys"], second["topic"]) == (1, "null", None)
    assert "订单 😀".encode() in out


def test_bad_records_are_reported_in_place_and_counted(mqtrace):
    code, out, err = mqtrace("decode", stdin=body_line(PUB) + body_line(SUB_BEFORE + BAD + PUB))
    items = objects(out)
    assert code == 1
    assert [(item["body_index"], item["record_index"], "error" in item) for item in items] == [
        (0, 0, False),
        (1, 0, False),
        (1, 1, True),
        (1, 2, False),
    ]
    assert items[2]["error"] == {"field": None, "reason": "2 fields, needs 8", "text": "SubBefore\x01x"}
    assert err == "mqtrace: 1 of 4 records or lines is bad; first: standard input:2 record 1: 2 fields, needs 8\n"


def test_line_without_a_body_is_bad_alone(mqtrace):
    """Damaged lines keep their body index; blank lines are nothing; a cut-off tail is one bad line."""
    bad = {
        **dict.fromkeys((b"[1]", b"null"), "not a JSON object"),
        **dict.fromkeys((b'{"body_base64": 7}', b'{"body_base64": "%%"}'), "not base64"),
        b'{"other": 1}': "missing",
    }
    lines = [b"", *bad, body_line(PUB) + b'{"bod']
    code, out, err = mqtrace("decode", "--framing", "jsonl-base64", stdin=b"\n".join(lines))
    found = [(item["body_index"], item.get("error", {}).get("reason")) for item in objects(out)]
    assert (code, found) == (1, [*enumerate([*bad.values(), None, "not JSON"])])
    assert err.startswith("mqtrace: 6 of 7 records or lines are bad; first: standard input:2: not a JSON object")


def test_every_object_of_a_line_is_read(mqtrace, tmp_path):
    """Two landings that were joined without a newline between them."""
    path = tmp_path / "a.jsonl"
    line = body_line(PUB).strip()
    path.write_bytes(line + line + b"rest\n" + line + line)
    code, out, err = mqtrace("decode", path)
    assert (code, [item["body_index"] for item in objects(out)]) == (1, [0, 1, 2, 3, 4])
    assert err == f"mqtrace: 1 of 5 records or lines is bad; first: {path}:1: not JSON\n"
    _, out, _ = mqtrace("forward", "--source", path, "--landing", tmp_path / "landing", "--once", "--json")
    moved = json.loads(out)
    assert (moved["messages"], moved["unreadable_bodies"]) == (4, 1)


def test_half_a_character_in_the_keys_is_landed_as_a_question_mark(mqtrace, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(body_line(PUB, keys="a\ud800"))
    options = ["--landing", tmp_path / "landing", "--landing-format", "parquet", "--once"]
    assert mqtrace("forward", "--source", tmp_path / "a.jsonl", *options)[0] == 0
    assert pq.read_table(tmp_path / "landing" / "native")["keys"].to_pylist() == ["a?"]


@pytest.mark.parametrize("form", ["--landing {}", "--landing={}"])
def test_directory_whose_name_is_not_utf8_is_blamed_on_its_option(mqtrace, tmp_path, form):
    source, place = tmp_path / "a.jsonl", tmp_path / "n=p\udcff"
    source.write_bytes(body_line(PUB))
    err = mqtrace.refuses("forward", "--source", source, *form.format(place).split(" "), "--once")
    assert err.startswith(f"mqtrace: error: --landing {tmp_path}/n=p\\udcff is not UTF-8: give it another name")


def test_working_directory_whose_name_is_not_utf8_is_named_alone(mqtrace, tmp_path, monkeypatch):
    place = tmp_path / "n\udcff"
    place.mkdir()
    (place / "a.jsonl").write_bytes(body_line(PUB))
    monkeypatch.chdir(place)
    err = mqtrace.refuses("forward", "--source", ".", "--landing", tmp_path / "landing", "--once")
    assert err.startswith(f"mqtrace: error: {tmp_path}/n\\udcff is not UTF-8: give it another name")


READ_TWICE = ["inspect", "query", "forward", "reconcile", "graph"]


@pytest.mark.parametrize(
    ("source", "command"),
    [*product(["pipe"], READ_TWICE), *product(["/dev/zero"], [*READ_TWICE, "decode", "encode", "dialects"])],
)
def test_pipe_read_more_than_once_and_device_are_one_line(mqtrace, tmp_path, monkeypatch, source, command):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    arguments = {
        "forward": ["--source", source, "--landing", "landing", "--once"],
        "reconcile": ["--native", "/dev/null", "--otlp", source, "--out", "out", "--engine", "local"],
        "graph": ["--native", source, "--out", "out"],
    }
    problem = {
        "pipe": "is a pipe, which can be read only once: write it to a file and name that",
        "/dev/zero": "is a device, which may have no end: write a part of it to a file and name that",
    }[source]
    assert mqtrace.refuses(command, *arguments.get(command, [source])) == f"mqtrace: error: {source} {problem}\n"


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--policy", "--policy /dev/zero has more than 16 MiB: name a TOML file"),
        ("--ledger", "--ledger /dev/zero is larger than 64 MiB; give the window's part of it"),
        ("--client-config", "the Kafka properties file /dev/zero has more than 16 MiB: name another file"),
    ],
)
def test_option_with_a_file_without_an_end_is_one_line(mqtrace, tmp_path, option, problem):
    native = "kafka://127.0.0.1:1/t" if option == "--client-config" else "/dev/null"
    sources = ["--native", native, "--otlp", "/dev/null", "--out", tmp_path / "out", "--engine", "local"]
    assert mqtrace.refuses("reconcile", *sources, option, "/dev/zero") == f"mqtrace: error: {problem}\n"


@pytest.mark.parametrize("source", [".", "*", "out.jsonl"])
def test_file_of_standard_output_is_not_read(tmp_path, source):
    (tmp_path / "body").write_bytes(PUB)
    with (tmp_path / "out.jsonl").open("wb") as out:
        done = run_program(*MQTRACE, "decode", source, cwd=tmp_path, stdout=out)
    is_refused = "out.jsonl is the file of standard output" in done.stderr
    lines = (tmp_path / "out.jsonl").read_bytes().count(b"\n")
    assert (done.returncode, is_refused, lines) == ((2, True, 0) if source == "out.jsonl" else (0, False, 1))


@pytest.mark.parametrize(("command", "end"), [("decode", 0), ("dialects", 0), ("encode", 1)])
def test_pipe_is_read_where_one_pass_is_enough(mqtrace, tmp_path, command, end):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = Thread(target=pipe.write_bytes, args=(b"{}\n" if command == "encode" else PUB,))
    writing.start()
    code, out, err = mqtrace(command, pipe)
    writing.join()
    assert (code, bool(out), f"1 of 1 record is refused; first: {pipe}:1: " in err) == (end, not end, bool(end))


def test_file_named_twice_is_read_once(mqtrace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_bytes(body_line(PUB))
    code, out, _ = mqtrace("decode", "a.jsonl", "./a.jsonl", ".", str(tmp_path / "*"))
    assert (code, len(objects(out))) == (0, 1)
    assert b"Searched 1 trace message of" in mqtrace("query", "a.jsonl", "./a.jsonl", ".")[1]


@pytest.mark.parametrize("command", ["query", "inspect", "reconcile --otlp . --out out --native"])
def test_file_to_be_converted_is_refused_with_the_way_to_do_so(mqtrace, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    _, records, _ = mqtrace("decode", stdin=PUB)
    Path("records.jsonl").write_bytes(records)
    err = mqtrace.refuses(*command.split(), "records.jsonl")
    assert "records.jsonl is what mqtrace decode prints: first run mqtrace encode --framing jsonl-base64 " in err
    Path("body.bin").write_bytes(PUB)
    err = mqtrace.refuses(*command.split(), "body.bin")
    assert "body.bin is one raw native body, which mqtrace decode reads: " in err
    assert "mqtrace forward --once --source " in err
    assert err.endswith("body.bin --landing DIR\n")


@pytest.mark.parametrize("command", ["decode", "query", "dialects"])
def test_file_of_spans_is_refused_with_its_reader(mqtrace, tmp_path, command):
    spans = tmp_path / "spans.jsonl"
    spans.write_bytes(b'{"resourceSpans":[]}\n')
    err = mqtrace.refuses(command, spans)
    assert err.endswith("spans.jsonl holds spans, no native trace bodies: give it to mqtrace reconcile --otlp\n")


def test_body_indexes_run_on_over_files_and_bodies_of_several_parts(mqtrace, tmp_path):
    large, small, empty, again, lines = (tmp_path / name for name in ("large", "small", "empty", "again", "lines"))
    records = 3 * PART_BYTES // len(LONG)
    large.write_bytes(LONG * records)
    for file in (small, again):
        file.write_bytes(SUB_BEFORE + BAD)
    empty.write_bytes(b"")
    lines.write_bytes(body_line(LONG * records) + body_line(SUB_BEFORE))
    code, out, err = mqtrace("decode", large, small, empty, again, lines)
    expected = [*((0, at) for at in range(records)), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert code == 1
    assert [(item["body_index"], item["record_index"]) for item in objects(out)] == [
        *(*expected, *((3, at) for at in range(records)), (4, 0))
    ]
    assert f"2 of {2 * records + 5:,} records or lines are bad; first: {small} record 1" in err


def test_batches_are_split_on_request(mqtrace):
    batch = PUB.replace(b"\x01ID\x01", b"\x01A,B,C\x01").replace(b"OFF", b"1,2,3")
    _, whole, _ = mqtrace("decode", stdin=batch + SUB_BEFORE)
    code, out, err = mqtrace("decode", "--explode-batches", stdin=batch + SUB_BEFORE)
    positions = [(item["record_index"], item["msg_id"], item["offset_msg_id"]) for item in objects(out)]
    assert (code, err) == (0, "")
    assert positions == [(0, "A", "1"), (0, "B", "2"), (0, "C", "3"), (1, "ID", None)]
    assert [item["msg_id"] for item in objects(whole)] == ["A,B,C", "ID"]


@pytest.mark.parametrize("bodies", [[PUB, None, SUB_BEFORE], [PUB.decode(), None, SUB_BEFORE.decode()]])
def test_parquet_landing_of_bytes_or_texts_is_read(mqtrace, tmp_path, bodies):
    """As reconcile reads them: Spark's CAST(value AS STRING) makes a column of texts."""
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"offset": [1, 2, 3], "body": bodies}), path)
    code, out, err = mqtrace("decode", path)
    assert (code, [item.get("trace_type") for item in objects(out)]) == (1, ["Pub", None, "SubBefore"])
    assert f"first: {path}:2 body: missing" in err
    assert mqtrace("decode", stdin=path.read_bytes()) == (code, out, err.replace(str(path), "standard input"))


def test_options_reach_the_codec_of_a_raw_body(mqtrace):
    """It is decoded in parts, a body of a landing whole."""
    body = PUB.decode().replace("\x010\x01OFF", "\x011\x01OFF").replace(" 😀", "").encode("gbk")
    _, out, _ = mqtrace("decode", "--msg-type-map", "b", "--charset", "gbk", "-", stdin=body)
    (item,) = objects(out)
    assert (item["msg_type"], item["keys"]) == ("Order_Msg", "订单")
    batch = body.replace(b"\x01ID\x01", b"\x01A,B\x01").replace(b"OFF", "\ufffd".encode())  # which the writer sent
    notice = "4 characters replaced by U+FFFD: give the writer's --charset if that is not utf-8"
    assert notice in mqtrace("decode", "--explode-batches", stdin=batch)[2]


def test_raw_body_of_utf_16_may_begin_with_its_byte_order_mark(mqtrace):
    whole = mqtrace("decode", stdin=PUB)
    assert mqtrace("decode", "--charset", "utf-16", stdin=PUB.decode().encode("utf-16")) == whole


@pytest.mark.parametrize("command", [["decode"], ["decode", "--format", "table"], ["encode"]], ids=" ".join)
@pytest.mark.parametrize("text", [b"", b"\n \n"])
def test_empty_or_blank_input_is_named_and_no_error(mqtrace, command, text):
    assert mqtrace(*command, stdin=text) == (0, b"", "mqtrace: nothing in standard input\n")


def test_lines_behind_a_torn_one_or_a_mark_are_read_and_a_raw_body_may_quote_a_line(mqtrace):
    marked = mqtrace("decode", stdin=b"\xef\xbb\xbf" + body_line(PUB))
    assert marked == mqtrace("decode", stdin=body_line(PUB))
    code, out, _ = mqtrace("decode", stdin=b'torn"}\n' + body_line(PUB))
    assert (code, ["error" in item for item in objects(out)]) == (1, [True, False])
    _, out, _ = mqtrace("decode", stdin=PUB + body_line(PUB))
    assert objects(out)[0]["trace_type"] == "Pub"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode", str(RECORDED), "no-such-file"], "no such file, directory or match: no-such-file"),
        (["decode", "kafka://b:1/t"], "cannot read kafka://b:1/t here; give a file, a directory or a glob"),
        (["encode", "no-such-file"], "cannot read no-such-file: No such file"),
        (["encode", " "], "the file's name is empty: name a file, or give - for standard input"),
        (["encode", "."], ". is a directory: name a file in it"),
        (["encode", "kafka://b:1/t"], "cannot read kafka://b:1/t here; give a file, a directory or a glob"),
        (["encode", "--dialect", ""], "no dialect '' can be written; name a release of RocketMQ, as 4.4.0"),
        (["decode", "--charset", "klingon"], "--charset: unknown charset 'klingon'"),
        (["decode", "--charset", "idna"], "unknown charset 'idna'"),
        (["encode", "--charset", "klingon"], "--charset: unknown charset 'klingon'"),
        (["encode", "--charset", "utf-16"], "--charset utf-16 begins each record with a byte order mark: give utf-8"),
        (["dialects", "no-such-file"], "no such file, directory or match: no-such-file"),
        (["decode", "--framing", "xml"], "Invalid value for '--framing'"),
        (["decode", "--framing"], "Option '--framing' requires an argument; see 'mqtrace decode --help'"),
        (["decode", "--msg-type-map", "c"], "Invalid value for '--msg-type-map'"),
        (["encode", "--dialect", "6.6.6"], "no release 6.6.6 of RocketMQ is known; the nearest is 5.5.0"),
        (["decode", "--framing", "parquet"], "standard input: not a readable Parquet file"),
    ],
)
def test_invalid_call_is_one_line_and_exit_code_2(mqtrace, arguments, message):
    assert message in mqtrace.refuses(*arguments)


@pytest.mark.parametrize("before", [["decode"], ["inspect"], ["forward", "--once", "--landing", "l", "--source"]])
def test_part_that_a_killed_writer_left_open_is_named(mqtrace, tmp_path, monkeypatch, before):
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "landing" / "native" / "date=2026-11-29"
    directory.mkdir(parents=True)
    (directory / "part-1-00000000000a-0.jsonl").write_bytes(body_line(PUB))
    left = directory / ".part-1-00000000000b-0.jsonl.inprogress"
    left.write_bytes(body_line(PUB))
    for where in ("landing", "landing/native/date=*"):
        code, _, err = mqtrace(*before, where)
        assert (code, err.count("\n")) == (0, 1)
        assert f"not read: {where.partition('*')[0]}" in err.replace(f"{tmp_path}/", "")
        assert err.endswith(
            f"{left.name}, left open by a process that has ended; the next writer to this landing finishes it\n"
        )
    with left.open("rb") as written:
        assert claim(written)
        assert mqtrace(*before, "landing")[2] == ""


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that opens and cannot be read")
@pytest.mark.parametrize("command", ["decode", "encode"])
def test_file_that_opens_and_cannot_be_read_is_named(mqtrace, command):
    message = "/proc/self/mem: cannot be read (Input/output error); give a regular file, or a pipe to -"
    assert mqtrace.refuses(command, "/proc/self/mem") == f"mqtrace: error: {message}\n"


@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="this system does not tell how much a pipe holds")
def test_unbuffered_output_is_whole_although_the_process_was_stopped_in_a_write(tmp_path):
    """As by Ctrl-Z before a pager: the system has then taken a part of what was written."""
    (tmp_path / "body").write_bytes(PUB.replace(b"OFF", b"7" * (1 << 20)))
    command, environment = [*MQTRACE, "decode", tmp_path / "body"], {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        full = fcntl.fcntl(process.stdout, fcntl.F_GETPIPE_SZ).to_bytes(4, sys.byteorder)
        while fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4)) != full:
            assert process.poll() is None
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        process.send_signal(signal.SIGCONT)
        (item,) = objects(process.stdout.read())
    assert item["offset_msg_id"] == "7" * (1 << 20)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_terminal_shows_the_progress_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path is cut off
    Path("large").write_bytes(PUB.replace(b"OFF", b"7" * PART_BYTES) * (2 + LARGE_BYTES // PART_BYTES))
    command = [*MQTRACE, "decode", "large"]
    master, terminal = os.openpty()
    with (tmp_path / "records").open("wb") as records:
        process = subprocess.Popen(command, stdout=records, stderr=terminal)
    os.close(terminal)
    screen = b""
    with suppress(OSError):  # the end of a pseudo-terminal
        while shown := os.read(master, 4096):
            screen += shown
    os.close(master)
    assert process.wait(60) == 0
    assert b"large" in screen
    plain = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert (plain.stderr, plain.stdout) == (b"", (tmp_path / "records").read_bytes())


def test_table_escapes_control_characters(mqtrace):
    hostile = PUB.replace(b"[bold]", b"\x1b[31mred")
    code, out, _ = mqtrace("decode", "--format", "table", stdin=hostile.replace(b"\x01T\x01", b"\x01\x1b]0;T\x07\x01"))
    assert code == 0
    assert b"\x1b" not in out
    assert "⟨U+001B⟩]0;T" in out.decode()
    assert objects(mqtrace("decode", stdin=hostile)[1])[0]["tags"] == "\x1b[31mred"


def test_directory_is_decoded_without_files_that_hold_no_bodies(mqtrace, tmp_path):
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "part-0.jsonl").write_bytes(body_line(PUB))
    (tmp_path / "native" / "_manifest.jsonl").write_text('{"file": "part-0.jsonl"}\n', encoding="utf-8")
    (tmp_path / "traces.jsonl").write_text('{"resourceSpans": []}\n', encoding="utf-8")
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")
    pq.write_table(pa.table({"msg_id": ["A"]}), tmp_path / "verdicts.parquet")
    code, out, err = mqtrace("decode", tmp_path)
    unknown = f"{tmp_path}/result.json and 1 more; mqtrace inspect names all"
    assert (code, err) == (0, f"mqtrace: warning: passed over, neither native bodies nor spans: {unknown}\n")
    assert [item["trace_type"] for item in objects(out)] == ["Pub"]
    refusal = mqtrace.refuses("decode", tmp_path / "verdicts.parquet")
    assert refusal.endswith("has no column 'body', so it is not a native landing\n")


@pytest.mark.parametrize("command", ["decode", "dialects"])
def test_unreadable_file_of_a_directory_is_named_and_the_others_are_read(mqtrace, tmp_path, command):
    for name, content in {"a": body_line(PUB), "b.gz": gzip.compress(PUB), "c": body_line(PUB)}.items():
        (tmp_path / name).write_bytes(content)
    whole = mqtrace(command, tmp_path / "a", tmp_path / "c")[1]
    expected = whole, f"mqtrace: error: {tmp_path}/b.gz: gzip-compressed; decompress it first (gunzip)\n"
    code, out, err = mqtrace(command, tmp_path)
    assert (code, out.replace(b'"body_index":2', b'"body_index":1'), err) == (2, *expected)


COMPRESSED = [
    ("a.jsonl", gzip.compress, "gzip-compressed; decompress it first (gunzip)"),
    ("a.gz", gzip.compress, "gzip-compressed; decompress it first (gunzip)"),
    ("a.jsonl.bz2", bz2.compress, "bzip2-compressed; decompress it first (bunzip2)"),
    ("a.jsonl.xz", lzma.compress, "xz-compressed; decompress it first (unxz)"),
    ("a.jsonl.lz4", b"\x04\x22\x4d\x18".__add__, "lz4-compressed; decompress it first (unlz4)"),
    ("a.jsonl.zst", zstandard.compress, "zstd-compressed; decompress it first (unzstd)"),
]
TO_CONVERT = [
    *((name, compress, f": {text}") for name, compress, text in COMPRESSED[1:3]),
    ("a.zip", lambda _: b"PK\x03\x04", " is a zip archive: unpack it first (unzip)"),
    ("a", lambda line: line.decode().encode("utf-16"), " is UTF-16 text: convert it first (iconv -f UTF-16 -t UTF-8)"),
]
LOCAL = ["reconcile", "--engine", "local", "--out", "out"]


@pytest.mark.parametrize(
    "arguments",
    [
        *([command, "FILE"] for command in ("decode", "encode", "dialects", "inspect")),
        ["query", "FILE", "--key", "a"],
        ["forward", "--once", "--landing", "landing", "--source", "FILE"],
        [*LOCAL, "--native", "FILE", "--otlp", "FILE"],
        *([*LOCAL, "--native", "native", "--otlp", "otlp", option, "FILE"] for option in ("--policy", "--ledger")),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize(("name", "pack", "text"), TO_CONVERT, ids=["gzip", "bzip2", "zip", "utf-16"])
def test_file_to_be_converted_is_one_line_that_names_the_way(
    mqtrace, tmp_path, monkeypatch, arguments, name, pack, text
):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(pack(body_line(PUB)))
    Path("native").write_bytes(body_line(PUB))
    Path("otlp").write_bytes(b'{"resourceSpans": []}\n')
    assert mqtrace.refuses(*(name if word == "FILE" else word for word in arguments)).endswith(f"{name}{text}\n")


@pytest.mark.parametrize(("name", "compress", "text"), COMPRESSED[:-1])  # a Collector writes zstd
def test_compressed_spans_among_other_files_end_the_run(mqtrace, tmp_path, name, compress, text):
    (tmp_path / "0.jsonl").write_bytes(b'{"resourceSpans": []}\n')
    (tmp_path / name).write_bytes(compress(b'{"resourceSpans": []}\n'))
    assert mqtrace.refuses("inspect", tmp_path).endswith(f"{name}: {text}\n")


@pytest.mark.parametrize("command", ["decode", "encode", "dialects"])
def test_closed_standard_input_is_one_line_that_names_the_way_out(monkeypatch, capsys, command):
    monkeypatch.setattr(sys, "stdin", None)  # what Python makes of `<&-`
    assert main([command, "-"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "mqtrace: error: standard input is closed: name a file, or pipe into it\n"


@pytest.mark.parametrize("command", ["decode", "encode", "dialects"])
def test_compressed_standard_input_is_named_in_words(mqtrace, command):
    message = "mqtrace: error: standard input: gzip-compressed; decompress it first (gunzip)\n"
    assert mqtrace(command, "-", stdin=gzip.compress(PUB)) == (2, b"", message)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((f"rocketmq-{release}", []) for release in ("5.3.3", "5.3.3-cloud", "4.8.0", "4.9.1")),
        ("rocketmq-4.9.8-gbk", ["--charset", "gbk"]),
        ("rocketmq-5.0.0", ["--msg-type-map", "b"]),
    ],
)
def test_encode_is_the_inverse_of_decode(mqtrace, name, options):
    type_map = "b" if "b" in options else "a"
    bodies = [one.body for one in recorded(name) if not decode_body(one.body, msg_type_map=type_map).errors]
    _, records, _ = mqtrace("decode", *options, stdin=b"".join(map(body_line, bodies)))
    assert type_map == "a" or {item["dialect"] for item in objects(records)} == {"5.0.0"}
    of_encode = [] if type_map == "b" else options  # the map is in the dialect of each record
    code, out, err = mqtrace("encode", *of_encode, "--framing", "jsonl-base64", stdin=records)
    assert (code, err) == (0, "")
    assert [base64.b64decode(item["body_base64"]) for item in objects(out)] == bodies


def test_named_dialect_overrides_the_dialect_of_records(mqtrace):
    """`--dialect 4.8.0` writes 15 and 9 fields, `5.3.3/CLOUD` the channel's SubAfter."""
    _, records, _ = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    _, old, _ = mqtrace("encode", "--dialect", "4.8.0", stdin=records)
    assert [piece.count(b"\x01") + 1 for piece in old.split(b"\x02")[:2]] == [15, 9]
    after = b'{"trace_type": "SubAfter", "msg_id": "ID"}'
    assert mqtrace("encode", "--dialect", "5.3.3/CLOUD", stdin=after)[1].endswith(b"\x010\x01\x02")
    assert mqtrace("encode", "--dialect", "5.5.0", stdin=after)[1].endswith(b"\x010\x010\x01null\x02")


def test_glued_record_is_written_separately(mqtrace):
    glued = {item["id"]: item["body"] for item in json_lines(VECTORS / "read_only.jsonl")}["G27"].encode()
    _, records, _ = mqtrace("decode", stdin=glued)
    code, out, _ = mqtrace("encode", stdin=records)
    assert code == 0
    assert out == glued.replace(b"\x01SubAfter", b"\x01\x02SubAfter") + b"\x02"


def test_refused_records_are_counted_and_the_rest_is_written(mqtrace):
    _, good, _ = mqtrace("decode", stdin=PUB)
    refused = [
        *(b'{"msg_id": "ID"}', b"[]", b"{", b'{"trace_type": "Pub", "msg_id": 7}', b'{"trace_type": "Sub"}'),
        *(b'{"trace_type": "Pub"}', b'{"error": {}}', b'{"trace_type": "Pub", "success": 1}'),
    ]
    code, out, err = mqtrace("encode", stdin=b"\n".join([*refused, good]))
    assert (code, out) == (1, PUB)
    first = "standard input:1: trace_type: missing; give the JSON that mqtrace decode prints"
    assert err == f"mqtrace: 8 of 9 records are refused; first: {first}\n"
    assert mqtrace("encode", stdin=refused[3])[2].endswith("first: standard input:1: msg_id: 7 is not of type str\n")


@pytest.mark.parametrize(
    ("topic", "charset", "message"),
    [
        ("a\x01b\x02\ud800", "utf-8", "3 characters replaced: U+0001 and U+0002 by _, what utf-8 cannot encode by ?"),
        ("订", "latin-1", "1 character replaced: U+0001 and U+0002 by _, what latin-1 cannot encode by ?"),
    ],
)
def test_characters_that_encode_replaces_are_counted(mqtrace, topic, charset, message):
    record = json.dumps({"trace_type": "Pub", "msg_id": "ID", "topic": topic, "msg_type": "Normal_Msg"}).encode()
    code, out, err = mqtrace("encode", "--charset", charset, stdin=record)
    assert (code, err) == (0, f"mqtrace: {message}\n")
    assert out.split(b"\x01")[4] in {b"a_b_?", b"?"}
