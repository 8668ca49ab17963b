"""What a person reads: records as a table, the known writers, and who can have written a file."""

import json
import os
import shutil

import pytest

from bridge.codec.records_json import RECORD_KEYS
from bridge.codec.tables import PAGE_RECORDS
from otel_mqtrace.wire.native import DIALECTS, IMITATORS, decode_body
from otel_mqtrace.wire.native.layout import FIELDS, KEPT_FIELDS
from tests.bridge.terminal import BAD, PUB, SUB_BEFORE, lines_of, objects
from tests.support.native_vectors import RECORDED, recorded
from tests.support.programs import run_python
from tests.support.source_tree import ROOT


def test_table_is_whole_at_120_columns(mqtrace):
    mqtrace.width(120)
    name = "rocketmq-4.9.8-cloud"
    code, out, _ = mqtrace("decode", "--format", "table", RECORDED / f"{name}.jsonl")
    shown = lines_of(out)
    contexts = [each for body in recorded(name) for each in decode_body(body.body).contexts]
    ids = [one for each in contexts for one in each.beans[0].msg_id.split(",")]
    assert code == 1
    assert max(map(len, shown)) <= 120
    assert [one for one in ids if not any(one in line for line in shown)] == []
    assert sum(line.count(ids[0]) for line in shown) == ids.count(ids[0])
    at = next(number for number, line in enumerate(shown) if line.startswith("1.0 "))
    assert shown[at].split()[:4] == ["1.0", "Pub", "2026-11-21", "11:26:17.698"]
    assert shown[at + 1].startswith("Java 4.4.0 to 4.7.1 +4")


def test_long_table_has_pages(mqtrace):
    code, out, _ = mqtrace("decode", "--format", "table", stdin=PUB * PAGE_RECORDS + BAD + SUB_BEFORE)
    shown = lines_of(out)
    assert code == 1
    assert sum(line.startswith("body.record") for line in shown) == 2
    assert sum(line.startswith("0.") for line in shown) == PAGE_RECORDS + 1
    assert shown[-1].startswith("bad: body 0 record 200")


def test_table_prints_any_number_as_time(mqtrace):
    far = SUB_BEFORE.replace(b"1700000000000", b"9223372036854775807")
    code, out, _ = mqtrace("decode", "--format", "table", stdin=far)
    assert code == 0
    assert b"9223372036854775807" in out


def test_every_known_writer_is_listed(mqtrace):
    code, shown, _ = mqtrace("dialects")
    _, listed, _ = mqtrace("dialects", "--json")
    rows = {row["dialect"]: row for row in objects(listed)}
    assert code == 0
    assert set(rows) == {*DIALECTS, *(imitator.name for imitator in IMITATORS)}
    assert all(name in shown.decode() for name in rows)
    assert (rows["4.8.0"]["pub"], rows["5.1.4"]["sub_after_cloud"], rows["5.5.0"]["recall"]) == (15, "7 glued", 7)


def test_writers_of_a_file_are_listed_with_the_evidence(mqtrace):
    code, out, err = mqtrace("dialects", "--json", RECORDED / "rocketmq-5.0.0.jsonl")
    by_group = {item["group_name"]: item for item in objects(out)}
    assert (code, err) == (0, "")
    assert all("5.0.0" in item["writers"] and item["evidence"] for item in by_group.values())
    transaction = next(item for name, item in by_group.items() if name and name.startswith("PG_tx_commit"))
    assert (transaction["writers"], transaction["message_type_map"]) == (["5.0.0"], "b")
    assert "1 EndTransaction with ordinal 3, a commit in map B only" in transaction["evidence"]


def test_writers_of_standard_input_are_a_table(mqtrace):
    """Whole at 120 columns; a group whose records fit no client matches no version, and the evidence shows why."""
    mqtrace.width(120)
    mixed = b"SubBefore\x011\x01R\x01mixed\x01Q\x01I\x010\x01k\x01h\x02SubAfter\x01Q\x01I\x011\x01true\x01k\x02"
    code, out, _ = mqtrace("dialects", "-", stdin=PUB + mixed)
    shown = lines_of(out)
    assert code == 0
    assert max(map(len, shown)) <= 120
    assert "1 Pub of 14 fields" in " ".join(shown)
    (row,) = [line for line in shown if line.startswith("mixed")]
    assert row.split()[1] == "2"
    assert "5.5.0" not in row
    assert "1 SubAfter of 6 fields" in row


def test_groups_of_another_charset_are_told_apart(mqtrace):
    """Read as UTF-8 both names are four question marks."""
    bodies = b"".join(SUB_BEFORE.replace(b"\x01G\x01", f"\x01{name}\x01".encode("gbk")) for name in ("订单", "订货"))
    _, out, _ = mqtrace("dialects", "--json", "--charset", "gbk", "-", stdin=bodies)
    assert [item["group_name"] for item in objects(out)] == ["订单", "订货"]


