"""What a span and a record carry: every row of the table, read from one story on a real broker."""

import re

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace import ContextCode, SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.wire.native import decode_body
from tests.contract.story import LATE, ODD, PAID, TOPIC, UNPAID


def _of(span, *names):
    return tuple(span.attributes.get(name) for name in names)


def test_trace_type_kind_and_operation(story):
    """``Pub``, ``Sub``, ``EndTransaction``: kind and operation follow."""
    operation = ("mqtrace.trace_type", "messaging.operation.name", "messaging.operation.type")
    send, processed, end = story.sends[PAID], story.processes[PAID], story.ends[0]
    assert (send.kind, _of(send, *operation)) == (SpanKind.PRODUCER, ("Pub", "send", "send"))
    assert (processed.kind, _of(processed, *operation)) == (SpanKind.CONSUMER, ("Sub", "process", "process"))
    assert (end.kind, _of(end, *operation[:2])) == (SpanKind.CLIENT, ("EndTransaction", "end_transaction"))


def test_topic(story):
    """On both sides, and in the records."""
    for span in (story.sends[PAID], story.processes[PAID]):
        assert span.attributes["messaging.destination.name"] == TOPIC
    named = [record for record in story.records if record.trace_type in {TraceType.PUB, TraceType.END_TRANSACTION}]
    assert {record.beans[0].topic for record in named} == {TOPIC, "payments"}


def test_msg_id(story):
    """32 upper-case hex characters, the same on the wire, on both spans and in all three records."""
    msg_id = story.sends[PAID].attributes["messaging.message.id"]
    assert re.fullmatch("[0-9A-F]{32}", msg_id)
    assert story.wire[PAID]["UNIQ_KEY"].decode() == msg_id == story.processes[PAID].attributes["messaging.message.id"]
    kinds = [record.trace_type for record in story.records if record.beans[0].msg_id == msg_id]
    assert kinds[:3] == [TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER]


def test_offset_msg_id(story):
    """``{topic}-{partition}@{offset}``."""
    for number, pair in enumerate(zip(story.sends, story.processes, strict=True)):
        assert [span.attributes["mqtrace.offset_msg_id"] for span in pair] == [f"{TOPIC}-0@{number}"] * 2


def test_tags_and_keys(story):
    """From the headers TAGS and KEYS, keys as a list; in the record joined by spaces."""
    for span in (story.sends[PAID], story.processes[PAID]):
        assert _of(span, "mqtrace.tags", "mqtrace.keys") == ("paid", ("order-7", "shop-1"))
    bean = story.record(TraceType.PUB, story.sends[PAID].attributes["messaging.message.id"]).beans[0]
    assert (bean.tags, bean.keys) == ("paid", "order-7 shop-1")


def test_group_name(story):
    """Ours on both; the registry's on the consumer only."""
    names = ("mqtrace.group_name", "messaging.consumer.group.name")
    assert _of(story.sends[PAID], *names) == ("shop", None)
    assert _of(story.processes[PAID], *names) == ("billing", "billing")
    msg_id = story.sends[PAID].attributes["messaging.message.id"]
    kinds = ((TraceType.PUB, "shop"), (TraceType.SUB_BEFORE, "billing"))
    assert [story.record(kind, msg_id).group_name for kind, _ in kinds] == [group for _, group in kinds]


def test_hosts_and_server(story):
    """The partition's leader, this host, and the registry's address and port."""
    for span in (story.sends[PAID], story.processes[PAID]):
        store, client, address, port = _of(
            span, "mqtrace.store_host", "mqtrace.client_host", "server.address", "server.port"
        )
        assert store == story.servers
        assert client
        assert f"{address}:{port}" == story.servers


