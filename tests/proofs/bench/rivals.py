"""The events of a day compared by others: datacompy on Spark, and DuckDB's full outer join.

``python -m tests.proofs.bench.rivals prepare DAY TABLES`` writes both sides as parsed parquet, by our own readers.
``… datacompy TABLES OUT`` and ``… duckdb TABLES OUT`` compare them, write what they found, and print one JSON object.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.recording import Laid

Act = Callable[[Path, Path], dict[str, Any]]
"""From one path to another: what was found, as plain data."""

MASTER, MEMORY = "local[2]", "2g"
JOIN = ("kind", "msg_id", "attempt_id")
_SIDES = ("native", "otlp")
_GROUP = "comparison"
_ONLY = re.compile(r"Number of rows in (native|otlp) but not in \w+: ([\d,]+)")
_UNEQUAL = re.compile(r"Number of rows with some compared columns unequal: ([\d,]+)")


_USUAL = {
    "spark.driver.extraJavaOptions": "",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
}
"""Our own session is set up for tasks of Python; expressions run on Spark as it comes, but for 200 partitions."""


@dataclass(frozen=True, slots=True)
class _Files:
    native: Path
    otlp: Path


@dataclass(frozen=True, slots=True)
class _Day:
    """A day on disk, as ``tests.faults.baselines`` takes a corpus; it is laid down already."""

    root: Path
    join: tuple[str, ...] = JOIN
    options: dict[str, str] = field(default_factory=lambda: {"native_writer": "mqtrace"})

    @property
    def recording(self) -> _Day:
        return self

    def lay_down(self, _root: Path, _laid: Laid) -> _Files:
        return _Files(self.root / "native", self.root / "otlp")


def _prepare(day: Path, tables: Path) -> dict[str, int]:
    from tests.faults import baselines  # noqa: PLC0415 - duckdb's process has no pandas

    tables.mkdir(parents=True)
    frames = baselines.tables(_Day(day), tables)
    for side, frame in zip(_SIDES, frames, strict=True):
        frame.dropna(axis="columns", how="all").to_parquet(tables / f"{side}.parquet", index=False)
    return {side: len(frame) for side, frame in zip(_SIDES, frames, strict=True)}


def _datacompy(tables: Path, out: Path) -> dict[str, int]:
    """Compare as its documentation shows, and write its report; the session is the one that our own run has."""
    from datacompy.spark import SparkSQLCompare  # noqa: PLC0415 - an extra of its own

    from spark_jobs.session import build_session  # noqa: PLC0415 - as above

    spark = build_session(master=MASTER, driver_memory=MEMORY, extra=_USUAL)
    spark.sparkContext.setJobGroup(_GROUP, _GROUP)
    native, otlp = (spark.read.parquet(str(tables / f"{side}.parquet")) for side in _SIDES)
    comparison = SparkSQLCompare(spark, native, otlp, join_columns=list(JOIN), df1_name="native", df2_name="otlp")
    text = comparison.report()
    out.write_text(text, encoding="utf-8")
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup(_GROUP))
    only = {side: int(count.replace(",", "")) for side, count in _ONLY.findall(text)}
    unequal = _UNEQUAL.search(text)
    assert unequal is not None, text
    return {"jobs": jobs, **only, "different": int(unequal[1].replace(",", ""))}


def _duckdb(tables: Path, out: Path) -> dict[str, int]:
    """Join on the same columns, copies by their order, and write a verdict for every row."""
    import duckdb  # noqa: PLC0415 - an extra of its own

    base = duckdb.connect()
    for side in _SIDES:
        base.execute(
            f"create view {side} as select *, row_number() over (partition by {', '.join(JOIN)}) as copy "
            f"from read_parquet('{tables / f'{side}.parquet'}')"
        )
    fields = [name for name, *_ in base.execute("describe native").fetchall() if name not in (*JOIN, "copy")]
    differs = " or ".join(f'native."{name}" is distinct from otlp."{name}"' for name in fields)
    both = ", ".join(f'native."{name}" as native_{name}, otlp."{name}" as otlp_{name}' for name in fields)
    on = " and ".join(f"native.{name} = otlp.{name}" for name in (*JOIN, "copy"))
    keys = ", ".join(f"coalesce(native.{name}, otlp.{name}) as {name}" for name in JOIN)
    base.execute(
        f"copy (select {keys}, case when otlp.copy is null then 'native' when native.copy is null then 'otlp' "
        f"when {differs} then 'different' else 'equal' end as verdict, {both} "
        f"from native full outer join otlp on {on}) to '{out}' (format parquet, compression zstd)"
    )
    verdicts = base.execute(f"select verdict, count(*) from read_parquet('{out}') group by verdict").fetchall()
    return {verdict: count for verdict, count in verdicts if verdict != "equal"}


_ACTS: dict[str, Act] = {"prepare": _prepare, "datacompy": _datacompy, "duckdb": _duckdb}


def acted(acts: Mapping[str, Act], act: str, source: str, target: str) -> int:
    """Do it and print what was found; return 0."""
    sys.stdout.write(json.dumps(acts[act](Path(source), Path(target))) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(acted(_ACTS, *sys.argv[1:]))
