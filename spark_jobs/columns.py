"""Functions of whole Arrow columns, hashes of texts, and numbers read as leniently as Spark reads them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute

from bridge.otlp.values import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import numpy.typing as npt
    from numpy.typing import NDArray

Column: TypeAlias = Any
"""An Arrow array of any type."""
Ints: TypeAlias = "npt.NDArray[Any]"
"""64-bit integers; row numbers and counts may have 32 bits."""
Mask: TypeAlias = "npt.NDArray[np.bool_]"

_Item = TypeVar("_Item")
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)
_MOST_CODES: Final = 1 << 62


def map_values(column: Any, function: Callable[[Any], Any], kind: Any) -> Any:
    """Return ``function`` of every value of an Arrow column as a column of type ``kind``; null stays null."""
    if column.null_count == len(column):
        return pa.nulls(len(column), kind)
    is_double = pa.types.is_floating(column.type)  # by bits, since as numbers -0.0 equals 0.0
    coded = (column.view(pa.int64()) if is_double else column).dictionary_encode()
    distinct = coded.dictionary.view(column.type) if is_double else coded.dictionary
    return pa.array(map(function, distinct.to_pylist()), kind).take(coded.indices)


def where(condition: Column, column: Column) -> Column:
    """Return the column where the condition holds, null elsewhere."""
    return pc.if_else(condition, column, pa.scalar(None, column.type))


def coalesce(first: Column, *others: Column) -> Column:
    """Return in each row the first value that is there; a column that has them all is left as it is."""
    return reduce(lambda one, other: pc.coalesce(one, other) if one.null_count else one, others, first)


@dataclass(frozen=True)
class Codes:
    """A small number for each distinct value of a column: ``values < room``; null has the last one."""

    values: Ints
    room: int
    distinct: Column

    @cached_property
    def words(self) -> list[Any]:
        """The distinct values in the order of their codes, null not among them."""
        found: list[Any] = self.distinct.to_pylist()
        return found


def encode(column: Column) -> Codes:
    """Return the codes of an Arrow column."""
    if column.null_count == len(column):
        return Codes(np.zeros(len(column), np.int64), 1, pa.nulls(0))
    coded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
    size, codes = len(coded.dictionary), coded.indices.cast(pa.int64())
    return Codes(np.asarray(codes.fill_null(size) if codes.null_count else codes), size + 1, coded.dictionary)


def find_groups(codes: Ints) -> tuple[Ints, Ints]:
    """Return an example row of each distinct code, in the order of the codes, and of each row its group's number."""
    _, examples, group_of = np.unique(codes, return_index=True, return_inverse=True)
    return examples, group_of


def join_codes(*parts: tuple[Ints, int]) -> Ints:
    """Return one code for several of each row; each part is ``(codes, room)``."""
    codes, room = parts[0]
    codes = codes.astype(np.int64, copy=False)
    for other, size in parts[1:]:
        if room * size > _MOST_CODES:
            examples, codes = find_groups(codes)
            room = len(examples)
        codes, room = codes * size + other, room * size
    return codes


def is_known(column: Column) -> Mask:
    """Return which rows of an Arrow column are not null."""
    if column.null_count == 0:
        return np.ones(len(column), bool)
    return np.asarray(column.is_valid())


def is_true(column: Column) -> Mask:
    """Return which rows of a boolean column are true; null is not."""
    return np.asarray(column.fill_null(False))  # noqa: FBT003 - Arrow's own signature


def index_rows(rows: Ints) -> Column:
    """Return row numbers as ``take_rows`` takes them, null for a negative one."""
    missing = rows < 0
    return pa.array(rows, mask=missing) if missing.any() else pa.array(rows)


