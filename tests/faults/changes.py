"""What can happen to a call on its way to either side: each fault a change to a draft."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from otel_mqtrace.model import AccessChannel, TraceContext, TraceType
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, FIELDS, FieldKind, form_for
from tests.faults.calls import Draft, Record

Change = Callable[[Draft], object]


def nothing(_draft: Draft) -> None:
    """Leave both sides as they are."""


def both(*changes: Change) -> Change:
    return lambda draft: [each(draft) for each in changes]


def record_lost(draft: Draft) -> None:
    draft.records.clear()


def span_lost(draft: Draft) -> None:
    draft.spans.clear()


def half_lost(half: TraceType) -> Change:
    def change(draft: Draft) -> None:
        draft.records[:] = [record for record in draft.records if record.context.trace_type is not half]

    return change


died = both(half_lost(TraceType.SUB_AFTER), span_lost)
"""A delivery that never ended: all that is there of it is its SubBefore."""


def _each(side: str, changed: Callable[[Any], Any], *, adds: bool = False) -> Change:

    def change(draft: Draft) -> None:
        drafts = getattr(draft, side)
        drafts[:] = [*(drafts if adds else ()), *map(changed, drafts)]

    return change


_records, _spans = partial(_each, "records"), partial(_each, "spans")


record_copied = _records(lambda record: record, adds=True)
"""Land every record twice, byte for byte: a client that tried its trace message again."""


def copied(*, own_id: bool) -> Change:
    """Write the span twice; with ``own_id`` by a second instrumentation, which gives it a span id of its own."""
    return _spans(lambda span: replace(span, copy=int(own_id)), adds=True)


def set_record_fields(*, adds: bool = False, **fields: Any) -> Change:
    return _records(lambda record: replace(record, context=_with_fields(record.context, fields)), adds=adds)


def _reordered(record: Record) -> Record:
    keys = " ".join(reversed((record.context.beans[0].keys or "").split(" ")))
    return replace(record, context=_with_fields(record.context, {"keys": keys}))


add_reordered_record = _records(_reordered, adds=True)
"""Land every record twice, the second time with the keys in another order: other bytes, the same values."""


def set_span_attributes(*, adds: bool = False, **attributes: Any) -> Change:
    """Change attributes of the span; names with ``__`` for a dot, ``None`` removes one."""
    values = {name.replace("__", "."): value for name, value in attributes.items()}
    return _spans(
        lambda span: replace(span, copy=int(adds) or span.copy, attributes={**span.attributes, **values}), adds=adds
    )


def restamped(*, start_ms: int = 0, end_ms: int = 0) -> Change:
    """Move the span's times, as a peer with another clock would."""
    return _spans(lambda span: replace(span, start_ms=span.start_ms + start_ms, end_ms=span.end_ms + end_ms))


def clock_off(by_ms: int) -> Change:
    """Let the whole call be stamped by a host whose clock is ``by_ms`` ahead; records arrive in true time."""

    def stamped(record: Record) -> Record:
        context = record.context._replace(timestamp_ms=(record.context.timestamp_ms or 0) + by_ms)
        return replace(record, late_ms=record.late_ms - by_ms, context=context)

    return both(restamped(start_ms=by_ms, end_ms=by_ms), _records(stamped))


def arrives_late(by_ms: int) -> Change:
    """Let the native records reach the trace topic ``by_ms`` behind the event."""
    return _records(lambda record: replace(record, late_ms=by_ms))


over_cloud = _records(lambda record: replace(record, channel=AccessChannel.CLOUD))
"""Write it over the CLOUD access channel: a SubAfter without time and group."""

torn_span = _spans(lambda span: replace(span, torn=True))


def _with_fields(context: TraceContext, fields: dict[str, Any]) -> TraceContext:
    of_call = {name: value for name, value in fields.items() if hasattr(context, name)}
    of_message = {name: value for name, value in fields.items() if name not in of_call}
    beans = tuple(bean._replace(**of_message) for bean in context.beans) if of_message else context.beans
    return context._replace(beans=beans, **of_call)


def _without_number(trace_type: TraceType) -> Callable[[bytes], bytes]:
    separator = FIELD_SEPARATOR.encode()

    def damage(body: bytes) -> bytes:
        parts = body.split(separator)
        form = form_for(trace_type, len(parts))
        names = form.fields if form is not None else ()
        number = next(at for at, name in enumerate(names, 1) if FIELDS[name] in {FieldKind.LONG, FieldKind.INT})
        return separator.join([*parts[:number], b"damaged", *parts[number + 1 :]])

    return damage


damaged_record = _records(lambda record: replace(record, damage=_without_number(record.context.trace_type)))
"""Put a word where each record's first number stands; the message id stays legible."""
