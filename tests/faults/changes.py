"""What can happen to a call on its way to either side: each fault a change to a draft."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from otel_mqtrace.model import AccessChannel, TraceContext, TraceType
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, FIELDS, FieldKind, form_for
from tests.faults.calls import Draft, Record

Change = Callable[[Draft], object]
_NO_NUMBER = b"damaged"


def nothing(_draft: Draft) -> None:
    """Leave both sides as they are."""


def both(*changes: Change) -> Change:
    def change(draft: Draft) -> None:
        for each in changes:
            each(draft)

    return change


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


def record_copied(draft: Draft) -> None:
    """Land every record twice, byte for byte: a client that tried its trace message again."""
    draft.records += draft.records


def copied(*, own_id: bool) -> Change:
    """Write the span twice; with ``own_id`` by a second instrumentation, which gives it a span id of its own."""

    def change(draft: Draft) -> None:
        draft.spans += [replace(span, copy=int(own_id)) for span in draft.spans]

    return change


def set_record_fields(**fields: Any) -> Change:
    return lambda draft: _records(draft, lambda record: replace(record, context=_with_fields(record.context, fields)))


def add_reordered_record(draft: Draft) -> None:
    """Land every record twice, the second time with the keys in another order: other bytes, the same values."""

    def turned(record: Record) -> Record:
        keys = " ".join(reversed((record.context.beans[0].keys or "").split(" ")))
        return replace(record, context=_with_fields(record.context, {"keys": keys}))

    draft.records += [turned(record) for record in draft.records]


def add_differing_record(**fields: Any) -> Change:
    def change(draft: Draft) -> None:
        draft.records += [replace(record, context=_with_fields(record.context, fields)) for record in draft.records]

    return change


def add_differing_span(**attributes: Any) -> Change:
    def change(draft: Draft) -> None:
        draft.spans += [
            replace(span, copy=1, attributes={**span.attributes, **_dotted(attributes)}) for span in draft.spans
        ]

    return change


def set_span_attributes(**attributes: Any) -> Change:
    """Change attributes of the span; names with ``__`` for a dot, ``None`` removes one."""

    def change(draft: Draft) -> None:
        draft.spans[:] = [replace(span, attributes={**span.attributes, **_dotted(attributes)}) for span in draft.spans]

    return change


def restamped(*, start_ms: int = 0, end_ms: int = 0) -> Change:
    """Move the span's times, as a peer with another clock would."""

    def change(draft: Draft) -> None:
        draft.spans[:] = [
            replace(span, start_ms=span.start_ms + start_ms, end_ms=span.end_ms + end_ms) for span in draft.spans
        ]

    return change


def clock_off(by_ms: int) -> Change:
    """Let the whole call be stamped by a host whose clock is ``by_ms`` ahead; records arrive in true time."""

    def change(draft: Draft) -> None:
        restamped(start_ms=by_ms, end_ms=by_ms)(draft)
        _records(
            draft,
            lambda record: replace(
                record,
                late_ms=record.late_ms - by_ms,
                context=replace(record.context, timestamp_ms=(record.context.timestamp_ms or 0) + by_ms),
            ),
        )

    return change


def arrives_late(by_ms: int) -> Change:
    """Let the native records reach the trace topic ``by_ms`` behind the event."""
    return lambda draft: _records(draft, lambda record: replace(record, late_ms=by_ms))


def over_cloud(draft: Draft) -> None:
    """Write it over the CLOUD access channel: a SubAfter without time and group."""
    _records(draft, lambda record: replace(record, channel=AccessChannel.CLOUD))


def damaged_record(draft: Draft) -> None:
    """Put a word where each record's first number stands; the message id stays legible."""
    _records(draft, lambda record: replace(record, damage=_without_number(record.context.trace_type)))


def torn_span(draft: Draft) -> None:
    draft.spans[:] = [replace(span, torn=True) for span in draft.spans]


def _records(draft: Draft, changed: Callable[[Record], Record]) -> None:
    draft.records[:] = [changed(record) for record in draft.records]


def _with_fields(context: TraceContext, fields: dict[str, Any]) -> TraceContext:
    of_call = {name: value for name, value in fields.items() if hasattr(context, name)}
    of_message = {name: value for name, value in fields.items() if name not in of_call}
    beans = tuple(replace(bean, **of_message) for bean in context.beans) if of_message else context.beans
    return replace(context, beans=beans, **of_call)


def _dotted(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in attributes.items()}


def _without_number(trace_type: TraceType) -> Callable[[bytes], bytes]:
    separator = FIELD_SEPARATOR.encode()

    def damage(body: bytes) -> bytes:
        parts = body.split(separator)
        form = form_for(trace_type, len(parts))
        names = form.fields if form is not None else ()
        number = next(at for at, name in enumerate(names, 1) if FIELDS[name] in {FieldKind.LONG, FieldKind.INT})
        return separator.join([*parts[:number], _NO_NUMBER, *parts[number + 1 :]])

    return damage
