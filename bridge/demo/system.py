"""This module knows how to run the order system once: broker, instrumentation, both exporters, every order, to the end.

The orders go out in chunks that are consumed and exported before the next one starts. A queue that overflows would be
a real loss beside the seeded ones; should it happen in spite of that, the run fails instead of blaming the plan.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from bridge.demo.departments import Billing, Department, Tally, ship
from bridge.demo.events import CONSUME, ORDERS, PAYMENTS, RETRY_TOPICS, SHIPPING, Event, events_of
from bridge.demo.faults import FaultKind
from bridge.demo.injection import FaultyEncoder, FaultySpanExporter
from bridge.demo.shop import OrderDesk
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from otel_mqtrace._errors import PeerError
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.spans.stats import lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from bridge.demo.faults import FaultPlan
    from bridge.demo.orders import Order
    from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka

__all__ = ["GRACE_MS", "TRACE_TOPIC", "create_topics", "run_orders"]

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
GRACE_MS: Final = 2_000
"""How late a record may arrive: longer than a batch lingers. The last order is sent this long after all the others."""

_CHUNK: Final = 100  # orders; a block of the order book, so that no transaction is torn apart
_PARTITIONS: Final = 4
_MESSAGES_PER_TRACE_PARTITION: Final = 2000  # far below what the embedded broker keeps of a partition
_FLUSH_MS: Final = 30_000
_SETTLE_S: Final = (GRACE_MS + 500) / 1e3


def create_topics(kafka: EmbeddedKafka, messages: int) -> None:
    """Create every topic; the trace topic gets partitions enough that retention never touches it."""
    for topic in (ORDERS, PAYMENTS, *RETRY_TOPICS):
        kafka.create_topic(topic, _PARTITIONS)
    kafka.create_topic(TRACE_TOPIC, _PARTITIONS + messages // _MESSAGES_PER_TRACE_PARTITION)


def run_orders(
    bootstrap_servers: str, book: Sequence[Order], plan: FaultPlan, *, otlp: Path, advance: Callable[[int], None]
) -> None:
    """Send, consume and trace every order; native records lie on the trace topic and spans in ``otlp`` afterwards.

    ``advance`` is told the number of orders that are done, chunk by chunk. Raises ``PeerError`` when anything was
    dropped, failed or did not come back in time.
    """
    with ExitStack() as stack:
        processor = stack.enter_context(_instrumented(bootstrap_servers, plan, otlp=otlp))
        shop = stack.enter_context(_opened(bootstrap_servers, plan))
        handled = 0
        for orders in _chunks(book):
            if orders[-1] is book[-1]:
                threading.Event().wait(_SETTLE_S)
            shop.desk.take(orders)
            handled += sum(event.kind == CONSUME for order in orders for event in events_of(order))
            shop.tally.wait_for(handled)
            processor.force_flush(_FLUSH_MS)
            advance(len(orders))


def _chunks(book: Sequence[Order]) -> Iterator[list[Order]]:
    # The last order travels alone, and late: whatever is older than it by the grace period counts as settled.
    remaining = iter(book[:-1])
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk
    yield [book[-1]]


@dataclass(frozen=True, slots=True)
class _Shop:
    desk: OrderDesk
    tally: Tally


@contextmanager
def _opened(bootstrap_servers: str, plan: FaultPlan) -> Iterator[_Shop]:
    crashing = {event for event, fault in plan.items() if fault.kind is FaultKind.CRASHED}
    billing = Billing(bootstrap_servers, crashes=lambda msg_id: Event(CONSUME, msg_id, Billing.GROUP) in crashing)
    tally = Tally()
    departments = [
        Department(group, topics, handle, bootstrap_servers=bootstrap_servers, tally=tally)
        for group, topics, handle in (
            (Billing.GROUP, Billing.TOPICS, billing.handle),
            (SHIPPING, (ORDERS,), ship),
        )
    ]
    desk = OrderDesk(bootstrap_servers)
    for department in departments:
        department.start()
    try:
        yield _Shop(desk, tally)
    finally:
        for department in departments:
            department.close()
        billing.close()


@contextmanager
def _instrumented(bootstrap_servers: str, plan: FaultPlan, *, otlp: Path) -> Iterator[MqTraceSpanProcessor]:
    """Trace the block into both exporters, each with the plan's faults; check the books afterwards."""
    processor = MqTraceSpanProcessor(
        NativeKafkaSpanExporter(
            bootstrap_servers=bootstrap_servers, trace_topic=TRACE_TOPIC, dialect="5.5.0", encode=FaultyEncoder(plan)
        ),
        FaultySpanExporter(otlp, plan),
        max_queue_size=2048,
        max_export_batch_size=100,
    )
    provider = TracerProvider(
        resource=Resource({"service.name": "order-system"}),
        sampler=ALWAYS_ON,
        span_limits=SpanLimits(),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(tracer_provider=provider, exporters=(), enabled=True, trace_topic=TRACE_TOPIC)
    try:
        yield processor
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    for lane, books in processor.stats().items():
        if lost(books) or books["pending"]:
            raise PeerError(f"the demo lost spans on its own, seeded faults aside: {lane}: {dict(books)}")
