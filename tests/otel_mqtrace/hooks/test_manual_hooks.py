"""The hooks called by hand, as an adapter of another client calls them, and the outcomes a handler sets."""

import asyncio
import json
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from otel_mqtrace import ConsumeHook, MqTraceInstrumentor, SendHook, SettleHook, process
from otel_mqtrace.hooks import outcome
from otel_mqtrace.hooks.guard import failures
from otel_mqtrace.hooks.propagation import index_headers, pairs_of
from otel_mqtrace.hooks.settle import TransactionHook
from otel_mqtrace.hooks.tracing import ClientInfo, host_and_port
from otel_mqtrace.model import ContextCode, TraceType, TransactionState
from otel_mqtrace.records.message import header_text, key_text
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.landings import landed_bodies, records_of
from tests.support.mailbox import Letter, incoming
from tests.support.opentelemetry_release import needs_sdk
from tests.support.source_tree import ROOT


def test_message_has_its_id_and_times_in_both_formats(tracing, clock, spans):
    send = SendHook(system="mybroker", group_name="shop", servers="broker:9000", tracing=tracing)
    consume = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000", tracing=tracing)
    call = send.before("orders", body=b"abc", headers=[("KEYS", b"k1 k2")])
    clock.advance(ms=12)
    send.after(call, partition=3, offset=42, store_host="node-2:9000")
    clock.advance(ms=5)
    (processing,) = consume.before([incoming(*call.headers, partition=3, offset=42, body_length=3)])
    clock.advance(ms=7)
    consume.after(processing, code=ContextCode.FAILED)
    sent, processed = trace_context_of(spans.take()), spans.take()
    received = trace_context_of(processed)
    assert (sent.timestamp_ms, sent.cost_ms, sent.success) == (1_700_000_000_000, 12, True)
    assert (sent.beans[0].offset_msg_id, sent.beans[0].store_host) == ("orders-3@42", "node-2:9000")
    assert (received.timestamp_ms, received.cost_ms, received.success) == (1_700_000_000_024, 7, False)
    assert received.beans[0].msg_id == sent.beans[0].msg_id
    assert received.beans[0].keys == "k1 k2"
    assert processed.attributes["messaging.system"] == "mybroker"
    assert processed.parent.span_id == call.span_context.span_id


class Unusable:
    """Refuses whatever is done with it."""

    def refuse(self, *_):
        raise LookupError

    __bool__ = __eq__ = __getattr__ = __iter__ = __len__ = __str__ = refuse
    __hash__ = None


def test_hooks_never_raise_whatever_they_are_given(tracing_with, spans, no_failures_yet):
    tracing = tracing_with(receive_spans=True, empty_poll_spans=True, settle_spans=True)
    send, consume, settle = (each(tracing=tracing) for each in (SendHook, ConsumeHook, SettleHook))
    given = Unusable()
    made = [send.before(given), consume.before(given), consume.before([given])]
    made += [send.after(given), consume.after(given), settle.after(given)]
    made += [consume.received(given, start_ns=1), consume.empty(start_ns=given)]
    made += [consume.poll_failed(start_ns=1, error=given), consume.poll_failed(start_ns=given)]
    assert [each for each in made if each] == []
    assert sum(failures().values()) == len(made)


def test_clock_that_steps_back_makes_a_cost_of_zero(tracing, clock, spans):
    hook = SendHook(tracing=tracing)
    call = hook.before("orders")
    clock.advance(ms=-5)
    hook.after(call)
    assert spans.take().attributes["mqtrace.cost_time"] == 0


def test_messages_of_several_topics_have_a_span_each(tracing, spans):
    hook = ConsumeHook(tracing=tracing)
    calls = hook.before([incoming(topic=name, offset=n) for n, name in enumerate("abab")])
    assert [call.indexes for call in calls] == [(0, 2), (1, 3)]
    for call in calls:
        hook.after(call)
    assert [span.name for span in spans.take_all()] == ["process a", "process b"]


@pytest.fixture
def joined(tracing_with, spans):
    """Begin a transaction of that many messages with a queue of the given size; ``transactions`` times, the last open."""

    def begin(count, queue_size, transactions=1):
        tracing = tracing_with(queue_size=queue_size)
        hook, ends = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())
        for _ in range(transactions):
            ends.begin()
            for _ in range(count):
                call = hook.before("orders", transaction_id=ends.transaction_id)
                hook.after(call)
                ends.joined(call)
        assert len(spans.take_all("send orders")) == count * transactions
        return ends

    return begin


