"""The native exporter, and where its trace messages go: deliveries, one of which keeps a spool before another."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_mqtrace._clock import MonotonicNs, compute_deadline, seconds_until
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.packing import SpanPacker, has_record
from otel_mqtrace.exporters.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.config import Settings
    from otel_mqtrace.exporters.packing import Encode, TraceMessage
    from otel_mqtrace.exporters.spool import WaitingMessage
    from otel_mqtrace.spans.queue import ExportOutcome

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What a delivery could not send: ``retriable`` another time, ``rejected`` never, for the broker refuses it."""

    retriable: tuple[TraceMessage, ...] = ()
    rejected: tuple[TraceMessage, ...] = ()

    @property
    def messages(self) -> tuple[TraceMessage, ...]:
        """Both."""
        return self.retriable + self.rejected


class DeliveryFailures:
    """Logs each kind of failure once as a warning, then at DEBUG.

    ``lost`` is the word for what did not happen to traces, ``counted`` says where their number stands.
    """

    def __init__(self, lost: str = "delivered") -> None:
        self.counted = "in stats()"
        self._lost = lost
        self._logged: set[str] = set()

    def report(self, text: str, *, kind: str | None = None) -> None:
        """Log ``text``, one of a ``kind`` (else the text itself)."""
        kind = text if kind is None else kind
        level = logging.DEBUG if kind in self._logged else logging.WARNING
        self._logged.add(kind)
        line = "mqtrace: native traces are not %s: %s (logged once; counted %s)"
        _logger.log(level, line, self._lost, text, self.counted)

    def after_fork(self) -> None:
        """Log each failure again in a child."""
        self._logged = set()


class MessageDelivery(ABC):
    """Where the trace messages of an exporter go: a topic, files, or a spool before a topic. Never raises.

    ``failures`` logs why something was not delivered.
    """

    def __init__(self, clock: Clock, failures: DeliveryFailures | None = None) -> None:
        self._clock = clock
        self.failures = failures or DeliveryFailures()

    @abstractmethod
    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages`` and return those that were not taken by ``deadline``."""

    def idle(self) -> None:  # noqa: B027 - most have nothing left to do
        """Use a quiet moment."""

    def flush(self, deadline: MonotonicNs) -> bool:  # noqa: ARG002 - ``deliver`` has waited for every answer
        """Return whether nothing is on its way any more."""
        return True

    @abstractmethod
    def close(self, deadline: MonotonicNs) -> None:
        """Refuse further messages, end a running ``deliver`` early, and release everything by ``deadline``."""

    def after_fork(self) -> None:
        """Start over in a child, which never touches what is the parent's."""
        self.failures.after_fork()

    def stats(self) -> dict[str, int]:
        """Return what is counted beside the exporter's own totals."""
        return {}


PATIENCE_MS: Final = 8_000
"""How long a delivery may take before the disk takes over; a missing topic is reported after five seconds."""
_PROBE_MS: Final = 2_000
_RETRY_MS: Final = 5_000
_ADOPT_MS: Final = 30_000
_REPLAY_AT_ONCE: Final = 100
"""Messages between two batches of the lane: new spans must not wait for a long past."""


