"""Arrow batches of spans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.otlp.values import LONG_MAX, text_attributes
from spark_jobs.columns import take_filled, take_groups
from spark_jobs.schemas import SPAN, bad_piece

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from bridge.otlp.values import Span

_BATCH_ROWS: Final = 2000
"""How many rows make a batch worth handing on."""
_BATCH_BYTES: Final = 8 << 20
"""How many bytes make one: a span may be a megabyte."""
LINK: Final[Any] = SPAN.field("links").type.value_type
"""A link as ``schemas.SPAN`` holds it."""


class DeclinedError(Exception):
    """A block of messages holds something that its reader leaves to the reader of single spans."""


@dataclass(frozen=True, slots=True)
class SpanColumns:
    """The spans of a block of messages: columns of ``SPAN`` without their positions.

    Attributes:
        columns: by name.
        messages: the number of each span's message in the block.
        expected: how many spans the block holds by its bytes.
    """

    columns: dict[str, Any]
    messages: NDArray[np.int64]
    expected: int


def row_batches(rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield ``rows`` as batches of ``SPAN``."""
    for some in take_groups(rows, lambda _row: (1, 0), rows=_BATCH_ROWS):
        yield pa.RecordBatch.from_pylist(some, schema=SPAN)


def join_small(batches: Iterable[pa.RecordBatch], *, most_bytes: int = _BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches that are not small, but for the last, and not empty.

    Batches are joined until they hold 2,000 rows or ``most_bytes``.
    """
    for some in take_filled(batches, rows=_BATCH_ROWS, size=most_bytes):
        yield from some if len(some) == 1 else pa.Table.from_batches(some).combine_chunks().to_batches()


_NOT_PLAIN: Final = frozenset({"attributes", "links", "path", "line", "raw_hash", "bad"})
_PLAIN: Final = tuple(name for name in SPAN.names if name not in _NOT_PLAIN)


def span_row(span: Span) -> dict[str, Any]:
    """Return a span as a row of ``schemas.SPAN``, its place left out."""
    if span["bad"] is not None:
        name, reason, text = span["bad"]
        known = [span["attributes"], *(link["attributes"] for link in span["links"])]
        values = (value for attributes in known for value in text_attributes(attributes).values())
        return {"bad": bad_piece(name, reason, text, within="\n".join([text, *filter(None, values)]))}
    links = [{**link, "attributes": _items(link["attributes"])} for link in span["links"]]
    times = {name: min(span[name], LONG_MAX) for name in ("start_ns", "end_ns")}
    plain = {name: span[name] for name in _PLAIN}
    return {**plain, **times, "attributes": _items(span["attributes"]), "links": links}


def _items(attributes: dict[str, Any]) -> list[tuple[str, str | None]]:
    return list(text_attributes(attributes).items())
