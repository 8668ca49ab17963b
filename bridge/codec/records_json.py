"""The JSON of a trace record, both ways: one object per record, one bean per record, absent is null."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
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
from otel_mqtrace.wire.native.dialects import CLOUD_SUFFIX, dialect_named, writers_of
from otel_mqtrace.wire.native.encode import EncodedContext, encode_context
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT, DIALECTS, FIELDS, CloudSubAfter, FieldKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from bridge.codec.framing import BadBody
    from otel_mqtrace.wire.native.decode import BadRecord, DecodedBody


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
            "dialect": dialect,
            "written_by": list(writers_of(shape, dialect)),
        }
        items[index] = [
            place | _record_json(each) for each in (explode(trace_ctx) if explode_batches else (trace_ctx,))
        ]
    for _, of_index in sorted(items.items()):
        yield from of_index


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
    trace_type = _enum("trace_type", TraceType, item.get("trace_type"))
    if trace_type is None:
        raise EncodeError("trace_type: missing", field="trace_type")
    return TraceContext(
        trace_type=trace_type,
        access_channel=AccessChannel.CLOUD if str(item.get("dialect")).endswith(CLOUD_SUFFIX) else None,
        beans=(TraceBean(**{name: _value(name, item.get(name)) for name in _OF_BEAN}),),
        **{name: _value(name, item.get(name)) for name in _OF_CONTEXT},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, ContextCode):
        return value.name
    return value.value if isinstance(value, Enum) else value


def _value(name: str, value: Any) -> Any:
    return None if value is None else _READERS[FIELDS[name]](name, value)


def _shown(value: Any) -> str:
    return repr(value)[:MAX_OFFENDING_TEXT]


def _typed(kind: type) -> Callable[[str, Any], Any]:
    def read(name: str, value: Any) -> Any:
        if type(value) is not kind:  # exact: a JSON true is not the number 1
            raise EncodeError(f"{name}: {_shown(value)} is not of type {kind.__name__}", field=name)
        return value

    return read


def _enum(name: str, kind: type[Enum], value: Any) -> Any:
    for member in kind:
        if value in (_plain(member), member.name):
            return member
    if value is None:
        return None
    raise EncodeError(
        f"{name}: {_shown(value)} is none of {', '.join(str(_plain(member)) for member in kind)}", field=name
    )


_READERS: Final[dict[FieldKind, Callable[[str, Any], Any]]] = {
    FieldKind.TEXT: _typed(str),
    FieldKind.LONG: _typed(int),
    FieldKind.INT: _typed(int),
    FieldKind.BOOL: _typed(bool),
    FieldKind.MESSAGE_TYPE: lambda name, value: _enum(name, MessageType, value),
    FieldKind.CONTEXT_CODE: lambda name, value: _enum(name, ContextCode, value),
    FieldKind.TRANSACTION_STATE: lambda name, value: _enum(name, TransactionState, value),
}


@dataclass(frozen=True, slots=True)
class Target:
    """What to write: a dialect, and the access channel that decides the end of a ``SubAfter``."""

    dialect: str = DEFAULT_DIALECT
    access_channel: AccessChannel = AccessChannel.LOCAL

    @classmethod
    def named(cls, name: str) -> Target:
        """Return the target of a name such as ``4.8.0`` or ``5.5.0/CLOUD``; ``UsageError`` when there is none."""
        dialect = dialect_named(name.removesuffix(CLOUD_SUFFIX)).name
        return cls(dialect, AccessChannel.CLOUD if name.endswith(CLOUD_SUFFIX) else AccessChannel.LOCAL)

    @classmethod
    def of_record(cls, name: object) -> Target:
        """Return the target that writes a record's own ``dialect`` again, or the nearest one we are willing to write.

        A glued CLOUD record is repaired by the default dialect's CLOUD form; an imitator's record becomes Java's.
        """
        text = str(name)
        channel = AccessChannel.CLOUD if text.endswith(CLOUD_SUFFIX) else AccessChannel.LOCAL
        known = DIALECTS.get(text.removesuffix(CLOUD_SUFFIX))
        glued = channel is AccessChannel.CLOUD and known and known.cloud_sub_after is CloudSubAfter.GLUED
        return cls(DEFAULT_DIALECT if known is None or glued else known.name, channel)


@dataclass(frozen=True, slots=True)
class EncodedLine:
    """One record, encoded; ``body_index`` is that of its object, ``None`` when it has none."""

    body_index: object
    encoded: EncodedContext


@dataclass(frozen=True, slots=True)
class Refusal:
    """A line (from 1) that did not become a record, and why."""

    line: int
    reason: str


def encode_lines(lines: Iterable[bytes], target: Target | None, *, charset: str) -> Iterator[EncodedLine | Refusal]:
    """Encode JSON lines one by one as ``target``, for ``None`` each as its own dialect; blank lines do not count.

    Raises:
        UsageError: no such charset.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item: Any = json.loads(line)
            trace_ctx = read_record(item)
            chosen = target or Target.of_record(item.get("dialect"))
            of_channel = replace(trace_ctx, access_channel=chosen.access_channel)
            encoded = encode_context(of_channel, chosen.dialect, charset=charset)
        except EncodeError as error:
            yield Refusal(number, str(error))
        except (ValueError, RecursionError):
            yield Refusal(number, "not JSON")
        else:
            yield EncodedLine(item.get("body_index"), encoded)
