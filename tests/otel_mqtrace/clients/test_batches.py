"""What ``produce_batch`` records under each policy, and that it answers, refuses and calls back as the C code does."""

import pytest
from confluent_kafka import SerializingProducer
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.hooks import guard
from tests.support.unique_ids import read_unique_id

TOO_LARGE = b"x" * 2_000_000
POLICIES = ["correlate", "send_each"]


def _under(policy):
    """Return the options of a policy; ``None`` stands for no tracing."""
    return False if policy is None else {"headerless_sends": policy}


def test_correlated_message_of_a_batch_has_its_offset_as_id(producer_of, spans, topic, tracer, stored):
    producer = producer_of(_under("correlate"))
    with tracer.start_as_current_span("checkout") as checkout:
        assert producer.produce_batch(topic, [{"value": b"1", "key": "k"}, {"value": "é"}, {"value": None}]) == 3
    spans.take("checkout")
    spans.assert_empty()
    producer.flush(10)
    sends = spans.take_all(f"send {topic}")
    assert [send.attributes["messaging.message.id"] for send in sends] == [f"{topic}-0@{n}" for n in range(3)]
    assert [send.attributes["messaging.message.body.size"] for send in sends] == [1, 2, 0]
    assert [send.attributes.get("messaging.kafka.message.key") for send in sends] == ["k", None, None]
    parent = checkout.get_span_context().span_id
    assert {(send.parent.span_id, send.kind) for send in sends} == {(parent, SpanKind.CLIENT)}
    assert all("messaging.batch.message_count" not in send.attributes for send in sends)
    assert [message.headers() for message in stored(topic, 3)] == [None] * 3


def test_message_of_a_batch_sent_alone_has_its_span_in_its_headers(producer_of, spans, topic, stored):
    producer = producer_of(_under("send_each"))
    messages = [{"value": b"1", "headers": {"TAGS": "paid"}}, {"value": b"2"}]
    assert producer.produce_batch(topic, messages) == 2
    producer.flush(10)
    sends = spans.take_all(f"send {topic}")
    lying = [(message.value(), dict(message.headers())) for message in stored(topic, 2)]
    assert [value for value, _ in lying] == [b"1", b"2"]
    assert [headers["UNIQ_KEY"].decode() for _, headers in lying] == [
        send.attributes["messaging.message.id"] for send in sends
    ]
    for send, (_, headers) in zip(sends, lying, strict=True):
        assert headers["traceparent"].split(b"-")[2].decode() == f"{send.context.span_id:016x}"
        assert send.kind is SpanKind.PRODUCER
    assert (lying[0][1]["TAGS"], sends[0].attributes["mqtrace.tags"]) == (b"paid", "paid")
    assert messages == [{"value": b"1", "headers": {"TAGS": "paid"}}, {"value": b"2"}]


def test_batch_under_leave_has_no_span(producer_of, spans, topic, stored):
    producer = producer_of(_under("leave"))
    assert producer.produce_batch(topic, [{"value": b"1"}]) == 1
    producer.flush(10)
    assert stored(topic, 1)[0].headers() is None
    spans.assert_empty()