def take_rows(column: Column, rows: Ints | Column) -> Column:
    """Return rows of a column by number, null for a negative one; ``rows`` may come from ``index_rows``."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    return column.take(index_rows(rows) if isinstance(rows, np.ndarray) else rows)


def take_groups(
    items: Iterable[_Item],
    size_of: Callable[[_Item], tuple[int, int]],
    *,
    rows: int = sys.maxsize,
    size: int = sys.maxsize,
) -> Iterator[list[_Item]]:
    """Yield items in lists of so many ``rows`` or bytes (``size``), which ``size_of`` counts; the last has the rest."""
    some: list[_Item] = []
    held_rows = held = 0
    for item in items:
        some.append(item)
        more_rows, more = size_of(item)
        held_rows, held = held_rows + more_rows, held + more
        if held_rows >= rows or held >= size:
            yield some
            some, held_rows, held = [], 0, 0
    if some:
        yield some


def take_filled(parts: Iterable[_Rows], *, rows: int, size: int) -> Iterator[list[_Rows]]:
    """Yield tables or batches as :func:`take_groups` does, by their rows and bytes; empty ones are left out."""
    filled = (part for part in parts if part.num_rows)
    return take_groups(filled, lambda part: (part.num_rows, part.nbytes), rows=rows, size=size)


def make_batch(columns: Mapping[str, Any], rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``columns`` as a batch; those of the schema that are not given are null."""
    arrays = [columns[one.name] if one.name in columns else pa.nulls(rows, one.type) for one in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_scalars(column: Column) -> Column:
    """Return a column of lists of texts as one of texts, which are equal where the lists are; any other as it is."""
    return pc.binary_join(column, "\x00") if pa.types.is_list(column.type) else column


def apply_to_distinct(rule: Callable[..., Any], *columns: Column) -> tuple[list[Any], Ints]:
    """Call ``rule`` once for each distinct row of ``columns``; return the answers, and of each row which is its own."""
    coded = [encode(as_scalars(column)) for column in columns]
    examples, answer_of = find_groups(join_codes(*((one.values, one.room) for one in coded)))
    values = (column.take(examples).to_pylist() for column in columns)
    return [rule(*row) for row in zip(*values, strict=True)], answer_of


def map_distinct(rule: Callable[..., Any], kind: Any, *columns: Column) -> Column:
    """Return ``rule`` of each row of ``columns`` as a column of type ``kind``; it is called once per distinct row."""
    answers, answer_of = apply_to_distinct(rule, *columns)
    return pa.array(answers, kind).take(answer_of)


def mark(size: int, rows: Any) -> Mask:
    """Return a mask of ``size`` rows that holds for these."""
    found = np.zeros(size, bool)
    found[rows] = True
    return found


def begins_run(values: Ints | Mask) -> Mask:
    """Return which rows begin a run of equal values."""
    begins: Mask = np.r_[True, values[1:] != values[:-1]][: len(values)]
    return begins


def runs_of(values: Ints | Mask) -> Iterator[tuple[int, int]]:
    """Yield where each run of equal values begins and ends."""
    return pairwise([*np.flatnonzero(begins_run(values)).tolist(), len(values)])


def repeat_rows(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for so many copies of each row which row each copy is of, and which of its copies it is."""
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows, np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)


def unnest(lists: Column, *inner: Column) -> tuple[NDArray[np.int64], list[Column]]:
    """Return the contents (``inner``) of these rows' lists or maps, and where each begins and the last one ends."""
    bounds = lists.offsets.to_numpy().astype(np.int64)
    return bounds - bounds[0], [column.slice(bounds[0], bounds[-1] - bounds[0]) for column in inner]


def binary_bytes(column: Column) -> tuple[bytes, NDArray[np.int64]]:
    """Return all bytes of a column of texts or bytes, and where each value begins and the last one ends."""
    data, bounds = _view_bytes(column)
    return data.tobytes(), bounds


def _view_bytes(column: Column) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    _, offsets, data = column.buffers()
    if not len(column) or data is None:
        return np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    at = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    return np.frombuffer(data, np.uint8)[at[0] : at[-1]], at - at[0]


pc: Final[Any] = pyarrow.compute
"""Arrow's functions of whole columns; the stubs lack some forms."""

_BYTES: Final = 256
_WIDEST_TABLE: Final = 1 << 23


def _alphabet(characters: bytes) -> npt.NDArray[np.bool_]:
    return mark(_BYTES, list(characters))


DIGITS: Final = _alphabet(b"0123456789")
"""What a number that is not negative is made of."""
LOWER_HEX: Final = _alphabet(b"0123456789abcdef")
"""What an id is made of as the specification has it, in lower case."""
HEX: Final = _alphabet(b"0123456789abcdefABCDEF")
"""What an id is made of as the specification has it."""
JSON_PLAIN: Final = _alphabet(bytes(set(range(0x20, _BYTES)) - set(b'"\\')))
"""What stands in a text of JSON as it is."""


def is_made_of(texts: Column, alphabet: npt.NDArray[np.bool_]) -> bool:
    """Return whether every byte of every text is one of ``alphabet``."""
    return bool(alphabet[_view_bytes(texts)[0]].all())


def is_utf8(data: bytes) -> bool:
    """Return whether bytes are text in UTF-8."""
    if not data.isascii():  # ten times as fast as to decode it
        try:
            data.decode()
        except UnicodeDecodeError:
            return False
    return True


def fields_of(objects: Column) -> dict[str, Column]:
    """Return the fields of objects by name; those of an object that is null are null."""
    return dict(zip((field.name for field in objects.type), objects.flatten(), strict=True))


def parents_of(lists: Column) -> npt.NDArray[np.int64]:
    """Return for each item of ``lists.flatten()`` the position of the list that holds it."""
    return np.asarray(pc.list_parent_indices(lists))


def offsets_of(lists: Column) -> Column:
    """Return where each list begins in ``lists.flatten()``, and where the last one ends; a null list holds nothing."""
    return offsets_from(np.asarray(pc.fill_null(pc.list_value_length(lists), 0)))


def has_repeats(owners: npt.NDArray[np.int64], keys: Column) -> bool:
    """Return whether any owner has a key twice; ``owners`` ascend, one for each of ``keys``."""
    if not len(keys):
        return False
    coded = keys.dictionary_encode()
    width = len(coded.dictionary)
    pairs = owners * width + np.asarray(coded.indices)
    if (cells := (int(owners[-1]) + 1) * width) > _WIDEST_TABLE:
        return len(np.unique(pairs)) < len(pairs)
    return int(np.count_nonzero(mark(cells, pairs))) < len(pairs)


def slice_bytes(kind: Any, bounds: NDArray[np.int64], data: Any) -> Column:
    """Return ``data`` cut at ``bounds`` as a column of texts or bytes; nothing is copied."""
    buffers: Any = [None, pa.py_buffer(bounds.astype(np.int32).data), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(bounds) - 1, buffers)


def offsets_from(counts: NDArray[np.int64]) -> Column:
    """Return where each of some lists begins, and where the last one ends, by their lengths."""
    return pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))


