"""One table drives them all: a release that does not exist is written, read, listed and printed by a row."""

import json
import os
import shutil
from pathlib import Path

from bridge.codec.records_json import RECORD_KEYS
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native import layout
from otel_mqtrace.wire.native.layout import FIELDS, FORMS, KEPT_FIELDS
from tests.support.programs import run_python
from tests.support.source_tree import ROOT

NAME = "9.9.9"
_FORM = '        Form((*_PUB_14, "client_host")),  # 4.8.0, Go, Rust\n'
_ROWS_END = ")\nDIALECTS: Final"
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


def future_layout():
    """Return the text of ``layout.py`` with a longer form of ``Pub`` and a dialect that writes it."""
    text = Path(layout.__file__).read_text(encoding="utf-8")
    longer = '        Form((*_PUB_14, "client_host", "retry_times", "request_id")),\n'
    row = f'    Dialect(name="{NAME}", releases="{NAME}", pub=17, recall=7, cloud_sub_after=CloudSubAfter.TRAILING),\n'
    assert text.count(_FORM) == text.count(_ROWS_END) == 1
    return text.replace(_FORM, _FORM + longer).replace(_ROWS_END, row + _ROWS_END)


def test_new_row_is_enough(tmp_path):
    for package in ("otel_mqtrace", "bridge"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "otel_mqtrace/wire/native/layout.py").write_text(future_layout(), encoding="utf-8")
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


def test_every_field_of_the_table_is_in_a_form():
    assert {name for forms in FORMS.values() for form in forms for name in form.fields} == set(FIELDS)
    for trace_type in TraceType:
        counts = [form.count for form in FORMS[trace_type]]
        assert counts == sorted(set(counts))
