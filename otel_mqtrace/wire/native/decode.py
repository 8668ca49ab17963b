"""Decode native trace records: charsets, bodies, and streams of any size; no bytes make it raise.

Each kind of field has a reader with Java's rules (``TraceDataEncoder.java``). Unlike Java's reader, a bad record is
reported and its neighbours are kept, and what is not on the wire is ``None``, never the reader's own time, host or id.
The work is linear in the size of the body.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import AccessChannel, ContextCode, TraceBean, TraceContext, TraceType, TransactionState
from otel_mqtrace.wire.native.dialects import Shape, writer_of
from otel_mqtrace.wire.native.layout import (
    ABSENT_TEXTS,
    CLOUD_SUB_AFTER,
    FIELD_SEPARATOR,
    FIELDS,
    FORMS,
    KEPT_FIELDS,
    MESSAGE_TYPE_MAPS,
    RECORD_TERMINATOR,
    CloudSubAfter,
    FieldKind,
    check_message_type_map,
    form_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


_ANY: Final = bytes(range(256))
_ASCII: Final = _ANY[:128]
_TERMINATOR: Final = RECORD_TERMINATOR.encode()
_REPLACEMENT: Final = "\ufffd"


def text_of(body: bytes, charset: str) -> str:
    """Return the text of a body, with U+FFFD for each byte sequence that is invalid in ``charset``.

    Raises:
        UsageError: no such charset.
    """
    cuttable = is_cuttable(charset)
    try:
        return body.decode(charset)
    except UnicodeError:
        # Piece by piece: Python's GB18030 decoder lets an incomplete character at the end swallow the terminator.
        pieces = body.split(_TERMINATOR) if cuttable else [body]
        return RECORD_TERMINATOR.join(piece.decode(charset, errors="replace") for piece in pieces)


def check_charset(charset: str) -> None:
    """Raise ``UsageError`` for an unknown charset."""
    is_cuttable(charset)


@lru_cache(maxsize=32)
def is_cuttable(charset: str) -> bool:
    """Return whether ASCII stands for itself in ``charset`` everywhere, so that bytes can be cut at a terminator.

    Raises:
        UsageError: no such charset.
    """
    try:
        _ANY.decode(charset, errors="replace")  # there are codecs of names, such as IDNA, that refuse some bytes
        shifting = codecs.lookup(charset).name.startswith("iso2022")  # ASCII only until the first escape
        return not shifting and _ASCII.decode(charset, errors="replace") == _ASCII.decode()
    except (LookupError, UnicodeError):
        raise UsageError(f"unknown charset {charset!r}; use a text encoding such as utf-8 or gbk") from None


_T = TypeVar("_T")

BATCH_SEPARATOR: Final = ","
"""Between the ids of a batch's messages."""
MAX_OFFENDING_TEXT: Final = 200
"""Characters of a bad record or field that are kept as evidence."""

MAX_RECORD_LENGTH: Final = 16 << 20
"""A longer piece is one bad record and is not split: four times the largest message that brokers accept by default."""
TOO_LONG: Final = "longer than any record"

_TYPES: Final = {trace_type.value: trace_type for trace_type in TraceType}
_SUB_AFTER: Final = TraceType.SUB_AFTER.value
_GLUE_AT: Final = CLOUD_SUB_AFTER.count  # where the timestamp would be; a type name there starts the next record
_GLUE: Final = {*_TYPES, ""}
_LONGEST: Final = max(form.count for forms in FORMS.values() for form in forms)
_JAVA_INTEGER: Final = re.compile(r"[+-]?\d+")
_READABLE_DIGITS: Final = 40
_BEYOND: Final = 1 << 64
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
    """The content of one body, in wire order.

    ``contexts`` have exactly one bean each; ``record_indexes``, ``dialects`` and ``shapes`` stand beside them, item by
    item. A dialect is the newest known writer of that shape and of the caller's map of message types (``writer_of``),
    ``None`` for one that no client writes. ``len(contexts) + len(errors)`` is the number of records in the body.
    ``replaced`` counts the U+FFFD that stand for bytes that the charset cannot read.
    """

    contexts: tuple[TraceContext, ...] = ()
    errors: tuple[BadRecord, ...] = ()
    record_indexes: tuple[int, ...] = ()
    dialects: tuple[str | None, ...] = ()
    shapes: tuple[Shape, ...] = ()
    replaced: int = 0


