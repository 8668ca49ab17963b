"""The base of the native exporters: pack batches of spans, deliver the messages, count what became of the spans."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.packing import has_record
from otel_mqtrace.exporters.spool import Spool
from otel_mqtrace.exporters.spooled import SpooledDelivery

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.config import Settings
    from otel_mqtrace.exporters.delivery import MessageDelivery
    from otel_mqtrace.exporters.packing import SpanPacker, TraceMessage
    from otel_mqtrace.spans.stats import ExportOutcome

__all__ = ["NativeDeliveryExporter", "NativeExporter", "with_spool"]

_logger = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000


class NativeExporter(SpanExporter):
    """Packs spans with ``mqtrace.trace_type`` into trace messages, batch by batch, and sends those of all batches.

    ``export`` returns ``SUCCESS`` only when all of the batch was sent. A subclass sends.
    """

    exports_starts: Final = True
    takes_records: Final = True  # spans of sends and process spans alike
    wants = staticmethod(has_record)  # other spans are not offered to this lane
    ledger_side: Final = "native"
    _loss: ClassVar[str] = "delivered"

    def __init__(self, packer: SpanPacker) -> None:
        self._packer = packer
        self._outcome: ExportOutcome | None = None
        self._logged: set[str] = set()

    def export(self, spans: Sequence[ReadableSpan], timeout_millis: float | None = None) -> SpanExportResult:
        """Send ``spans`` and wait for the answer, at most ``timeout_millis``."""
        return self.export_batches([spans], timeout_millis)

    def export_batches(
        self, batches: Sequence[Sequence[ReadableSpan]], timeout_millis: float | None = None
    ) -> SpanExportResult:
        """Send several batches at once: the same messages as one by one."""
        packed = self._packer.pack_batches(batches)
        undelivered = self._send(packed.messages, timeout_millis) if packed.messages else ()
        self._outcome = self._packer.settle(sum(map(len, batches)), packed, undelivered)
        if packed.first_error is not None:
            self._warn_once(packed.first_error)
        return SpanExportResult.FAILURE if undelivered else SpanExportResult.SUCCESS

    def _send(self, messages: Sequence[TraceMessage], timeout_millis: float | None) -> Sequence[TraceMessage]:
        """Send ``messages`` and return those that were not taken."""
        raise NotImplementedError

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last export, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused."""
        return self._packer.counts.as_dict()

    def after_fork(self) -> None:
        """Count and log anew in a child."""
        self._logged = set()
        self._packer.after_fork()

    def _warn_once(self, text: str) -> None:
        level = logging.DEBUG if text in self._logged else logging.WARNING
        self._logged.add(text)
        line = f"mqtrace: native traces are not {self._loss}: %s (said once; counted in stats())"
        _logger.log(level, line, text)


class NativeDeliveryExporter(NativeExporter):
    """A native exporter with a broker behind it."""

    def __init__(self, packer: SpanPacker, delivery: MessageDelivery, *, timeout_ms: float, clock: Clock) -> None:
        super().__init__(packer)
        self._delivery = delivery
        self._timeout_ms = timeout_ms
        self._clock = clock

    def _send(self, messages: Sequence[TraceMessage], timeout_millis: float | None) -> Sequence[TraceMessage]:
        deadline = self._deadline(self._timeout_ms if timeout_millis is None else timeout_millis)
        return self._delivery.deliver(messages, deadline).messages

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused.

        With a spool also, in messages: spooled, replayed, replay_refused, spool_waiting; spool_torn_bytes.
        """
        return super().stats() | (self._delivery.stats() if isinstance(self._delivery, SpooledDelivery) else {})

    def on_idle(self) -> None:
        """Replay what the spool holds, if it is time to."""
        self._delivery.idle()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Return whether nothing is on its way, nor in the spool; ``export`` has waited already."""
        return self._delivery.flush(self._deadline(timeout_millis))

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Refuse further batches, end a running ``export`` early, close the connection within ``timeout_millis``."""
        self._delivery.close(self._deadline(timeout_millis))

    def after_fork(self) -> None:
        """In a child: build a connection of its own when needed, and never touch the parent's."""
        self._delivery.after_fork()
        super().after_fork()

    def _deadline(self, timeout_ms: float) -> MonotonicNs:
        return MonotonicNs(self._clock.monotonic_ns() + int(timeout_ms * _NS_PER_MS))


def with_spool(
    delivery: MessageDelivery, settings: Settings, spool_dir: str | Path | None, **options: Any
) -> MessageDelivery:
    """Return ``delivery`` with a spool, if a directory is set; a spool that cannot be used is a warning.

    ``options`` are keywords of :class:`~otel_mqtrace.exporters.spooled.SpooledDelivery`.
    """
    directory = spool_dir or settings.spool_dir
    if directory is None:
        return delivery
    try:
        spool = Spool(directory, max_bytes=settings.spool_bytes)
    except UsageError as error:
        _logger.warning("mqtrace: an outage of the trace broker will lose traces: %s", error)
        return delivery
    return SpooledDelivery(delivery, spool, **options)
