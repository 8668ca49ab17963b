"""Sources read in this process, and the rows of what was read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from spark_jobs.jobs.reading import EventSide, ReadOptions, read_native, read_otlp
from spark_jobs.schemas import EVENT
from tests.support.plain_engine import PlainEngine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def native_side(directory: Path, *srcs: object, **options: Any) -> EventSide:
    """Read native sources; the events are written below ``directory``."""
    return read_native(PlainEngine(), list(map(str, srcs)), str(directory / "native"), options=ReadOptions(**options))


def otlp_side(directory: Path, *srcs: object, **options: Any) -> EventSide:
    """Read sources of spans; the events are written below ``directory``."""
    return read_otlp(PlainEngine(), list(map(str, srcs)), str(directory / "otlp"), options=ReadOptions(**options))


def events_of(side: EventSide) -> list[dict[str, Any]]:
    return [{name: row[name] for name in EVENT.names} for row in rows_in(side.files) if row["bad"] is None]


def malformed_of(side: EventSide) -> list[dict[str, Any]]:
    """Return the malformed rows of a side: where each stands, and its evidence."""
    place = ("side", "path", "line", "record_index")
    return [{**{name: row[name] for name in place}, **row["bad"]} for row in rows_in(side.files) if row["bad"]]


def rows_in(files: Iterable[str]) -> list[dict[str, Any]]:
    return [row for path in files for row in parquet.read_table(path).to_pylist()]