def test_store_time(story):
    """In milliseconds: the broker's own on the consumer."""
    for span in story.processes:
        assert abs(span.attributes["mqtrace.store_time"] - span.start_time // 1_000_000) < 60_000
    assert all("mqtrace.store_time" in span.attributes for span in story.sends)


def test_body_length(story):
    """Bytes; a tombstone has none and says so."""
    sizes = [span.attributes["messaging.message.body.size"] for span in story.sends]
    assert sizes == [8, 0, 6, 3] == [span.attributes["messaging.message.body.size"] for span in story.processes]
    assert story.sends[LATE].attributes["messaging.kafka.message.tombstone"] is True


def test_retry_times(story):
    """From the header, 0 without one; in the record too."""
    assert [span.attributes["mqtrace.retry_times"] for span in story.processes] == [0, 0, 0, 2]
    record = story.record(TraceType.SUB_BEFORE, story.sends[ODD].attributes["messaging.message.id"])
    assert record.beans[0].retry_times == 2


def test_msg_type(story):
    """Normal, delayed, half of a transaction, its commit; order by the manual door."""
    kinds = [span.attributes["mqtrace.msg_type"] for span in (*story.sends[:2], story.ends[0])]
    assert kinds == ["Normal_Msg", "Delay_Msg", "Trans_msg_Commit"]
    halves = [span for span in story.others if span.name == "send payments"]
    assert [span.attributes["mqtrace.msg_type"] for span in halves] == ["Trans_Msg_Half"] * 2
    exporter = RecordingExporter()
    hook = SendHook(tracing=Tracing.create(tracer_provider=recording_provider(exporter)), servers="b:1")
    hook.after(hook.before("orders", msg_type=MessageType.ORDER))
    assert exporter.take().attributes["mqtrace.msg_type"] == "Order_Msg"


def test_time_stamp_and_cost_time(story):
    """The span's own times, in whole milliseconds; the record has the same."""
    for span, trace_type in ((story.sends[PAID], TraceType.PUB), (story.processes[PAID], TraceType.SUB_AFTER)):
        cost_ms = span.attributes["mqtrace.cost_time"]
        assert cost_ms == (span.end_time // 1_000_000) - (span.start_time // 1_000_000)
        record = story.record(trace_type, span.attributes["messaging.message.id"])
        assert record.cost_ms == cost_ms
    assert record.timestamp_ms in (span.start_time // 1_000_000, span.end_time // 1_000_000)


def test_success_and_context_code(story):
    """A handler that raised: status, error.type, success, code; one that did not."""
    names = ("mqtrace.success", "mqtrace.context_code", "error.type")
    assert _of(story.processes[PAID], *names) == (True, "SUCCESS", None)
    assert _of(story.processes[UNPAID], *names) == (False, "EXCEPTION", "UnpaidError")
    assert [story.processes[n].status.status_code for n in (PAID, UNPAID)] == [StatusCode.UNSET, StatusCode.ERROR]
    record = story.record(TraceType.SUB_AFTER, story.sends[UNPAID].attributes["messaging.message.id"])
    assert (record.success, record.context_code) == (False, ContextCode.EXCEPTION)
    assert {code.name for code in ContextCode} == {"SUCCESS", "TIME_OUT", "EXCEPTION", "RETURNNULL", "FAILED"}


def test_request_id_region_id_and_region_name(story):
    """A request id for each attempt; the region on every span; one id for both halves of a handling."""
    names = ("mqtrace.region_id", "mqtrace.region_name")
    for span in (*story.sends, *story.processes, *story.ends):
        assert _of(span, *names) == ("DefaultRegion", "north")
    ids = [span.attributes["mqtrace.request_id"] for span in (*story.sends, *story.processes, *story.ends)]
    assert len(set(ids)) == len(ids)
    msg_id = story.sends[PAID].attributes["messaging.message.id"]
    halves = [story.record(kind, msg_id).request_id for kind in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)]
    assert halves == [story.processes[PAID].attributes["mqtrace.request_id"]] * 2


def test_transaction_fields(story):
    """One id from the half to its end; the state; not from a check."""
    names = ("mqtrace.transaction_state", "mqtrace.from_transaction_check")
    assert [_of(end, *names) for end in story.ends] == [("COMMIT_MESSAGE", False), ("ROLLBACK_MESSAGE", False)]
    halves = [span for span in story.others if span.name == "send payments"]
    ids = [[span.attributes["mqtrace.transaction_id"] for span in side] for side in (halves, story.ends)]
    assert ids[0] == ids[1]
    ended = [record for record in story.records if record.trace_type is TraceType.END_TRANSACTION]
    assert [record.beans[0].transaction_id for record in ended] == ids[0]


def test_headers_written_by_the_producer_hook(story):
    """The trace, the unique id, and nothing that was there is lost; one of each."""
    for send, headers in zip(story.sends, story.wire, strict=True):
        _, trace_id, span_id, _ = headers["traceparent"].decode().split("-")
        assert (int(trace_id, 16), int(span_id, 16)) == (send.context.trace_id, send.context.span_id)
        assert headers["UNIQ_KEY"].decode() == send.attributes["messaging.message.id"]
    assert (story.wire[PAID]["TAGS"], story.wire[PAID]["KEYS"]) == (b"paid", b"order-7 shop-1")


def test_registry_attributes_of_kafka(story):
    """Partition, offset, key, client id, batch count of semantic conventions 1.44."""
    names = ("messaging.destination.partition.id", "messaging.kafka.offset", "messaging.kafka.message.key")
    for span, client in ((story.sends[PAID], "shop-1"), (story.processes[PAID], "till")):
        assert _of(span, *names, "messaging.client.id", "messaging.system") == ("0", 0, "order-7", client, "kafka")
        assert span.instrumentation_scope.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert story.batch.attributes["messaging.batch.message_count"] == 2


def test_what_is_equal_stands_on_the_span_the_rest_on_its_links(story):
    """A batch of two: one topic on the span, two offsets and two ids on the links, under the same names."""
    assert story.batch.attributes["messaging.destination.name"] == TOPIC
    assert "messaging.kafka.offset" not in story.batch.attributes
    assert [link.attributes["messaging.kafka.offset"] for link in story.batch.links] == [0, 1]
    ids = [link.attributes["messaging.message.id"] for link in story.batch.links]
    assert ids == [span.attributes["messaging.message.id"] for span in story.sends[:2]]
    assert [link.context.span_id for link in story.batch.links] == [s.context.span_id for s in story.sends[:2]]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"send {TOPIC}", SpanKind.PRODUCER),
        (f"poll {TOPIC}", SpanKind.CLIENT),
        (f"process {TOPIC}", SpanKind.CONSUMER),
        (f"commit {TOPIC}", SpanKind.CLIENT),
        ("end_transaction payments", SpanKind.CLIENT),
    ],
)
def test_span_names_and_kinds(story, name, kind):
    """The word of the operation and the topic."""
    found = [s.kind for s in (*story.sends, *story.processes, *story.ends, *story.others) if s.name == name]
    assert found
    assert set(found) == {kind}


