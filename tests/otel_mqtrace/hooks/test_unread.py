"""A span that nobody has read yet is what the SDK would have made of it, whoever reads it, and when."""

from __future__ import annotations

import copy
import json
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.exporters.packing import has_record
from otel_mqtrace.hooks._start import SpanStart
from otel_mqtrace.hooks._unread import PlainLink, UnreadSpan
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import RecordingExporter
from tests.support.opentelemetry_release import needs_sdk

START_NS, END_NS = 1_700_000_000_000_000_000, 1_700_000_000_500_000_000
VALUES = st.one_of(
    st.text(max_size=8),
    st.integers(-5, 5),
    st.booleans(),
    st.floats(allow_nan=False),
    st.lists(st.text(max_size=5)),
    st.none(),
    st.just(object),  # what is no value at all
)
NAMES = st.sampled_from("abcdefgh")
SAID = st.dictionaries(NAMES, VALUES, max_size=6)
DOINGS = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), SAID),
        st.tuples(st.just("tell later"), SAID),
        st.tuples(st.just("set_attribute"), st.one_of(NAMES, st.just("")), VALUES),
        st.tuples(st.just("set_attributes"), SAID),
        st.tuples(st.just("add_event"), NAMES, SAID, st.just(START_NS)),
        st.tuples(st.just("add_link"), st.builds(SpanContext, st.integers(1, 9), st.integers(1, 9), st.booleans())),
        st.tuples(st.just("set_status"), st.just(Status(StatusCode.ERROR, "refused"))),
        st.tuples(st.just("update_name"), NAMES),
        st.tuples(st.just("read")),
    ),
    max_size=6,
)
LINKS = st.lists(st.tuples(st.integers(1, 9), SAID), max_size=4)
LIMITS = st.fixed_dictionaries(
    {
        "max_attributes": st.sampled_from([128, 128, 0, 3]),
        "max_links": st.sampled_from([128, 1]),
        "max_attribute_length": st.sampled_from([None, 0, 3]),
    }
)


