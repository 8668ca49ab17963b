"""Hash everything that a span says to 64 bits, so that a span written twice is recognised in any file.

A span is hashed as one run of bytes: first numbers, among them the length of every text (-1 where it is null), then the
texts themselves. So two different spans are never the same bytes.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.normalise.columns import binary_bytes, opened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from spark_jobs.normalise.columns import Column

__all__ = ["hashed", "row_hashes"]

_TEXTS: Final = ("trace_id", "span_id", "parent_span_id", "name", "kind", "status", "service", "scope")
_NUMBERS: Final = ("start_ns", "end_ns", "flags", "dropped_attributes", "dropped_links")
_LINK_TEXTS: Final = ("trace_id", "span_id")
_EMPTY: Final = blake2b(digest_size=8)


def row_hashes(spans: Mapping[str, Column]) -> Column:
    """Return a number for each row of ``schemas.READ_SPAN``; its place in a file does not count."""
    links = spans["links"]
    bounds, (linked,) = opened(links, links.values)
    numbers = [column for name in _NUMBERS for column in _number(spans[name])]
    parts = _parts([spans[name] for name in _TEXTS], [*numbers, np.diff(bounds)], spans["attributes"])
    if len(linked):
        of_links = _parts([linked.field(name) for name in _LINK_TEXTS], [], linked.field("attributes"))
        data, at = binary_bytes(_joined(of_links))
        parts.append(_pieces(data, at[bounds]))
    data, at = binary_bytes(_joined(parts))
    return hashed(data[start:end] for start, end in pairwise(at.tolist()))


def hashed(rows: Iterable[bytes]) -> Column:
    """Return a number of 64 bits for the bytes of each row."""
    digests = b"".join(map(_digest, rows))
    return pa.array(np.frombuffer(digests, "<i8"))


def _digest(row: bytes) -> bytes:
    found = _EMPTY.copy()  # parsing the arguments of blake2b() takes longer than hashing a row
    found.update(row)
    return found.digest()


def _parts(texts: Sequence[Column], numbers: Sequence[NDArray[np.int64]], maps: Column) -> list[Column]:
    """Return the bytes of each row, in several columns."""
    bounds, (keys, values) = opened(maps, maps.keys, maps.items)
    head = np.stack([*map(_lengths, texts), *numbers, np.diff(bounds)], axis=1).astype("<i8")
    lengths = np.stack([_lengths(keys), _lengths(values)], axis=1).astype("<i4")
    return [
        _pieces(head.tobytes(), np.arange(len(head) + 1) * head.strides[0]),
        *(text.fill_null("").cast(pa.binary()) for text in texts),
        _pieces(lengths.tobytes(), bounds * lengths.strides[0]),
        *(_pieces(data, at[bounds]) for data, at in map(binary_bytes, (keys, values.fill_null("")))),
    ]


def _joined(parts: Sequence[Column]) -> Column:
    """Return the parts of each row one after the other."""
    return pc.binary_join_element_wise(*parts, b"")


def _pieces(data: bytes, bounds: NDArray[np.int64]) -> Column:
    """Return ``data`` cut at ``bounds``, as a column."""
    offsets: Any = pa.py_buffer(bounds.astype(np.int32).tobytes())
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, pa.py_buffer(data)])


def _number(column: Column) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a column without nulls, and where they were."""
    return column.fill_null(0).to_numpy(), column.is_null().to_numpy(zero_copy_only=False)


def _lengths(texts: Column) -> NDArray[np.int64]:
    lengths: Column = pc.binary_length(texts)
    return np.asarray(lengths.fill_null(-1).to_numpy())
