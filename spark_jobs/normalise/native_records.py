"""This module knows what the bodies of trace messages say, record by record, and counts them without being told.

The codec reads the records (``bridge.codec.native.decode``), as it does for everybody else. What is due of a body is
counted in its text by other means, so that a record which the codec lost would be missed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from bridge.codec.native.charsets import text_of
from bridge.codec.native.decode import MAX_RECORD_LENGTH, BadRecord, decode_values
from bridge.codec.native.layout import (
    CLOUD_SUB_AFTER,
    FIELD_SEPARATOR,
    FIELDS,
    FORMS,
    KEPT_FIELDS,
    RECORD_TERMINATOR,
    FieldKind,
)
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from spark_jobs.mentions import mentioned_in
from spark_jobs.normalise.read_event import BAD_TYPE
from spark_jobs.normalise.row_hashes import hashed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bridge.codec.native.layout import CloudSubAfter
    from spark_jobs.normalise.columns import Column

__all__ = ["MOST_ROWS", "MOST_TEXT", "Due", "record_columns"]

MOST_ROWS: Final = 4096
MOST_TEXT: Final = 8 << 20
"""Rows are laid into columns together until they are so many, or their text so long in characters."""
_NAMES: Final = "|".join(kind.value for kind in TraceType)
_PIECE: Final = re.compile(rf"[^{RECORD_TERMINATOR}]+")
_NEXT_PIECE: Final = re.compile(rf"{RECORD_TERMINATOR}(?=[^{RECORD_TERMINATOR}])")
# A SubAfter over CLOUD of 4.9.5-4.9.8 and 5.1.4-5.3.0 has no terminator: a type name stands where its eighth field
# would be (apache/rocketmq#8429).
_GLUED: Final = re.compile(
    rf"{TraceType.SUB_AFTER.value}(?:{FIELD_SEPARATOR}[^{FIELD_SEPARATOR}{RECORD_TERMINATOR}]*)"
    rf"{{{len(CLOUD_SUB_AFTER.fields)}}}{FIELD_SEPARATOR}(?=(?:{_NAMES})(?:[{FIELD_SEPARATOR}{RECORD_TERMINATOR}]|\Z))"
)
_NAMES_INSIDE: Final = tuple(FIELD_SEPARATOR + kind.value for kind in TraceType)
_REQUEST_AT: Final = {
    kind.value: FORMS[kind][0].fields.index("request_id") + 1 for kind in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
}
_TYPES: Final[dict[FieldKind, Any]] = {
    FieldKind.LONG: pa.int64(),
    FieldKind.INT: pa.int32(),
    FieldKind.BOOL: pa.bool_(),
}
_WORDS: Final[dict[FieldKind, dict[Any, str]]] = {
    FieldKind.MESSAGE_TYPE: {kind: kind.value for kind in MessageType},
    FieldKind.CONTEXT_CODE: {code: code.name for code in ContextCode},
    FieldKind.TRANSACTION_STATE: {state: state.value for state in TransactionState},
}
_MOST_HELD: Final = 1 << 18
"""A longer text is read twice instead of holding all of its records: a client's trace messages are half of that."""
_NOTHING: Final = (None,) * len(KEPT_FIELDS)
_Told: TypeAlias = "tuple[tuple[list[str], CloudSubAfter | None], tuple[Any, ...] | BadRecord | None]"
"""A record as the codec tells it, or nothing of one that was not read."""


@dataclass(slots=True)
class Due:
    """How many ``records`` the bodies read so far hold; a glued pair counts once. A piece without a body is one."""

    records: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """Some records of one body: the number of the first, what each says, of how many its listener call is.

    The first part of a body tells of all of it how many characters it has, and how many of its records are glued.
    """

    first: int
    told: Sequence[_Told]
    call_sizes: Sequence[int]
    characters: int = 0
    glued: int = 0


_UNREAD: Final = _Part(0, [(([""], None), None)], [1])


@dataclass(slots=True)
class _Read:
    """Records beside each other: what each says, in which row (``at``) and as which one of its body."""

    characters: int = 0
    told: list[_Told] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    call_size: list[int] = field(default_factory=list)
    surplus: list[int] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        return len(self.told) >= MOST_ROWS or self.characters >= MOST_TEXT

    def add(self, row: int, part: _Part) -> None:
        count = len(part.told)
        self.characters += part.characters
        self.told += part.told
        self.at += [row] * count
        self.index += range(part.first, part.first + count)
        self.call_size += part.call_sizes
        self.surplus += [part.glued, *[0] * (count - 1)]


def record_columns(
    bodies: Iterable[pa.RecordBatch], due: Due, *, msg_type_map: str, charset: str
) -> Iterator[dict[str, Column]]:
    """Yield the records of bodies some thousand at a time, column by column; what is due is added to ``due``.

    The columns are ``KEPT_FIELDS``; ``type``; ``bad`` (``BAD_TYPE``); ``record_index``; ``call_size``: records of the
    same listener call; ``surplus``: what has to be added to ``due`` for glued records; ``hash``: 64 bits of the record;
    and ``arrival_ms``, ``path`` and ``line`` of its body.

    Args:
        bodies: columns ``body``, ``bad``, ``arrival_ms``, ``path`` and ``line`` of ``READ_BODY``.
        due: added to.
        msg_type_map: ``a`` or ``b``.
        charset: of the bodies.
    """
    for batch in bodies:
        read = _Read()
        for row, text in enumerate(_texts(batch, charset)):
            due.records += 1 if text is None else _due_of(text)
            for part in [_UNREAD] if text is None else _parts(text, msg_type_map):
                read.add(row, part)
                if read.is_enough:
                    yield _columns(read, batch)
                    read = _Read()
        if read.told:
            yield _columns(read, batch)


