"""Test kit for instrumented applications: a manual clock, fixed ids, a recording exporter and an embedded broker."""

from __future__ import annotations

from contextvars import copy_context
from itertools import count
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator

from otel_mqtrace._clock import MonotonicNs, WallNs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mqtrace.testing.embedded import EmbeddedKafka

__all__ = ["FixedIds", "ManualClock", "RecordingExporter", "embedded_kafka", "recording_provider"]


class ManualClock:
    """Both clocks, moved only by :meth:`advance`; starts at 2023-11-14T22:13:20Z by default."""

    def __init__(self, wall_ns: int = 1_700_000_000_000_000_000, monotonic_ns: int = 0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> WallNs:
        """Nanoseconds since the Unix epoch."""
        return WallNs(self._wall_ns)

    def monotonic_ns(self) -> MonotonicNs:
        """Nanoseconds since an unspecified start."""
        return MonotonicNs(self._monotonic_ns)

    def advance(self, *, ms: int = 0, ns: int = 0) -> None:
        """Move both clocks forward by ``ms`` milliseconds and ``ns`` nanoseconds."""
        step = ms * 1_000_000 + ns
        self._wall_ns += step
        self._monotonic_ns += step


class FixedIds(IdGenerator):
    """Trace and span ids counted upwards from 1, so that whole spans can be compared."""

    def __init__(self) -> None:
        self._trace_ids = count(1)
        self._span_ids = count(1)

    def generate_span_id(self) -> int:
        """Return the next span id."""
        return next(self._span_ids)

    def generate_trace_id(self) -> int:
        """Return the next trace id."""
        return next(self._trace_ids)


class RecordingExporter(SpanExporter):
    """Keeps every ended span until it is taken; what is left over at the end of a test was not expected."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep the spans, in the order they ended."""
        self._spans.extend(spans)
        return SpanExportResult.SUCCESS

    def take(self, name: str | None = None) -> ReadableSpan:
        """Remove and return the oldest span, or the oldest of that name; ``AssertionError`` when there is none."""
        for index, span in enumerate(self._spans):
            if name is None or span.name == name:
                return self._spans.pop(index)
        raise AssertionError(f"no span {name or ''} among {[span.name for span in self._spans]}")

    def take_all(self, name: str | None = None) -> list[ReadableSpan]:
        """Remove and return every span, or every span of that name, oldest first."""
        taken = [span for span in self._spans if name is None or span.name == name]
        for span in taken:
            self._spans.remove(span)
        return taken

    def assert_empty(self) -> None:
        """Fail when any span was not taken."""
        left = [span.name for span in self._spans]
        assert not left, f"unexpected spans: {left}"  # noqa: S101 - a test kit asserts


class _ContainedProcessor(SimpleSpanProcessor):
    """Exports in a copy of the context: an exception of a signal handler leaves no suppression behind."""

    def on_end(self, span: ReadableSpan) -> None:
        """Export the span at once."""
        copy_context().run(super().on_end, span)


def recording_provider(exporter: SpanExporter, *, fixed_ids: bool = False) -> TracerProvider:
    """Return a TracerProvider that passes every ended span to ``exporter``; ``fixed_ids`` count from 1."""
    provider = TracerProvider(id_generator=FixedIds()) if fixed_ids else TracerProvider()
    provider.add_span_processor(_ContainedProcessor(exporter))
    return provider


def embedded_kafka() -> Iterator[EmbeddedKafka]:
    """Give a broker until the generator goes on, as a pytest fixture does; ``contextlib.contextmanager`` takes it too.

    Needs the ``kafka`` extra. See :class:`otel_mqtrace.testing.embedded.EmbeddedKafka` for its limits.
    """
    from otel_mqtrace.testing.embedded import EmbeddedKafka  # noqa: PLC0415 - needs confluent-kafka

    with EmbeddedKafka() as broker:
        yield broker
