"""The Arrow batches of events that both sides are mapped to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jobs.schemas import READ_EVENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.normalise.columns import Column

__all__ = ["event_batch"]


def event_batch(columns: Mapping[str, Column], rows: int) -> pa.RecordBatch:
    """Return ``columns`` as a batch of ``READ_EVENT``; those not given are null."""
    arrays = [columns[one.name] if one.name in columns else pa.nulls(rows, one.type) for one in READ_EVENT]
    return pa.RecordBatch.from_arrays(arrays, schema=READ_EVENT)
