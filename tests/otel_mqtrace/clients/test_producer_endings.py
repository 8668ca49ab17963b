"""How a send ends when no delivery report tells: only errors reported, a flush given up, a close, a fork, tracing off."""

from __future__ import annotations

import os

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from otel_mqtrace.instrumentor import MqTraceInstrumentor


class TestWithoutReportsOfSuccess:
    @pytest.fixture
    def taciturn(self, instrument, kafka):
        instrument()
        conf = {"bootstrap.servers": kafka.bootstrap_servers, "delivery.report.only.error": True}
        with confluent_kafka.Producer(conf) as producer:
            yield producer

    def test_the_span_ends_when_the_broker_has_the_message(self, taciturn, spans, topic):
        taciturn.produce(topic, b"x")
        spans.assert_empty()
        assert taciturn.flush(10) == 0
        span = spans.take(f"send {topic}")
        assert span.attributes["mqtrace.send_outcome"] == "not_awaited"
        assert span.attributes["mqtrace.success"] is True
        assert span.attributes.keys().isdisjoint({"mqtrace.store_time", "messaging.kafka.offset", "error.type"})

    def test_a_message_that_fails_later_is_recorded_as_failed(self, taciturn, kafka, spans, topic):
        """The broker refuses one of two: its span has the error, and its callback is the only one called."""
        told = []
        taciturn.produce(topic, b"x", on_delivery=lambda error, _: told.append(error.name()))
        taciturn.flush(10)
        assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True
        kafka.push_request_errors(kafka.PRODUCE, 10)
        taciturn.produce(topic, b"x", on_delivery=lambda error, _: told.append(error.name()))
        taciturn.flush(10)
        failed = spans.take(f"send {topic}")
        assert failed.attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
        assert "mqtrace.send_outcome" not in failed.attributes
        assert told == ["MSG_SIZE_TOO_LARGE"]

    def test_a_batch_is_told_apart_the_same_way(self, taciturn, spans, topic):
        taciturn.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}])
        spans.assert_empty()
        taciturn.flush(10)
        outcomes = [span.attributes["mqtrace.send_outcome"] for span in spans.take_all(f"send {topic}")]
        assert outcomes == ["not_awaited"] * 2

    def test_nothing_is_kept_of_what_was_answered(self, taciturn, spans, topic):
        """However many are sent, only what is in flight is remembered."""
        for _ in range(200):
            taciturn.produce(topic, b"x")
        assert len(taciturn._mqtrace_state.in_flight) == 200
        taciturn.flush(10)
        assert not taciturn._mqtrace_state.in_flight
        assert len(spans.take_all(f"send {topic}")) == 200

    def test_a_call_that_is_refused_ends_with_its_error(self, taciturn, spans, topic):
        with pytest.raises(KafkaException):
            taciturn.produce(topic, b"x" * 2_000_000)
        assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"


class TestLeaving:
    @pytest.fixture
    def unheard(self, instrument):
        instrument()
        return confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

    def test_a_flush_that_gives_up_leaves_the_spans_open(self, unheard, spans, topic):
        unheard.produce(topic, b"x")
        assert unheard.flush(0.01) == 1
        spans.assert_empty()
        unheard.purge()
        unheard.flush(5)
        assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"

    @pytest.mark.parametrize(("leave", "arguments"), [("close", ()), ("__exit__", (None, None, None))])
    def test_a_callback_that_raises_in_close_leaves_no_span_open(
        self, instrument, kafka, spans, topic, leave, arguments
    ):
        def explode(error, message):
            raise RuntimeError("mine")

        def run():
            producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            for _ in range(3):
                producer.produce(topic, b"x", on_delivery=explode)
            with pytest.raises((RuntimeError, SystemError)) as raised:
                getattr(producer, leave)(*arguments)
            return type(raised.value), repr(raised.value.__cause__)

        untraced = run()
        instrument()
        assert run() == untraced
        outcomes = [span.attributes.get("mqtrace.send_outcome") for span in spans.take_all(f"send {topic}")]
        assert outcomes == [None, "abandoned", "abandoned"]

    def test_a_child_process_leaves_the_parents_spans_alone(self, unheard, spans, topic):
        """A fork inherits the spans in flight; what becomes of them only the parent will know."""
        unheard.produce(topic, b"x")
        child = os.fork()
        if child == 0:  # pragma: no cover - coverage does not follow
            unheard._mqtrace_state.abandon()
            os._exit(0 if not spans.take_all() and not unheard._mqtrace_state.in_flight else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        spans.assert_empty()
        unheard.purge()
        unheard.flush(5)
        assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"

    def test_a_message_in_flight_when_tracing_ends_is_ended_by_its_report(self, producer, spans, topic):
        producer.produce(topic, b"x")
        MqTraceInstrumentor().uninstrument()
        producer.flush(10)
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0
