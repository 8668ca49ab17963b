"""The verdicts that a run has written, as plain rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from spark_jobs.schemas import VERDICT

if TYPE_CHECKING:
    from pathlib import Path


def read_verdicts(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / "verdicts").glob("*.parquet"))
    return plain_rows(pa.concat_tables([VERDICT.empty_table(), *(parquet.ParquetFile(path).read() for path in files)]))


def plain_rows(verdicts: pa.Table) -> list[dict[str, Any]]:
    rows = verdicts.to_pylist()
    for row in rows:
        if row.get("field_verdicts") is not None:
            row["field_verdicts"] = dict(row["field_verdicts"])
    return rows
