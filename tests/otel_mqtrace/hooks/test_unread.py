"""Attributes that nobody has read yet are what the SDK would have made of them, whoever reads them and when."""

from __future__ import annotations

import copy
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from bridge.exporters.native_spans import has_record
from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.hooks._unread import UnreadAttributes, nobody_looks, tell, tell_later
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.spans.told import kept
from otel_mqtrace.testing import RecordingExporter

VALUES = st.one_of(
    st.text(max_size=8), st.integers(-5, 5), st.booleans(), st.floats(allow_nan=False), st.lists(st.text(max_size=5))
)
SAID = st.lists(st.dictionaries(st.sampled_from("abcdefgh"), VALUES, max_size=6), min_size=1, max_size=4)


def provider(*processors: SpanProcessor, sampler: Sampler = ALWAYS_ON, **limits: Any) -> TracerProvider:
    made = TracerProvider(sampler=sampler, span_limits=SpanLimits(**limits))
    for each in processors:
        made.add_span_processor(each)
    return made


def told_later(maxlen: int | None, length: int | None, said: list[dict[str, Any]]) -> UnreadAttributes:
    unread = UnreadAttributes(maxlen, length, said[0])
    for each in said[1:]:
        unread.later(each)
    return unread


@given(said=SAID, length=st.sampled_from([None, 0, 3]))
def test_they_are_what_the_sdk_makes_of_them_at_once(said: list[dict[str, Any]], length: int | None) -> None:
    at_once = BoundedAttributes(128, said[0], immutable=False, max_value_len=length)
    for each in said[1:]:
        at_once._set_items(each)
    assert list(told_later(128, length, said).items()) == list(at_once.items())


@given(said=SAID, maxlen=st.integers(0, 6))
def test_within_a_limit_as_many_are_kept_and_the_others_counted(said: list[dict[str, Any]], maxlen: int) -> None:
    unread = told_later(maxlen, None, said)
    at_once = BoundedAttributes(maxlen, said[0], immutable=False)
    for each in said[1:]:
        at_once._set_items(each)
    assert list(unread.items()) == list(at_once.items())
    assert unread.dropped >= len({name for each in said for name in each}) - len(unread)


def test_whoever_counts_what_is_dropped_may_be_told_more_meanwhile() -> None:
    unread = UnreadAttributes(8, None, {"a": 1})
    with unread._lock:  # as the SDK's own class holds it while it asks for the count
        unread.later({"b": 2})
        assert unread.dropped == 0
    assert dict(unread) == {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "read",
    [
        len,
        dict,
        list,
        repr,
        copy.deepcopy,
        lambda unread: unread["a"],
        lambda unread: "a" in unread,
        lambda unread: unread.copy(),
        lambda unread: unread.dropped,
        lambda unread: unread.pop("a"),
        lambda unread: unread.update(b=2),
    ],
)
def test_every_way_of_reading_them_makes_them(read: Any) -> None:
    unread = UnreadAttributes(8, None, {"a": 1})
    read(unread)
    assert not unread._unread
    assert unread.get("a", 1) == 1


def test_readers_that_come_together_all_find_everything() -> None:
    names = [f"name {number}" for number in range(100)]
    for _ in range(50):
        unread = told_later(None, None, [{name: 1} for name in names])
        begin, found = threading.Barrier(4), []
        threads = [threading.Thread(target=lambda: (begin.wait(), found.append(len(unread)))) for _ in range(4)]  # noqa: B023
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [len(names)] * 4


def test_a_span_tells_them_when_it_has_ended_and_takes_no_more() -> None:
    exporter = RecordingExporter()
    tracer = provider(SimpleSpanProcessor(exporter)).get_tracer("t")
    span = tracer.start_span("send")
    tell_later(span, {"a": 1})
    tell(span, {"b": (1, 2)})
    span.set_attribute("a", 3)
    span.end()
    tell(span, {"c": 4})
    ended = exporter.take()
    assert dict(ended.attributes) == {"a": 3, "b": (1, 2)}
    assert json.loads(ended.to_json())["attributes"] == {"a": 3, "b": [1, 2]}


