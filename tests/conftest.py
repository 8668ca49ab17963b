"""This module knows what the whole run of tests shares: one Spark session, and which tests come first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that ask for Spark first: they take longest, and several processes should share them out."""
    slow = {
        item.path for item in items if item.get_closest_marker("spark") or "spark" in getattr(item, "fixturenames", ())
    }
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the one SparkSession of the run: two threads, two shuffle partitions."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    from spark_jobs.session import build_session  # noqa: PLC0415  (a run without Spark tests never loads pyspark)

    session = build_session(
        master="local[2]",
        app_name="mqtrace-tests",
        driver_memory="3g",
        extra={"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2"},
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _nothing_stays_cached(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the heap to the next test, and the planner no cached frames to compare its plans with."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.clearCache()
