"""The record of a batch says exactly what the spans of the same batch say, in both formats."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.model import ContextCode
from otel_mqtrace.records.batch import BatchSpan
from otel_mqtrace.wire.native import DIALECTS
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans
from tests.otel_mqtrace.records.test_handled import (
    PARENT,
    _encode_whole,
    _Leaders,
    _native,
    _spans_of,
    _World,
)

texts = st.binary(max_size=6) | st.sampled_from([b"k1 k2", b"", b"a\x01b", "订单".encode()])
headers = st.dictionaries(st.sampled_from(["UNIQ_KEY", "other"]), texts | st.none(), max_size=2)
rare = st.just({}) | st.dictionaries(st.sampled_from(["TAGS", "KEYS", "DELAY", "tracestate"]), texts, max_size=1)
traced = st.sampled_from([{}, {"traceparent": PARENT}])
row = st.tuples(
    st.integers(0, 1),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from([b"k", b"\xff", "订".encode()]),
    st.builds(lambda *all_of: [pair for each in all_of for pair in each.items()], headers, rare, traced) | st.none(),
)
batches = st.lists(row, min_size=1, max_size=5).map(
    lambda rows: [(partition, offset, *rest) for offset, (partition, *rest) in enumerate(rows, 127)]
)
leaders = st.builds(_Leaders, st.sampled_from([{}, {0: "b2:9092", 1: "b3:9092"}]), st.none() | st.just("C1"))
ROWS = [(0, offset, 1, 3, None, [("traceparent", PARENT)]) for offset in (1, 2)]


def _opened(world, topic, rows, known):
    messages = [
        IncomingMessage(
            topic,
            partition,
            offset,
            key,
            length or 0,
            length is None,
            pairs or (),
            stored_ms,
            known and known.of(topic, partition),
            known and known.cluster_id,
        )
        for partition, offset, stored_ms, length, key, pairs in rows
    ]
    (call,) = world.hook.before(messages, batch=True)
    return call


def _sorted_links(span):
    for link in span.links:
        link.attributes.sort(key=lambda attribute: attribute.key)
    return span


@given(
    st.sampled_from(["orders", "订单", "100%"]),
    batches,
    leaders,
    st.sampled_from(sorted(DIALECTS)),
    st.sampled_from([0, 3, 700]),
)
@settings(max_examples=300, deadline=None)
def test_recorded_batch_equals_the_span_of_the_same_batch(topic, rows, known, dialect, took_ms):
    world, other = _World(), _World()
    call = world.hook.record_batch(topic, rows, known)
    if call is None:  # the state of one message's trace is its span's
        assert len(rows) == 1
        assert "tracestate" in dict(rows[0][-1])
        return
    ours, lane = world.exported(call, took_ms)
    theirs, whole_lane = other.exported(_opened(other, topic, rows, known), took_ms)
    assert type(ours) is BatchSpan
    for one, another in zip(lane, whole_lane, strict=True):
        assert _native([one], dialect) == _native([another], dialect, _encode_whole)
    written = _spans_of(encode_spans([ours]).body)
    expected = _spans_of(encode_by_opentelemetry([theirs]).SerializeToString())
    assert [_sorted_links(each) for each in written] == [_sorted_links(each) for each in expected]
    assert json.loads(ours.to_json()) == json.loads(theirs.to_json())


@pytest.mark.parametrize(
    "how", [{"code": ContextCode.FAILED}, {"code": ContextCode.EXCEPTION, "exception": ValueError("no")}]
)
def test_failed_batch_has_its_outcome_in_both_formats(how):
    world = _World()
    call = world.hook.record_batch("orders", ROWS, None)
    span, lane = world.exported(call, **how)
    ((_, _, body, _),), _ = _native([lane[1]], "5.5.0")
    assert body.count(b"\x01false\x01") == 2
    assert _spans_of(encode_spans([span]).body)[0].status.code == 2


def test_batch_that_a_handler_wrote_to_has_what_it_wrote():
    world = _World()
    call = world.hook.record_batch("orders", ROWS, None)
    call.span.set_attribute("order", 7)
    span, _ = world.exported(call)
    (written,) = _spans_of(encode_spans([span]).body)
    assert {each.key for each in written.attributes} >= {"order", "mqtrace.request_id"}
    assert len(written.links) == 2


@pytest.mark.parametrize(
    ("rows", "options"),
    [(ROWS, {"span_limits": SpanLimits(max_link_attributes=1)}), (ROWS * 65, {})],
    ids=["a limit of links", "more messages than links"],
)
def test_batch_beyond_a_limit_needs_spans(rows, options):
    assert _World(**options).hook.record_batch("orders", rows, None) is None


def test_ended_batch_keeps_only_its_ids():
    """It may be remembered for long, and its messages may be large."""
    world = _World()
    call = world.hook.record_batch("orders", ROWS, None)
    context = call.span.get_span_context()
    world.exported(call)
    assert not hasattr(call.span, "record")
    assert call.span.get_span_context() == context


def test_unsampled_batch_is_current_and_not_recorded():
    world = _World(sampler=ALWAYS_OFF)
    call = world.hook.record_batch("orders", ROWS, None)
    assert call.span.get_span_context().is_valid
    assert not call.span.get_span_context().trace_flags.sampled
    world.hook.after(call)
    world.ended.assert_empty()