def test_the_four_messaging_metrics(story):
    """Of the semantic conventions."""
    assert {name for name in story.metrics if name.startswith("messaging.")} >= {
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
        "messaging.client.sent.messages",
        "messaging.process.duration",
    }


def test_self_metrics_of_the_processor(story):
    """The SDK's own names."""
    assert {"otel.sdk.processor.span.processed", "otel.sdk.processor.span.queue.capacity"} <= story.metrics


def test_sub_before_leaves_when_the_handler_starts(story):
    """While the first handler still ran its start was on the trace topic, its end was not: a crash tells so."""
    msg_id = story.sends[PAID].attributes["messaging.message.id"]
    seen = [record.trace_type for record in story.half_way if record.beans[0].msg_id == msg_id]
    assert seen == [TraceType.PUB, TraceType.SUB_BEFORE]


def test_separators_inside_values_are_written_as_underscores_and_counted(story):
    """U+0001 and U+0002, on the wire of the record; the span keeps what was sent."""
    odd = story.sends[ODD]
    assert odd.attributes["mqtrace.tags"] == "a\x01b\x02c"
    assert story.record(TraceType.PUB, odd.attributes["messaging.message.id"]).beans[0].tags == "a_b_c"
    assert story.replaced >= 2


def test_a_trace_message_is_of_one_topic_and_names_its_keys(story):
    """Its value is the records of one source topic; its header KEYS holds message ids and keys, joined by spaces."""
    assert {len(set(topics)) for topics in map(_topics, story.bodies)} == {1}
    keys = {key for _, headers in story.bodies for key in headers["KEYS"].decode().split(" ")}
    assert {"order-7", "shop-1", story.sends[PAID].attributes["messaging.message.id"]} <= keys


def _topics(message):
    return [c.beans[0].topic for c in decode_body(message[0]).contexts if c.trace_type is TraceType.PUB] or [None]


def test_the_dialect_header(story):
    """On every message of the trace topic."""
    assert {headers["mqtrace.dialect"] for _, headers in story.bodies} == {b"5.5.0"}