def null_where_empty(texts: Column) -> Column:
    """Return texts, null in place of empty ones."""
    return _null_where(texts, pc.equal(pc.binary_length(texts), 0))


def null_where_zeros(ids: Column) -> Column:
    """Return ids, null in place of those that are nothing but zeros."""
    return _null_where(ids, pc.equal(pc.binary_length(pc.ascii_ltrim(ids, "0")), 0))


def _null_where(texts: Column, empty: Column) -> Column:
    return pc.if_else(empty, None, texts) if pc.any(empty).as_py() else texts


def json_arrays(offsets: Column, texts: Column) -> Column:
    """Return lists of texts, which may be null, as JSON; see :func:`offsets_of`."""
    quoted = _enclose('"', texts, '"') if is_made_of(texts, JSON_PLAIN) else map_values(texts, json_text, pa.string())
    return _enclose("[", pc.binary_join(pa.ListArray.from_arrays(offsets, pc.fill_null(quoted, "null")), ","), "]")


def _enclose(before: str, texts: Column, behind: str) -> Column:
    return pc.binary_join_element_wise(before, texts, behind, "")


# Odd multipliers of xxHash64, whose mixing this follows: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
_PRIME_1: Final = np.uint64(0x9E3779B185EBCA87)
_PRIME_2: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_NULL: Final = np.uint64(0x165667B19E3779F9)
_WORD: Final = 8
_ALL_BITS: Final = np.uint64(0xFFFFFFFFFFFFFFFF)


def hash_texts(texts: Any) -> npt.NDArray[np.uint64]:
    """Return a hash of each text of an Arrow array, dictionary-encoded or not; null has a hash as well."""
    if isinstance(texts, pa.DictionaryArray):
        words: npt.NDArray[np.uint64] = np.append(hash_texts(texts.dictionary), _NULL)
        found: npt.NDArray[np.uint64] = words[np.asarray(texts.indices.fill_null(len(texts.dictionary)))]
        return found
    if not len(texts) or texts.null_count == len(texts):
        return np.full(len(texts), _NULL)
    hashes = _hash_bytes(*_view_bytes(texts))
    if texts.null_count:
        hashes[np.asarray(texts.is_null())] = _NULL
    return hashes


def mix(*parts: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return one hash of several; their order counts."""
    mixed = parts[0]
    with np.errstate(over="ignore"):
        for part in parts[1:]:
            mixed = _scramble(mixed * _PRIME_1 ^ part)
    return mixed


def _hash_bytes(data: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Hash ``data[bounds[i]:bounds[i + 1]]``, eight bytes at a time of all rows."""
    sizes = bounds[1:] - bounds[:-1]
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    words = np.lib.stride_tricks.as_strided(padded, (len(data) + 1, _WORD), (1, 1))
    with np.errstate(over="ignore"):
        hashes = sizes.astype(np.uint64) * _PRIME_1
        for step in range(0, int(sizes.max(initial=0)), _WORD):
            rows = np.flatnonzero(sizes > step)
            word = np.ascontiguousarray(words[bounds[rows] + step]).view("<u8")[:, 0]
            spare = np.maximum(_WORD - (sizes[rows] - step), 0).astype(np.uint64)
            hashes[rows] = _scramble(hashes[rows] ^ (word & (_ALL_BITS >> (spare * np.uint64(_WORD)))))
    return hashes


def _scramble(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values * _PRIME_2
    values ^= values >> np.uint64(29)
    values = values * _PRIME_1
    return values ^ (values >> np.uint64(32))


_AROUND: Final = "".join(map(chr, (*range(0x21), 0x7F)))
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")


def whole_number(text: str, *, bits: int) -> int | None:
    """Return the number that ``text`` is, as Spark's ``try_cast`` reads it; ``None`` where it is none.

    Args:
        text: ASCII digits, a sign before them, blanks and control characters around them.
        bits: the width of a signed integer that must hold the number.
    """
    found = _INTEGER.fullmatch(text.strip(_AROUND))
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None
