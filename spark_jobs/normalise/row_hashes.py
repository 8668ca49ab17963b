"""This module knows how to tell a span that was written twice: 64 bits of all that it says, whatever file it came in.

A span is hashed as one run of bytes: first numbers, among them the length of every text (-1 where it is null), then the
texts themselves; so no two spans that differ are the same bytes.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.normalise.columns import opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from spark_jobs.normalise.columns import Column

__all__ = ["hashed", "row_hashes"]

_TEXTS: Final = ("trace_id", "span_id", "parent_span_id", "name", "kind", "status", "service", "scope")
_NUMBERS: Final = ("start_ns", "end_ns", "flags", "dropped_attributes", "dropped_links")
_LINK_TEXTS: Final = ("trace_id", "span_id")


def row_hashes(spans: Mapping[str, Column]) -> Column:
    """Return a number for each row of ``schemas.READ_SPAN``; where it stood in a file does not count."""
    links = spans["links"]
    bounds, (linked,) = opened(links, links.values)
    numbers = [column for name in _NUMBERS for column in _number(spans[name])]
    parts = _parts([spans[name] for name in _TEXTS], [*numbers, np.diff(bounds)], spans["attributes"])
    if len(linked):
        of_links = _parts([linked.field(name) for name in _LINK_TEXTS], [], linked.field("attributes"))
        rows = [b"".join(row) for row in zip(*of_links, strict=True)]
        parts.append([b"".join(rows[start:end]) for start, end in pairwise(bounds.tolist())])
    return hashed(map(b"".join, zip(*parts, strict=True)))


def hashed(rows: Iterable[bytes]) -> Column:
    """Return a number of 64 bits for the bytes of each row."""
    digests = b"".join(blake2b(row, digest_size=8).digest() for row in rows)
    return pa.array(np.frombuffer(digests, "<i8"))


def _parts(texts: Sequence[Column], numbers: Sequence[NDArray[np.int64]], maps: Column) -> list[list[bytes]]:
    """Return the bytes of each row, in several columns."""
    bounds, (keys, values) = opened(maps, maps.keys, maps.items)
    head = np.stack([*map(_lengths, texts), *numbers, np.diff(bounds)], axis=1).astype("<i8")
    lengths = np.stack([_lengths(keys), _lengths(values)], axis=1).astype("<i4")
    joined = pc.binary_join_element_wise(*(text.fill_null("") for text in texts), "")
    return [
        _cut(head.tobytes(), np.arange(len(head) + 1) * head.strides[0]),
        _cut(*_bytes(joined)),
        _cut(lengths.tobytes(), bounds * lengths.strides[0]),
        *(_cut(data, at[bounds]) for data, at in map(_bytes, (keys, values.fill_null("")))),
    ]


def _number(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a column without nulls, and where they were."""
    return column.fill_null(0).to_numpy(), column.is_null().to_numpy(zero_copy_only=False)


def _lengths(texts: Column) -> NDArray[np.int64]:
    lengths: Column = pc.binary_length(texts)
    return np.asarray(lengths.fill_null(-1).to_numpy())


def _bytes(texts: Column) -> tuple[bytes, NDArray[np.int64]]:
    """Return all bytes of a column of texts, and where each begins and the last one ends."""
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return b"", np.zeros(len(texts) + 1, np.int64)
    at = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    return data.slice(at[0], at[-1] - at[0]).to_pybytes(), at - at[0]


def _cut(data: bytes, bounds: NDArray[np.int64]) -> list[bytes]:
    return [data[start:end] for start, end in pairwise(bounds.tolist())]