class TestAsTheClient:
    @pytest.mark.parametrize("policy", POLICIES)
    def test_callbacks_are_called_as_without_tracing(self, producer_of, spans, topic, policy, callbacks):
        def run(policy):
            calls = []

            def named(name):
                return None if name is None else lambda _error, message: calls.append((name, message.value()))

            producer = producer_of(_under(policy), on_delivery=named("config"))
            messages = [
                {"value": b"own", "callback": named("own")},
                {"value": b"none", "callback": None},
                {"value": b"alias", "on_delivery": named("never")},
            ]
            producer.produce_batch(topic, messages, **{name: named(value) for name, value in callbacks.items()})
            producer.flush(10)
            return calls

        untraced = run(None)
        assert run(policy) == untraced
        assert len(spans.take_all(f"send {topic}")) == 3

    @pytest.mark.parametrize("policy", POLICIES)
    def test_refused_message_has_its_error_in_dict_and_span(self, producer_of, spans, topic, policy):
        def run(policy):
            calls = []
            messages = [{"value": b"1"}, {"value": TOO_LARGE, "callback": lambda *_: calls.append(1)}, {"value": b"2"}]
            producer = producer_of(_under(policy))
            queued = producer.produce_batch(topic, messages)
            producer.flush(10)
            return queued, [repr(message.get("_error")) for message in messages], calls

        untraced = run(None)
        assert untraced[0] == 2
        assert run(policy) == untraced
        refused, *delivered = spans.take_all(f"send {topic}")
        assert refused.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
        assert refused.status.status_code is StatusCode.ERROR
        assert [send.attributes["mqtrace.success"] for send in delivered] == [True, True]

    @pytest.mark.parametrize("policy", POLICIES)
    def test_full_queue_refuses_the_rest_of_the_batch(self, producer_of, spans, topic, policy):
        def run(policy):
            messages = [{"value": b"1"} for _ in range(4)]
            producer = producer_of(_under(policy), queue_buffering_max_messages=2, linger_ms=60_000)
            queued = producer.produce_batch(topic, messages)
            refused = spans.take_all()
            producer.purge()
            producer.flush(10)
            spans.take_all()
            return (queued, [repr(message.get("_error")) for message in messages]), refused

        untraced, _ = run(None)
        traced, refused = run(policy)
        assert traced == untraced
        assert [span.attributes["error.type"] for span in refused] == ["_QUEUE_FULL"] * 2

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize(
        ("messages", "kwargs"),
        [
            ([{"value": 5}], {}),
            ([{"value": b"x"}, {"key": 5}], {}),
            ([{"headers": (("a", b"1"),)}], {}),
            ([{"headers": {"a": 5}}], {}),
            ([{"timestamp": 5}], {}),
            ([{"partition": "x"}], {}),
            ([5], {}),
            (({"value": b"x"},), {}),
            ([{}], {"partition": "x"}),
            ([{}], {"nope": 1}),
        ],
    )
    def test_wrong_call_of_a_batch_raises_the_same_error(self, producer_of, spans, topic, policy, messages, kwargs):
        with pytest.raises((TypeError, ValueError, NotImplementedError)) as untraced:
            producer_of(_under(None)).produce_batch(topic, messages, **kwargs)
        producer = producer_of(_under(policy))
        with pytest.raises(type(untraced.value)) as traced:
            producer.produce_batch(topic, messages, **kwargs)
        assert str(traced.value) == str(untraced.value)
        assert {span.attributes["error.type"] for span in spans.take_all()} <= {type(untraced.value).__name__}

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("make_producer", [None, SerializingProducer])
    def test_list_and_dicts_of_the_caller_are_not_changed(self, producer_of, spans, topic, policy, make_producer):
        messages = [{"value": b"1", "callback": lambda *_: None, "_error": "old"}]
        before = [dict(message) for message in messages]
        producer = producer_of(_under(policy), make_producer)
        assert producer.produce_batch(topic, messages) == 1
        producer.flush(10)
        assert messages == before
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True

    def test_partition_of_a_message_is_ignored_as_without_tracing(self, producer_of, kafka, spans):
        kafka.create_topic(name := "batch-partitions", partitions=3)
        producer = producer_of(_under("send_each"))
        producer.produce_batch(name, [{"value": b"1", "partition": 0}, {"value": b"2"}], partition=2)
        producer.flush(10)
        sends = spans.take_all(f"send {name}")
        assert [send.attributes["messaging.destination.partition.id"] for send in sends] == ["2", "2"]

    def test_closed_producer_refuses_a_batch(self, producer_of, spans, topic):
        producer = producer_of(_under("send_each"))
        producer.close()
        with pytest.raises(RuntimeError, match="closed"):
            producer.produce_batch(topic, [{"value": b"1"}])
        assert spans.take(f"send {topic}").attributes["error.type"] == "RuntimeError"


@pytest.mark.parametrize("policy", POLICIES)
def test_suppressed_or_unsampled_batch_has_no_span(producer_of, spans, topic, policy, stored):
    producer = producer_of(_under(policy))
    unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0)))
    with suppress_instrumentation():
        assert producer.produce_batch(topic, [{"value": b"1"}]) == 1
    with trace.use_span(unsampled):
        assert producer.produce_batch(topic, [{"value": b"2"}]) == 1
    assert producer.produce_batch(topic, []) == 0
    producer.flush(10)
    first, second = stored(topic, 2)
    assert first.headers() is None
    if policy == "send_each":
        assert dict(second.headers())["traceparent"].endswith(b"-00")
        assert read_unique_id(dict(second.headers())["UNIQ_KEY"].decode())
    else:
        assert second.headers() is None


@pytest.mark.parametrize("policy", POLICIES)
def test_messages_of_a_batch_in_a_transaction_have_its_end(producer_of, spans, topic, policy):
    producer = producer_of(_under(policy), transactional_id=f"batch-{topic}")
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}])
    producer.commit_transaction(10)
    sends, ends = spans.take_all(f"send {topic}"), spans.take_all(f"end_transaction {topic}")
    assert [send.attributes["mqtrace.msg_type"] for send in sends] == ["Trans_Msg_Half"] * 2
    assert [end.attributes["messaging.message.id"] for end in ends] == [
        send.attributes["messaging.message.id"] for send in sends
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_messages_that_are_queued_when_a_signal_handler_raises_keep_their_outcome(
    producer_of, interrupted, spans, topic, policy
):
    producer = producer_of(_under(policy))
    interrupted(producer.produce_batch, topic, [{"value": b"1"}])
    assert producer.flush(10) == 0
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


@pytest.mark.parametrize("policy", POLICIES)
def test_exception_of_ours_loses_no_message_of_a_batch(
    producer_of, spans, topic, stored, policy, no_failures_yet, monkeypatch
):
    producer = producer_of(_under(policy))

    def fail(_hook, _tracing):
        raise ZeroDivisionError

    monkeypatch.setattr(producer._mqtrace_state, "bind", fail.__get__(producer._mqtrace_state))
    assert producer.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}]) == 2
    producer.flush(10)
    assert [message.value() for message in stored(topic, 2)] == [b"1", b"2"]
    assert spans.take_all() == []
    assert guard.failures() == {"produce_batch.plan": 1}


def test_header_name_in_bytes_is_kept_beside_ours(producer_of, spans, topic, stored):
    producer = producer_of(_under("send_each"))
    assert producer.produce_batch(topic, [{"value": b"1", "headers": [(b"UNIQ_KEY", b"7")]}]) == 1
    producer.flush(10)
    written = dict(stored(topic, 1)[0].headers())
    assert written["b'UNIQ_KEY'"] == b"7"
    assert spans.take(f"send {topic}").attributes["messaging.message.id"] == written["UNIQ_KEY"].decode()
