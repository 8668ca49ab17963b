"""This module knows what the whole run of tests shares: one Spark session, and which tests come first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


_ON_THE_SESSION = ("tests/spark_jobs/", "tests/faults/")
_RUN_ALONE = ("tests/peers/", "tests/cluster/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under ``--dist loadfile``, have all of ``tests/spark_jobs`` and ``tests/faults`` in the one process with the session."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415  (needed by the process that shares out, not by others)

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _ON_THE_SESSION[0] if nodeid.startswith(_ON_THE_SESSION) else super()._split_scope(nodeid)

    return OneSession(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest: the files on the session, then those that start a Spark of their own.

    A test elsewhere that asked for the session would start another one, of 3 GB.
    """
    asking = [item.nodeid for item in items if "spark" in getattr(item, "fixturenames", ())]
    if strays := [name for name in asking if not name.startswith(_ON_THE_SESSION + _RUN_ALONE)]:
        raise pytest.UsageError(f"{strays[0]} asks for the Spark session: move it below {' or '.join(_ON_THE_SESSION)}")
    slow = {item.path for item in items if item.get_closest_marker("spark")}

    def turn(item: pytest.Item) -> int:
        return 0 if item.nodeid.startswith(_ON_THE_SESSION) else 2 - (item.path in slow)

    items.sort(key=turn)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the one SparkSession of the run: two threads, two shuffle partitions."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    from spark_jobs.session import build_session  # noqa: PLC0415  (a run without Spark tests never loads pyspark)

    session = build_session(
        master="local[2]",
        app_name="mqtrace-tests",
        driver_memory="3g",
        lasting=True,
        extra={"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2"},
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_global_provider() -> Iterator[None]:
    """Start every test as an application starts: what another one set for good, as pages of the documents do, is gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", None)
        patch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())
        yield


@pytest.fixture(autouse=True)
def _nothing_stays_cached(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave the heap to the next test, and the planner no cached frames to compare its plans with."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark").catalog.clearCache()
