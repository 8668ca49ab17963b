"""This module knows how to read trace records: any bytes in, the records and the bad pieces out, nothing ever raised.

Theory of operation. A body is split at U+0002 into pieces, a piece at U+0001 into fields; a piece is one record, except
that CLOUD writers of 4.9.5-4.9.8 and 5.1.4-5.3.0 glue the next record to a ``SubAfter`` (a type name where its eighth
field would be). The type and the number of fields choose the form in the layout table; each kind of field has a reader
with Java's rules, because Java's readers are what the writers were tested against (``TraceDataEncoder.java``).

Where we differ from that reader: a bad record is reported and its neighbours are kept; what is not on the wire is
``None`` and never the reader's own time, host or id; an unknown type is reported; empty texts at the end are texts.
A piece without a single character is nothing: neither a record nor a bad one.

Linear in the size of the body. Feeding a body in parts is safe at any U+0002.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from bridge.codec.native.dialects import Shape, writer_of
from bridge.codec.native.layout import (
    BEAN_FIELDS,
    FIELD_SEPARATOR,
    FIELDS,
    FORMS,
    MESSAGE_TYPE_MAPS,
    RECORD_TERMINATOR,
    CloudSubAfter,
    FieldKind,
    Form,
    form_for,
)
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import AccessChannel, ContextCode, TraceBean, TraceContext, TraceType, TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MAX_OFFENDING_TEXT", "BadRecord", "DecodedBody", "decode_body"]

MAX_OFFENDING_TEXT: Final = 200
"""Characters of a bad record or field that are kept as evidence."""

_TYPES: Final = {trace_type.value: trace_type for trace_type in TraceType}
_SUB_AFTER: Final = TraceType.SUB_AFTER.value
_GLUE_AT: Final = 7  # where a SubAfter's timestamp would be; a type name there starts the next record
_UNKEPT: Final = frozenset({"exactly_once_status"})  # the model has no place for it, and no reader agrees on it
_JAVA_INTEGER: Final = re.compile(r"[+-]?\d+")
_LAST_UTF16_UNIT: Final = "\uffff"


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A piece of a body that is not a record.

    ``record_index`` counts good and bad records of the body together, from 0. ``field`` is the field at fault, or
    ``None`` when the piece as a whole is. ``text`` is the offending text, at most ``MAX_OFFENDING_TEXT`` characters.
    """

    record_index: int
    field: str | None
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """What one body says, in wire order.

    ``contexts`` have exactly one bean each; ``record_indexes``, ``dialects`` and ``shapes`` stand beside them, item by
    item. A dialect is the newest known writer of that shape (``writer_of``), ``None`` for one that no client writes.
    ``len(contexts) + len(errors)`` is the number of records in the body.
    """

    contexts: tuple[TraceContext, ...] = ()
    errors: tuple[BadRecord, ...] = ()
    record_indexes: tuple[int, ...] = ()
    dialects: tuple[str | None, ...] = ()
    shapes: tuple[Shape, ...] = ()


def decode_body(body: bytes, *, msg_type_map: str = "a", charset: str = "utf-8") -> DecodedBody:
    """Decode the body of one trace message; no bytes make it raise.

    ``msg_type_map`` is ``"a"``, or ``"b"`` for bodies written by 5.0.0 and 5.1.0. ``charset`` is the writer's: UTF-8
    since 5.0.0, before that the platform's (``"gbk"`` on Chinese machines); what it cannot read becomes U+FFFD.

    Raises:
        UsageError: no such map or charset; a mistake of the caller, never of the bytes.
    """
    if msg_type_map not in MESSAGE_TYPE_MAPS:
        raise UsageError(f"unknown message type map {msg_type_map!r}; choose one of {', '.join(MESSAGE_TYPE_MAPS)}")
    contexts: list[TraceContext] = []
    indexes: list[int] = []
    shapes: list[Shape] = []
    errors: list[BadRecord] = []
    for index, record in enumerate(_records(_text(body, charset))):
        outcome = _outcome(index, record, msg_type_map)
        if isinstance(outcome, BadRecord):
            errors.append(outcome)
        else:
            contexts.append(outcome)
            indexes.append(index)
            shapes.append(Shape(outcome.trace_type, len(record.fields), record.quirk))
    dialects = tuple(writer_of(*shape) for shape in shapes)
    return DecodedBody(tuple(contexts), tuple(errors), tuple(indexes), dialects, tuple(shapes))


class _BadFieldError(Exception):
    def __init__(self, name: str | None, reason: str, text: str) -> None:
        super().__init__(reason)
        self.field, self.reason, self.text = name, reason, text


@dataclass(frozen=True, slots=True)
class _Record:
    fields: list[str]  # the type name first; without the empty field of a CLOUD SubAfter
    quirk: CloudSubAfter


def _text(body: bytes, charset: str) -> str:
    try:
        return body.decode(charset, errors="replace")
    except (LookupError, UnicodeError):
        raise UsageError(f"unknown charset {charset!r}; use a text encoding such as utf-8 or gbk") from None


