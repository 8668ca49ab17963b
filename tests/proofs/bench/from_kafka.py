"""The cost of a trace record on its way from a real Kafka to OTLP, compared with a Collector's span.

Both are whole processes, with the CPU time that the system counts. ``mqtrace forward --once`` reads a native trace topic to
its end; a Collector reads the same events as spans until the receiver has every one. A missing span fails the run.
"""

import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from confluent_kafka import Producer

from bridge.forwarder.otlp_requests import requests_of
from bridge.forwarder.pairing import Event
from bridge.forwarder.span_fields import SpanRules
from otel_mqtrace.landing import LandedMessage
from tests.peers.collector.server import Collector
from tests.peers.go_build import PROGRAMS, built
from tests.peers.kafka.broker import KafkaBroker
from tests.peers.peer import PeerUnavailableError, until
from tests.proofs.bench.forwarding import (
    ENCODE,
    RECORDS_AT_ONCE,
    RECORDS_EACH,
    SPANS_EACH,
    Nowhere,
    cpu_us,
    forwarded,
    receiver,
    trace_messages,
)
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns
from tests.support.programs import MQTRACE, run_program

_NATIVE, _SPANS = "native", "spans"
_TARGET: Final = Target("≥", 50_000, "records/s")
_PATIENCE_S: Final = 300.0
_CONFIGURATION: Final = Path(__file__).with_name("from_kafka.yaml")


def measure(effort: Effort) -> list[Row]:
    """Fill both topics once, then let both forward everything, in turns; without a peer say so and measure nothing."""
    try:
        with _topics(effort.messages) as contenders:
            took = run_in_turns(contenders, effort.rounds)
    except PeerUnavailableError as reason:
        sys.stdout.write(f"bench: from Kafka SKIPPED: {reason}\n")
        return []
    ours, theirs, alone = took.values()
    note = "per second of CPU time of the whole process, start included; three records make two spans"
    return [
        compare("trace records forwarded from Kafka", "Collector, of spans", ours, theirs, "records/s", _TARGET, note),
        compare(ENCODE, "none", alone, None, "records/s"),
    ]


@contextmanager
def _topics(messages: int) -> Iterator[dict[str, Callable[[], float]]]:
    """Give all contenders, each of which returns the records that it brings somewhere in a second of CPU time."""
    collector = built(PROGRAMS["collector"])
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(KafkaBroker(home / "kafka"))
        endpoint, received = stack.enter_context(receiver())
        bodies = _fill(kafka, messages)
        groups = count()

        def forward() -> None:
            source = f"kafka://{kafka.bootstrap_servers}/{_NATIVE}"
            where = ("--source", source, "--otlp-endpoint", endpoint, "--group", f"ours-{next(groups)}")
            done = run_program(*MQTRACE, "forward", "--once", *where)
            assert done.returncode == 0, done.stderr

        def collect() -> None:
            group, wanted = f"theirs-{next(groups)}", received() + SPANS_EACH * messages
            where = {"KAFKA": kafka.bootstrap_servers, "TOPIC": _SPANS, "RECEIVER": endpoint, "GROUP": group}
            with Collector(collector, home / group, _CONFIGURATION, {**where, "GOMAXPROCS": "1"}):
                received_spans = until(received, lambda spans: spans >= wanted, patience_s=_PATIENCE_S)
                assert received_spans >= wanted, "the Collector did not bring every span"

        def rate(act: Callable[[], None]) -> float:
            spans, cpu_s = received(), _cpu_s()
            act()
            assert received() - spans == SPANS_EACH * messages, "spans were lost, or came twice"
            return RECORDS_EACH * messages / (_cpu_s() - cpu_s)

        yield {
            "ours": lambda: rate(forward),
            "theirs": lambda: rate(collect),
            "alone": lambda: _alone(bodies, messages),
        }


def _alone(bodies: Sequence[LandedMessage], messages: int) -> float:
    return RECORDS_EACH * messages / cpu_us(lambda: forwarded(bodies, Nowhere(), SPANS_EACH * messages)) * 1e6


def _fill(kafka: KafkaBroker, messages: int) -> list[LandedMessage]:
    """Write the records to one topic and their spans to another, about as many to a message; return the records."""
    for topic in (_NATIVE, _SPANS):
        kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    bodies = trace_messages(messages)
    for body in bodies:
        producer.produce(_NATIVE, body.body, on_delivery=_raise)
        producer.poll(0)
    forwarded(bodies, _ToTopic(producer), SPANS_EACH * messages)
    assert producer.flush(_PATIENCE_S) == 0
    return bodies


class _ToTopic:
    """Takes the forwarder's spans to a Kafka topic, as a Collector's Kafka exporter would have written them."""

    rejected = 0

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def deliver(self, events: Sequence[Event], rules: SpanRules) -> None:
        at_once = RECORDS_AT_ONCE * SPANS_EACH // RECORDS_EACH
        for first in range(0, len(events), at_once):
            for request in requests_of(events[first : first + at_once], rules):
                self._producer.produce(_SPANS, request.body, on_delivery=_raise)
            self._producer.poll(0)


def _raise(error: object, _message: object) -> None:
    assert error is None, error


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