def decode_body(body: bytes, *, msg_type_map: str = "a", charset: str = "utf-8") -> DecodedBody:
    """Decode the body of one trace message; no bytes make it raise.

    ``msg_type_map`` is ``"a"``, or ``"b"`` for bodies written by 5.0.0 and 5.1.0. ``charset`` is the writer's: UTF-8
    since 5.0.0, before that the platform's (``"gbk"`` on Chinese machines); what it cannot read becomes U+FFFD.

    Raises:
        UsageError: no such map or charset; a mistake of the caller, never of the bytes.
    """
    check_message_type_map(msg_type_map)
    contexts: list[TraceContext] = []
    errors: list[BadRecord] = []
    indexes: list[int] = []
    plans: list[_Plan] = []
    text, replaced = text_of(body, charset), 0
    if _REPLACEMENT in text:  # the writer may have sent it, too
        replaced = text.count(_REPLACEMENT) - body.decode(charset, errors="ignore").count(_REPLACEMENT)
    for index, (fields, quirk) in enumerate(_cut_records(text)):
        try:
            plan = _find_plan(fields, quirk, msg_type_map)
            values = _parse_fields(fields, plan)
        except _BadFieldError as error:
            errors.append(error.record(index))
            continue
        values[_BEANS_AT] = (TraceBean._make(plan.of_bean(values)),)
        contexts.append(TraceContext._make(plan.of_context(values)))
        indexes.append(index)
        plans.append(plan)
    dialects, shapes = tuple(plan.dialect for plan in plans), tuple(plan.shape for plan in plans)
    return DecodedBody(tuple(contexts), tuple(errors), tuple(indexes), dialects, shapes, replaced)


def decode_values(text: str, *, msg_type_map: str) -> Iterator[tuple[_Record, tuple[Any, ...] | BadRecord]]:
    """Yield the fields and the values of each record of a body, without an object of the model.

    The fields start with the type name, and what CLOUD made of it; such a record had a separator behind them. The
    values are those of ``KEPT_FIELDS``, ``None`` where not on the wire; or the error. ``text`` is :func:`text_of` of
    the body.

    Raises:
        UsageError: an unknown map.
    """
    check_message_type_map(msg_type_map)
    for index, record in enumerate(_cut_records(text)):
        values: tuple[Any, ...] | BadRecord
        try:
            plan = _find_plan(*record, msg_type_map)
            values = plan.of_kept(_parse_fields(record[0], plan))
        except _BadFieldError as error:
            values = error.record(index)
        yield record, values


_NOT_ATTRIBUTES: Final = ("timestamp_ms", "access_channel")
_OTHERS: Final = ("trace_type", "beans", *_NOT_ATTRIBUTES)
MODEL_FIELDS: Final = (
    *TraceBean._fields,
    *(name for name in TraceContext._fields if name not in _OTHERS),
    *_NOT_ATTRIBUTES,
)
"""The fields of a record about one message, without its type; in the order of a span's attributes, the others last."""


_MSG_ID, _OFFSET_MSG_ID = MODEL_FIELDS.index("msg_id"), MODEL_FIELDS.index("offset_msg_id")
Row = tuple[_T, int, TraceType, int, tuple[Any, ...]]


def decode_rows(
    body: bytes, origin: _T, *, msg_type_map: str = "a", charset: str = "utf-8"
) -> tuple[list[Row[_T]], list[BadRecord]]:
    """Return the records of a body as plain rows, one for each message of a batch, and the bad records.

    A row is ``origin``, the index of the record in the body, its type, the number of messages it is for, and a value
    for each of ``MODEL_FIELDS``; a text that stands for nothing (``ABSENT_TEXTS``) is ``None``. Bodies and errors are
    those of :func:`decode_body`.
    """
    check_message_type_map(msg_type_map)
    rows: list[Row[_T]] = []
    errors: list[BadRecord] = []
    plans: dict[tuple[str, int, CloudSubAfter | None], _Plan] = {}  # saves 4 % where a body has many records
    for index, (fields, quirk) in enumerate(_cut_records(text_of(body, charset))):
        shape = fields[0], len(fields), quirk
        try:
            # the plan of a record that ends with empty fields depends on their number too
            plan = plans.get(shape) if fields[-1] else _find_plan(fields, quirk, msg_type_map)
            if plan is None:
                plan = plans[shape] = _find_plan(fields, quirk, msg_type_map)
            parsed = _parse_fields(fields, plan)
        except _BadFieldError as error:
            errors.append(error.record(index))
            continue
        if not ABSENT_TEXTS.isdisjoint(fields):
            parsed = [None if type(value) is str and value in ABSENT_TEXTS else value for value in parsed]
        trace_type, values = plan.shape.trace_type, plan.of_model(parsed)
        if trace_type is TraceType.PUB and BATCH_SEPARATOR in (values[_MSG_ID] or ""):
            batch = _split_batch(values[_MSG_ID], values[_OFFSET_MSG_ID])
            rows += [(origin, index, trace_type, len(batch), _replace_ids(values, *ids)) for ids in batch]
        else:
            rows.append((origin, index, trace_type, 1, values))
    return rows, errors


