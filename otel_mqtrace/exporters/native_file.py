"""The native file exporter: trace messages in landing files, with no broker and no extra package."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import MqTraceError
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_delivery import NativeExporter
from otel_mqtrace.landing import LandedMessage, LandingWriter
from otel_mqtrace.wire.native import encode_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.exporters.packing import Encode, TraceMessage

_logger = logging.getLogger(__name__)


class NativeFileSpanExporter(NativeExporter):
    """Writes spans with ``mqtrace.trace_type`` as RocketMQ trace messages into ``native/date=…/part-*.jsonl``.

    Args:
        directory: The landing's root; else ``MQTRACE_LANDING_DIR``. Processes and forks may share it.
        trace_topic: The ``source`` of what is written; else ``MQTRACE_TRACE_TOPIC``.
        max_part_bytes: A part is finished at this size.
        max_part_age_millis: A part is finished at this age: readers see records at the latest then.

    The other arguments are those of :class:`~otel_mqtrace.exporters.native_delivery.NativeExporter`.
    """

    component_type: Final = "otel_mqtrace.exporters.native_file.NativeFileSpanExporter"
    _loss = "written"

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
        given = {"trace_topic": trace_topic, "dialect": dialect, "max_message_bytes": max_message_bytes}
        settings = Settings.from_env({**given, "landing_dir": directory})
        self._source = settings.trace_topic
        self._clock = clock or SystemClock()
        super().__init__(settings, encode=encode, region_id=region_id)
        self._writer = LandingWriter(
            Path(settings.landing_dir).absolute(),  # the application may change its working directory
            max_part_bytes=max_part_bytes,
            max_part_age_ms=max_part_age_millis,
            clock=self._clock,
        )
        self._writing = threading.Lock()
        self._closed = False

    def _send(self, messages: Sequence[TraceMessage], timeout_millis: float | None) -> Sequence[TraceMessage]:  # noqa: ARG002 - a local file has no peer to wait for
        """Append ``messages`` to the open part; readers see them when it is finished, by size, age or flush."""
        arrival_ms = self._clock.wall_ns() // NS_PER_MS
        landed = [
            LandedMessage(source=self._source, arrival_ms=arrival_ms, keys=message.keys, body=message.value)
            for message in messages
        ]
        if self._closed or not self._try(lambda: self._write(landed)):
            return messages
        self._try(self._writer.finish_due)  # if that fails, the batch is written, and finished by the next attempt
        return ()

    def _write(self, landed: Sequence[LandedMessage]) -> None:
        removed = self._writer.drop_removed()
        if removed:
            line = (
                "mqtrace: another program removed or moved a part of %s (trace messages in it: %d); a new part is begun"
            )
            _logger.warning(line, self._writer.landing, removed)
        self._writer.write(landed)

    def on_idle(self) -> None:
        """Finish parts that have grown old while nothing came."""
        self._try(self._writer.finish_due)

    def force_flush(self, timeout_millis: float = 30_000) -> bool:  # noqa: ARG002 - a local file has no peer to wait for
        """Finish the open parts: readers see everything exported so far."""
        return self._try(self._writer.finish)

    def shutdown(self) -> None:
        """Finish the open parts and refuse further batches."""
        self._closed = True
        self.force_flush()

    def after_fork(self) -> None:
        """In a child: leave the parent's part alone and begin a new one."""
        self._writing = threading.Lock()
        self._writer.after_fork()
        super().after_fork()

    def _try(self, act: Callable[[], object]) -> bool:
        try:
            with self._writing:
                act()
        except (MqTraceError, OSError) as error:
            self._failures.report(str(error))
            return False
        return True
