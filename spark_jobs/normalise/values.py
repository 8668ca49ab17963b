"""Normalise the values of events: texts, numbers, arrays, hashes."""

from __future__ import annotations

import re
from functools import partial
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.codec.framing import read_json, text_of_json
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS
from spark_jobs.columns import binary_bytes, map_values, slice_bytes, unnest, where, whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from spark_jobs.columns import Column

_ABSENT: Final = sorted(ABSENT_TEXTS)  # not an array, which would import pandas with this module
_HEX: Final = r"\A[0-9A-Fa-f]+\z"
_ONE_KEY: Final = r'\A\["[^"\\\x00-\x20]+"\]\z'


def null_where_absent(texts: Column) -> Column:
    """Return the texts, null for a writer's placeholder (``otel_mqtrace.wire.native.layout.absent``)."""
    return where(pc.invert(pc.is_in(texts, pa.array(_ABSENT))), texts)


def fold_ids(texts: Column) -> Column:
    """Return ids in upper case where they are hexadecimal, as they are otherwise, null where absent."""
    known = null_where_absent(pc.utf8_trim(texts, " "))
    upper = pc.ascii_upper(known)
    if known.equals(upper):  # as nearly all ids are written; matching is most of the cost
        return known
    return pc.if_else(pc.match_substring_regex(known, _HEX), upper, known)


def to_ints(texts: Column, kind: Any) -> Column:
    """Return the numbers that Spark's ``try_cast`` sees in the texts, null where it sees none of type ``kind``."""
    return map_values(texts, partial(whole_number, bits=kind.bit_width), kind)


def first_texts(texts: Column) -> Column:
    """Return the first text of each JSON array of texts, null where there is none."""
    return map_values(texts, lambda text: next(iter(json_texts(text) or ()), None), pa.string())


def key_sets_of_json(texts: Column) -> Column:
    """Return the keys in each JSON array of texts, without blanks, distinct, sorted; null for other text."""
    if not pc.any(pc.invert(pc.match_substring_regex(texts, _ONE_KEY))).as_py():
        keys = pc.utf8_slice_codeunits(texts, len('["'), -len('"]'))
        if not pc.any(pc.is_in(keys, pa.array(_ABSENT))).as_py():
            return _alone(keys)
    return map_values(texts, _key_set, pa.list_(pa.string()))


def key_sets(texts: Column) -> Column:
    """Return the keys in each text of keys, as native records have it: distinct, sorted; null where there is none."""
    if pc.any(pc.match_substring(texts, KEY_SEPARATOR)).as_py():
        return map_values(texts, lambda text: _distinct((text,)) or None, pa.list_(pa.string()))
    return _alone(null_where_absent(texts))


def _alone(keys: Column) -> Column:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(keys) + 1), pa.int32()), keys, mask=keys.is_null())


def _key_set(text: str) -> list[str] | None:
    keys = json_texts(text)
    return None if keys is None else _distinct(joined for joined in keys if joined)


def _distinct(joined: Iterable[str]) -> list[str]:
    return sorted({key for keys in joined for key in keys.split(KEY_SEPARATOR)} - ABSENT_TEXTS)


_ONE_PLAIN_TEXT: Final = re.compile(r'\["([^"\\\x00-\x1f]*)"\]')


def json_texts(text: str) -> list[str | None] | None:
    """Return the elements, as texts, of the JSON array that a text begins with; ``None`` where it begins with none."""
    if plain := _ONE_PLAIN_TEXT.fullmatch(text):
        return [plain[1]]
    value, _ = read_json(text)
    return [text_of_json(item) for item in value] if isinstance(value, list) else None


_TEXTS: Final = ("trace_id", "span_id", "parent_span_id", "name", "kind", "status", "service", "scope")
_NUMBERS: Final = ("start_ns", "end_ns", "flags", "dropped_attributes", "dropped_links")
_LINK_TEXTS: Final = ("trace_id", "span_id")
_EMPTY: Final = blake2b(digest_size=8)


def hash_spans(spans: Mapping[str, Column]) -> Column:
    """Return a number for each row of ``schemas.SPAN``; its place in a file does not count."""
    links = spans["links"]
    bounds, (linked,) = unnest(links, links.values)
    numbers = [column for name in _NUMBERS for column in _number(spans[name])]
    parts = _parts([spans[name] for name in _TEXTS], [*numbers, np.diff(bounds)], spans["attributes"])
    if len(linked):
        of_links = _parts([linked.field(name) for name in _LINK_TEXTS], [], linked.field("attributes"))
        data, at = binary_bytes(_join(of_links))
        parts.append(_pieces(data, at[bounds]))
    data, at = binary_bytes(_join(parts))
    return hash_rows(data[start:end] for start, end in pairwise(at.tolist()))


def hash_rows(rows: Iterable[bytes]) -> Column:
    """Return a number of 64 bits for the bytes of each row."""
    digests = b"".join(map(_digest, rows))
    return pa.array(np.frombuffer(digests, "<i8"))


def _digest(row: bytes) -> bytes:
    found = _EMPTY.copy()  # parsing the arguments of blake2b() takes longer than hashing a row
    found.update(row)
    return found.digest()


def _parts(texts: Sequence[Column], numbers: Sequence[NDArray[np.int64]], maps: Column) -> list[Column]:
    bounds, (keys, values) = unnest(maps, maps.keys, maps.items)
    head = np.stack([*map(_lengths, texts), *numbers, np.diff(bounds)], axis=1).astype("<i8")
    lengths = np.stack([_lengths(keys), _lengths(values)], axis=1).astype("<i4")
    return [
        _pieces(head.tobytes(), np.arange(len(head) + 1) * head.strides[0]),
        *(text.fill_null("").cast(pa.binary()) for text in texts),
        _pieces(lengths.tobytes(), bounds * lengths.strides[0]),
        *(_pieces(data, at[bounds]) for data, at in map(binary_bytes, (keys, values.fill_null("")))),
    ]


def _join(parts: Sequence[Column]) -> Column:
    return pc.binary_join_element_wise(*parts, b"")


def _pieces(data: bytes, bounds: NDArray[np.int64]) -> Column:
    return slice_bytes(pa.binary(), bounds, data)


def _number(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return column.fill_null(0).to_numpy(), column.is_null().to_numpy(zero_copy_only=False)


def _lengths(texts: Column) -> NDArray[np.int64]:
    lengths: Column = pc.binary_length(texts)
    return np.asarray(lengths.fill_null(-1).to_numpy())
