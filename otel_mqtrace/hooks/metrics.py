"""The four messaging metrics of the semantic conventions 1.44, measured by the caller and recorded at a collection.

An SDK instrument takes about 10 us for each value. So the application's thread only queues what it measured; the values
are recorded when the MeterProvider collects, or by a worker before many have gathered.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import get_current

from otel_mqtrace import semconv
from otel_mqtrace._workers import LiveObjects, Worker, restart_in_child
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import deferred_ends, drain_deferred_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from opentelemetry.util.types import AttributeValue

    _Measure = Callable[[Mapping[str, AttributeValue], int], None]


_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_NAMES: Final = (
    semconv.MESSAGING_OPERATION_NAME,
    semconv.MESSAGING_SYSTEM,
    semconv.MESSAGING_DESTINATION_NAME,
    semconv.MESSAGING_CONSUMER_GROUP_NAME,
    semconv.SERVER_ADDRESS,
    semconv.SERVER_PORT,
    semconv.ERROR_TYPE,
)
"""The attributes that stay few: no message, no offset, and no partition, whose id the conventions recommend.

A topic of a thousand partitions would make a thousand series of each metric in every process; lag has its own metric.
"""

_SENT, _CONSUMED, _OPERATED, _PROCESSED = range(4)
_NS_PER_S: Final = 1e9
_MANY: Final = 1_000
"""Measurements that wait until the worker is woken, unless the MeterProvider collects first."""
_TOO_MANY: Final = 50_000
"""The most measurements that wait: at so many the caller records them."""
_LONGEST_WAIT_S: Final = 5.0
"""What so many take to be recorded, several times over."""
_AT_COLLECTION: Final = "mqtrace.collection"
_Measurement = tuple[int, "Mapping[str, AttributeValue]", int, "Context | None"]


class MessagingMetrics:
    """Durations in seconds, messages counted one by one. Each call takes the attributes of the span it belongs to.

    The instruments are those of the application's MeterProvider: what they raise costs no span.
    """

    def __init__(self, meter: Meter) -> None:
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            unit="{message}",
            description="Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )

        self.find_instrument: Callable[[], object] = partial(getattr, self._sent, "_real_instrument", self._sent)
        """Return an instrument of the MeterProvider; ``None`` while there is none."""
        self._pending: deque[_Measurement] = deque()
        self._recording = RLock()
        self._worker = Worker("mqtrace metrics", self.record_pending)
        self.sent: _Measure = partial(self._measure, _SENT)
        """One attempt to send one message is over: its attributes, its duration in nanoseconds."""
        self.received: _Measure = partial(self._measure, _CONSUMED)
        """Messages were handed to the application: their attributes, their number."""
        self.operated: _Measure = partial(self._measure, _OPERATED)
        """One send, receive or settle is over: its attributes, its duration in nanoseconds."""
        self.processed: _Measure = partial(self._measure, _PROCESSED)
        """The application is done with what it was handed: the attributes, the duration in nanoseconds."""
        meter.create_observable_gauge(_AT_COLLECTION, callbacks=[_record_all], description="Has no values.")
        _every.add(self)
        restart_in_child(self)

    def _measure(self, kind: int, attributes: Mapping[str, AttributeValue], value: int) -> None:
        pending = self._pending
        pending.append((kind, attributes, value, get_current() or None))
        if len(pending) >= _MANY and (len(pending) >= _TOO_MANY or not self._worker.ensure_running()):
            self._record_pending()  # without waiting: this is the application's thread

    def record_pending(self) -> None:
        """Record all that was measured until now: counts summed, durations one by one.

        Waits for another thread that does so: the last collection would not see what that one has taken. But not for
        ever: that thread may need a lock of the MeterProvider that this one holds while it collects.
        """
        recording = self._recording  # a child that a signal handler forks in here has another one
        is_alone = recording.acquire(timeout=_LONGEST_WAIT_S)
        try:
            self._record_pending()
        finally:
            if is_alone:
                recording.release()

    @guarded("metrics.record_pending")
    def _record_pending(self) -> None:
        counts: dict[tuple[int, tuple[tuple[str, AttributeValue], ...]], int] = {}
        known: dict[int, tuple[Mapping[str, AttributeValue], tuple[tuple[str, AttributeValue], ...]]] = {}
        try:
            for _ in range(len(self._pending)):
                kind, attributes, value, otel_ctx = self._pending.popleft()
                same = known.get(id(attributes))
                if same is None:
                    same = known[id(attributes)] = (
                        attributes,
                        tuple((name, attributes[name]) for name in _NAMES if name in attributes),
                    )
                few = same[1]
                if kind == _PROCESSED:
                    _record(self._process, value / _NS_PER_S, dict(few), otel_ctx)
                    continue
                if kind != _OPERATED:
                    counts[kind, few] = counts.get((kind, few), 0) + (value if kind == _CONSUMED else 1)
                if kind != _CONSUMED:
                    named = dict(few)
                    if semconv.MESSAGING_OPERATION_TYPE in attributes:
                        named[semconv.MESSAGING_OPERATION_TYPE] = attributes[semconv.MESSAGING_OPERATION_TYPE]
                    _record(self._operation, value / _NS_PER_S, named, otel_ctx)
        except IndexError:
            pass  # a signal handler, or a thread that does not wait, took the last ones
        finally:
            for (kind, few), number in counts.items():
                _count(self._consumed if kind == _CONSUMED else self._sent, number, dict(few))

    def after_fork(self) -> None:
        """Forget what the parent will record."""
        self._pending = deque()
        self._recording = RLock()
        self._worker = Worker("mqtrace metrics", self.record_pending)


_every: Final[LiveObjects[MessagingMetrics]] = LiveObjects()


def _record_all(_options: CallbackOptions) -> Iterable[Observation]:
    """Record pending values before a collection; this instrument observes nothing itself.

    A meter has one instrument of each name: this one serves all ``MessagingMetrics``. What a finaliser has left to end
    is over as well: the last collection would miss it.
    """
    if deferred_ends:
        drain_deferred_ends()
    for each in _every.all():
        each.record_pending()
    return ()


@guarded("metrics.record")
def _record(instrument: Any, value: float, attributes: Mapping[str, AttributeValue], otel_ctx: Context | None) -> None:
    instrument.record(value, attributes, otel_ctx)


@guarded("metrics.count")
def _count(instrument: Any, number: int, attributes: Mapping[str, AttributeValue]) -> None:
    instrument.add(number, attributes)