def test_a_span_that_has_attributes_already_or_is_none_of_the_sdks_is_told_at_once() -> None:
    tracer = provider().get_tracer("t")
    span = tracer.start_span("send", attributes={"of a sampler": 1})
    tell_later(span, {"a": 1})
    tell(span, {"b": 2})
    assert dict(span.attributes) == {"of a sampler": 1, "a": 1, "b": 2}
    silent = provider(sampler=ALWAYS_OFF).get_tracer("t").start_span("send")
    tell_later(silent, {"a": 1})
    tell(silent, {"a": 1})
    assert not silent.is_recording()


class Looking(SpanProcessor):
    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.seen.append(dict(span.attributes))


class Choosing(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "looks at everything"


@pytest.mark.parametrize(
    ("sampler", "answer"),
    [
        (ALWAYS_ON, True),
        (DEFAULT_ON, True),
        (TraceIdRatioBased(0.5), True),
        (ParentBased(TraceIdRatioBased(0.5)), True),
        (Choosing(), False),
        (ParentBased(Choosing()), False),
        (ParentBased(ALWAYS_ON, local_parent_sampled=Choosing()), False),
    ],
)
def test_only_samplers_that_go_by_ids_do_without_attributes(sampler: Sampler, answer: bool) -> None:
    assert nobody_looks(provider(sampler=sampler).get_tracer("t")) is answer


def test_a_processor_that_looks_at_starts_is_noticed_whenever_it_comes() -> None:
    ours = MqTraceSpanProcessor(RecordingExporter(), background=False)
    made = provider(ours)
    tracer = made.get_tracer("t")
    assert nobody_looks(tracer)
    made.add_span_processor(Looking())
    assert not nobody_looks(tracer)
    assert nobody_looks(provider(ours).get_tracer("t"))
    ours.shutdown()


def test_our_processor_is_told_of_a_start_once_the_span_is_told_what_it_is() -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True
    ours = MqTraceSpanProcessor(exporter, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours)))
    call = hook.before("orders", body=b"x", headers=[("TAGS", b"paid")])
    call.span.set_attribute("later", True)
    hook.after(call, partition=3, offset=4)
    ours.force_flush()
    started, ended = exporter.take_all()
    assert (started.end_time, started.attributes["messaging.destination.name"]) == (None, "orders")
    assert "later" not in started.attributes
    assert "messaging.destination.partition.id" not in started.attributes
    assert {**ended.attributes, **started.attributes} == dict(ended.attributes)
    assert ended.attributes["later"] is True
    ours.shutdown()


class Marking(MqTraceSpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("tenant", "shop")
        super().on_start(span, parent_context)


def test_a_subclass_of_our_processor_looks_at_starts_itself() -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True
    ours = Marking(exporter, background=False)
    tracer_provider = provider(ours)
    assert not nobody_looks(tracer_provider.get_tracer("t"))
    hook = SendHook(tracing=Tracing.create(tracer_provider=tracer_provider))
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.force_flush()
    started, ended = exporter.take_all()
    assert started.attributes["tenant"] == ended.attributes["tenant"] == "shop"
    assert started.attributes["messaging.destination.name"] == "orders"
    ours.shutdown()


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF), TraceIdRatioBased(0)])
def test_a_span_that_is_not_sampled_is_no_start_and_no_mistake(sampler: Sampler) -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True
    ours = MqTraceSpanProcessor(exporter, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours, sampler=sampler)))
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.on_start(NonRecordingSpan(INVALID_SPAN_CONTEXT))
    assert (ours.internal_errors, ours.stats()["RecordingExporter"]["offered"]) == (1, 0)  # the last one is foreign
    ours.shutdown()


def test_what_is_asked_on_the_applications_thread_makes_nothing() -> None:
    exporter = RecordingExporter()
    ours = MqTraceSpanProcessor(exporter, max_queue_size=1, max_export_batch_size=1, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours)), group_name="shop")
    calls = [hook.before("orders", body=b"x") for _ in range(2)]
    for call in calls:
        hook.after(call, partition=3, offset=4)
        assert has_record(call.span)
        assert kept(call.span)._unread, "read before the worker had it"
    assert [(row["group"], row["count"]) for row in ours.ledger()["rows"]] == [("shop", 1)]
    ours.shutdown()


@given(said=SAID, later=SAID)
def test_a_snapshot_keeps_what_was_told_until_then(said: list[dict[str, Any]], later: list[dict[str, Any]]) -> None:
    unread = told_later(128, None, said)
    still = unread.snapshot()
    for each in later:
        unread.later(each)
    assert dict(still) == dict(told_later(128, None, said))
