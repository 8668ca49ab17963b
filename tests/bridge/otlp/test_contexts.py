"""Native contexts of a span: every field of our spans, and those of other writers."""

from collections import Counter
from pathlib import Path

import pytest

from bridge.forwarder.otlp_requests import requests_of
from bridge.forwarder.pairing import Origin, Pairing, Position
from bridge.forwarder.span_fields import SpanRules
from bridge.otlp.containers import Message, read_messages
from bridge.otlp.contexts import contexts_of
from bridge.otlp.detect import detect_layout
from bridge.otlp.roles import ALIASES
from bridge.otlp.spans import parse_message, spans_of
from otel_mqtrace import semconv
from otel_mqtrace.model import MessageType, TraceType, strip_namespace
from otel_mqtrace.spans.mapping import bean_attributes, context_attributes
from otel_mqtrace.wire.native import decode_body, explode
from otel_mqtrace.wire.native.decode import decode_rows
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS
from tests.support.native_vectors import RECORDED_FILES, recorded
from tests.support.reading import events_of, otlp_side
from tests.support.trace_stories import after, pub

DUAL = Path(__file__).parents[2] / "vectors" / "dual"
NS_PER_MS = 1_000_000
AGENT = "io.opentelemetry.rocketmq-client-4.8"


def _fields(context):
    """What the wire says of a record with one message; which channel wrote it is no field of it."""
    (bean,) = context.beans
    values = context._asdict() | bean._asdict()
    del values["access_channel"], values["beans"]
    return {name: value for name, value in values.items() if value is not None and value not in ABSENT_TEXTS}


def _identity(context):
    ids = (context.beans[0].msg_id, context.request_id)
    return (context.trace_type, *(None if each in ABSENT_TEXTS else each for each in ids))


@pytest.mark.parametrize("stem", RECORDED_FILES)
def test_recorded_record_is_read_back_from_its_span(stem):
    pairing, records, rows = Pairing(), [], []
    for number, body in enumerate(recorded(stem)):
        origin = Origin(Position("trace", 0, number), *[1_795_262_400_000] * 3)
        rows += decode_rows(body.body, origin, msg_type_map=body.msg_type_map)[0]
        contexts = decode_body(body.body, msg_type_map=body.msg_type_map).contexts
        records += [each for context in contexts for each in explode(context)]
    events = pairing.add(rows) + pairing.flush()
    requests = requests_of(events, SpanRules())
    spans = [span for request in requests for span in spans_of(parse_message(request.body))]
    back = [context for span in spans for context in contexts_of(span).contexts]
    assert len(back) == len(records) - pairing.counts.repeated
    written = {}
    for context in back:
        written.setdefault(_identity(context), []).append(_fields(context))
    for record in records:
        wanted = _fields(record)
        assert any(wanted.items() <= one.items() for one in written[_identity(record)]), wanted


@pytest.mark.parametrize("name", ["app-4.9.8-dup", "scenarios-5.3.3-old"])
def test_java_agent_spans_have_the_same_fields_as_in_the_reconciliation(name, tmp_path):
    path = DUAL / name / "otlp.jsonl"
    items = read_messages(path, detect_layout(path), parse=parse_message)
    spans = [span for item in items if isinstance(item, Message) for span in spans_of(item.content)]
    pairs = [(context, span) for span in spans for context in contexts_of(span).contexts]
    ours = [_event(*pair) for pair in pairs if pair[0].trace_type is not TraceType.SUB_BEFORE]
    events = [row for row in events_of(otlp_side(tmp_path, path)) if row["kind"] is not None and row["scope"] is None]
    for row in events:
        row["topic"] = row["topic"] and strip_namespace(row["topic"])  # as RocketMQ records it
    assert Counter(ours) == Counter(tuple(row[field] for field in _COMPARED) for row in events)


_COMPARED = (
    *("span_id", "kind", "topic", "msg_id", "offset_msg_id", "group_name", "tags", "store_host"),
    *("body_length", "retry_times", "success", "context_code", "region_id", "start_ms"),
)
_KINDS = {TraceType.PUB: "publish", TraceType.SUB_AFTER: "consume"}


