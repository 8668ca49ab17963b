"""This module knows what the whole run of tests shares: one Spark session, and which tests go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what asks for Spark in one of several processes, and the tests of a file together, when there are several."""
    if not config.pluginmanager.hasplugin("dsession") and not hasattr(config, "workerinput"):
        return
    for item in items:
        group = "spark" if "spark" in getattr(item, "fixturenames", ()) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the one SparkSession of the run: two threads, two shuffle partitions."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    from spark_jobs.session import build_session  # noqa: PLC0415  (a run without Spark tests never loads pyspark)

    session = build_session(
        master="local[2]",
        app_name="mqtrace-tests",
        extra={"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2"},
    )
    yield session
    session.stop()
