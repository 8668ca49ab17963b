"""`mqtrace decode`, `encode` and `dialects`, called as a user calls them: bytes in, bytes and an exit code out."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from bridge.codec.framing import Framing, detect
from bridge.codec.native import DIALECTS, IMITATORS, decode_body
from bridge.codec.native.stream import PART_BYTES
from bridge.codec.progress import LARGE_BYTES, watched
from bridge.codec.record_table import PAGE_RECORDS
from bridge.codec.records import RECORD_KEYS
from otel_mqtrace import cli
from tests.support.native_vectors import RECORDED, VECTORS, json_lines, recorded

PUB = "Pub\x011700000000000\x01R\x01G\x01T\x01ID\x01[bold]\x01订单 😀\x01SH\x0126\x015\x010\x01OFF\x01true\x02".encode()
SUB_BEFORE = b"SubBefore\x011700000000000\x01R\x01G\x01REQ\x01ID\x010\x01null\x02"
BAD = b"SubBefore\x01x\x02"


def _line(body: bytes, **more: object) -> bytes:
    return json.dumps({"body_base64": base64.b64encode(body).decode(), **more}).encode() + b"\n"


class _Terminal:
    def __init__(self, monkeypatch, capfdbinary):
        self._monkeypatch, self._captured = monkeypatch, capfdbinary

    def __call__(self, *arguments, stdin=b""):
        """Run one command in this process; return exit code, standard output and standard error."""
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
            code = cli.main([str(argument) for argument in arguments])
        out, err = self._captured.readouterr()
        return code, out, err.decode()


@pytest.fixture
def mqtrace(monkeypatch, capfdbinary):
    return _Terminal(monkeypatch, capfdbinary)


def _objects(out):
    return [json.loads(line) for line in out.splitlines()]


# -- decode -----------------------------------------------------------------------------------------------------------


def test_a_raw_body_becomes_one_object_per_record(mqtrace):
    """Every public key is there, absent ones null, texts as on the wire, non-ASCII readable."""
    code, out, err = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    first, second = _objects(out)
    assert (code, err) == (0, "")
    assert tuple(first) == RECORD_KEYS == tuple(second)
    assert first == {
        **dict.fromkeys(RECORD_KEYS),
        "body_index": 0,
        "record_index": 0,
        "dialect": "5.5.0",
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
    """The neighbours are printed, the bad one says where and why, standard error has one line, the exit code is 1."""
    code, out, err = mqtrace("decode", stdin=_line(PUB) + _line(SUB_BEFORE + BAD + PUB))
    items = _objects(out)
    assert code == 1
    assert [(item["body_index"], item["record_index"], "error" in item) for item in items] == [
        *((0, 0, False), (1, 0, False), (1, 1, True), (1, 2, False))
    ]
    assert items[2]["error"] == {"field": None, "reason": "2 fields, needs 8", "text": "SubBefore\x01x"}
    assert err == "mqtrace: 1 of 4 records are bad; first: body 1, record 1: 2 fields, needs 8\n"


def test_lines_without_a_body_are_bad_and_the_rest_goes_on(mqtrace):
    """Damaged lines keep their body index; blank lines are nothing; a cut-off tail is one bad line."""
    lines = [
        b"\n",
        b"[1]\n",
        b'{"body_base64": 7}\n',
        b'{"other": 1}\n',
        b'{"body_base64": "%%"}\n',
        _line(PUB),
        b'{"bod',
    ]
    code, out, err = mqtrace("decode", "--framing", "jsonl-base64", stdin=b"".join(lines))
    items = _objects(out)
    assert code == 1
    assert [(item["body_index"], item.get("error", {}).get("reason")) for item in items] == [
        *((0, "not a JSON object"), (1, "not a text"), (2, "missing"), (3, "not base64")),
        *((4, None), (5, "not JSON")),
    ]
    assert err.startswith("mqtrace: 5 of 6 records are bad; first: body 0: not a JSON object")


def test_real_bodies_are_read_from_several_files(mqtrace):
    """Body indexes go on from file to file; what the codec says is what the command prints."""
    names = ["rocketmq-5.3.3", "rocketmq-4.9.8-cloud"]
    code, out, _ = mqtrace("decode", *(RECORDED / f"{name}.jsonl" for name in names))
    decoded = [decode_body(body.body) for name in names for body in recorded(name)]
    items = _objects(out)
    assert code == 1
    assert sum("error" in item for item in items) == sum(len(body.errors) for body in decoded) == 4
    assert [item["msg_id"] for item in items if "error" not in item] == [
        trace_ctx.beans[0].msg_id for body in decoded for trace_ctx in body.contexts
    ]
    assert items[-1]["body_index"] == len(decoded) - 1


def test_body_indexes_run_on_over_raw_files_of_several_parts(mqtrace, tmp_path):
    """A raw file is one body however many parts it is read in; the next file is the next body, its records from 0."""
    large, small, empty = (tmp_path / name for name in ("large", "small", "empty"))
    records = 3 * PART_BYTES // len(PUB)
    large.write_bytes(PUB * records)
    small.write_bytes(SUB_BEFORE + BAD)
    empty.write_bytes(b"")
    code, out, err = mqtrace("decode", large, small, empty, small)
    places = [(item["body_index"], item["record_index"]) for item in _objects(out)]
    assert code == 1
    assert places == [*((0, at) for at in range(records)), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert f"2 of {records + 4} records are bad; first: body 1, record 1" in err


def test_a_large_body_of_a_line_keeps_its_index(mqtrace):
    """Read in parts, too: one body of many records, then the next line's."""
    records = 2 * PART_BYTES // len(PUB)
    _, out, _ = mqtrace("decode", stdin=_line(PUB * records) + _line(SUB_BEFORE))
    items = _objects(out)
    assert [item["record_index"] for item in items] == [*range(records), 0]
    assert {item["body_index"] for item in items[:-1]} == {0}
    assert items[-1]["body_index"] == 1


