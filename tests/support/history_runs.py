"""Runs that follow each other on one history, over events as if they had just been read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from otel_mqtrace._clock import WallNs
from otel_mqtrace.testing import ManualClock
from spark_jobs.jobs.conclude import concluded
from spark_jobs.jobs.explain import VERDICTS
from spark_jobs.jobs.judge import judge
from spark_jobs.jobs.normalise import NormalisedSide
from spark_jobs.jobs.options import silent, unreported
from spark_jobs.jobs.workplace import workplace
from spark_jobs.policy.policy import read_policy
from spark_jobs.sources.files import spark_path
from spark_jobs.spark_schemas import EVENT, MALFORMED, VERDICT
from tests.support.events import START_MS, publish, rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Row, SparkSession

    from spark_jobs.report.result import Result
    from spark_jobs.sources.ledger import LedgerRead

MINUTE_MS, DAY_MS = 60_000, 86_400_000
NOON_NS = WallNs(START_MS * 1_000_000)


@dataclass(frozen=True)
class Told:
    """A run's result, and its verdicts."""

    result: Result
    rows: list[Row]

    @property
    def verdicts(self) -> dict[str, Row]:
        """By message id; of a message with several, one that is or was open before others."""
        rows = sorted(self.rows, key=lambda row: row["lifecycle"] is not None)
        return {row["msg_id"]: row for row in rows}


def both(msg_id: str, at_ms: int, **fields: Any) -> list[dict[str, Any]]:
    """Return a send that both sides recorded."""
    return [publish(side, msg_id, at_ms=at_ms, **fields) for side in ("native", "otlp")]


def run(
    spark: SparkSession, root: Path, events: list[dict[str, Any]], *, ledger: LedgerRead | None = None, **policy: Any
) -> Told:
    """Run once over ``events`` on the history below ``root``."""
    rules = replace(read_policy(None), **policy)
    with workplace(root, root / "history", lambda: spark, ManualClock(wall_ns=NOON_NS)) as place:
        sides = _side(spark, events, "native"), _side(spark, events, "otlp")
        judged = judge(place, sides, rules, out=root, most_samples=10, progress=silent, ledger=ledger)
        result = concluded(place, judged, unreported)
    rows = spark.read.schema(VERDICT).parquet(spark_path(root / VERDICTS)).collect()
    return Told(result, rows)


def _side(spark: SparkSession, events: list[dict[str, Any]], name: str) -> NormalisedSide:
    rows = rows_of(events, name)
    frame = spark.createDataFrame(rows, EVENT).coalesce(1)
    return NormalisedSide(
        events=frame,
        malformed=spark.createDataFrame([], MALFORMED),
        records_read=len(rows),
        exploded=0,
        sources=(),
        layouts=(),
        truncated_tails=0,
        last_event_ms=None,
    )