def _replace_ids(values: tuple[Any, ...], *ids: str | None) -> tuple[Any, ...]:
    present = (None if text in ABSENT_TEXTS else text for text in ids)
    return (*values[:_MSG_ID], *present, *values[_OFFSET_MSG_ID + 1 :])


class _BadFieldError(Exception):
    def __init__(self, name: str | None, reason: str, text: str) -> None:
        super().__init__(reason)
        self.field, self.reason, self.text = name, reason, text

    def record(self, index: int) -> BadRecord:
        return BadRecord(index, self.field, self.reason, self.text[:MAX_OFFENDING_TEXT])


_Record = tuple[list[str], "CloudSubAfter | None"]
"""The fields of a record, the type name first, without the empty one of a CLOUD ``SubAfter``; what CLOUD made of it."""


def _cut_records(text: str) -> Iterator[_Record]:
    """Cut a body at U+0002 into records, one at a time; the last piece may lack its terminator.

    CLOUD writers of 4.9.5-4.9.8 and 5.1.4-5.3.0 glue the next record to a ``SubAfter``.
    """
    pieces = text.split(RECORD_TERMINATOR)
    last = len(pieces) - 1
    for at, piece in enumerate(pieces):
        if len(piece) > MAX_RECORD_LENGTH:
            yield [piece], None
        elif piece:
            fields = piece.split(FIELD_SEPARATOR)
            if fields[0] == _SUB_AFTER and len(fields) > _GLUE_AT and fields[_GLUE_AT] in _GLUE:
                yield from _unglue(fields, terminated=at < last)
            else:
                yield fields, None


def _unglue(fields: list[str], *, terminated: bool) -> Iterator[_Record]:
    start = 0
    while fields[start] == _SUB_AFTER and len(fields) > start + _GLUE_AT and fields[start + _GLUE_AT] in _TYPES:
        yield fields[start : start + _GLUE_AT], CloudSubAfter.GLUED
        start += _GLUE_AT
    rest = fields[start:] if start else fields
    if rest[0] == _SUB_AFTER and len(rest) == _GLUE_AT + 1 and not rest[-1]:
        yield rest[:-1], CloudSubAfter.TRAILING if terminated else CloudSubAfter.GLUED
    else:
        yield rest, None


_ABSENT_AT, _CHANNEL_AT, _TYPE_AT, _BEANS_AT = -1, -2, -3, 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """How the records of one shape are read.

    ``values`` are the fields that are not texts, in wire order: name, place, the value of nearly all texts, and the
    parser of any. Constants of the shape follow the fields of a record, its beans stand at the type name; ``of_bean``
    and ``of_context`` pick the model's fields from all that, ``of_kept`` those of the table, ``of_model``
    ``MODEL_FIELDS``.
    """

    shape: Shape
    dialect: str | None
    values: tuple[tuple[str, int, Mapping[str, Any], Callable[[str], Any]], ...]
    behind: tuple[AccessChannel | TraceType | None, ...]
    of_bean: Callable[[list[Any]], tuple[Any, ...]]
    of_context: Callable[[list[Any]], tuple[Any, ...]]
    of_kept: Callable[[list[Any]], tuple[Any, ...]]
    of_model: Callable[[list[Any]], tuple[Any, ...]]


def _find_plan(fields: list[str], quirk: CloudSubAfter | None, msg_type_map: str) -> _Plan:
    count, type_name = len(fields), fields[0]
    filled = count if fields[-1] else _count_filled(fields)
    bounded = filled if filled < _LONGEST else _LONGEST  # noqa: FURB136 - a call of min() costs as much as a field
    plan = _make_plan(type_name, count, bounded, quirk, msg_type_map) if type_name in _TYPES else None
    if plan is not None:
        return plan
    if len(type_name) > MAX_RECORD_LENGTH:
        raise _BadFieldError(None, TOO_LONG, type_name)
    text = FIELD_SEPARATOR.join(fields)
    if type_name not in _TYPES:
        raise _BadFieldError("trace_type", "unknown record type", text)
    raise _BadFieldError(None, f"{filled} fields, needs {FORMS[_TYPES[type_name]][0].count}", text)