def spans(**limits: Any) -> tuple[RecordingExporter, Any, SpanStart]:
    exporter = RecordingExporter()
    provider = TracerProvider(span_limits=SpanLimits(**limits), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("otel_mqtrace", "1")
    return exporter, tracer, SpanStart(tracer)


def started(starting: SpanStart, first: dict[str, Any] | None = None, links: Any = (), later: Any = None) -> UnreadSpan:
    span = starting.start("send orders", {}, SpanKind.PRODUCER, first or {}, links, later, START_NS)
    assert type(span) is UnreadSpan
    return span


def linked(links: list[tuple[int, dict[str, Any]]]) -> list[Link]:
    return [Link(SpanContext(number, number, is_remote=True), dict(said)) for number, said in links]


def plain(links: list[tuple[int, dict[str, Any]]]) -> list[PlainLink]:
    return [PlainLink(link.context, said) for link, (_, said) in zip(linked(links), links, strict=True)]


def done(span: Any, doings: list[tuple[Any, ...]]) -> None:
    """Do it to ``span``; one of the SDK's own is told by ``set_attributes``."""
    unread = type(span) is UnreadSpan
    for verb, *given_with in doings:
        if verb in {"tell", "tell later"}:
            (said,) = given_with
            told = (lambda said=said: said) if verb == "tell later" else said
            span.tell(told) if unread else span.set_attributes(said)
        elif verb == "read":
            assert span.to_json()
        else:
            getattr(span, verb)(*given_with)
    span.end(END_NS)


def text(span: Any) -> dict[str, Any]:
    """Everything that an exporter can see of an ended span, but for its ids."""
    shown: dict[str, Any] = json.loads(span.to_json())
    dropped = span.dropped_attributes, span.dropped_events, span.dropped_links
    scope = span.instrumentation_scope
    return {**shown, "context": None, "dropped": dropped, "scope": (scope.name, scope.version)}


@given(first=SAID, links=LINKS, doings=DOINGS, limits=LIMITS, is_late=st.booleans())
def test_it_is_what_the_sdk_makes_of_it_at_once(
    first: dict[str, Any], links: Any, doings: Any, limits: dict[str, Any], is_late: bool
) -> None:
    """Attributes, links, events, status, name, limits and what they drop; in whatever order, and read in between."""
    exporter, tracer, starting = spans(**limits)
    if is_late:
        ours = started(starting, later=lambda: (first, plain(links)))
    else:
        ours = started(starting, first, linked(links))
    theirs = tracer.start_span("send orders", {}, SpanKind.PRODUCER, first, linked(links), START_NS)
    for span in (ours, theirs):
        done(span, doings)
    mine, its = exporter.take_all()
    assert text(mine) == text(its)
    assert list(mine.attributes) == list(its.attributes)


TOLD = st.lists(st.tuples(st.sampled_from(["tell", "tell later"]), SAID), max_size=2)


@given(first=SAID, links=LINKS, told=TOLD, limits=LIMITS)
def test_read_plainly_it_says_what_it_says_when_it_is_made(
    first: dict[str, Any], links: Any, told: Any, limits: dict[str, Any]
) -> None:
    """Or it is not read plainly: where the SDK would have cut, dropped or changed anything."""
    exporter, _, starting = spans(**limits)
    span = started(starting, first, later=lambda: (first, plain(links)))
    done(span, told)
    read = span.plainly()
    assert not span._is_made
    made = exporter.take()
    if read is not None:
        assert text(read) == text(made)
    elif limits == {"max_attributes": 128, "max_links": 128, "max_attribute_length": None}:
        values = [
            value for said in (first, *(its for _, its in links), *(its for _, its in told)) for value in said.values()
        ]
        assert any(type(value) not in {str, int, bool, float} for value in values)


def test_a_span_that_was_made_is_not_read_plainly() -> None:
    """Nor one whose texts have a limit."""
    span = started(spans()[2], {"a": 1})
    assert span.plainly().attributes == {"a": 1}
    assert span.attributes == {"a": 1}
    assert span.plainly() is None
    assert started(spans(max_attribute_length=9)[2], {"a": "b"}).plainly() is None


@pytest.mark.parametrize(
    "read",
    [
        lambda span: span.attributes,
        lambda span: span.events,
        lambda span: span.links,
        lambda span: span.dropped_attributes,
        lambda span: span.dropped_links,
        lambda span: span.to_json(),
        lambda span: span.set_status(Status(StatusCode.OK)),
        lambda span: span.record_exception(ValueError("no")),
        lambda span: span.set_attribute("b", ["c"]),
    ],
)
def test_whoever_looks_for_more_than_it_has_makes_it(read: Any) -> None:
    """And finds it made."""
    span = started(spans()[2], {"a": 1})
    assert not span._is_made
    read(span)
    assert span._is_made
    assert span.attributes["a"] == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda span: span.name,
        lambda span: span.context,
        lambda span: span.get_span_context(),
        lambda span: span.parent,
        lambda span: span.kind,
        lambda span: span.start_time,
        lambda span: span.end_time,
        lambda span: span.status,
        lambda span: span.resource,
        lambda span: span.is_recording(),
        lambda span: span.set_attribute("b", "c"),
        lambda span: getattr(span, "no_such_thing", None),
        repr,
    ],
)
def test_what_the_applications_thread_asks_makes_nothing(ask: Any) -> None:
    """Its name, its ids, its times; setting a plain value neither."""
    span = started(spans()[2], {"a": 1})
    ask(span)
    assert not span._is_made


def test_it_is_handed_over_as_it_came() -> None:
    """Until an exporter has it nobody has made it; the ledger and the lanes ask for what it started with."""
    exporter = RecordingExporter()
    ours = MqTraceSpanProcessor(exporter, max_queue_size=1, max_export_batch_size=1, background=False)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(ours)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider), group_name="shop")
    calls = [hook.before("orders", body=b"x") for _ in range(2)]
    for call in calls:
        hook.after(call, partition=3, offset=4)
        assert has_record(call.span)
        assert not call.span._is_made, "read before the worker had it"
    assert [(row["group"], row["count"]) for row in ours.ledger()["rows"]] == [("shop", 1)]
    ours.force_flush()
    assert exporter.take().attributes["mqtrace.offset_msg_id"] == "orders-3@4"
    ours.shutdown()


@needs_sdk(40, "attributes of an ended span can still be changed")
def test_it_ends_once(caplog: pytest.LogCaptureFixture) -> None:
    """The second end says so; what comes after the end is not taken, read or not."""
    exporter, _, starting = spans()
    span = started(starting, {"a": 1})
    with caplog.at_level(logging.WARNING):
        span.end(END_NS)
        span.end(END_NS)
        span.tell({"late": 1})
        span.set_attribute("late", 2)
    (ended,) = exporter.take_all()
    assert (ended.end_time, dict(ended.attributes)) == (END_NS, {"a": 1})
    assert [record.getMessage() for record in caplog.records] == [
        "Calling end() on an ended span.",
        "Setting attribute on ended span.",
        "Setting attribute on ended span.",
    ]
    with pytest.raises(TypeError):
        ended._attributes["a"] = 2


