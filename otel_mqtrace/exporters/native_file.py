"""The native file exporter: trace messages in landing files, with no broker and no extra package."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import MqTraceError
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_delivery import DeliveryFailures, MessageDelivery, NativeExporter, Undelivered
from otel_mqtrace.landing import IN_PROGRESS_SUFFIX, LandedMessage, LandingWriter
from otel_mqtrace.wire.native import encode_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from otel_mqtrace._clock import Clock, MonotonicNs
    from otel_mqtrace.exporters.packing import Encode, TraceMessage

_logger = logging.getLogger(__name__)


class LandingDelivery(MessageDelivery):
    """Delivers to landing files; readers see the messages of a part when it is finished, by size, age or flush."""

    def __init__(self, writer: LandingWriter, source: str, clock: Clock) -> None:
        super().__init__(clock, DeliveryFailures("written"))
        self._writer = writer
        self._source = source
        self._writing = threading.Lock()
        self._closed = False

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:  # noqa: ARG002 - a local file has no peer to wait for
        """Append ``messages`` to the open part; all of them are returned if that fails."""
        arrival_ms = self._clock.wall_ns() // NS_PER_MS
        landed = [
            LandedMessage(source=self._source, arrival_ms=arrival_ms, keys=message.keys, body=message.value)
            for message in messages
        ]
        if self._closed or not self._try_to(lambda: self._writer.write(landed)):
            return Undelivered(tuple(messages))
        self.idle()  # if that fails, the batch is written, and finished by the next attempt
        return Undelivered()

    def idle(self) -> None:
        """Finish parts that have grown old or large."""
        self._try_to(self._writer.finish_due)

    def flush(self, deadline: MonotonicNs) -> bool:  # noqa: ARG002 - as above
        """Finish the open parts."""
        return self._try_to(self._writer.finish)

    def close(self, deadline: MonotonicNs) -> None:
        """Refuse further messages and finish the open parts."""
        self._closed = True
        self.flush(deadline)

    def after_fork(self) -> None:
        """In a child: leave the parent's part alone and begin a new one."""
        super().after_fork()
        self._writing = threading.Lock()
        self._writer.after_fork()

    def _try_to(self, act: Callable[[], object]) -> bool:
        try:
            with self._writing:
                removed = self._writer.drop_removed()
                if removed:
                    _logger.warning(
                        "mqtrace: another program removed or moved an open part of %s (trace messages in it: %d): "
                        "exclude *%s from its clean-up",
                        self._writer.landing,
                        removed,
                        IN_PROGRESS_SUFFIX,
                    )
                act()
        except (MqTraceError, OSError) as error:
            self.failures.report(f"{error} (MQTRACE_LANDING_DIR or landing_dir names the landing)")
            return False
        return True


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
        records = {"dialect": dialect, "region_id": region_id, "max_message_bytes": max_message_bytes}
        settings = Settings.from_env({"landing_dir": directory, "trace_topic": trace_topic, **records})
        clock = clock or SystemClock()
        writer = LandingWriter(
            Path(settings.landing_dir).absolute(),  # the application may change its working directory
            max_part_bytes=max_part_bytes,
            max_part_age_ms=max_part_age_millis,
            clock=clock,
        )
        delivery = LandingDelivery(writer, settings.trace_topic, clock)
        super().__init__(settings, delivery, encode=encode, region_id=region_id, clock=clock)