@lru_cache(maxsize=512)
def _make_plan(type_name: str, count: int, filled: int, quirk: CloudSubAfter | None, msg_type_map: str) -> _Plan | None:
    """Return how records of this shape are read, ``None`` when no form of the type fits."""
    shape = Shape(_TYPES[type_name], count, quirk or CloudSubAfter.SAME)
    form = form_for(shape.trace_type, count, filled)
    if form is None:
        return None
    readers = _make_readers(msg_type_map)
    kept = {name: index for index, name in enumerate(form.fields, start=1) if name in KEPT_FIELDS}
    at = {"trace_type": _TYPE_AT, "access_channel": _CHANNEL_AT, "beans": _BEANS_AT, **kept}
    return _Plan(
        shape=shape,
        dialect=writer_of(*shape, msg_type_map=msg_type_map),
        values=tuple((name, index, *readers[FIELDS[name]]) for name, index in kept.items() if FIELDS[name] in readers),
        behind=(shape.trace_type, None if quirk is None else AccessChannel.CLOUD, None),
        of_bean=itemgetter(*(at.get(name, _ABSENT_AT) for name in TraceBean._fields)),
        of_context=itemgetter(*(at.get(name, _ABSENT_AT) for name in TraceContext._fields)),
        of_kept=itemgetter(*(at.get(name, _ABSENT_AT) for name in KEPT_FIELDS)),
        of_model=itemgetter(*(at.get(name, _ABSENT_AT) for name in MODEL_FIELDS)),
    )


def _parse_fields(fields: list[str], plan: _Plan) -> list[Any]:
    """Return the parsed fields, each at its place, followed by the constants of the shape."""
    values: list[Any] = [*fields, *plan.behind]
    for name, index, known, read in plan.values:
        text = fields[index]
        if text in known:
            values[index] = known[text]
            continue
        try:
            values[index] = read(text)
        except ValueError as error:
            raise _BadFieldError(name, str(error), text) from None
    return values


def _count_filled(fields: list[str]) -> int:
    """Count the fields up to the last one that is not empty, as Java's ``String.split`` does."""
    count = len(fields)
    while count and not fields[count - 1]:
        count -= 1
    return count


_Reader = tuple["Mapping[str, Any]", "Callable[[str], Any]"]
_SMALL: Final = {str(number): number for number in range(1_024)}
_WORDS: Final = {"true": True, "false": False}
_STATES: Final = {state.name: state for state in TransactionState}


@cache
def _make_readers(msg_type_map: str) -> dict[FieldKind, _Reader]:
    """Return how the text of each kind of field is read, texts aside, which are what they are.

    The mapping has what the function would return for the usual texts: a look-up takes a third of the time of a call.
    """
    return {
        FieldKind.LONG: ({}, _make_integer_reader(64)),
        FieldKind.INT: (_SMALL, _make_integer_reader(32)),
        FieldKind.BOOL: (_WORDS, lambda text: text.lower() == "true"),  # as Boolean.parseBoolean
        FieldKind.MESSAGE_TYPE: _make_ordinal_reader("message type", MESSAGE_TYPE_MAPS[msg_type_map]),
        FieldKind.CONTEXT_CODE: _make_ordinal_reader("context code", tuple(ContextCode)),
        FieldKind.TRANSACTION_STATE: (_STATES, _refuse_state),
    }


def known_texts(kind: FieldKind, msg_type_map: str) -> Mapping[str, Any]:
    """Return what the usual texts of a field of this kind, not of a text, mean; of numbers not all are listed."""
    return _make_readers(msg_type_map)[kind][0]


def _make_integer_reader(bits: int) -> Callable[[str], int]:
    """Return ``Long.parseLong`` or ``Integer.parseInt``: a sign, digits of any script, no spaces, no underscores."""
    limit = 1 << (bits - 1)
    surely_fits = len(str(limit)) - 1

    def read(text: str) -> int:
        if len(text) <= surely_fits and text.isascii() and text.isdecimal():  # nearly all there are
            return int(text)
        if not _JAVA_INTEGER.fullmatch(text) or (not text.isascii() and max(text) > _LAST_UTF16_UNIT):
            raise ValueError("not a number")
        number = int(text) if len(text) <= _READABLE_DIGITS else _read_long_integer(text)
        if not -limit <= number < limit:
            raise ValueError(f"does not fit {bits} bits")
        return number

    return read