def test_batches_are_taken_apart_on_request(mqtrace):
    """One object for each message, with its own two ids and the record's index; without the option one for all."""
    batch = PUB.replace(b"\x01ID\x01", b"\x01A,B,C\x01").replace(b"OFF", b"1,2,3")
    _, whole, _ = mqtrace("decode", stdin=batch + SUB_BEFORE)
    code, out, err = mqtrace("decode", "--explode-batches", stdin=batch + SUB_BEFORE)
    told = [(item["record_index"], item["msg_id"], item["offset_msg_id"]) for item in _objects(out)]
    assert (code, err) == (0, "")
    assert told == [(0, "A", "1"), (0, "B", "2"), (0, "C", "3"), (1, "ID", None)]
    assert [item["msg_id"] for item in _objects(whole)] == ["A,B,C", "ID"]


def test_parquet_landings_are_read(mqtrace, tmp_path):
    """The column body of a Parquet file, from a path or a pipe; a null is a bad body."""
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.table({"offset": [1, 2, 3], "body": pa.array([PUB, None, SUB_BEFORE], pa.binary())}), path)
    code, out, err = mqtrace("decode", path)
    items = _objects(out)
    assert code == 1
    assert [item.get("trace_type") for item in items] == ["Pub", None, "SubBefore"]
    assert "body 1: body: missing" in err
    assert mqtrace("decode", stdin=path.read_bytes()) == (code, out, err)


@pytest.mark.parametrize(
    ("start", "framing"),
    [
        (b"", Framing.RAW),
        (PUB, Framing.RAW),
        (b" \n\t{", Framing.JSONL_BASE64),
        (b"\xef\xbb\xbf{", Framing.JSONL_BASE64),
        (b"PAR1", Framing.PARQUET),
        (b"PA", Framing.RAW),
    ],
)
def test_the_framing_is_seen_in_the_first_bytes(start, framing):
    """Detection looks and does not consume."""
    stream = io.BufferedReader(io.BytesIO(start))
    assert detect(stream) is framing
    assert stream.read() == start


def test_options_reach_the_codec(mqtrace):
    """The map of message types and the charset are the caller's knowledge."""
    body = PUB.decode().replace("\x010\x01OFF", "\x011\x01OFF").replace(" 😀", "").encode("gbk")
    _, out, _ = mqtrace("decode", "--msg-type-map", "b", "--charset", "gbk", "-", stdin=body)
    (item,) = _objects(out)
    assert (item["msg_type"], item["keys"]) == ("Order_Msg", "订单")


def test_nothing_is_not_an_error(mqtrace):
    """An empty input has no records, good or bad."""
    assert mqtrace("decode") == (0, b"", "")
    assert mqtrace("encode") == (0, b"", "")


def test_a_table_is_for_people(mqtrace):
    """Ids are whole, markup in values stays text, bad records stand below with their text."""
    code, out, _ = mqtrace("decode", "--format", "table", stdin=PUB + BAD + SUB_BEFORE)
    shown = out.decode()
    assert code == 1
    assert "订单 😀" in shown
    assert "2023-11-14 22:13:20.000" in shown
    assert "bad: body 0 record 1: record: 2 fields, needs 8: 'SubBefore\\x01x'" in shown


