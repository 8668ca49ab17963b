"""Turn spans into canonical events: one row for each message a span is about, in the native side's words.

It works on Arrow batches, a column at a time: ``messages`` tells which messages there
are, ``roles`` what part a span plays in them, ``event_columns`` each column of an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from bridge.otlp.aliases import TRACE_TOPIC_NAMES
from spark_jobs.normalise.columns import where
from spark_jobs.normalise.event_columns import RULES
from spark_jobs.normalise.read_event import event_batch
from spark_jobs.normalise.row_hashes import row_hashes
from spark_jobs.normalise.seen import Seen
from spark_jobs.schemas import LEDGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.normalise.columns import Column

__all__ = ["event_batches"]

_KEPT_OF_BAD: Final = frozenset({"path", "line", "raw_hash", "bad", *LEDGER.names})


def event_batches(batches: Iterable[pa.RecordBatch], *, trace_topics: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Turn spans into events, batch by batch.

    A row of the ledger goes through as it is; a span that could not be read is one row with its ``bad``.

    Args:
        batches: ``READ_SPAN``, with ``LEDGER`` or without.
        trace_topics: topics whose sends are trace traffic, beside RocketMQ's own names.

    Yields:
        ``READ_EVENT``.
    """
    topics = frozenset({*TRACE_TOPIC_NAMES, *trace_topics})
    for batch in batches:
        if batch.num_rows:
            seen = Seen(_hashed(batch), topics)
            yield event_batch({name: rule(seen) for name, rule in RULES.items()}, len(seen))


def _hashed(batch: pa.RecordBatch) -> dict[str, Column]:
    """Return the columns of a batch with ``LEDGER``, and ``raw_hash``, and without what else a bad span still says."""
    columns: dict[str, Column] = {name: pa.nulls(batch.num_rows, pa.int64()) for name in LEDGER.names}
    columns.update(zip(batch.schema.names, batch.columns, strict=True))
    columns["raw_hash"] = row_hashes(columns)
    if columns["bad"].null_count == batch.num_rows:
        return columns
    is_good = columns["bad"].is_null()
    return {name: one if name in _KEPT_OF_BAD else where(is_good, one) for name, one in columns.items()}