def _read_long_integer(text: str) -> int:
    """Read a number by its last digits, all before them being zeros; else return one that fits nothing.

    What Python needs for an int grows with the square of its digits, and Java reads any number of zeros.
    """
    sign = -1 if text[0] == "-" else 1
    head, tail = text[:-_READABLE_DIGITS].lstrip("+-"), text[-_READABLE_DIGITS:]
    return sign * (_BEYOND if any(unicodedata.decimal(digit) for digit in head) else int(tail))


def _make_ordinal_reader(what: str, values: tuple[Any, ...]) -> _Reader:
    integer = _make_integer_reader(32)

    def read(text: str) -> Any:
        ordinal = integer(text)
        if not 0 <= ordinal < len(values):
            raise ValueError(f"unknown {what} ordinal")
        return values[ordinal]

    return {str(ordinal): value for ordinal, value in enumerate(values)}, read


def _refuse_state(_text: str) -> TransactionState:
    raise ValueError("unknown transaction state")


def explode(trace_ctx: TraceContext) -> tuple[TraceContext, ...]:
    """Return one context for each message of a batch's ``Pub``, ``(trace_ctx,)`` for everything else.

    Offset ids are matched by position; if their number differs from that of the ids, each is ``None``.
    """
    bean = trace_ctx.beans[0] if trace_ctx.beans else None
    if bean is None or trace_ctx.trace_type is not TraceType.PUB or BATCH_SEPARATOR not in (bean.msg_id or ""):
        return (trace_ctx,)
    return tuple(
        trace_ctx._replace(beans=(bean._replace(msg_id=msg_id, offset_msg_id=offset),))
        for msg_id, offset in _split_batch(bean.msg_id or "", bean.offset_msg_id)
    )


def _split_batch(msg_ids: str, offset_msg_ids: str | None) -> list[tuple[str, str | None]]:
    ids = msg_ids.split(BATCH_SEPARATOR)
    offsets: list[str | None] = [*(offset_msg_ids or "").split(BATCH_SEPARATOR)]
    return list(zip(ids, offsets if len(offsets) == len(ids) else [None] * len(ids), strict=True))


PART_BYTES: Final = 1 << 18
"""How much is read at once; larger parts are not read faster, and cost memory when they are full of short nonsense."""


def decode_stream(
    read: Callable[[int], bytes],
    *,
    msg_type_map: str = "a",
    charset: str = "utf-8",
    part_bytes: int = PART_BYTES,
    max_record_bytes: int = MAX_RECORD_LENGTH,
) -> Iterator[DecodedBody]:
    """Yield one body in parts: what :func:`decode_body` makes of the whole, the record indexes running on.

    It is cut at U+0002 where ASCII stands for itself in the charset; with any other it is read whole.

    ``read(n)`` returns up to ``n`` bytes, none at the end. No bytes make it raise. A piece that grows beyond
    ``max_record_bytes`` without a terminator is one bad record and is not kept.

    Raises:
        UsageError: as :func:`decode_body`, before anything is read.
    """
    check_message_type_map(msg_type_map)
    cut = is_cuttable(charset)
    index = 0
    for part, is_too_long in _read_parts(read, part_bytes, max_record_bytes, cut=cut):
        if is_too_long:
            text = text_of(part, charset)[:MAX_OFFENDING_TEXT]
            yield DecodedBody(errors=(BadRecord(index, None, TOO_LONG, text),))
            index += 1
            continue
        decoded = decode_body(part, msg_type_map=msg_type_map, charset=charset)
        yield replace(
            decoded,
            record_indexes=tuple(index + at for at in decoded.record_indexes),
            errors=tuple(replace(error, record_index=index + error.record_index) for error in decoded.errors),
        )
        index += len(decoded.contexts) + len(decoded.errors)


def _read_parts(
    read: Callable[[int], bytes], part_bytes: int, max_record_bytes: int, *, cut: bool
) -> Iterator[tuple[bytes, bool]]:
    """Yield parts of whole records, and the start of each piece that is too long, with whether it is one."""
    if not cut:
        yield b"".join(iter(lambda: read(part_bytes), b"")), False
        return
    held = bytearray()
    skipping = False
    while chunk := read(part_bytes):
        if skipping:
            _, terminator, chunk = chunk.partition(_TERMINATOR)
            skipping = not terminator
        end = chunk.rfind(_TERMINATOR) + 1
        if end:
            held += chunk[:end]
            yield bytes(held), False
            held = bytearray(chunk[end:])
        else:
            held += chunk
        if len(held) > max_record_bytes:
            yield bytes(held[: 4 * MAX_OFFENDING_TEXT]), True
            held = bytearray()
            skipping = True
    if held:
        yield bytes(held), False
