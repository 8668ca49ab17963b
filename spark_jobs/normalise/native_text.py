"""Read the native trace records of many bodies at once, column by column.

A block is read from the places of its separators, without a Python step per record. A body that the codec could read
otherwise is declared odd as a whole, and the caller gives it to the codec. Forms, fields and the meaning of usual texts
come from the codec's own tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native.decode import known_texts
from otel_mqtrace.wire.native.layout import (
    CLOUD_SUB_AFTER,
    FIELD_SEPARATOR,
    FIELDS,
    FORMS,
    KEPT_FIELDS,
    RECORD_TERMINATOR,
    FieldKind,
    form_for,
)
from spark_jobs.columns import binary_bytes, is_known, is_true, mark, slice_bytes, take_rows
from spark_jobs.normalise.values import hash_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from otel_mqtrace.wire.native.layout import Form
    from spark_jobs.columns import Column

SEPARATOR: Final = FIELD_SEPARATOR.encode()
TERMINATOR: Final = RECORD_TERMINATOR.encode()

_TYPES: Final = tuple(TraceType)
_TYPE_NAMES: Final = [one.value for one in _TYPES]  # not an array, which would import pandas with this module
_SUB_AFTER: Final = _TYPES.index(TraceType.SUB_AFTER)
_ALL_FORMS: Final = tuple(dict.fromkeys(form for forms in FORMS.values() for form in forms))
_LONGEST: Final = max(form.count for form in _ALL_FORMS)
_NONE: Final = -1
_NUMBERS: Final = {FieldKind.LONG: pa.int64(), FieldKind.INT: pa.int32()}
ENUM_TEXTS: Final[dict[FieldKind, dict[Any, str]]] = {
    FieldKind.MESSAGE_TYPE: {kind: kind.value for kind in MessageType},
    FieldKind.CONTEXT_CODE: {code: code.name for code in ContextCode},
    FieldKind.TRANSACTION_STATE: {state: state.value for state in TransactionState},
}
"""How a column writes the members of an enumeration."""
_SURE_DIGITS: Final = {FieldKind.LONG: 18, FieldKind.INT: 9}
"""A number of so many digits fits its type whatever they are."""


@dataclass(frozen=True, slots=True)
class TextRecords:
    """The records of the bodies of a block that are not odd.

    Attributes:
        columns: ``KEPT_FIELDS``, ``type``, ``record_index``, ``call_size`` and ``hash``.
        body: the number of each record's body, ascending.
        is_odd: of each body, whether the codec must read it.
    """

    columns: dict[str, Column]
    body: NDArray[np.int64]
    is_odd: NDArray[np.bool_]


def field_type(kind: FieldKind) -> Any:
    """Return the Arrow type of a column of fields of this kind; an enumeration is text."""
    return pa.bool_() if kind is FieldKind.BOOL else _NUMBERS.get(kind, pa.string())


def read_text(data: bytes, bounds: NDArray[np.int64], *, msg_type_map: str) -> TextRecords:
    """Read the records of bodies in UTF-8, each empty or ended by a terminator; ``bounds`` are their offsets."""
    pieces = _Pieces(data)
    types = _type_codes(pieces)
    forms = _form_codes(pieces, types)
    is_odd = (forms == _NONE) | _has_type_inside(pieces, types)
    columns: dict[str, Column] = {}
    for at, name in enumerate(KEPT_FIELDS):
        texts = pieces.fields_at(_PLACES[forms, at])
        columns[name], is_other = _values(texts, FIELDS[name], msg_type_map)
        is_odd |= is_other
    body = np.searchsorted(bounds, pieces.ends, side="right") - 1
    is_odd_body = mark(len(bounds) - 1, body[is_odd])
    columns["type"] = take_rows(pa.array(_TYPE_NAMES), types)
    columns["record_index"] = pa.array(np.arange(len(body)) - np.searchsorted(body, body), pa.int32())
    columns["call_size"] = pa.array(_call_sizes(columns["request_id"], types, body), pa.int32())
    texts = data.split(TERMINATOR)[:-1]
    if is_odd_body.any():
        kept = np.flatnonzero(~is_odd_body[body])
        columns = {name: take_rows(column, kept) for name, column in columns.items()}
        texts, body = [texts[at] for at in kept.tolist()], body[kept]
    columns["hash"] = hash_rows(texts)
    return TextRecords(columns, body, is_odd_body)


class _Pieces:
    """The pieces between terminators, one record each, and the fields in them.

    Attributes:
        ends: where the terminator of each piece stands in the block.
        count: how many fields each piece has, its type name included.
        is_open: whether the last field of each piece is empty.
        is_wide_open: whether the last two fields are, or the only one.
    """

    def __init__(self, data: bytes) -> None:
        block = np.frombuffer(data, np.uint8)
        cuts = np.flatnonzero((block == SEPARATOR[0]) | (block == TERMINATOR[0]))
        bounds = np.zeros(len(cuts) + 1, np.int64)
        bounds[1:] = cuts - np.arange(len(cuts))
        text = data.translate(None, SEPARATOR + TERMINATOR)
        self._fields = slice_bytes(pa.string(), bounds, text)
        last = np.flatnonzero(block[cuts] == TERMINATOR[0])
        self.ends = cuts[last]
        self._first = np.concatenate([[0], last[:-1] + 1])[: len(last)]
        self.count = last + 1 - self._first
        is_empty = np.diff(bounds) == 0
        self.is_open = is_empty[last]
        self.is_wide_open = self.is_open & (is_empty[last - 1] | (self.count == 1))

    def fields_at(self, places: NDArray[np.int64]) -> Column:
        """Return of each piece the field at a place, the type name being 0; null for a negative place."""
        is_there = places >= 0
        if not is_there.any():
            return pa.nulls(len(places), pa.string())
        return take_rows(self._fields, np.where(is_there, self._first + places, _NONE))


def _type_codes(pieces: _Pieces) -> NDArray[np.int64]:
    found: Column = pc.index_in(pieces.fields_at(np.zeros(len(pieces.count), np.int64)), pa.array(_TYPE_NAMES))
    return np.asarray(found.fill_null(_NONE)).astype(np.int64)


def _form_codes(pieces: _Pieces, types: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the index of each piece's form in ``_ALL_FORMS``, ``_NONE`` where the codec must choose."""
    codes = _FORM_CODES[pieces.is_open.astype(np.int64), types, np.minimum(pieces.count, _LONGEST + 1)]
    return np.where(pieces.is_wide_open, _NONE, codes)


