"""Write a trace record: one hook call in, the bytes and the key set of one dialect out.

RocketMQ's encoder writes separators unchanged and throws on some nulls (``TraceDataEncoder.java``). Ours writes U+0001
and U+0002 inside a value as ``_`` and counts them, in the key set too; it writes ``DEFAULTS`` for an absent number or
flag, and refuses the glued CLOUD form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import EncodeError, UsageError
from otel_mqtrace.model import (
    KEY_SEPARATOR,
    AccessChannel,
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    TransactionState,
)
from otel_mqtrace.wire.native.dialects import dialect_named
from otel_mqtrace.wire.native.layout import (
    DEFAULT_DIALECT,
    FIELD_SEPARATOR,
    FIELDS,
    FIRST_BEAN_ONLY,
    NULL_TEXT,
    RECORD_TERMINATOR,
    REPLACEMENT,
    CloudSubAfter,
    Dialect,
    FieldKind,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


DEFAULTS: Final[dict[str, int | bool]] = {
    "timestamp_ms": 0,
    "body_length": 0,
    "cost_ms": 0,
    "retry_times": 0,
    "success": True,
    "context_code": ContextCode.SUCCESS,
    "from_transaction_check": False,
}
"""What an absent number or flag is written as: the initial values of ``TraceContext.java`` and ``TraceBean.java``.