def test_group_in_the_table_of_writers_cannot_control_the_terminal(mqtrace):
    code, out, _ = mqtrace("dialects", "-", stdin=PUB.replace(b"\x01G\x01", b"\x01G\x1b]0;x\x07\x01"))
    assert code == 0
    assert "\x1b]" not in out.decode()
    assert "⟨U+001B⟩" in "".join(out.decode().split())


def test_bodies_without_a_record_are_exit_2_and_one_line(mqtrace):
    for more in ([], ["--json"]):
        done = mqtrace("dialects", "-", *more, stdin=b"\x00garbage")
        line = "mqtrace: error: no record can be read in standard input; mqtrace decode shows what is there\n"
        assert done == (2, b"", line)


@pytest.mark.parametrize("columns", [80, 120])
def test_list_of_writers_is_readable(mqtrace, columns):
    mqtrace.width(columns)
    _, out, _ = mqtrace("dialects")
    shown = lines_of(out)
    assert max(map(len, shown)) <= columns
    assert sum(line.startswith(tuple(DIALECTS)) for line in shown) == len(DIALECTS)


# -- the table of layouts drives them all: a release that does not exist is written, read, listed and printed by a row -
NAME = "9.9.9"
_FORM = '        Form((*_PUB_14, "client_host")),  # 4.8.0, Go, Rust\n'
_LONGER = '        Form((*_PUB_14, "client_host", "retry_times", "request_id")),\n'
_ROWS_END = ")\nDIALECTS: Final"
_ROW = f'    Dialect(name="{NAME}", releases="{NAME}", pub=17, recall=7, cloud_sub_after=CloudSubAfter.TRAILING),\n'
ASKED = """
import json, sys
from otel_mqtrace.wire.native import decode_body, encode_context, WriterGuesses
from bridge.codec.tables import known_writers
from otel_mqtrace import cli
from otel_mqtrace.model import MessageType, TraceBean, TraceContext, TraceType
from tests.spark_jobs.normalise.made_bodies import read_bodies
from tools.generated_docs import wire_format_page

bean = TraceBean(topic="t", msg_id="I", msg_type=MessageType.DELAY, body_length=1, client_host="h", retry_times=7)
send = TraceContext(trace_type=TraceType.PUB, timestamp_ms=1, group_name="g", request_id="Q", beans=(bean,))
body = encode_context(send, NAME).body
read = decode_body(body)
guesses = WriterGuesses()
guesses.take(read)
(only,) = guesses.guesses()
((event,), _) = read_bodies(body)
print(json.dumps({
    "fields": body.count(b"\\x01") + 1,
    "tail": body[-5:].decode("latin-1"),
    "read": [read.contexts[0].beans[0].retry_times, read.contexts[0].request_id, read.contexts[0].beans[0].client_host],
    "event": [event["retry_times"], event["attempt_id"], event["client_host"]],
    "dialects": read.dialects,
    "guess": only.writers,
    "listed": [row["pub"] for row in known_writers() if row["dialect"] == NAME],
    "page": [line for line in wire_format_page().splitlines() if NAME in line or line.startswith("| 17 ")],
}))
sys.exit(cli.main(["dialects"]))
"""


def test_new_row_is_enough(tmp_path):
    for package in ("otel_mqtrace", "bridge"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    layout = tmp_path / "otel_mqtrace" / "wire" / "native" / "layout.py"
    text = layout.read_text(encoding="utf-8")
    assert text.count(_FORM) == text.count(_ROWS_END) == 1
    text = text.replace(_FORM, _FORM + _LONGER).replace(_ROWS_END, _ROW + _ROWS_END)
    layout.write_text(text, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = run_python(f"NAME = {NAME!r}\n{ASKED}", cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    answer, _, shown = done.stdout.partition("\n")
    rows = json.loads(answer)
    assert (rows["fields"], rows["tail"]) == (17, "h\x017\x01Q\x02"[-5:])
    assert rows["read"] == rows["event"] == [7, "Q", "h"]
    assert rows["dialects"] == rows["guess"] == [NAME]
    assert rows["listed"] == [17]
    assert len(rows["page"]) == 2
    assert NAME in shown


def test_json_of_a_record_has_every_field_that_is_kept():
    assert set(RECORD_KEYS) - {"body_index", "record_index", "dialect", "written_by", "trace_type"} == set(KEPT_FIELDS)
    assert set(FIELDS) - set(KEPT_FIELDS) == {"exactly_once_status"}
