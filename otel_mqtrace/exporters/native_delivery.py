"""This module knows what the native exporters with a broker behind them share: pack, deliver, settle, tell once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace._errors import UsageError
from otel_mqtrace.exporters.native_spans import has_record
from otel_mqtrace.exporters.spool import Spool
from otel_mqtrace.exporters.spooled import SpooledDelivery

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.config import Settings
    from otel_mqtrace.exporters.native_spans import SpanPacker
    from otel_mqtrace.exporters.trace_producer import MessageDelivery
    from otel_mqtrace.spans.stats import ExportOutcome

__all__ = ["NativeDeliveryExporter", "kept_in_spool"]

_logger = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000


class NativeDeliveryExporter(SpanExporter):
    """Packs spans with ``mqtrace.trace_type`` into trace messages and hands those to a delivery.

    ``export`` returns ``SUCCESS`` only when the delivery has taken all of the batch.
    """

    exports_starts: Final = True
    takes_records: Final = True  # every one: spans of sends and process spans
    wants = staticmethod(has_record)  # what has none is not offered to this lane
    ledger_side: Final = "native"

    def __init__(self, packer: SpanPacker, delivery: MessageDelivery, *, timeout_ms: float, clock: Clock) -> None:
        self._packer = packer
        self._delivery = delivery
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._outcome: ExportOutcome | None = None
        self._told: set[str] = set()

    def export(self, spans: Sequence[ReadableSpan], timeout_millis: float | None = None) -> SpanExportResult:
        """Send ``spans`` and wait for the broker's word, at most ``timeout_millis``."""
        deadline = self._deadline(self._timeout_ms if timeout_millis is None else timeout_millis)
        packed = self._packer.pack(spans)
        undelivered = self._delivery.deliver(packed.messages, deadline).messages if packed.messages else ()
        self._outcome = self._packer.settle(spans, packed, undelivered)
        if packed.first_error is not None:
            self._tell_once(packed.first_error)
        return SpanExportResult.FAILURE if undelivered else SpanExportResult.SUCCESS

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last batch, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused.

        With a spool also, in messages: spooled, replayed, replay_refused, spool_waiting; spool_torn_bytes.
        """
        spooled = self._delivery.stats() if isinstance(self._delivery, SpooledDelivery) else {}
        return self._packer.counts.as_dict() | spooled

    def on_idle(self) -> None:
        """Replay what the spool holds, if it is time to."""
        self._delivery.idle()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Return whether nothing is on its way, nor in the spool; ``export`` has waited already."""
        return self._delivery.flush(self._deadline(timeout_millis))

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Refuse further batches, end a running ``export`` early, let the connection go within ``timeout_millis``."""
        self._delivery.close(self._deadline(timeout_millis))

    def after_fork(self) -> None:
        """In a child: build a connection of one's own when needed, and never touch the parent's."""
        self._delivery.after_fork()
        self._told = set()
        self._packer.after_fork()

    def _tell_once(self, text: str) -> None:
        level = logging.DEBUG if text in self._told else logging.WARNING
        self._told.add(text)
        _logger.log(level, "mqtrace: native traces are not delivered: %s (said once; counted in stats())", text)

    def _deadline(self, timeout_ms: float) -> MonotonicNs:
        return MonotonicNs(self._clock.monotonic_ns() + int(timeout_ms * _NS_PER_MS))


def kept_in_spool(
    delivery: MessageDelivery, settings: Settings, spool_dir: str | Path | None, **how: Any
) -> MessageDelivery:
    """Return ``delivery`` with the spool that is asked for, if one is; one that cannot be had is warned about.

    ``how`` are :class:`~otel_mqtrace.exporters.spooled.SpooledDelivery`'s own keywords.
    """
    directory = spool_dir or settings.spool_dir
    if directory is None:
        return delivery
    try:
        spool = Spool(directory, max_bytes=settings.spool_bytes)
    except UsageError as error:
        _logger.warning("mqtrace: an outage of the trace broker will lose traces: %s", error)
        return delivery
    return SpooledDelivery(delivery, spool, **how)
