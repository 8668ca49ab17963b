"""The JSON of a trace record, both ways: one object per record, one bean per record, absent is null."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import EncodeError
from otel_mqtrace.model import (
    AccessChannel,
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    TransactionState,
)
from otel_mqtrace.wire.native.decode import MAX_OFFENDING_TEXT, explode
from otel_mqtrace.wire.native.dialects import CLOUD_SUFFIX, dialect_named, is_by_go, nearest_dialect, writers_of
from otel_mqtrace.wire.native.encode import encode_context
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT, DIALECTS, FIELDS, CloudSubAfter, FieldKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bridge.codec.framing import BadBody
    from otel_mqtrace.wire.native.decode import BadRecord, DecodedBody
    from otel_mqtrace.wire.native.encode import EncodedContext


_OF_CONTEXT: Final = (*("timestamp_ms", "region_id", "group_name", "request_id", "cost_ms", "success", "context_code"),)
_OF_BEAN: Final = (
    *("topic", "msg_id", "offset_msg_id", "tags", "keys", "store_host", "client_host", "body_length", "retry_times"),
    *("msg_type", "transaction_id", "transaction_state", "from_transaction_check"),
)
RECORD_KEYS: Final = ("body_index", "record_index", "dialect", "written_by", "trace_type", *_OF_CONTEXT, *_OF_BEAN)
"""The keys of a record's object, in the order they are written."""


def body_json(body_index: int, decoded: DecodedBody, *, explode_batches: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the objects of one body, good and bad records in wire order.

    With ``explode_batches`` a batch's ``Pub`` is one object for each of its messages, all with its record index.
    """
    columns = (decoded.record_indexes, decoded.dialects, decoded.shapes, decoded.contexts)
    items = {error.record_index: [bad_json(body_index, error.record_index, error)] for error in decoded.errors}
    for index, dialect, shape, trace_ctx in zip(*columns, strict=True):
        place: dict[str, Any] = {
            "body_index": body_index,
            "record_index": index,
            "dialect": nearest_dialect(dialect),
            "written_by": list(writers_of(shape, dialect, by_go=is_by_go(trace_ctx))),
        }
        records = explode(trace_ctx) if explode_batches else (trace_ctx,)
        items[index] = [place | _record_json(each) for each in records]
    for index in sorted(items):
        yield from items[index]


def _record_json(trace_ctx: TraceContext) -> dict[str, Any]:
    (bean,) = trace_ctx.beans
    return {
        "trace_type": trace_ctx.trace_type.value,
        **{name: _plain(getattr(trace_ctx, name)) for name in _OF_CONTEXT},
        **{name: _plain(getattr(bean, name)) for name in _OF_BEAN},
    }


def bad_json(body_index: int, record_index: int | None, error: BadRecord | BadBody) -> dict[str, Any]:
    """Return the object of what is not a record; a line or row without a body has no ``record_index``."""
    text = error.text[:MAX_OFFENDING_TEXT]
    return {
        "body_index": body_index,
        "record_index": record_index,
        "error": {"field": error.field, "reason": error.reason, "text": text},
    }


def dump(item: Mapping[str, Any]) -> bytes:
    """Return one line of JSON, UTF-8, its line feed included."""
    return (json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n").encode(errors="replace")


def _plain(value: Any) -> Any:
    if isinstance(value, ContextCode):
        return value.name
    return value.value if isinstance(value, Enum) else value


_TYPES: Final[dict[FieldKind, type]] = {
    FieldKind.TEXT: str,
    FieldKind.LONG: int,
    FieldKind.INT: int,
    FieldKind.BOOL: bool,
    FieldKind.MESSAGE_TYPE: MessageType,
    FieldKind.CONTEXT_CODE: ContextCode,
    FieldKind.TRANSACTION_STATE: TransactionState,
}


def read_record(item: Any) -> TraceContext:
    """Return the record that ``item``, one parsed line of the JSON above, describes; unknown keys are ignored.

    Raises:
        EncodeError: ``item`` is not such an object, reports a bad record, or has a value of the wrong type; ``field``
            names it.
    """
    if not isinstance(item, dict):
        raise EncodeError("not a JSON object")
    if item.get("error") is not None:
        raise EncodeError("is the report of a bad record", field="error")
    trace_type = _read("trace_type", TraceType, item)
    if trace_type is None:
        raise EncodeError("trace_type: missing; give the JSON that mqtrace decode prints", field="trace_type")
    values = {name: _read(name, _TYPES[FIELDS[name]], item) for name in (*_OF_BEAN, *_OF_CONTEXT)}
    bean = TraceBean(**{name: values.pop(name) for name in _OF_BEAN})
    channel = AccessChannel.CLOUD if str(item.get("dialect")).endswith(CLOUD_SUFFIX) else None
    return TraceContext(trace_type=trace_type, access_channel=channel, beans=(bean,), **values)


def _read(name: str, kind: type, item: Mapping[str, Any]) -> Any:
    value = item.get(name)
    if value is None or type(value) is kind:  # exact: a JSON true is not the number 1
        return value
    expected = f"not of type {kind.__name__}"
    if issubclass(kind, Enum):
        for member in kind:
            if value in (_plain(member), member.name):
                return member
        expected = f"none of {', '.join(str(_plain(member)) for member in kind)}"
    raise EncodeError(f"{name}: {repr(value)[:MAX_OFFENDING_TEXT]} is {expected}", field=name)


Target = tuple[str, AccessChannel]
"""What to write: the name of a dialect, and the access channel that decides the end of a ``SubAfter``."""


def target_named(name: str) -> Target:
    """Return the target of a name such as ``4.8.0`` or ``5.5.0/CLOUD``; ``UsageError`` when there is none."""
    dialect = name.removesuffix(CLOUD_SUFFIX)
    return dialect_named(dialect).name, AccessChannel.LOCAL if dialect == name else AccessChannel.CLOUD


def _target_of(name: str) -> Target:
    """Return the target that writes a record's own ``dialect`` again, or the nearest one we are willing to write.

    A glued CLOUD record is repaired by the default dialect's CLOUD form; an imitator's record becomes Java's.
    """
    dialect, channel = target_named(nearest_dialect(name))
    is_glued = channel is AccessChannel.CLOUD and DIALECTS[dialect].cloud_sub_after is CloudSubAfter.GLUED
    return DEFAULT_DIALECT if is_glued else dialect, channel


def encode_lines(
    lines: Iterable[bytes], target: Target | None, *, charset: str
) -> Iterator[tuple[int, object, EncodedContext | str]]:
    """Encode JSON lines one by one as ``target``, for ``None`` each as its own dialect; blank lines do not count.

    Yields:
        The number of the line, from 1, the ``body_index`` of its object, if any, and the record, or why there is none.

    Raises:
        UsageError: no such charset.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item: Any = json.loads(line)
            trace_ctx = read_record(item)
            dialect, channel = target or _target_of(str(item.get("dialect")))
            encoded = encode_context(trace_ctx._replace(access_channel=channel), dialect, charset=charset)
        except EncodeError as error:
            yield number, None, str(error)
        except (ValueError, RecursionError):
            yield number, None, "not JSON"
        else:
            yield number, item.get("body_index"), encoded
