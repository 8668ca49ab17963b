"""Sources read in this process, the rows of what was read, and the verdicts that a run has written."""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from bridge.otlp.detect import Side
from spark_jobs.jobs.reading import EventSide, ReadOptions, read_side
from spark_jobs.schemas import EVENT, VERDICT
from spark_jobs.sources.files import find_inputs


class PlainEngine:
    """An engine that runs every task in this process, one after the other, through pickle as a real one does."""

    name = "plain"
    bucket_rows = 32_000

    def __init__(self, parallelism: int = 2) -> None:
        self.parallelism = parallelism

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, merge: Any = None) -> list[Any]:
        return [sent(sent(function)(sent(task))) for task in tasks]

    def exchange(
        self,
        pack: Callable[[Any], Iterable[tuple[int, bytes]]],
        tasks: Sequence[Any],
        receive: Callable[[int, Iterator[bytes]], Any],
        buckets: int,
    ) -> list[Any]:
        held: dict[int, list[bytes]] = {}
        for task in tasks:
            for bucket, blob in sent(pack)(sent(task)):
                assert 0 <= bucket < buckets
                held.setdefault(bucket, []).append(blob)
        return [sent(sent(receive)(bucket, iter(held[bucket]))) for bucket in sorted(held)]


def sent(value: Any) -> Any:
    """Return a value as the other side of a pipe has it."""
    return pickle.loads(pickle.dumps(value))


def native_side(directory: Path, *srcs: object, **options: Any) -> EventSide:
    return read_sources(PlainEngine(), Side.NATIVE, srcs, directory / "native", ReadOptions(**options))


def otlp_side(directory: Path, *srcs: object, **options: Any) -> EventSide:
    return read_sources(PlainEngine(), Side.OTLP, srcs, directory / "otlp", ReadOptions(**options))


def read_sources(engine: Any, side: Side, srcs: Iterable[object], directory: Path, options: ReadOptions) -> EventSide:
    layout = options.otlp_format if side is Side.OTLP else None
    inputs = find_inputs(side, list(map(str, srcs)), options.client_config, layout=layout)
    return read_side(engine, side, inputs, str(directory), options=options)


def events_of(side: EventSide) -> list[dict[str, Any]]:
    return [{name: row[name] for name in EVENT.names} for row in rows_in(side.files) if row["bad"] is None]


def malformed_of(side: EventSide) -> list[dict[str, Any]]:
    place = ("side", "path", "line", "record_index")
    return [{**{name: row[name] for name in place}, **row["bad"]} for row in rows_in(side.files) if row["bad"]]


def rows_in(files: Iterable[str]) -> list[dict[str, Any]]:
    return [row for path in files for row in parquet.read_table(path).to_pylist()]


def read_verdicts(out: Path) -> list[dict[str, Any]]:
    files = sorted((out / "verdicts").glob("*.parquet"))
    return plain_rows(pa.concat_tables([VERDICT.empty_table(), *(parquet.ParquetFile(path).read() for path in files)]))


def plain_rows(verdicts: pa.Table) -> list[dict[str, Any]]:
    """Return verdicts as mappings, which those of their fields are, too."""
    return [{**row, "field_verdicts": dict(row["field_verdicts"] or ())} for row in verdicts.to_pylist()]