def test_overlong_transaction_is_limited_and_counted_unless_abandoned(joined, spans, caplog, monkeypatch):
    before = MqTraceInstrumentor().unrecorded
    joined(2, queue_size=2, transactions=2)
    assert MqTraceInstrumentor().unrecorded == before
    monkeypatch.setitem(outcome._missing, outcome.TOO_LONG, 0)
    ends = joined(5, queue_size=4)
    ends.ended(TransactionState.COMMIT_MESSAGE, start_ns=ends.now_ns())
    assert len(spans.take_all("end_transaction orders")) == 2
    assert MqTraceInstrumentor().unrecorded["transaction_too_long"] == 3
    assert ["5 messages" in record.getMessage() for record in caplog.records] == [True]


@pytest.mark.parametrize(("queue_size", "ends_shown"), [(None, 1000), (100, 50), (1, 1)])
def test_ends_of_one_transaction_fit_into_the_queue(joined, spans, queue_size, ends_shown):
    ends = joined(1_100, queue_size=queue_size)
    ends.ended(TransactionState.ROLLBACK_MESSAGE, start_ns=ends.now_ns())
    assert len(spans.take_all("end_transaction orders")) == ends_shown


@pytest.mark.parametrize("headers", [[["a", b"1"]], (["a", b"1"],), 5, "text"])
def test_headers_of_other_types_are_left_to_the_client(headers):
    assert pairs_of(headers) is None


def test_key_that_has_not_exactly_one_form_as_text_is_left_out():
    keys = (-7, 1.5, b"\xc3\xa9", True, 10**5000, b"\xff", {})
    assert [*map(key_text, keys)] == ["-7", "1.5", "é", None, None, None, None]


def test_last_header_of_a_name_is_read_and_none_is_skipped():
    assert header_text(index_headers([("a", b"1"), ("A", b"x"), ("a", b"2"), ("a", None)]), "a") == "2"
    assert header_text(index_headers([("a", None)]), "a") is None


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("broker:9092", ("broker", 9092)),
        ("SASL_SSL://broker:9093,other:1", ("broker", 9093)),
        ("[::1]:9092", ("::1", 9092)),
        ("::1", ("::1", None)),
        ("amqps://me:hu@sh@broker:5671/orders", ("broker", 5671)),
        ("redis://:hush@[::1]:6379?password=hush", ("::1", 6379)),
        ("amqp://me:hu,sh@broker:5672, amqp://me:hush@other:1", ("broker", 5672)),
        ("me:hush@broker:1,me:hush@other:2", ("broker", 1)),
        ("me:hush@broker", ("broker", None)),
        ("broker", ("broker", None)),
        ("", (None, None)),
    ],
)
def test_first_server_is_split_into_host_and_port(servers, expected):
    assert host_and_port(servers) == expected


def test_recorded_attributes_of_a_message_never_change(tracing, spans):
    hook = ConsumeHook(tracing=tracing)
    headers, key = [("UNIQ_KEY", b"ID1")], bytearray(b"k1")
    message = incoming(offset=1, key=key, headers=headers)
    handed = [message]
    (call,) = hook.before(handed)
    handed.clear()
    message.offset, headers[0], key[:] = 2, ("UNIQ_KEY", b"ID2"), b"k2"
    hook.after(call)
    attributes = spans.take().attributes
    names = ("messaging.message.id", "messaging.kafka.offset", "messaging.kafka.message.key")
    assert [attributes[name] for name in names] == ["ID1", 1, "k1"]


EXAMPLE = ROOT / "docs" / "examples" / "own_client.py"


def _read(span):
    return {**span, **{each["key"]: next(iter(each["value"].values())) for each in span.get("attributes", ())}}


@needs_sdk(40, "the exporter to JSON files of the example")
def test_example_of_a_client_of_ones_own_has_its_messages_in_both_formats(run_code, tmp_path):
    printed = run_code(EXAMPLE.read_text(encoding="utf-8"), tmp_path)
    assert (printed.count("billed: "), printed.count("billed: order 3, attempt 2")) == (5, 1)
    assert "refused: 5 jobs are waiting" in printed
    landed = records_of(landed_bodies(tmp_path))
    requests = [json.loads(line) for line in (tmp_path / "spans.jsonl").read_text(encoding="utf-8").splitlines()]
    scopes = [scope for request in requests for each in request["resourceSpans"] for scope in each["scopeSpans"]]
    spans = {span["spanId"]: _read(span) for scope in scopes for span in scope["spans"]}

    def otlp(name):
        return [each for each in spans.values() if each["name"] == name]

    for kind, name in ((TraceType.PUB, "send orders"), (TraceType.SUB_AFTER, "process orders")):
        records = [(each.beans[0].msg_id, each.success) for each in landed if each.trace_type is kind]
        assert sorted(records) == sorted((each["messaging.message.id"], each["mqtrace.success"]) for each in otlp(name))
        assert sorted(success for _, success in records) == [False] + [True] * 5
    (again,) = [each for each in otlp("process orders") if each["mqtrace.retry_times"] == "1"]
    assert again["mqtrace.keys"] == {"values": [{"stringValue": "order-3"}]}
    assert {spans[each["parentSpanId"]]["name"] for each in otlp("charge")} == {"process orders"}
    senders = [spans[link["spanId"]]["name"] for each in otlp("process orders") for link in each["links"]]
    assert senders == ["send orders"] * 6


