"""The records and links of a batch, written from its messages, equal those of the span of the same batch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.sdk.trace import SpanLimits

from otel_mqtrace.hooks.incoming import IncomingMessage
from otel_mqtrace.model import ContextCode
from otel_mqtrace.wire.native import DIALECTS
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans
from tests.otel_mqtrace.records.test_handled import PARENT, _encode_whole, _native, _spans_of, _World

texts = st.binary(max_size=6) | st.sampled_from([b"k1 k2", b"", b"a\x01b", "订单".encode()])
headers = st.dictionaries(st.sampled_from(["UNIQ_KEY", "other"]), texts | st.none(), max_size=2)
rare = st.just({}) | st.dictionaries(st.sampled_from(["TAGS", "KEYS", "DELAY", "tracestate"]), texts, max_size=1)


@st.composite
def received(draw):
    topic = draw(st.sampled_from(["orders", "订单", "100%"]))
    travelled = {**draw(headers), **draw(rare)}
    if draw(st.booleans()):
        travelled["traceparent"] = PARENT
    length = draw(st.none() | st.integers(0, 3))
    return lambda topic=topic: IncomingMessage(
        topic,
        draw(st.integers(0, 1)),
        draw(st.integers(0, 300)),
        draw(st.none() | st.sampled_from([b"k", b"\xff", "text"])),
        length or 0,
        length is None,
        list(travelled.items()),
        draw(st.none() | st.integers(1, 3)),
        draw(st.none() | st.just("b2:9092")),
        draw(st.none() | st.just("C1")),
    )


batches = st.lists(received(), min_size=1, max_size=5).map(lambda made: [each("orders") for each in made])


def _links(span):
    for link in span.links:
        link.attributes.sort(key=lambda attribute: attribute.key)
    return span


@given(batches, st.sampled_from(sorted(DIALECTS)), st.sampled_from([0, 3, 700]))
@settings(max_examples=300, deadline=None)
def test_batch_written_from_its_messages_equals_its_span(batch, dialect, took_ms):
    world, other = _World(), _World()
    (call,) = world.hook.before(batch, batch=True, unchanging=True)
    ours, lane = world.exported(call, took_ms)
    (call,) = other.hook.before(batch, batch=True, unchanging=True)
    theirs, whole_lane = other.exported(call, took_ms)
    for one, another in zip(lane, whole_lane, strict=True):
        assert _native([one], dialect) == _native([another], dialect, _encode_whole)
    written = _spans_of(encode_spans([ours]).body)
    expected = _spans_of(encode_by_opentelemetry([theirs]).SerializeToString())
    assert [_links(each) for each in written] == [_links(each) for each in expected]


@pytest.mark.parametrize(
    "how", [{"code": ContextCode.FAILED}, {"code": ContextCode.EXCEPTION, "exception": ValueError("no")}]
)
def test_batch_that_failed_says_so(how):
    world = _World()
    (call,) = world.hook.before([_message(1), _message(2)], batch=True, unchanging=True)
    span, lane = world.exported(call, **how)
    ((_, _, body, _),), _ = _native([lane[1]], "5.5.0")
    assert b"\x01false\x01" in body
    assert _spans_of(encode_spans([span]).body)[0].status.code == 2


def test_batch_that_a_handler_wrote_to_says_that_too():
    world = _World()
    (call,) = world.hook.before([_message(1), _message(2)], batch=True, unchanging=True)
    with trace.use_span(call.span, end_on_exit=False):
        trace.get_current_span().set_attribute("order", 7)
    span, _ = world.exported(call)
    (written,) = _spans_of(encode_spans([span]).body)
    assert {each.key for each in written.attributes} >= {"order", "mqtrace.request_id"}


def test_limits_of_links_are_kept():
    world = _World(span_limits=SpanLimits(max_link_attributes=1))
    (call,) = world.hook.before([_message(1), _message(2)], batch=True, unchanging=True)
    _, lane = world.exported(call)
    assert lane[1].to_otlp() is None


def _message(offset):
    return IncomingMessage("orders", 0, offset, None, 3, headers=[("traceparent", PARENT)], timestamp_ms=1)