@needs_sdk(40, "attributes of an ended span can still be changed")
def test_threads_that_end_it_together_end_it_once() -> None:
    """And those that read it meanwhile all find the same."""
    for _ in range(50):
        exporter, _, starting = spans()
        span = started(starting, later=lambda: ({f"name {number}": number for number in range(100)}, ()))
        begin, found = threading.Barrier(6), []
        ending = [lambda: (begin.wait(), span.end(END_NS)) for _ in range(3)]  # noqa: B023
        reading = [lambda: (begin.wait(), found.append(len(span.attributes))) for _ in range(3)]  # noqa: B023
        threads = [threading.Thread(target=each) for each in (*ending, *reading)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        (ended,) = exporter.take_all()
        assert found == [100] * 3
        assert ended.end_time == END_NS
        with pytest.raises(TypeError):
            ended._attributes["more"] = 1


def test_what_is_told_while_another_thread_reads_is_there_afterwards() -> None:
    """Whichever comes first."""
    for _ in range(50):
        span = started(spans()[2], {"a": 1})
        begin = threading.Barrier(3)
        doing = (lambda: span.tell({"b": 2}), lambda: span.tell(lambda: {"c": 3}), lambda: span.attributes)  # noqa: B023
        threads = [threading.Thread(target=lambda do=do: (begin.wait(), do())) for do in doing]  # noqa: B023
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert dict(span.attributes) == {"a": 1, "b": 2, "c": 3}


def test_what_fails_when_it_is_read_costs_no_more_than_itself() -> None:
    """A mistake of ours on the exporter's thread."""

    def fails() -> Any:
        raise ZeroDivisionError

    exporter, _, starting = spans()
    span = started(starting, {"a": 1}, later=fails)
    span.tell(fails)
    span.tell({"b": 2})
    span.end()
    assert dict(exporter.take().attributes) == {"a": 1, "b": 2}


def test_a_snapshot_keeps_what_it_started_with() -> None:
    """What is told later is the live span's alone; of one that was told more already there is none."""
    span = started(spans()[2], {"a": 1})
    still = span.snapshot()
    span.tell({"b": 2})
    assert still is not None
    assert (dict(still.attributes), still.context, still.end_time) == ({"a": 1}, span.context, None)
    assert span.snapshot() is None
    assert dict(span.attributes) == {"a": 1, "b": 2}


def test_what_is_told_while_it_is_made_is_there_though_it_ended_meanwhile() -> None:
    """The thread that makes it, here held up in the middle, finds what was told in time."""
    exporter, _, starting = spans()
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Any:
        begun.set()
        assert go_on.wait(20)
        return {"a": 1}, ()

    span = started(starting, {"a": 1}, later=slowly)
    reader = threading.Thread(target=lambda: span.attributes)
    reader.start()
    assert begun.wait(20)
    ender = threading.Thread(target=lambda: (span.tell({"answer": 42}), span.end(END_NS)))
    ender.start()
    while not (span._told and span.end_time):
        pass
    go_on.set()
    reader.join()
    ender.join()
    assert dict(exporter.take().attributes) == {"a": 1, "answer": 42}


def test_an_application_that_sets_attributes_for_ever_keeps_as_many_as_the_sdk_does() -> None:
    """After a while it is made."""
    span = started(spans()[2], {"a": 1})
    for number in range(10_000):
        span.set_attribute(f"name {number}", number)
    assert (span._is_made, len(span._told)) == (True, 0)
    assert len(span.attributes) == 128


@pytest.mark.parametrize(
    "copied", [copy.copy, pytest.param(copy.deepcopy, marks=needs_sdk(40, "attributes cannot be copied deeply"))]
)
def test_a_copy_is_to_be_read_and_leaves_the_span_alone(copied: Any) -> None:
    """As one of the read-only span is, which the SDK hands over."""
    exporter, _, starting = spans()
    span = started(starting, {"a": 1})
    span.tell({"b": 2})
    still = copied(span)
    span.tell({"c": 3})
    span.end(END_NS)
    assert (type(still), still.context, still.attributes["b"]) == (ReadableSpan, span.context, 2)
    assert dict(exporter.take().attributes) == {"a": 1, "b": 2, "c": 3}


def test_what_somebody_put_in_the_place_of_its_attributes_stays() -> None:
    """A processor that redacts, say; nor is what it took away read plainly."""
    span = started(spans()[2], {"secret": 1})
    span.end(END_NS)
    span._attributes = {"redacted": True}
    assert span.events == ()
    assert span.plainly() is None
    assert dict(span.attributes) == {"redacted": True}