A time has no initial value there: 0.
"""

_MODEL_FIELDS: Final = TraceContext._fields + TraceBean._fields
_SEPARATORS: Final = str.maketrans({FIELD_SEPARATOR: REPLACEMENT, RECORD_TERMINATOR: REPLACEMENT})


@dataclass(frozen=True, slots=True)
class EncodedContext:
    """One encoded hook call.

    ``body`` is its records, ready to be concatenated with others. ``keys`` are what the trace message must be
    findable by. ``replaced`` counts characters of values that the format cannot carry.
    """

    body: bytes
    keys: frozenset[str]
    replaced: int = 0


def encode_context(
    trace_ctx: TraceContext,
    dialect: str = DEFAULT_DIALECT,
    *,
    access_channel: AccessChannel = AccessChannel.LOCAL,
    charset: str = "utf-8",
) -> EncodedContext:
    """Encode one hook call as ``dialect`` would have written it.

    ``access_channel`` applies when the context does not carry its own, as in RocketMQ. Of a ``Pub``, ``EndTransaction``
    or ``Recall`` only the first bean is written, though all feed the key set; the ``Sub`` types write one record each.
    ``charset`` is the platform's that clients up to 4.9.8 wrote in (``"gbk"``); keys are Unicode whatever it is.

    Raises:
        EncodeError: no beans, a type or a message type the dialect does not have, a number beyond its bits, an
            ``EndTransaction`` without state, the glued CLOUD form; named by ``field``.
        UsageError: an unknown dialect or charset.
    """
    row = dialect_named(dialect)
    plan = _make_plan(row.name, trace_ctx.trace_type, trace_ctx.access_channel or access_channel)
    if not trace_ctx.beans:
        raise EncodeError(f"{trace_ctx.trace_type.value} cannot be written without messages", field="beans")
    written = trace_ctx.beans[:1] if trace_ctx.trace_type in FIRST_BEAN_ONLY else trace_ctx.beans
    records = [_encode_record(plan, trace_ctx, bean) for bean in written]
    keys = frozenset(_clean(key) for key in _list_keys(trace_ctx.beans, splits=row.splits_keys))
    body, unencodable = _encode_text("".join(text for text, _ in records), charset)
    return EncodedContext(body, keys, unencodable + sum(replaced for _, replaced in records))


@dataclass(frozen=True, slots=True)
class _Plan:
    head: str  # the type name and its separator
    writers: tuple[tuple[str, int, Callable[[Any], str]], ...]  # field, its place in _MODEL_FIELDS, how to write it
    tail: str


@lru_cache(maxsize=256)
def _make_plan(dialect_name: str, trace_type: TraceType, access_channel: AccessChannel) -> _Plan:
    dialect = dialect_named(dialect_name)
    form = dialect.form(trace_type, access_channel)
    if form is None:
        raise EncodeError(f"dialect {dialect_name} has no {trace_type.value} record", field="trace_type")
    quirk = dialect.cloud_quirk(trace_type, access_channel)
    if quirk is CloudSubAfter.GLUED:
        raise EncodeError(
            f"RocketMQ {dialect.releases} writes a CLOUD SubAfter without terminator, which destroys its neighbours;"
            " choose 5.3.1 or later",
            field="access_channel",
        )
    return _Plan(
        head=trace_type.value + FIELD_SEPARATOR,
        writers=tuple((name, _MODEL_FIELDS.index(name), _make_writer(name, dialect)) for name in form.fields),
        tail=FIELD_SEPARATOR + RECORD_TERMINATOR if quirk is CloudSubAfter.TRAILING else RECORD_TERMINATOR,
    )


def _encode_record(plan: _Plan, trace_ctx: TraceContext, bean: TraceBean) -> tuple[str, int]:
    fields = trace_ctx + bean
    values = [write(fields[at]) for _, at, write in plan.writers]
    values[-1] = values[-1] or NULL_TEXT  # Java's own reader counts an empty last field as missing
    text = FIELD_SEPARATOR.join(values)
    replaced = text.count(FIELD_SEPARATOR) + text.count(RECORD_TERMINATOR) - (len(values) - 1)
    if replaced:  # rare, so the values are read one by one only when the sum does not add up
        text = FIELD_SEPARATOR.join(value.translate(_SEPARATORS) for value in values)
    return plan.head + text + plan.tail, replaced


def _list_keys(beans: Iterable[TraceBean], *, splits: bool) -> Iterable[str]:
    for bean in beans:
        yield NULL_TEXT if bean.msg_id is None else bean.msg_id  # what a null id reads as in the joined property
        if bean.keys:
            yield from _java_split(bean.keys) if splits else (bean.keys,)


def _clean(key: str) -> str:
    """Replace in a key what is replaced in a value, so that index and record agree."""
    if key.isprintable() and key.isascii():  # nearly all there are
        return key
    return key.translate(_SEPARATORS).encode(errors="replace").decode()


def _java_split(keys: str) -> list[str]:
    """Split as ``String.split(" ")`` does: empty pieces stay inside and in front, and vanish at the end."""
    return keys.rstrip(KEY_SEPARATOR).split(KEY_SEPARATOR) if keys.strip(KEY_SEPARATOR) else []


def _encode_text(text: str, charset: str) -> tuple[bytes, int]:
    try:
        return text.encode(charset), 0
    except UnicodeEncodeError:  # Java's getBytes writes a question mark, too
        kept = text.encode(charset, errors="ignore").decode(charset)
        return text.encode(charset, errors="replace"), len(text) - len(kept)
    except LookupError:
        raise UsageError(f"unknown charset {charset!r}; use a text encoding such as utf-8 or gbk") from None


def _make_writer(name: str, dialect: Dialect) -> Callable[[Any], str]:
    """Return the function that writes the field ``name``; it raises ``EncodeError`` for what cannot be written."""
    kind = FIELDS[name]
    if kind is FieldKind.TEXT:
        return lambda value: NULL_TEXT if value is None else value
    if kind is FieldKind.MESSAGE_TYPE:
        return _make_message_type_writer(name, dialect)
    if kind is FieldKind.TRANSACTION_STATE:
        return _write_state
    if kind is FieldKind.BOOL:
        return lambda value: "true" if (DEFAULTS[name] if value is None else value) else "false"
    return _make_number_writer(name, bits=64 if kind is FieldKind.LONG else 32)


def _make_number_writer(name: str, *, bits: int) -> Callable[[int | None], str]:
    default, limit = int(DEFAULTS[name]), 1 << (bits - 1)

    def write(value: int | None) -> str:
        number = default if value is None else int(value)
        if not -limit <= number < limit:
            raise EncodeError(f"{name}: {number} does not fit the {bits} bits of the format", field=name)
        return str(number)

    return write


def _make_message_type_writer(name: str, dialect: Dialect) -> Callable[[MessageType | None], str]:
    ordinals = {kind: str(ordinal) for ordinal, kind in enumerate(dialect.message_types)}

    def write(value: MessageType | None) -> str:
        if value is None:
            raise EncodeError(f"{name}: a record needs a message type", field=name)
        if value not in ordinals:
            raise EncodeError(f"{name}: dialect {dialect.name} has no ordinal for {value.value}", field=name)
        return ordinals[value]

    return write


def _write_state(state: TransactionState | None) -> str:
    if state is None:
        raise EncodeError("transaction_state: the end of a transaction needs a state", field="transaction_state")
    return state.value


RecordTemplate = tuple[str, "Callable[[tuple[Any, ...]], tuple[Any, ...]]"]


def make_record_template(
    dialect: str, trace_type: TraceType, constants: Mapping[str, Any], varying: tuple[str, ...]
) -> RecordTemplate | None:
    """Return a ``%`` template of one record, and what picks from the values of ``varying`` those it takes, in order.

    The values of ``varying`` are to be given as text, as the encoder writes them, with no separator in them.

    Returns:
        ``None`` where the record of this dialect has a field that is in neither, or a constant cannot be written as it
        is: then :func:`~otel_mqtrace.wire.native.encode.encode_context` is to be used.
    """
    plan = _make_plan(dialect_named(dialect).name, trace_type, AccessChannel.LOCAL)
    pieces, order = [], []
    for name, _, write in plan.writers:
        if name in varying:
            pieces.append("%s")
            order.append(varying.index(name))
        elif name in constants:
            text = write(constants[name])
            if not text or FIELD_SEPARATOR in text or RECORD_TERMINATOR in text:
                return None
            pieces.append(text.replace("%", "%%"))
        else:
            return None
    return plan.head + FIELD_SEPARATOR.join(pieces) + plan.tail, itemgetter(*order)
