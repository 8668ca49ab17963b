"""The example of the manual door, run as a reader would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode

import pytest

import otel_mqtrace
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.wire.native import decode_body
from tests.support.opentelemetry_release import needs_sdk
from tests.support.source_tree import ROOT

pytestmark = needs_sdk(40, "the exporter to JSON files of the example")

EXAMPLE = ROOT / "docs" / "examples" / "own_client.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the example once; return what it printed, its native records and its spans."""
    directory = tmp_path_factory.mktemp("own-client")
    command = [sys.executable, str(EXAMPLE), str(directory)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert said.returncode == 0, said.stderr
    landed = [
        json.loads(line)
        for path in sorted(directory.glob("native/*/part-*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    decoded = [decode_body(b64decode(line["body_base64"])) for line in landed]
    assert [error for each in decoded for error in each.errors] == []
    exported = [json.loads(line) for line in (directory / "spans.jsonl").read_text(encoding="utf-8").splitlines()]
    spans = [
        {**span, "attributes": {each["key"]: next(iter(each["value"].values())) for each in span.get("attributes", ())}}
        for line in exported
        for resource in line["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]
    return said.stdout, [record for each in decoded for record in each.contexts], spans


def _of(records, kind):
    return [record for record in records if record.trace_type is kind]


def test_the_application_did_its_work(run):
    printed = run[0]
    assert printed.count("billed: ") == 5
    assert "billed: order 3, attempt 2" in printed
    assert "refused: 5 jobs are waiting" in printed


def test_both_formats_tell_of_the_same_messages(run):
    _, records, spans = run
    sends = {span["attributes"]["messaging.message.id"]: span for span in spans if span["name"] == "send orders"}
    published = _of(records, TraceType.PUB)
    assert {record.beans[0].msg_id: record.success for record in published} == {
        msg_id: span["attributes"]["mqtrace.success"] for msg_id, span in sends.items()
    }
    assert [record.success for record in published] == [True] * 5 + [False]
    handled = sorted(
        (span["attributes"]["messaging.message.id"], span["attributes"]["mqtrace.context_code"])
        for span in spans
        if span["name"] == "process orders"
    )
    after = [(record.beans[0].msg_id, record.context_code.name) for record in _of(records, TraceType.SUB_AFTER)]
    assert sorted(after) == handled
    assert [code for _, code in after].count(ContextCode.EXCEPTION.name) == 1
    assert len(after) == 6


def test_a_second_attempt_is_counted_as_a_retry(run):
    _, records, _ = run
    tried = [record.beans[0] for record in _of(records, TraceType.SUB_BEFORE)]
    assert sorted(bean.retry_times for bean in tried) == [0, 0, 0, 0, 0, 1]
    (again,) = [bean for bean in tried if bean.retry_times == 1]
    assert again.keys == "order-3"


def test_the_handlers_own_spans_are_inside_and_the_sender_is_linked(run):
    _, _, spans = run
    by_id = {span["spanId"]: span for span in spans}
    charges = [span for span in spans if span["name"] == "charge"]
    assert {by_id[span["parentSpanId"]]["name"] for span in charges} == {"process orders"}
    for process in (span for span in spans if span["name"] == "process orders"):
        (link,) = process["links"]
        assert by_id[link["spanId"]]["name"] == "send orders"


def test_the_adapter_needs_nothing_but_public_names():
    """What the example imports of ours is exported by the package; so is what an adapter may need besides."""
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "from otel_mqtrace." not in text.replace("from otel_mqtrace.exporters.native_file", "")
    needed = {"ConsumeHook", "ContextCode", "IncomingMessage", "MessageType", "SendHook", "SettleHook", "SettledOffset"}
    assert needed | {"UNKNOWN_BODY", "process"} <= set(otel_mqtrace.__all__)
