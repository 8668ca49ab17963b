"""Every vector of the reference by its name: what RocketMQ's own classes wrote or made of it, and what we make of it."""

from __future__ import annotations

import re

import pytest

from bridge.codec.records_json import body_json
from otel_mqtrace.model import AccessChannel
from otel_mqtrace.wire.native import DIALECTS, decode_body, encode_context
from tests.support.native_vectors import VECTORS, json_lines, trace_context

GOLDEN = json_lines(VECTORS / "golden.jsonl")
READ = [*json_lines(VECTORS / "read_only.jsonl"), *json_lines(VECTORS / "decode_only.jsonl")]
WHOLE_MESSAGES = ("G36",)
NAMES = {
    *(f"G{number:02}" for number in range(1, 37)),
    *(f"D{number}" for number in range(1, 10)),
    *(f"X{number:02}" for number in range(1, 27)),
}


def named(item):
    return f"{item['id']}-{item['case']}" if "case" in item else item["id"]


@pytest.mark.parametrize("item", READ, ids=named)
def test_a_body_is_read_as_its_vector_says(item):
    """Record by record: the values that are there, ``None`` for those that are not, a bad one by field and reason."""
    read = list(body_json(0, decode_body(item["body"].encode(), msg_type_map=item.get("msg_type_map", "a"))))
    assert [_told(record, ours) for record, ours in zip(read, item["ours"], strict=True)] == item["ours"]


def _told(record, ours):
    if "error" in record:
        return {"error": {name: record["error"][name] for name in ("field", "reason")}}
    return {name: record[name] for name in ours if name in record}


@pytest.mark.parametrize("item", READ, ids=named)
def test_a_vector_where_the_reference_loses_something_says_how_we_differ(item):
    """Wherever RocketMQ's reader throws, invents a value or looks away, the vector has a word on what we do instead."""
    newest = re.split(r"; 4\.8\.0| \(4\.", item["reference"])[
        0
    ]  # what an older reader did is no difference to the newest
    if any(word in newest for word in ("throws", "now", "reader's", "default", "success=true")):
        assert item["difference"]


@pytest.mark.parametrize("item", GOLDEN, ids=lambda item: f"{item['id']}-{item['access_channel']}")
def test_a_golden_body_is_read_and_written_again(item):
    for dialect in item["dialects"]:
        row = DIALECTS[dialect]
        decoded = decode_body(item["body"].encode(), msg_type_map=row.message_type_map)
        channel = AccessChannel[item["access_channel"]]
        written = [encode_context(each, dialect, access_channel=channel).body for each in decoded.contexts]
        assert decoded.errors == ()
        assert b"".join(written).decode() == item["body"]


@pytest.mark.parametrize("name", WHOLE_MESSAGES)
def test_a_message_is_the_concatenation_of_its_records(name):
    """G01, G16 and G22 in a row: three records, three terminators, and one key set for the message."""
    parts = [item for wanted in ("G01", "G16", "G22") for item in GOLDEN if item["id"] == wanted]
    encoded = [encode_context(trace_context(item["context"])) for item in parts]
    body = b"".join(each.body for each in encoded)
    assert body.decode() == "".join(item["body"] for item in parts)
    assert body.count(b"\x02") == len(decode_body(body).contexts) == 3
    identity = "AC1415116D1418B4AAC217FE1B4E0000"
    assert frozenset().union(*(each.keys for each in encoded)) == {identity, "k1", "k2"}


def test_every_vector_of_the_reference_is_a_test_by_its_name():
    """G01-G36, D1-D9, X01-X26: none is missing among the ids above."""
    assert {item["id"] for item in (*GOLDEN, *READ)} | set(WHOLE_MESSAGES) == NAMES
