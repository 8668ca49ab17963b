"""This module knows what the bodies of trace messages say, record by record, and counts them without being told.

The codec reads the records (``bridge.codec.native.decode``), as it does for everybody else. What is due of a body is
counted in its text by other means, so that a record which the codec lost would be missed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.normalise.columns import Column

__all__ = ["Due", "record_columns"]

_BATCH_RECORDS: Final = 4096
_BATCH_CHARACTERS: Final = 8 << 20
"""As many records, or so much text, are laid into columns together, or those of one body."""
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
_NOTHING: Final = (None,) * len(KEPT_FIELDS)


@dataclass(slots=True)
class Due:
    """How many ``records`` the bodies read so far hold; a glued pair counts once. A piece without a body is one."""

    records: int = 0


@dataclass(slots=True)
class _Read:
    """The records of some bodies, beside each other: what each says, in which row (``at``) and as which of its body."""

    characters: int = 0
    fields: list[list[str]] = field(default_factory=list)
    said: list[tuple[Any, ...] | BadRecord | None] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    call_size: list[int] = field(default_factory=list)
    surplus: list[int] = field(default_factory=list)

    @property
    def is_enough(self) -> bool:
        return len(self.said) >= _BATCH_RECORDS or self.characters >= _BATCH_CHARACTERS

    def add(self, row: int, text: str, msg_type_map: str) -> None:
        """Add the records of one body."""
        before = len(self.said)
        self.characters += len(text)
        for fields, said in decode_values(text, msg_type_map=msg_type_map):
            self.fields.append(fields)
            self.said.append(said)
        own = self.fields[before:]
        self.at += [row] * len(own)
        self.index += range(len(own))
        self.call_size += _call_sizes(own)
        self.surplus += [_glued(text), *[0] * (len(own) - 1)][: len(own)]

    def add_unread(self, row: int) -> None:
        """Add one that has no body."""
        self.fields.append([""])
        self.said.append(None)
        for numbers, number in ((self.at, row), (self.index, 0), (self.call_size, 1), (self.surplus, 0)):
            numbers.append(number)


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
        for row, (body, is_bad) in enumerate(zip(batch.column("body"), batch.column("bad").is_valid(), strict=True)):
            if is_bad.as_py():
                due.records += 1
                read.add_unread(row)
            else:
                text = _text(body.as_py(), charset)
                due.records += _due_of(text)
                read.add(row, text, msg_type_map)
            if read.is_enough:
                yield _columns(read, batch)
                read = _Read()
        if read.said:
            yield _columns(read, batch)


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


def _call_sizes(records: Sequence[list[str]]) -> list[int]:
    """Return of each record of a body how many belong to its listener call: the same half, the same request id."""
    calls = list(map(_call, records))
    sizes = Counter(calls)
    sizes[None] = 1
    return [sizes[call] for call in calls]


def _call(fields: list[str]) -> tuple[str, str] | None:
    at = _REQUEST_AT.get(fields[0])
    if at is None or len(fields) == 1:
        return None
    return fields[0], fields[at] if at < len(fields) else ""


def _columns(read: _Read, bodies: pa.RecordBatch) -> dict[str, Column]:
    values = [said if type(said) is tuple else _NOTHING for said in read.said]
    types = [fields[0] if type(said) is tuple else None for fields, said in zip(read.fields, read.said, strict=True)]
    rows = pa.array(read.at, pa.int64())
    return {
        **{name: _column(name, column) for name, column in zip(KEPT_FIELDS, zip(*values, strict=True), strict=True)},
        **{name: bodies.column(name).take(rows) for name in ("arrival_ms", "path", "line")},
        "type": pa.array(types, pa.string()),
        "bad": _bad(read, bodies.column("bad").take(rows)),
        "record_index": pa.array(read.index, pa.int32()),
        "call_size": pa.array(read.call_size, pa.int32()),
        "surplus": pa.array(read.surplus, pa.int64()),
        "hash": _hashes(read.fields),
    }


def _column(name: str, values: Iterable[Any]) -> Column:
    kind = FIELDS[name]
    if kind in _WORDS:
        return pa.array(map(_WORDS[kind].get, values), pa.string())
    return pa.array(values, _TYPES.get(kind, pa.string()))


def _bad(read: _Read, of_bodies: Column) -> Column:
    """Return why a record is none: what its body says, or the codec."""
    of_bodies = of_bodies.cast(BAD_TYPE)
    if not any(type(said) is BadRecord for said in read.said):
        return of_bodies
    own = pa.array(map(_evidence, read.said, read.fields), BAD_TYPE)
    both = pa.concat_arrays([own, of_bodies])
    rows = np.arange(len(own))
    return both.take(pa.array(np.where(own.is_valid(), rows, rows + len(own))))


def _evidence(said: object, fields: list[str]) -> dict[str, Any] | None:
    if not isinstance(said, BadRecord):
        return None
    mentions = mentioned_in(FIELD_SEPARATOR.join(fields))
    return {"field": said.field, "reason": said.reason, "text": said.text, "mentions": mentions}


def _hashes(records: Sequence[list[str]]) -> Column:
    texts = map(FIELD_SEPARATOR.join, records)
    digests = (blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return pa.array(np.frombuffer(b"".join(digests), "<i8"))