def _event(context, span):
    (bean,) = context.beans
    code = None if context.context_code is None else context.context_code.name
    return (
        *(span["span_id"], _KINDS[context.trace_type], bean.topic, bean.msg_id, bean.offset_msg_id),
        *(context.group_name, bean.tags, bean.store_host, bean.body_length, bean.retry_times, context.success, code),
        *(context.region_id, span["start_ns"] // NS_PER_MS),
    )


def _span(attributes, *, kind="CONSUMER", links=()):
    span = dict.fromkeys(("trace_id", "parent_span_id", "service", "status_message", "bad"))
    span |= {"span_id": "ab12", "name": "x", "kind": kind, "scope": AGENT, "status": "UNSET", "flags": 1}
    span |= {"start_ns": 1_000 * NS_PER_MS, "end_ns": 1_040 * NS_PER_MS, "attributes": attributes, "events": []}
    linked = [{"trace_id": "1", "span_id": "2", "flags": 0, "attributes": each} for each in links]
    return {**span, "links": linked}


def _delivery(**more):
    """Return attributes of a delivery; ``more`` are named without their prefix, with _ for a dot."""
    named = {"system": "rocketmq", "operation": "process", "destination_name": "orders", **more}
    return {f"messaging.{name.replace('_', '.')}": value for name, value in named.items()}


def test_delivery_without_a_request_id_gives_two_halves_with_the_span_id():
    """RocketMQ's dashboard joins them by the request id."""
    half, whole = contexts_of(_span(_delivery(message_id="M1"))).contexts
    assert (half.trace_type, half.timestamp_ms) == (TraceType.SUB_BEFORE, 1_000)
    assert (whole.trace_type, whole.timestamp_ms, whole.cost_ms) == (TraceType.SUB_AFTER, 1_040, 40)
    assert half.request_id == whole.request_id == "AB12"


def test_fields_missing_on_a_span_stay_absent():
    span = _span(_delivery(operation="publish"), kind="PRODUCER")
    assert contexts_of(span, {"orders"}) == ((), "TRACE_TRAFFIC")
    (sent,) = contexts_of(span, {"traces"}).contexts
    expected = {"trace_type": TraceType.PUB, "timestamp_ms": 1_000, "cost_ms": 40, "topic": "orders"}
    assert _fields(sent) == {**expected, "msg_type": MessageType.NORMAL}


def test_batch_is_one_record_for_each_message():
    """By links that name messages, or by ids joined with commas; the cost is shared, as RocketMQ shares it."""
    links = [{"messaging.message.id": "M1", "messaging.destination.name": "other"}, {"messaging.message.id": "M2"}]
    linked = contexts_of(_span(_delivery(), links=links)).contexts
    assert [(each.beans[0].msg_id, each.beans[0].topic) for each in linked[1::2]] == [("M1", "other"), ("M2", "orders")]
    joined = contexts_of(_span(_delivery(message_id="M1,M2"))).contexts
    assert [each.beans[0].msg_id for each in joined[1::2]] == ["M1", "M2"]
    assert {each.cost_ms for each in joined[1::2]} == {20}
    ours = _delivery(message_id="M1") | {semconv.MQTRACE_TRACE_TYPE: "Sub"}
    _, alone = contexts_of(_span(ours, links=[{semconv.MESSAGING_KAFKA_OFFSET: 7}, {}])).contexts
    assert (alone.beans[0].msg_id, alone.cost_ms) == ("M1", 40)  # the other link is the application's


def test_array_that_badger_made_a_text_is_an_array():
    flattened = {"messaging.header.UNIQ_KEY": '["M1"]', "messaging.rocketmq.message.keys": '["a","b"]'}
    whole = contexts_of(_span(_delivery() | flattened)).contexts[1]
    assert (whole.beans[0].msg_id, whole.beans[0].keys) == ("M1", "a b")
    plain = contexts_of(_span(_delivery() | {"messaging.rocketmq.message.keys": "[a"})).contexts[1]
    assert plain.beans[0].keys == "[a"


def test_kafka_message_without_an_id_is_identified_by_its_position():
    place = {"destination_partition_id": "3", "kafka_offset": 41, "kafka_consumer_group": "g"}
    whole = contexts_of(_span(_delivery(system="kafka", **place))).contexts[1]
    (bean,) = whole.beans
    assert (bean.msg_id, bean.offset_msg_id, whole.group_name) == ("orders-3@41", "orders-3@41", "g")
    (nowhere,) = contexts_of(_span(_delivery(system="kafka", destination_name=None, **place))).contexts[1].beans
    assert (nowhere.msg_id, nowhere.offset_msg_id) == (None, None)


@pytest.mark.parametrize("written", [bean_attributes(pub().beans[0]), context_attributes(after())])
def test_attribute_written_by_us_is_read_under_its_first_name(written):
    names = {first for alias in ALIASES.values() for first in (*alias.names, *alias.arrays)[:1]}
    assert {name for name in written if name.startswith("mqtrace.")} <= names
    assert ALIASES["attempt_id"].names[0] == semconv.MQTRACE_REQUEST_ID
