"""This module knows how native trace messages are written to landing files, with no broker and no extra package."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import MqTraceError
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_spans import SpanPacker, has_record
from otel_mqtrace.landing.layout import LandedMessage
from otel_mqtrace.landing.writer import LandingWriter
from otel_mqtrace.wire.native import DIALECTS, encode_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.exporters.batching import Encode
    from otel_mqtrace.spans.stats import ExportOutcome

__all__ = ["NativeFileSpanExporter"]

_logger = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000


class NativeFileSpanExporter(SpanExporter):
    """Writes spans with ``mqtrace.trace_type`` as RocketMQ trace messages into ``native/date=…/part-*.jsonl``.

    Args:
        directory: The landing's root; else ``MQTRACE_LANDING_DIR``. Processes and forks may share it.
        trace_topic: What the parts say as ``source``; else ``MQTRACE_TRACE_TOPIC``.
        dialect: Which RocketMQ release's records to write; else ``MQTRACE_DIALECT``.
        region_id: Region of contexts that have none.
        max_message_bytes: Bound of one message's value, in encoded bytes; else ``MQTRACE_MAX_MESSAGE_BYTES``.
        max_part_bytes: A part is finished at this size.
        max_part_age_millis: A part is finished at this age: readers see records at the latest then.
        encode: The encoder; a test or a demo may wrap it.
        clock: Time.

    A wrong value is told once, and what the environment or the default says is used: no exporter is lost for it.
    """

    exports_starts: Final = True
    takes_records: Final = True  # every one: spans of sends and process spans
    wants = staticmethod(has_record)  # what has none is not offered to this lane
    ledger_side: Final = "native"
    component_type: Final = "otel_mqtrace.exporters.native_file.NativeFileSpanExporter"

    def __init__(  # noqa: PLR0913 - plain keyword values, as declarative configuration gives them
        self,
        *,
        directory: str | Path | None = None,
        trace_topic: str | None = None,
        dialect: str | None = None,
        region_id: str | None = None,
        max_message_bytes: int | None = None,
        max_part_bytes: int = 64 * 1024 * 1024,
        max_part_age_millis: float = 30_000,
        encode: Encode = encode_context,
        clock: Clock | None = None,
    ) -> None:
        said = {"trace_topic": trace_topic, "dialect": dialect, "max_message_bytes": max_message_bytes}
        settings = Settings.from_env({**said, "landing_dir": directory}, choices={"dialect": DIALECTS})
        self._source = settings.trace_topic
        self._clock = clock or SystemClock()
        self._packer = SpanPacker(
            encode=encode,
            dialect=settings.dialect,
            max_message_bytes=settings.max_message_bytes,
            region_id=region_id,
        )
        self._writer = LandingWriter(
            settings.landing_dir, max_part_bytes=max_part_bytes, max_part_age_ms=max_part_age_millis, clock=self._clock
        )
        self._writing = threading.Lock()
        self._closed = False
        self._told: set[str] = set()
        self._outcome: ExportOutcome | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append ``spans`` to the open part; readers see them when it is finished, by size, age or flush."""
        packed = self._packer.pack(spans)
        arrival_ms = self._clock.wall_ns() // _NS_PER_MS
        messages = [
            LandedMessage(source=self._source, arrival_ms=arrival_ms, keys=message.keys, body=message.value)
            for message in packed.messages
        ]
        written = self._write(messages)
        self._outcome = self._packer.settle(spans, packed, () if written else packed.messages)
        if packed.first_error is not None:
            self._tell_once(packed.first_error)
        return SpanExportResult.SUCCESS if written else SpanExportResult.FAILURE

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last batch, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused."""
        return self._packer.counts.as_dict()

    def on_idle(self) -> None:
        """Finish parts that have grown old while nothing came."""
        self._did(self._writer.finish_due)

    def force_flush(self, timeout_millis: float = 30_000) -> bool:  # noqa: ARG002 - a local file has no peer to wait for
        """Finish the open parts: readers see everything exported so far."""
        return self._did(self._writer.finish)

    def shutdown(self) -> None:
        """Finish the open parts and refuse further batches."""
        self._closed = True
        self.force_flush()

    def after_fork(self) -> None:
        """In a child: leave the parent's part alone and begin one of one's own."""
        self._writing = threading.Lock()
        self._writer.after_fork()
        self._packer.after_fork()

    def _write(self, messages: Sequence[LandedMessage]) -> bool:
        if self._closed:
            return not messages
        if not self._did(lambda: self._writer.write(messages)):
            return False
        self._did(self._writer.finish_due)  # however that ends, the batch is written, and finished by the next attempt
        return True

    def _did(self, act: Callable[[], object]) -> bool:
        """Whether the writer could; if not, why is told."""
        try:
            with self._writing:
                act()
        except (MqTraceError, OSError) as error:
            self._tell_once(str(error))
            return False
        return True

    def _tell_once(self, text: str) -> None:
        level = logging.DEBUG if text in self._told else logging.WARNING
        self._told.add(text)
        _logger.log(level, "mqtrace: native traces are not written: %s (said once; counted in stats())", text)
