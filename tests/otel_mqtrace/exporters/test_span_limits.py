"""What OpenTelemetry's span limits take from a native record is counted, told, and never exported under a wrong name."""

from __future__ import annotations

import base64
import logging

import pytest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.wire.native import decode_body
from tests.support.landings import landed_lines

_TOPIC = "orders-of-the-whole-northern-region"
_IDS = [f"{number:032X}" for number in range(3)]


@pytest.fixture
def limited(tmp_path):
    """A function: from limits to the hooks of a traced application, and what ends it and reads what came of it."""

    def build(limits):
        exporter = NativeFileSpanExporter(directory=tmp_path)
        processor = MqTraceSpanProcessor(exporter, background=False)
        provider = TracerProvider(span_limits=limits, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        tracing = Tracing.create(tracer_provider=provider, settings=Settings())

        def outcome():
            processor.force_flush()
            lines = landed_lines(tmp_path)
            records = [each for line in lines for each in decode_body(base64.b64decode(line["body_base64"])).contexts]
            return records, processor.stats()["NativeFileSpanExporter"]

        return tracing, outcome

    return build


def _send(tracing, number=0, **said):
    hook = SendHook(tracing=tracing, group_name="shop", servers="broker:9092")
    hook.after(hook.before(_TOPIC, body=b"x", headers={"UNIQ_KEY": _IDS[number]}, **said), partition=0, offset=number)


def _process(tracing, *numbers):
    hook = ConsumeHook(tracing=tracing, group_name="billing", servers="broker:9092")
    messages = [
        IncomingMessage(topic=_TOPIC, partition=0, offset=each, headers=[("UNIQ_KEY", _IDS[each].encode())])
        for each in numbers
    ]
    for call in hook.before(messages):
        hook.after(call)


def _books(stats):
    return stats["offered"], stats["exported"], stats["dropped"].get("truncated", 0), stats["failed"]


def test_defaults_take_nothing(limited):
    tracing, outcome = limited(SpanLimits())
    _send(tracing)
    _process(tracing, 0, 1)
    records, stats = outcome()
    assert len(records) == 5
    assert _books(stats) == (3, 3, 0, 0)


def test_an_id_that_was_cut_is_no_record(limited, caplog):
    """Many messages would share it; both halves of a process span are counted, and one line names the limit."""
    tracing, outcome = limited(SpanLimits(max_attribute_length=16))
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            _send(tracing, number)
            _process(tracing, number)
        records, stats = outcome()
    assert records == []
    assert _books(stats) == (9, 0, 9, 0)
    [line] = [each.getMessage() for each in caplog.records if "incomplete" in each.getMessage()]
    assert "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT" in line


def test_what_has_its_name_still_is_kept(limited):
    tracing, outcome = limited(SpanLimits(max_attribute_length=48))
    _send(tracing, keys=["k" * 49])
    records, stats = outcome()
    assert [record.beans[0].msg_id for record in records] == [_IDS[0]]
    assert _books(stats) == (1, 0, 1, 0)


@pytest.mark.parametrize("length", [32, len(_TOPIC)])
def test_a_text_as_long_as_the_limit_may_be_whole(limited, length):
    """An id of 32 digits is one, and a topic stands whole in the name of its span."""
    tracing, outcome = limited(SpanLimits(max_attribute_length=length))
    hook = SendHook(tracing=tracing)
    topic = _TOPIC[:length]
    hook.after(hook.before(topic, headers={"UNIQ_KEY": _IDS[0]}), partition=0, offset=1)
    records, stats = outcome()
    assert [(record.beans[0].topic, record.beans[0].msg_id) for record in records] == [(topic, _IDS[0])]
    assert _books(stats) == (1, 1, 0, 0)


@pytest.mark.parametrize("kept", [1, 4, 10, 16])
def test_a_span_without_its_oldest_attributes_is_counted(limited, kept, caplog):
    tracing, outcome = limited(SpanLimits(max_span_attributes=kept))
    with caplog.at_level(logging.WARNING, logger="bridge"):
        _send(tracing)
        _process(tracing, 0)
        records, stats = outcome()
    assert all(record.beans[0].msg_id == _IDS[0] for record in records)
    assert all(record.beans[0].topic == _TOPIC for record in records if record.trace_type is TraceType.PUB)
    offered, exported, truncated, failed = _books(stats)
    assert offered == 3
    assert truncated == 3 - exported
    assert truncated
    assert not failed
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in caplog.text


def test_what_the_application_adds_may_push_ours_out(limited):
    tracing, outcome = limited(SpanLimits())
    hook = ConsumeHook(tracing=tracing, group_name="billing")
    [call] = hook.before([IncomingMessage(topic=_TOPIC, headers=[("UNIQ_KEY", _IDS[0].encode())])])
    for number in range(200):
        call.span.set_attribute(f"app.{number}", number)
    hook.after(call)
    records, stats = outcome()
    assert [record.trace_type for record in records] == [TraceType.SUB_BEFORE]
    assert _books(stats) == (2, 1, 1, 0)


def test_links_that_were_dropped_are_messages_that_were(limited, caplog):
    tracing, outcome = limited(SpanLimits(max_links=3))
    hook = ConsumeHook(tracing=tracing, group_name="billing")
    [call] = hook.before(
        [IncomingMessage(topic=_TOPIC, offset=n, headers=[("UNIQ_KEY", each.encode())]) for n, each in enumerate(_IDS)]
    )
    other = tracing.tracer.start_span("elsewhere").get_span_context()
    call.span.add_link(other)
    hook.after(call)
    with caplog.at_level(logging.WARNING, logger="bridge"):
        records, stats = outcome()
    ended = [record for record in records if record.trace_type is TraceType.SUB_AFTER]
    assert [each.msg_id for record in ended for each in record.beans] == _IDS[1:]
    assert _books(stats) == (2, 1, 1, 0)
    assert "OTEL_SPAN_LINK_COUNT_LIMIT" in caplog.text


def test_links_without_their_attributes_are_told_by_their_limit(limited, caplog):
    tracing, outcome = limited(SpanLimits(max_link_attributes=0))
    _process(tracing, 0, 1)
    with caplog.at_level(logging.WARNING, logger="bridge"):
        records, stats = outcome()
    assert records == []
    assert _books(stats) == (2, 0, 2, 0)
    assert "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT" in caplog.text


def test_what_belongs_to_no_message_may_be_dropped(limited):
    tracing, outcome = limited(SpanLimits(max_links=1))
    hook = SendHook(tracing=tracing, group_name="shop")
    call = hook.before(_TOPIC, headers={"UNIQ_KEY": _IDS[0]})
    for number in range(3):
        call.span.add_link(tracing.tracer.start_span(f"elsewhere {number}").get_span_context())
    call.span.set_attribute("", "refused by the SDK")
    hook.after(call, partition=0, offset=1)
    records, stats = outcome()
    assert [record.beans[0].msg_id for record in records] == [_IDS[0]]
    assert _books(stats) == (1, 1, 0, 0)


def test_a_poll_that_lost_attributes_was_no_record(limited):
    """Of the spans made here, only those that should have been records are counted."""
    tracing, outcome = limited(SpanLimits(max_span_attributes=2))
    span = tracing.tracer.start_span("receive orders", attributes=dict.fromkeys("abc", 1))
    span.end()
    _, stats = outcome()
    assert stats["offered"] == 0
