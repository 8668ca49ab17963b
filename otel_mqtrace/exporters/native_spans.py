"""This module knows what both native exporters share: from spans to trace messages, and what became of each span."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.exporters.batching import pack
from otel_mqtrace.spans.limits import limits_hit, lost_its_type, was_cut
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.spans.stats import ENCODE_ERROR, EXPORT_FAILED, TRUNCATED, ExportOutcome
from otel_mqtrace.spans.told import plainly, told
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.native.dialects import dialect_named

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace.exporters.batching import Encode, Packed, TraceMessage
    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.records.span import NativeRecord

__all__ = ["NativeCounts", "SpanPacker", "has_record"]

_logger = logging.getLogger(__name__)
_TOO_LOW: Final = (
    "mqtrace: native traces are incomplete: the span limit %s (by that variable, a more general one, or SpanLimits) is "
    "too low: raise it to OpenTelemetry's default or unset it (said once; counted as %s in stats())"
)


def has_record(span: ReadableSpan) -> bool:
    """Whether ``span``, as far as it has come, is a record: an ended one of any trace type, a started ``Sub``.

    So is one that span limits robbed of its type: it will be counted.
    """
    if getattr(span, "is_record", False):
        return True
    trace_type = told(span, semconv.MQTRACE_TRACE_TYPE)  # asked on the application's thread
    if trace_type is None:
        return lost_its_type(span)
    return span.end_time is not None or trace_type == semconv.TRACE_TYPE_SUB


@dataclass(slots=True)
class NativeCounts:
    """Totals of one exporter since this process began; ``body_bytes`` counts encoded values, delivered or not."""

    spans: int = 0
    messages: int = 0
    undelivered_messages: int = 0
    body_bytes: int = 0
    replaced: int = 0
    keys_left_out: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """Return the totals by name; ``refused`` by reason."""
        numbers: dict[str, int | dict[str, int]] = {
            name: getattr(self, name) for name in self.__slots__ if name != "refused"
        }
        return numbers | {"refused": dict(self.refused)}


class SpanPacker:
    """Turns batches of spans into trace messages and settles, span by span, what became of them."""

    def __init__(self, *, encode: Encode, dialect: str, max_message_bytes: int, region_id: str | None) -> None:
        self._encode = encode
        self._dialect = dialect_named(dialect).name
        self._max_message_bytes = max_message_bytes
        self._region_id = region_id
        self.counts = NativeCounts()
        self._told: set[str] = set()

    @property
    def dialect(self) -> str:
        """The dialect written."""
        return self._dialect

    def pack(self, spans: Sequence[ReadableSpan]) -> Packed:
        """Return the trace messages of ``spans``; a span that says nothing native takes no part."""
        unmapped: dict[int, str] = {}
        packed = pack(
            self._contexts(spans, unmapped),
            encode=self._encode,
            dialect=self._dialect,
            max_message_bytes=self._max_message_bytes,
        )
        for origin, reason in unmapped.items():
            packed.refused.setdefault(origin, reason)
        return packed

    def settle(
        self, spans: Sequence[ReadableSpan], packed: Packed, undelivered: Iterable[TraceMessage]
    ) -> ExportOutcome:
        """Count what happened and return every span's fate: failed if a message with its records was not delivered."""
        lost = list(undelivered)
        failed = {origin for message in lost for origin in message.origins}
        refused = {origin: reason for origin, reason in packed.refused.items() if origin not in failed}
        dropped = Counter(refused.values())
        self.counts.spans += len(spans)
        self.counts.messages += len(packed.messages)
        self.counts.undelivered_messages += len(lost)
        self.counts.body_bytes += sum(len(message.value) for message in packed.messages)
        self.counts.replaced += packed.replaced
        self.counts.keys_left_out += packed.keys_left_out
        self.counts.refused.update(packed.refused.values())
        return ExportOutcome(
            exported=len(spans) - len(failed) - dropped.total(),
            failed=len(failed),
            dropped=dict(dropped),
            lost={**dict.fromkeys(failed, EXPORT_FAILED), **refused},
        )

    def after_fork(self) -> None:
        """Count anew in a child."""
        self.counts = NativeCounts()
        self._told = set()

    def _contexts(
        self, spans: Sequence[ReadableSpan], unmapped: dict[int, str]
    ) -> Iterator[tuple[int, TraceContext | NativeRecord]]:
        """Yield the contexts with the places of their spans; ``unmapped`` tells of those that are not whole."""
        writes_records = self._encode is encode_context
        for origin, span in enumerate(spans):
            try:
                write = getattr(span, "to_native", None) if writes_records else None
                record: NativeRecord | None = None if write is None else write(self._dialect)
                if record is not None and len(record.body) <= self._max_message_bytes:
                    yield origin, record
                    continue
                read = plainly(span)
                trace_ctx = trace_context_of(read)
                if hit := limits_hit(read):
                    unmapped[origin] = TRUNCATED
                    self._tell_once(hit)
                    trace_ctx = trace_ctx and _named(trace_ctx, span)
            except Exception:  # noqa: BLE001 - a span with impossible attributes must not take its batch along
                unmapped[origin] = ENCODE_ERROR
                continue
            if trace_ctx is not None and trace_ctx.beans:
                missing = trace_ctx.region_id is None and self._region_id is not None
                yield origin, replace(trace_ctx, region_id=self._region_id) if missing else trace_ctx

    def _tell_once(self, limits: Iterable[str]) -> None:
        for limit in set(limits) - self._told:
            self._told.add(limit)
            _logger.warning(_TOO_LOW, limit, TRUNCATED)


def _named(trace_ctx: TraceContext, span: ReadableSpan) -> TraceContext:
    """Return ``trace_ctx`` without messages whose topic or id is not whole: under a wrong name a record misleads."""
    whole = [
        bean
        for bean in trace_ctx.beans
        if bean.topic and bean.msg_id and not (was_cut(bean.topic, span) or was_cut(bean.msg_id, span))
    ]
    return replace(trace_ctx, beans=tuple(whole))