class SpooledDelivery(MessageDelivery):
    """Keep on disk what another :class:`~otel_mqtrace.exporters.native_delivery.MessageDelivery` could not send.

    A message taken by the spool counts as delivered. It reaches the broker once, unless the process dies between the
    broker's answer and the mark, or the broker took what it never acknowledged: then twice.
    """

    def __init__(self, inner: MessageDelivery, spool: Spool, *, timeout_ms: float, clock: Clock) -> None:
        super().__init__(clock, inner.failures)
        self.failures.counted = "in stats(), those that wait on disk as spooled"
        self._inner = inner
        self._spool = spool
        self._timeout_ms = timeout_ms
        self._adopt_ns = compute_deadline(clock, _ADOPT_MS)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._retry_ns: MonotonicNs | None = None  # while the broker is away
        self._probed = -1  # the place of the waiting message that was tried last
        self._counts = dict.fromkeys(("spooled", "replayed", "replay_refused"), 0)

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages``, or keep them; return what could be neither."""
        with self._in_use():
            if not self._may_be_back(deadline):
                return self._keep(Undelivered(tuple(messages)))
            left = self._send(messages, deadline, PATIENCE_MS)
            if not left.retriable:
                self._adopt_due()
                self._replay(self._spool.oldest(_REPLAY_AT_ONCE), deadline)
            return self._keep(left)

    def idle(self) -> None:
        """Try what waits, if it is time to."""
        with self._in_use():
            self._adopt_due()
            deadline = compute_deadline(self._clock, self._timeout_ms)
            if self._spool.waiting and self._may_be_back(deadline):
                self._replay(self._spool.oldest(_REPLAY_AT_ONCE), deadline)

    def flush(self, deadline: MonotonicNs) -> bool:
        """Send what waits; ``True`` only when nothing is left on disk nor on its way."""
        with self._in_use():
            while self._spool.waiting and self._clock.monotonic_ns() < deadline:
                if not self._replay(self._spool.oldest(_REPLAY_AT_ONCE), deadline):
                    return False
            return self._inner.flush(deadline) and not self._spool.waiting

    def close(self, deadline: MonotonicNs) -> None:
        """Close by ``deadline``; a running delivery ends early; waiting messages stay on disk for another process."""
        self._inner.close(deadline)
        self._closed = True
        if self._lock.acquire(timeout=seconds_until(self._clock, deadline)):
            try:
                self._spool.close()
            finally:
                self._lock.release()

    def after_fork(self) -> None:
        """Start over in a child, which adopts what siblings leave behind."""
        self._begin()
        self._adopt_ns = MonotonicNs(0)
        self._inner.after_fork()
        self._spool.after_fork()

    def stats(self) -> dict[str, int]:
        """Return how many messages went to disk, came back, were rejected by the broker, and still wait.

        ``spool_torn_bytes`` counts bytes that a crash, the disk or another program has destroyed.
        """
        return self._counts | {"spool_waiting": self._spool.waiting, "spool_torn_bytes": self._spool.corrupt_bytes}

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                if self._closed:
                    self._spool.close()

    def _may_be_back(self, deadline: MonotonicNs) -> bool:
        """Return ``False`` in an outage, until it is time to try and the broker takes one of the waiting messages."""
        if self._retry_ns is None:
            return True
        if self._clock.monotonic_ns() < self._retry_ns:
            return False
        # the next one each time: the broker may never take the oldest, nor the newest
        self._probed = (self._probed + 1) % max(1, min(self._spool.waiting, _REPLAY_AT_ONCE))
        return self._replay(self._spool.oldest(self._probed + 1)[-1:], deadline, _PROBE_MS)

    def _keep(self, left: Undelivered) -> Undelivered:
        taken = self._spool.put(left.retriable) if left.retriable else 0
        self._counts["spooled"] += taken
        return Undelivered(left.retriable[taken:], left.rejected)

    def _replay(self, waiting: Sequence[WaitingMessage], deadline: MonotonicNs, within_ms: int = PATIENCE_MS) -> bool:
        """Send ``waiting``; return whether the broker took it all."""
        if not waiting:
            return True
        left = self._send([each.message for each in waiting], deadline, within_ms)
        retriable = set(map(id, left.retriable))
        done = [each for each in waiting if id(each.message) not in retriable]
        self._counts["replay_refused"] += len(left.rejected)
        self._counts["replayed"] += len(done) - len(left.rejected)
        self._spool.ack(done)
        return not left.retriable

    def _send(self, messages: Sequence[TraceMessage], deadline: MonotonicNs, within_ms: int) -> Undelivered:
        """Send ``messages``; the broker is away when it takes none at all: for some it may just be too slow."""
        left = self._inner.deliver(messages, min(deadline, compute_deadline(self._clock, within_ms)))
        is_away = bool(left.retriable) and len(left.messages) == len(messages)
        self._retry_ns = compute_deadline(self._clock, _RETRY_MS) if is_away else None
        return left

    def _adopt_due(self) -> None:
        if self._clock.monotonic_ns() >= self._adopt_ns:
            self._adopt_ns = compute_deadline(self._clock, _ADOPT_MS)
            self._spool.adopt()


class NativeExporter(SpanExporter):
    """Packs spans with ``mqtrace.trace_type`` into trace messages, batch by batch, and delivers those of all batches.

    ``export`` returns ``SUCCESS`` only when all of the batch was delivered. Every native exporter takes:

    Args:
        dialect: Which RocketMQ release's records to write; else ``MQTRACE_DIALECT``.
        region_id: Region of contexts that have none.
        max_message_bytes: Bound of a trace message's body, in encoded bytes; else ``MQTRACE_MAX_MESSAGE_BYTES``.
        encode: The encoder; a test or a demo may wrap it.
        clock: Time.

    A wrong value is a warning, and the environment's or the default is used: no exporter is lost for it.
    """

    exports_starts: Final = True
    takes_records: Final = True  # spans of sends and process spans alike
    wants = staticmethod(has_record)  # other spans are not offered to this lane
    ledger_side: Final = "native"

    def __init__(  # noqa: PLR0913 - collaborators by their names
        self,
        settings: Settings,
        delivery: MessageDelivery,
        *,
        encode: Encode,
        region_id: str | None,
        clock: Clock,
        timeout_ms: float = 30_000,
    ) -> None:
        self._packer = SpanPacker(
            encode=encode,
            dialect=settings.dialect,
            max_message_bytes=settings.max_message_bytes,
            region_id=None if region_id is None else settings.region_id,  # as read there
        )
        self._outcome: ExportOutcome | None = None
        self._delivery = delivery
        self._timeout_ms = timeout_ms
        self._clock = clock

    def export(self, spans: Sequence[ReadableSpan], timeout_millis: float | None = None) -> SpanExportResult:
        """Send ``spans`` and wait for the answer, at most ``timeout_millis``."""
        return self.export_batches([spans], timeout_millis)

    def export_batches(
        self, batches: Sequence[Sequence[ReadableSpan]], timeout_millis: float | None = None
    ) -> SpanExportResult:
        """Send several batches at once: the same messages as one by one."""
        packed = self._packer.pack_batches(batches)
        undelivered: Sequence[TraceMessage] = ()
        if packed.messages:
            deadline = compute_deadline(self._clock, self._timeout_ms if timeout_millis is None else timeout_millis)
            undelivered = self._delivery.deliver(packed.messages, deadline).messages
        self._outcome = self._packer.settle(sum(map(len, batches)), packed, undelivered)
        if packed.first_error is not None:
            self._delivery.failures.report(packed.first_error)
        return SpanExportResult.FAILURE if undelivered else SpanExportResult.SUCCESS

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last export, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused.

        With a spool also, in messages: spooled, replayed, replay_refused, spool_waiting; spool_torn_bytes.
        """
        return self._packer.counts.as_dict() | self._delivery.stats()

    def on_idle(self) -> None:
        """Finish files that have grown old, or replay what a spool holds, if it is time to."""
        self._delivery.idle()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Return whether readers can see all that was exported: nothing is on its way, nor in a spool."""
        return self._delivery.flush(compute_deadline(self._clock, timeout_millis))

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Refuse further batches, end a running ``export`` early, and release everything within ``timeout_millis``."""
        self._delivery.close(compute_deadline(self._clock, timeout_millis))

    def after_fork(self) -> None:
        """Start over in a child: count and log from the start, and never touch what is the parent's."""
        self._delivery.after_fork()
        self._packer.after_fork()


def with_spool(
    delivery: MessageDelivery, settings: Settings, *, broker: str, timeout_ms: float, clock: Clock
) -> MessageDelivery:
    """Return ``delivery`` with a spool, if a directory is set; a spool that cannot be used is a warning."""
    if settings.spool_dir is None:
        return delivery
    # What waits for one trace topic must not reach another's broker.
    directory = Path(settings.spool_dir, f"{broker}-{quote(settings.trace_topic, safe='')}")
    try:
        spool = Spool(directory, max_bytes=settings.spool_bytes)
    except UsageError as error:
        _logger.warning("mqtrace: an outage of the trace broker will lose traces: %s", error)
        return delivery
    return SpooledDelivery(delivery, spool, timeout_ms=timeout_ms, clock=clock)
