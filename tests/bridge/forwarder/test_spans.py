"""Spans of forwarded records: ids, names, times, services, outcomes, and merged halves."""

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from bridge.forwarder.pairing import Event, Half
from bridge.forwarder.span_fields import SpanRules, trace_id_of
from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType, TraceContext, TraceType, TransactionState
from otel_mqtrace.wire.native import decode_body, explode
from tests.support.forwarded_spans import record_of, span_of
from tests.support.trace_stories import START_MS, after, before, body_of, cloud, end_transaction, pub

ARRIVAL_MS = START_MS + 5_000
MS = 1_000_000

ROOT_SPAN_ID = 0x12849FF9B9E7F06D
"""Of the send of message M1."""


def _record(trace_ctx, **fields):
    return record_of(trace_ctx, arrival_ms=ARRIVAL_MS, **fields)


def _span(trace_ctx, rules=None, **of_event):
    messages = of_event.pop("messages", 1)
    return span_of(Event(record=_record(trace_ctx, messages=messages), **of_event), rules or SpanRules())


def _call(first=None, second=None, rules=None):
    return span_of(Event(record=_record(second or after()), before=_record(first or before())), rules or SpanRules())


def _trace_id(span):
    return f"{span.context.trace_id:032x}"


def _times_ms(span):
    return span.start_time // MS, span.end_time // MS


def test_send_is_the_root_of_its_trace():
    """The ids are fixed for all time (b2sum gives the same): what was forwarded last year is still the same span."""
    span = _span(pub())
    assert trace_id_of("M1") == "9c9be8b9d792333c124a62ffb54baf2d"
    assert (_trace_id(span), span.context.span_id, span.parent) == (trace_id_of("M1"), ROOT_SPAN_ID, None)
    assert (span.name, span.kind, span.status.status_code) == ("send orders", SpanKind.PRODUCER, StatusCode.UNSET)
    assert _times_ms(span) == (START_MS, START_MS + 9)


@pytest.mark.parametrize(
    "span",
    [_call(), _span(end_transaction()), _span(pub(success=False), is_root=False), _span(before(), half=Half.BEFORE)],
)
def test_other_spans_of_the_message_are_children_of_the_send(span):
    assert span.context.trace_id == span.parent.trace_id == int(trace_id_of("M1"), 16)
    assert span.parent.span_id == ROOT_SPAN_ID != span.context.span_id


def test_redelivery_is_another_span_and_a_repeated_record_the_same():
    first, again, retry = _call(), _call(), _call(before(request_id="R2"), after(request_id="R2"))
    assert first.to_json() == again.to_json()
    assert first.context.span_id != retry.context.span_id
    commit, rollback = (_span(end_transaction(state=TransactionState[name])) for name in ("COMMIT_MESSAGE", "UNKNOW"))
    assert commit.context.span_id != rollback.context.span_id


def test_half_has_the_id_of_the_whole_call():
    halves = [_span(before(), half=Half.BEFORE), _span(after(), half=Half.AFTER)]
    assert {span.context.span_id for span in halves} == {_call().context.span_id}
    assert [span.attributes[semconv.MQTRACE_HALF] for span in halves] == ["before", "after"]
    assert [_times_ms(span) for span in halves] == [(START_MS + 100,) * 2, (START_MS + 100, START_MS + 150)]


def test_listener_call_has_the_fields_of_both_halves():
    span = _call(before(retry_times=2), after(success=False, context_code=ContextCode.FAILED))
    assert (span.name, span.kind) == ("process", SpanKind.CONSUMER)
    assert _times_ms(span) == (START_MS + 100, START_MS + 150)
    assert span.attributes[semconv.MQTRACE_RETRY_TIMES] == 2
    assert span.attributes[semconv.MESSAGING_CONSUMER_GROUP_NAME] == "CG_bill"
    assert span.attributes[semconv.MQTRACE_CONTEXT_CODE] == "FAILED"
    assert semconv.MQTRACE_HALF not in span.attributes


def test_short_half_of_the_cloud_channel_is_completed_from_the_first():
    short = decode_body(body_of(cloud(after()))).contexts[0]
    assert (short.group_name, short.timestamp_ms) == (None, None)
    span = _call(second=short)
    assert span.resource.attributes["service.name"] == span.attributes[semconv.MQTRACE_GROUP_NAME] == "CG_bill"
    assert _times_ms(span) == (START_MS + 100, START_MS + 150)


def test_short_half_alone_takes_the_time_it_arrived():
    span = _span(decode_body(body_of(cloud(after()))).contexts[0], half=Half.AFTER)
    assert _times_ms(span) == (ARRIVAL_MS - 50, ARRIVAL_MS)
    assert span.resource.attributes["service.name"] == "unknown_service"


@pytest.mark.parametrize(
    ("span", "error"),
    [
        (_span(pub(success=False)), "_OTHER"),
        (_call(second=after(success=True, context_code=ContextCode.TIME_OUT)), "TIME_OUT"),
        (_call(second=after(success=False, context_code=ContextCode.FAILED)), "FAILED"),
    ],
    ids=["refused send", "timeout despite success", "failed call"],
)
def test_failure_is_an_error_of_its_code(span, error):
    assert (span.status.status_code, span.attributes[semconv.ERROR_TYPE]) == (StatusCode.ERROR, error)
    assert span.attributes[semconv.MQTRACE_SUCCESS] is (error == "TIME_OUT")


def test_send_has_the_names_of_rocketmq_and_ours():
    attributes = _span(pub(msg_type=MessageType.DELAY, keys="k1 k2")).attributes
    assert attributes[semconv.MESSAGING_SYSTEM] == "rocketmq"
    assert attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_TYPE] == "delay"
    assert attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_TAG] == attributes[semconv.MQTRACE_TAGS] == "TagA"
    assert attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_KEYS] == ("k1", "k2")
    assert (attributes[semconv.SERVER_ADDRESS], attributes[semconv.SERVER_PORT]) == ("10.0.0.5", 10911)
    assert attributes[semconv.MQTRACE_STORE_HOST] == "10.0.0.5:10911"


def test_batch_is_one_send_in_the_trace_of_each_message():
    contexts = explode(pub("M1,M2"))
    spans = [_span(each, messages=len(contexts)) for each in contexts]
    assert list(map(_trace_id, spans)) == [trace_id_of("M1"), trace_id_of("M2")]
    assert {span.attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] for span in spans} == {2}


def test_client_that_stamps_after_the_send_ends_at_its_stamp():
    """Go's clients do; they are told by their group."""
    assert _times_ms(_span(pub(), SpanRules(stamped_after=("PG_*",)))) == (START_MS - 9, START_MS)


@pytest.mark.parametrize(("rules", "service"), [(SpanRules(), "PG_order"), (SpanRules(service_name="mq"), "mq")])
def test_service_is_the_group_or_the_option(rules, service):
    assert dict(_span(pub(), rules).resource.attributes) == {"service.name": service}


def test_clock_set_back_gives_no_negative_time():
    span = _call(second=after(stamp_ms=START_MS + 90, cost_ms=-10))
    assert _times_ms(span) == (START_MS + 100, START_MS + 100)
    assert span.attributes[semconv.MQTRACE_COST_TIME] == -10


def test_record_without_a_message_id_has_ids_of_all_its_fields():
    nameless = TraceContext(trace_type=TraceType.RECALL, timestamp_ms=START_MS, beans=pub("null").beans)
    assert _span(nameless).to_json() == _span(nameless).to_json()
    assert _trace_id(_span(nameless)) != trace_id_of("null")
