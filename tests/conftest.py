"""What the whole run of tests shares: one Spark session, and which tests come first."""

from __future__ import annotations

import gc
import re
import signal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


# A busy machine is no counterexample: no example is timed.
settings.register_profile("mqtrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mqtrace")
# Under nohup, or in a script's background, every process of a test would ignore them, as commands leave what is ignored.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

_ROOT = Path(__file__).parents[1]
_ASKS_FOR_SPARK = re.compile(r"^ *def \w+\((?:[^)]*\W)?spark\W", re.MULTILINE)

_LONG = ("tests/documents/", "tests/flow/")
"""Folders whose files take tens of seconds: the last one begun keeps a process busy while the others are done."""


@cache
def _is_on_session(file: str) -> bool:
    return bool(_ASKS_FOR_SPARK.search((_ROOT / file).read_text(encoding="utf-8")))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Under ``--dist loadfile``, have all files on the Spark session in one process, and share out documents by the page."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415  (needed by the process that shares out, not by others)

    class OneSession(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            page = re.search(r"\[[\w./-]+\.md", nodeid)
            return "session" if _is_on_session(file) else file + page[0] if page else file

    return OneSession(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put first what takes longest: the files on the session, those that start a Spark of their own, long ones."""
    slow = {item.path for item in items if item.get_closest_marker("spark")}

    def turn(item: pytest.Item) -> int:
        if _is_on_session(item.nodeid.partition("::")[0]):
            return 0
        return 1 if item.path in slow else 3 - item.nodeid.startswith(_LONG)

    items.sort(key=turn)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Spare every later collection of garbage the million objects that collecting the tests has left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the forwarder remembers out of the developer's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Answer an interrupt as in a terminal, also where a Spark session of this process has taken the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Give the one SparkSession of the run: two threads."""
    pytest.importorskip("pyspark", reason="the spark extra is not installed")
    from spark_jobs.session import build_session  # noqa: PLC0415  (a run without Spark tests never loads pyspark)

    session = build_session(master="local[2]", driver_memory="1g")
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