def test_example_imports_public_names_only():
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "from otel_mqtrace." not in text.replace("from otel_mqtrace.exporters.native_file", "")


def _taken(spans):
    span = spans.take("process letters")
    record = trace_context_of(span)
    assert record.success is (record.context_code in {ContextCode.SUCCESS, ContextCode.TIME_OUT})
    assert (span.status.status_code is StatusCode.ERROR) is not record.success
    return span, record.context_code


@contextmanager
def _handle(mailbox, *, automatic):
    if automatic:
        mailbox.take(Letter(1))
        yield
        mailbox.done()
    else:
        with process(Letter(1)):
            yield


both_ways = pytest.mark.parametrize("automatic", [False, True], ids=["block", "automatic"])


@pytest.mark.parametrize(
    ("fails", "ms", "code"),
    [(False, 999, ContextCode.SUCCESS), (False, 1_000, ContextCode.TIME_OUT), (True, 50_000, ContextCode.FAILED)],
)
@both_ways
def test_success_slower_than_the_limit_is_a_time_out(mailbox_with, spans, clock, automatic, fails, ms, code):
    with _handle(mailbox_with(process_timeout_ms=1_000), automatic=automatic):
        clock.advance(ms=ms)
        if fails:
            process.failed()
    assert _taken(spans)[1] is code


async def _in_a_task(act):
    act()


@pytest.mark.parametrize("code", [ContextCode.FAILED, ContextCode.RETURNNULL, ContextCode.EXCEPTION])
@pytest.mark.parametrize("where", [lambda act: act(), lambda act: asyncio.run(_in_a_task(act))], ids=["here", "task"])
@both_ways
def test_handler_sets_its_outcome_from_anywhere(mailbox, spans, automatic, where, code):
    def deep():
        with trace.NoOpTracer().start_as_current_span("inner"):
            process.outcome(code.name)

    with _handle(mailbox, automatic=automatic):
        where(deep)
    span, recorded = _taken(spans)
    assert recorded is code
    assert span.attributes["error.type"] == code.name


def test_last_outcome_wins_and_does_not_affect_the_next_message(mailbox, spans):
    mailbox.take(Letter(1))
    process.outcome(ContextCode.SUCCESS)
    process.failed()
    mailbox.take(Letter(2))
    process.failed()
    process.outcome(ContextCode.SUCCESS)
    mailbox.take(Letter(3))
    mailbox.done()
    expected = [ContextCode.FAILED, ContextCode.SUCCESS, ContextCode.SUCCESS]
    assert [_taken(spans)[1] for _ in range(3)] == expected


def test_outcome_outside_of_a_handler_has_no_effect(mailbox, spans):
    process.failed()
    process.outcome("RETURNNULL")
    assert not process.current().span.is_recording()
    with process(Letter(1)):
        pass
    assert _taken(spans)[1] is ContextCode.SUCCESS


@pytest.mark.parametrize(
    ("status", "code"),
    [(Status(StatusCode.ERROR, "card refused"), ContextCode.FAILED), (Status(StatusCode.OK), ContextCode.SUCCESS)],
    ids=["error", "ok"],
)
@both_ways
def test_status_the_application_set_is_the_outcome(mailbox, spans, automatic, status, code):
    with _handle(mailbox, automatic=automatic):
        trace.get_current_span().set_status(status)
        trace.get_current_span().set_attribute("error.type", "CardRefused")
    span, recorded = _taken(spans)
    assert recorded is code
    assert (span.status.description, span.attributes["error.type"]) == (status.description, "CardRefused")


@both_ways
def test_message_and_its_handle_are_current_again_after_an_inner_block(mailbox, spans, automatic):
    with _handle(mailbox, automatic=automatic):
        outer, span = process.current(), trace.get_current_span()
        with process(Letter(2)) as inner:
            assert process.current() is inner
            assert trace.get_current_span() is inner.span is not span
        assert (process.current(), trace.get_current_span()) == (outer, span)
        process.failed()
    assert [_taken(spans)[1] for _ in range(2)] == [ContextCode.SUCCESS, ContextCode.FAILED]


def test_one_failure_sets_the_outcome_of_the_batch(mailbox, spans):
    for letter in process.each(mailbox.bundle(Letter(1), Letter(2), Letter(3))):
        if letter.number == 2:
            process.failed()
    span, code = _taken(spans)
    assert code is ContextCode.FAILED
    assert span.attributes["messaging.batch.message_count"] == 3