def _has_type_inside(pieces: _Pieces, types: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether a record without its terminator may hold the next one (apache/rocketmq#8429)."""
    is_long = (types == _SUB_AFTER) & (pieces.count > CLOUD_SUB_AFTER.count)
    names = pieces.fields_at(np.where(is_long, CLOUD_SUB_AFTER.count, _NONE))
    return is_true(pc.is_in(names, pa.array(_TYPE_NAMES)))


def _form_of(trace_type: TraceType, count: int, *, is_open: bool) -> Form | None:
    """Return the form of so many fields that the codec chooses, the last one being empty or not."""
    if is_open and trace_type is TraceType.SUB_AFTER and count == CLOUD_SUB_AFTER.count + 1:
        return CLOUD_SUB_AFTER  # CloudSubAfter.TRAILING: the empty field is not the form's
    form = form_for(trace_type, count, count - is_open)
    return form if form is not None and form.count == count else None


def _all_form_codes() -> NDArray[np.int64]:
    """Return codes of forms by: last field empty or not; type; number of fields. Unknown and too long is last."""
    codes = np.full((2, len(_TYPES) + 1, _LONGEST + 2), _NONE)
    for is_open, at, count in product((False, True), range(len(_TYPES)), range(1, _LONGEST + 1)):
        form = _form_of(_TYPES[at], count, is_open=is_open)
        if form is not None:
            codes[int(is_open), at, count] = _ALL_FORMS.index(form)
    return codes


def _all_places() -> NDArray[np.int64]:
    """Return where each form has each of ``KEPT_FIELDS``, ``_NONE`` where it has not; no form is last."""
    places = np.full((len(_ALL_FORMS) + 1, len(KEPT_FIELDS)), _NONE)
    for at, form in enumerate(_ALL_FORMS):
        for place, name in enumerate(form.fields, start=1):
            if name in KEPT_FIELDS:
                places[at, KEPT_FIELDS.index(name)] = place
    return places


_FORM_CODES: Final = _all_form_codes()
_PLACES: Final = _all_places()


def _values(texts: Column, kind: FieldKind, msg_type_map: str) -> tuple[Column, NDArray[np.bool_] | bool]:
    """Return the parsed values of a field, and which rows only the codec can parse."""
    if kind is FieldKind.TEXT:
        return texts, False
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), field_type(kind)), False
    return _numbers(texts, kind) if kind in _NUMBERS else _words(texts, kind, msg_type_map)


def _numbers(texts: Column, kind: FieldKind) -> tuple[Column, NDArray[np.bool_] | bool]:
    most = _SURE_DIGITS[kind]
    if _is_decimal(texts, most):
        return texts.cast(_NUMBERS[kind]), False
    is_plain = pc.match_substring_regex(texts, rf"\A-?[0-9]{{1,{most}}}\z")
    return pc.if_else(is_plain, texts, None).cast(_NUMBERS[kind]), is_true(pc.invert(is_plain))


def _is_decimal(texts: Column, most: int) -> bool:
    data, _ = binary_bytes(texts)
    sizes: Column = pc.binary_length(texts)
    return bool(pc.min(sizes).as_py() > 0 and pc.max(sizes).as_py() <= most and data.isdigit())


@cache
def _word_columns(kind: FieldKind, msg_type_map: str) -> tuple[Column, Column]:
    known = known_texts(kind, msg_type_map)
    of_enum = ENUM_TEXTS.get(kind)
    meanings = known.values() if of_enum is None else map(of_enum.__getitem__, known.values())
    return pa.array(list(known), pa.string()), pa.array(meanings, field_type(kind))


def _words(texts: Column, kind: FieldKind, msg_type_map: str) -> tuple[Column, NDArray[np.bool_] | bool]:
    usual, meaning = _word_columns(kind, msg_type_map)
    found: Column = pc.index_in(texts, usual)
    return meaning.take(found), found.null_count > texts.null_count and is_known(texts) & ~is_known(found)


def _call_sizes(request_ids: Column, types: NDArray[np.int64], body: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many records of the same body and half have the same request id; 1 for a record without one."""
    sizes = np.ones(len(body), np.int64)
    rows = np.flatnonzero(is_known(request_ids))
    if not len(rows):
        return sizes
    coded = request_ids.take(pa.array(rows)).dictionary_encode()
    calls = (body[rows] * len(_TYPES) + types[rows]) * len(coded.dictionary) + np.asarray(coded.indices)
    like = np.asarray(pa.array(calls).dictionary_encode().indices)
    sizes[rows] = np.bincount(like)[like]
    return sizes