def _records(text: str) -> Iterator[_Record]:
    """Cut a body into records; the last piece may lack its terminator."""
    pieces = text.split(RECORD_TERMINATOR)
    last = len(pieces) - 1
    for number, piece in enumerate(pieces):
        if piece:
            yield from _unglued(piece.split(FIELD_SEPARATOR), terminated=number < last)


def _unglued(fields: list[str], *, terminated: bool) -> Iterator[_Record]:
    start = 0
    while fields[start] == _SUB_AFTER and len(fields) > start + _GLUE_AT and fields[start + _GLUE_AT] in _TYPES:
        yield _Record(fields[start : start + _GLUE_AT], CloudSubAfter.GLUED)
        start += _GLUE_AT
    rest = fields[start:] if start else fields
    if rest[0] == _SUB_AFTER and len(rest) == _GLUE_AT + 1 and not rest[-1]:
        yield _Record(rest[:-1], CloudSubAfter.TRAILING if terminated else CloudSubAfter.GLUED)
    else:
        yield _Record(rest, CloudSubAfter.SAME)


def _outcome(index: int, record: _Record, msg_type_map: str) -> TraceContext | BadRecord:
    try:
        return _context(record, msg_type_map)
    except _BadFieldError as error:
        return BadRecord(index, error.field, error.reason, error.text[:MAX_OFFENDING_TEXT])


def _context(record: _Record, msg_type_map: str) -> TraceContext:
    fields = record.fields
    trace_type = _TYPES.get(fields[0])
    if trace_type is None:
        raise _BadFieldError("trace_type", "unknown record type", FIELD_SEPARATOR.join(fields))
    form = form_for(trace_type, len(fields), _filled(fields))
    if form is None:
        needed = FORMS[trace_type][0].count
        raise _BadFieldError(None, f"{_filled(fields)} fields, needs {needed}", FIELD_SEPARATOR.join(fields))
    of_bean: dict[str, Any] = {}
    of_context: dict[str, Any] = {}
    index, name = 0, None
    try:
        for index, name, in_bean, read in _readers(form, msg_type_map):
            (of_bean if in_bean else of_context)[name] = read(fields[index])
    except ValueError as error:
        raise _BadFieldError(name, str(error), fields[index]) from None
    return TraceContext(
        trace_type=trace_type,
        access_channel=None if record.quirk is CloudSubAfter.SAME else AccessChannel.CLOUD,
        beans=(TraceBean(**of_bean),),
        **of_context,
    )


def _filled(fields: list[str]) -> int:
    """Count the fields up to the last one that is not empty, as Java's ``String.split`` does."""
    count = len(fields)
    while count and not fields[count - 1]:
        count -= 1
    return count


@lru_cache(maxsize=64)
def _readers(form: Form, msg_type_map: str) -> tuple[tuple[int, str, bool, Callable[[str], Any]], ...]:
    """Return index, name, "belongs to the bean" and reader of every field that is kept."""
    by_kind: dict[FieldKind, Callable[[str], Any]] = {
        FieldKind.TEXT: str,
        FieldKind.LONG: _integer_reader(64),
        FieldKind.INT: _integer_reader(32),
        FieldKind.BOOL: _boolean,
        FieldKind.MESSAGE_TYPE: _ordinal_reader("message type", MESSAGE_TYPE_MAPS[msg_type_map]),
        FieldKind.CONTEXT_CODE: _ordinal_reader("context code", tuple(ContextCode)),
        FieldKind.TRANSACTION_STATE: _state,
    }
    return tuple(
        (index, name, name in BEAN_FIELDS, by_kind[FIELDS[name]])
        for index, name in enumerate(form.fields, start=1)
        if name not in _UNKEPT
    )


def _integer_reader(bits: int) -> Callable[[str], int]:
    """Return ``Long.parseLong`` or ``Integer.parseInt``: a sign, digits of any script, no spaces, no underscores."""
    limit = 1 << (bits - 1)

    def read(text: str) -> int:
        if not _JAVA_INTEGER.fullmatch(text) or (not text.isascii() and max(text) > _LAST_UTF16_UNIT):
            raise ValueError("not a number")
        try:
            number = int(text)
        except ValueError:  # more digits than Python is willing to read
            number = limit
        if not -limit <= number < limit:
            raise ValueError(f"does not fit {bits} bits")
        return number

    return read


def _boolean(text: str) -> bool:
    """Read as ``Boolean.parseBoolean``: the word true in any case, everything else is false."""
    return text.lower() == "true"


def _ordinal_reader(what: str, values: tuple[Any, ...]) -> Callable[[str], Any]:
    integer = _integer_reader(32)

    def read(text: str) -> Any:
        ordinal = integer(text)
        if not 0 <= ordinal < len(values):
            raise ValueError(f"unknown {what} ordinal")
        return values[ordinal]

    return read


def _state(text: str) -> TransactionState:
    try:
        return TransactionState[text]
    except KeyError:
        raise ValueError("unknown transaction state") from None