def _texts(bodies: pa.RecordBatch, charset: str) -> Iterator[str | None]:
    """Yield the text of each row; ``None`` for one that holds no body."""
    for body, is_bad in zip(bodies.column("body"), bodies.column("bad").is_valid(), strict=True):
        yield None if is_bad.as_py() else _text(body.as_py() or b"", charset)


def _parts(text: str, msg_type_map: str) -> Iterator[_Part]:
    """Yield the records of a body, some thousand at a time; who is in a call is known only when all have been seen."""
    read: Callable[[], Iterator[_Told]] = partial(decode_values, text, msg_type_map=msg_type_map)
    if len(text) <= _MOST_HELD:
        read = list(read()).__iter__
    sizes = Counter(_call(fields) for (fields, _), _ in read())
    sizes[None] = 1
    records = read()
    first, characters, glued = 0, len(text), _glued(text)
    while told := list(islice(records, MOST_ROWS)):
        yield _Part(first, told, [sizes[_call(fields)] for (fields, _), _ in told], characters, glued)
        first, characters, glued = first + len(told), 0, 0


def _text(body: bytes, charset: str) -> str:
    """Return the text of a body as Arrow takes it: there are charsets, such as UTF-7, that can say half a character."""
    text = text_of(body, charset)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _due_of(text: str) -> int:
    """Return how many records the text of a body holds, a glued pair as one, told without taking it apart."""
    return len(_NEXT_PIECE.findall(text)) + (text[:1] not in {"", RECORD_TERMINATOR})


def _glued(text: str) -> int:
    """Return how many records of a body have no end of their own, told by their shape and not by the codec."""
    if not any(name in text for name in _NAMES_INSIDE):
        return 0
    count = 0
    for piece in _PIECE.finditer(text):
        start = piece.start()
        while piece.end() - start <= MAX_RECORD_LENGTH and (found := _GLUED.match(text, start)):
            count, start = count + 1, found.end()
    return count


def _call(fields: list[str]) -> tuple[str, str] | None:
    """Return what the records of one listener call have in common: the half and the request id; null for others."""
    at = _REQUEST_AT.get(fields[0])
    if at is None or len(fields) == 1:
        return None
    return fields[0], fields[at] if at < len(fields) else ""


def _columns(read: _Read, bodies: pa.RecordBatch) -> dict[str, Column]:
    values = [said if type(said) is tuple else _NOTHING for _, said in read.told]
    types = [fields[0] if type(said) is tuple else None for (fields, _), said in read.told]
    rows = pa.array(read.at, pa.int64())
    return {
        **{name: _column(name, column) for name, column in zip(KEPT_FIELDS, zip(*values, strict=True), strict=True)},
        **{name: bodies.column(name).take(rows) for name in ("arrival_ms", "path", "line")},
        "type": pa.array(types, pa.string()),
        "bad": _bad(read.told, bodies.column("bad").take(rows)),
        "record_index": pa.array(read.index, pa.int32()),
        "call_size": pa.array(read.call_size, pa.int32()),
        "surplus": pa.array(read.surplus, pa.int64()),
        "hash": _hashes(read.told),
    }


def _column(name: str, values: Iterable[Any]) -> Column:
    kind = FIELDS[name]
    if kind in _WORDS:
        return pa.array(map(_WORDS[kind].get, values), pa.string())
    return pa.array(values, _TYPES.get(kind, pa.string()))


def _bad(told: Sequence[_Told], of_bodies: Column) -> Column:
    """Return why a record is none: what its body says, or the codec."""
    of_bodies = of_bodies.cast(BAD_TYPE)
    if not any(type(said) is BadRecord for _, said in told):
        return of_bodies
    own = pa.array((_evidence(fields, said) for (fields, _), said in told), BAD_TYPE)
    both = pa.concat_arrays([own, of_bodies])
    rows = np.arange(len(own))
    return both.take(pa.array(np.where(own.is_valid(), rows, rows + len(own))))


def _evidence(fields: list[str], said: object) -> dict[str, Any] | None:
    if not isinstance(said, BadRecord):
        return None
    mentions = mentioned_in(FIELD_SEPARATOR.join(fields))
    return {"field": said.field, "reason": said.reason, "text": said.text, "mentions": mentions}


def _hashes(told: Sequence[_Told]) -> Column:
    """Hash the text of each record: behind what CLOUD made something of there was one more separator."""
    texts = (FIELD_SEPARATOR.join(fields) + (FIELD_SEPARATOR if quirk else "") for (fields, quirk), _ in told)
    return hashed(map(str.encode, texts))
