"""Runs that follow each other on one history, over events as if they had just been read."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from otel_mqtrace._clock import WallNs
from otel_mqtrace.testing import ManualClock
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.jobs.batch import conclude, reconcile
from spark_jobs.jobs.naming import identified_by_offset
from spark_jobs.jobs.options import no_progress, no_report
from spark_jobs.jobs.reading import EventSide
from spark_jobs.jobs.workspace import open_workspace
from spark_jobs.judging.facts import survey
from spark_jobs.policy.policy import read_policy
from spark_jobs.report.result import Result
from spark_jobs.schemas import NORMALISED, LedgerRead
from tests.support.events import START_MS
from tests.support.reading import read_verdicts

MINUTE_MS, DAY_MS = 60_000, 86_400_000
NOON_NS = WallNs(START_MS * 1_000_000)


@dataclass(frozen=True)
class RunRows:
    """A run's result, and its verdicts."""

    result: Result
    rows: list[dict[str, Any]]

    @property
    def verdicts(self) -> dict[str, dict[str, Any]]:
        """By message id; of a message with several, one that is or was open before others."""
        rows = sorted(self.rows, key=lambda row: row["lifecycle"] is not None)
        return {row["msg_id"]: row for row in rows}


def run(root: Path, events: list[dict[str, Any]], *, ledger: LedgerRead | None = None, **policy: Any) -> RunRows:
    """Run once over ``events`` on the history below ``root``."""
    rules = replace(read_policy(None), **policy)
    with open_workspace(root, root / "history", LocalEngine, ManualClock(wall_ns=NOON_NS)) as place:
        sides = _side(place.work, events, "native"), _side(place.work, events, "otlp")
        reconciled = reconcile(place, sides, rules, most_samples=10, progress=no_progress, ledger=ledger)
        result = conclude(place, reconciled, no_report, out=root)
    return RunRows(result, read_verdicts(root))


def _side(work: Path, events: list[dict[str, Any]], name: str) -> EventSide:
    rows = pa.Table.from_pylist([{**row, "bad": None} for row in events if row["side"] == name], schema=NORMALISED)
    path = work / f"{name}.parquet"
    parquet.write_table(rows, path)
    columns = {column: rows[column].combine_chunks() for column in ("msg_id", "offset_msg_id")}
    by_place = sum(identified_by_offset(columns).to_pylist()) if name == "otlp" else 0
    return EventSide(files=(str(path),), records_read=len(rows), by_place=by_place, survey=survey(rows))