def _on_a_terminal(monkeypatch, columns):
    """Let rich believe that it writes to a terminal of that width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def _lines_of(out):
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in out.decode().splitlines()]


def test_a_table_is_whole_at_120_columns(mqtrace, monkeypatch):
    """Ids of 32 digits stand on one line, each id of a batch on its own; a record takes two lines."""
    _on_a_terminal(monkeypatch, 120)
    name = "rocketmq-4.9.8-cloud"
    code, out, _ = mqtrace("decode", "--format", "table", RECORDED / f"{name}.jsonl")
    shown = _lines_of(out)
    contexts = [each for body in recorded(name) for each in decode_body(body.body).contexts]
    ids = [one for each in contexts for one in each.beans[0].msg_id.split(",")]
    assert code == 1
    assert max(map(len, shown)) <= 120
    assert [one for one in ids if not any(one in line for line in shown)] == []
    assert sum(line.count(ids[0]) for line in shown) == ids.count(ids[0])
    at = next(number for number, line in enumerate(shown) if line.startswith("1.0 "))
    assert shown[at].split()[:4] == ["1.0", "Pub", "2026-11-21", "11:26:17.698"]
    assert shown[at + 1].startswith("5.5.0        Normal_Msg        ok, 53 ms")


def test_a_long_table_has_pages(mqtrace):
    """Each with its head, so that any number of records is printed in the memory of a page; bad ones below theirs."""
    code, out, _ = mqtrace("decode", "--format", "table", stdin=PUB * PAGE_RECORDS + BAD + SUB_BEFORE)
    shown = _lines_of(out)
    assert code == 1
    assert sum(line.startswith("body.record") for line in shown) == 2
    assert sum(line.startswith("0.") for line in shown) == PAGE_RECORDS + 1
    assert shown[-1].startswith("bad: body 0 record 200")


def test_a_table_of_nothing_is_nothing(mqtrace):
    """And one of bad records only has no head."""
    assert mqtrace("decode", "--format", "table") == (0, b"", "")
    _, out, _ = mqtrace("decode", "--format", "table", stdin=BAD)
    assert _lines_of(out) == ["bad: body 0 record 0: record: 2 fields, needs 8: 'SubBefore\\x01x'"]


def test_a_table_survives_any_number_in_the_time(mqtrace):
    """A time beyond the calendar is shown as the number it is."""
    far = SUB_BEFORE.replace(b"1700000000000", b"9223372036854775807")
    code, out, _ = mqtrace("decode", "--format", "table", stdin=far)
    assert code == 0
    assert b"9223372036854775807" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["decode", "no-such-file"], "no-such-file: no such file"),
        (["decode", "."], ".: is a directory"),
        (["encode", "no-such-file"], "no-such-file: no such file"),
        (["decode", "--charset", "klingon"], "unknown charset 'klingon'"),
        (["encode", "--charset", "klingon"], "unknown charset 'klingon'"),
        (["dialects", "no-such-file"], "no-such-file: no such file"),
        (["decode", "--framing", "xml"], "Invalid value for '--framing'"),
        (["decode", "--msg-type-map", "c"], "Invalid value for '--msg-type-map'"),
        (["encode", "--dialect", "6.6.6"], "unknown dialect '6.6.6'; known are 4.4.0"),
        (["decode", "--framing", "parquet"], "-: not a readable Parquet file"),
    ],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(mqtrace, arguments, said):
    """Nothing is printed, the line says what and how to mend it."""
    code, out, err = mqtrace(*arguments)
    assert (code, out) == (2, b"")
    assert err.startswith("mqtrace: error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_missing_file_is_found_before_anything_is_printed(mqtrace, tmp_path):
    """A usage error in the last of many files does not come after half the output."""
    good = tmp_path / "body"
    good.write_bytes(PUB)
    code, out, _ = mqtrace("decode", good, tmp_path / "missing")
    assert (code, out) == (2, b"")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="no file here that opens and cannot be read")
@pytest.mark.parametrize("command", ["decode", "encode"])
def test_a_file_that_opens_and_cannot_be_read_is_named(mqtrace, command):
    """The path, what the system said and what to do instead, also when it happens in the middle."""
    code, out, err = mqtrace(command, "/proc/self/mem")
    said = "/proc/self/mem: cannot be read (Input/output error); give a regular file, or a pipe to -"
    assert (code, out, err) == (2, b"", f"mqtrace: error: {said}\n")


def test_parquet_without_a_body_column_is_refused(mqtrace, tmp_path):
    """A Parquet file of something else is not an empty landing."""
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    code, _, err = mqtrace("decode", path)
    assert code == 2
    assert err.endswith("has no column 'body', so it is no native landing\n")


def test_a_reader_that_goes_away_ends_the_command(tmp_path):
    """`mqtrace decode … | head -1` stops without a traceback."""
    path = tmp_path / "many.jsonl"
    path.write_bytes(_line(PUB) * 20_000)
    script = "import sys; from otel_mqtrace.cli import main; sys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", script, "decode", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ,
    )
    assert process.stdout.readline().startswith(b'{"body_index":0')
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 1


def _watched(path, items, **options):
    screen = io.StringIO()
    with path.open("rb") as stream:
        given = list(
            watched(items(stream), stream, name="part-0", **options, console=Console(file=screen, force_terminal=True))
        )
    return given, screen.getvalue()


def test_a_large_file_is_read_under_a_bar(tmp_path):
    """The items pass unchanged; the bar says the file's name, and only for a file worth waiting for."""
    path = tmp_path / "part-0.jsonl"
    path.write_bytes(_line(PUB) * 50)
    lines = path.read_bytes().splitlines(keepends=True)
    given, shown = _watched(path, iter, large_bytes=1)
    assert given == lines
    assert "part-0" in shown
    assert _watched(path, iter) == (lines, "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="this system has no pseudo-terminals")
def test_a_terminal_sees_how_far_a_large_file_is_while_the_records_go_elsewhere(tmp_path):
    """The bar is on standard error, and only there: the records are the same as without it."""
    path = tmp_path / "large"
    path.write_bytes(PUB.replace(b"OFF", b"7" * PART_BYTES) * (2 + LARGE_BYTES // PART_BYTES))
    command = [sys.executable, "-c", "import sys; from otel_mqtrace.cli import main; sys.exit(main())", "decode", path]
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


# -- encode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rocketmq-5.3.3", "rocketmq-5.3.3-cloud", "rocketmq-4.8.0", "rocketmq-4.9.1"])
def test_encode_is_the_inverse_of_decode(mqtrace, name):
    """Body by body, the bytes of real clients come back, whatever their dialect and channel."""
    bodies = [body for body in recorded(name) if not decode_body(body.body).errors]
    _, records, _ = mqtrace("decode", stdin=b"".join(_line(body.body) for body in bodies))
    code, out, err = mqtrace("encode", "--framing", "jsonl-base64", stdin=records)
    assert (code, err) == (0, "")
    assert [base64.b64decode(item["body_base64"]) for item in _objects(out)] == [body.body for body in bodies]


def test_a_gbk_body_is_written_again_in_gbk(mqtrace):
    """What a client on a Chinese machine wrote, byte for byte; the keys of the message are Unicode."""
    bodies = [body.body for body in recorded("rocketmq-4.9.8-gbk")]
    _, records, _ = mqtrace("decode", "--charset", "gbk", stdin=b"".join(map(_line, bodies)))
    code, out, _ = mqtrace("encode", "--charset", "gbk", "--framing", "jsonl-base64", stdin=records)
    assert code == 0
    assert [base64.b64decode(item["body_base64"]) for item in _objects(out)] == bodies


def test_what_was_decoded_under_map_b_is_written_in_map_b(mqtrace):
    """The record's own dialect is then 5.0.0, so encode is the inverse of decode there, too."""
    bodies = [body.body for body in recorded("rocketmq-5.0.0") if not decode_body(body.body, msg_type_map="b").errors]
    _, records, _ = mqtrace("decode", "--msg-type-map", "b", stdin=b"".join(map(_line, bodies)))
    _, out, _ = mqtrace("encode", "--framing", "jsonl-base64", stdin=records)
    assert {item["dialect"] for item in _objects(records)} == {"5.0.0"}
    assert [base64.b64decode(item["body_base64"]) for item in _objects(out)] == bodies


def test_raw_output_is_the_bodies_themselves(mqtrace):
    """Bodies are concatenations of records, so one after the other they are a body again."""
    _, records, _ = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    assert mqtrace("encode", stdin=records) == (0, PUB + SUB_BEFORE, "")


def test_a_named_dialect_wins_over_the_records_own(mqtrace):
    """`--dialect 4.8.0` writes 15 and 9 fields, `5.5.0/CLOUD` the channel's SubAfter."""
    _, records, _ = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    _, old, _ = mqtrace("encode", "--dialect", "4.8.0", stdin=records)
    assert [piece.count(b"\x01") + 1 for piece in old.split(b"\x02")[:2]] == [15, 9]
    after = b'{"trace_type": "SubAfter", "msg_id": "ID"}'
    assert mqtrace("encode", "--dialect", "5.5.0/CLOUD", stdin=after)[1].endswith(b"\x010\x01\x02")
    assert mqtrace("encode", "--dialect", "5.5.0", stdin=after)[1].endswith(b"\x010\x010\x01null\x02")


def test_a_glued_record_is_written_mended(mqtrace):
    """What a CLOUD writer glued together comes out as the form that was fixed."""
    glued = {item["id"]: item["body"] for item in json_lines(VECTORS / "read_only.jsonl")}["G27"].encode()
    _, records, _ = mqtrace("decode", stdin=glued)
    code, out, _ = mqtrace("encode", stdin=records)
    assert code == 0
    assert out == glued.replace(b"\x01SubAfter", b"\x01\x02SubAfter") + b"\x02"


def test_refused_records_are_counted_and_the_rest_is_written(mqtrace):
    """Every kind of line that is no record is refused by name; the first is shown."""
    _, good, _ = mqtrace("decode", stdin=PUB)
    refused = [
        *(b'{"trace_type": "Pub", "msg_id": 7}', b"[]", b"{", b'{"msg_id": "ID"}', b'{"trace_type": "Sub"}'),
        *(b'{"trace_type": "Pub"}', b'{"error": {}}', b'{"trace_type": "Pub", "success": 1}'),
    ]
    code, out, err = mqtrace("encode", stdin=b"\n".join([*refused, good]))
    assert (code, out) == (1, PUB)
    assert err == "mqtrace: 8 of 9 records were refused; first: line 1: msg_id: 7 is not of type str\n"


# -- dialects ---------------------------------------------------------------------------------------------------------


def test_every_known_writer_is_listed(mqtrace):
    """The table for people and the JSON for machines both name them all."""
    code, shown, _ = mqtrace("dialects")
    _, listed, _ = mqtrace("dialects", "--json")
    rows = {row["dialect"]: row for row in _objects(listed)}
    assert code == 0
    assert set(rows) == {*DIALECTS, *(imitator.name for imitator in IMITATORS)}
    assert all(name in shown.decode() for name in rows)
    assert (rows["4.8.0"]["pub"], rows["5.1.4"]["sub_after_cloud"], rows["5.5.0"]["recall"]) == (15, "7 glued", 7)


def test_the_writers_of_a_file_are_told_with_the_evidence(mqtrace):
    """One object for each group: who fits, which map, and what that rests on."""
    code, out, err = mqtrace("dialects", "--json", RECORDED / "rocketmq-5.0.0.jsonl")
    by_group = {item["group_name"]: item for item in _objects(out)}
    assert (code, err) == (0, "")
    assert all("5.0.0" in item["writers"] and item["evidence"] for item in by_group.values())
    told = next(item for name, item in by_group.items() if name and name.startswith("PG_tx_commit"))
    assert (told["writers"], told["message_type_map"]) == (["5.0.0"], "b")
    assert "1 EndTransaction with ordinal 3, a commit in map B only" in told["evidence"]


def test_the_writers_of_standard_input_are_a_table(mqtrace, monkeypatch):
    """Whole at 120 columns; a group whose records no one client writes fits nobody, and the evidence shows why."""
    _on_a_terminal(monkeypatch, 120)
    mixed = b"SubBefore\x011\x01R\x01mixed\x01Q\x01I\x010\x01k\x01h\x02SubAfter\x01Q\x01I\x011\x01true\x01k\x02"
    code, out, _ = mqtrace("dialects", "-", stdin=PUB + mixed)
    shown = _lines_of(out)
    assert code == 0
    assert max(map(len, shown)) <= 120
    assert "1 Pub of 14 fields" in " ".join(shown)
    (row,) = [line for line in shown if line.startswith("mixed")]
    assert row.split()[1] == "2"
    assert "5.5.0" not in row
    assert "1 SubAfter of 6 fields" in row


@pytest.mark.parametrize("columns", [80, 120])
def test_the_list_of_writers_is_readable(mqtrace, monkeypatch, columns):
    """No row of it is wider than the terminal."""
    _on_a_terminal(monkeypatch, columns)
    _, out, _ = mqtrace("dialects")
    shown = _lines_of(out)
    assert max(map(len, shown)) <= columns
    assert sum(line.startswith(tuple(DIALECTS)) for line in shown) == len(DIALECTS)
