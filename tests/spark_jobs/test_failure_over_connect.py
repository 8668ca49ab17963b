"""A job that a Spark Connect server gave up is one line too."""

from __future__ import annotations

import pytest

from otel_mqtrace._errors import PeerError
from spark_jobs.failure import told_by_cause

connect = pytest.importorskip("pyspark.errors.exceptions.connect", reason="the connect extra is not installed")


def test_what_the_server_says_is_told_by_its_first_line():
    """What follows is the stack of its JVM."""
    with pytest.raises(PeerError, match=r"^Spark gave up: No space left on device; mend that"), told_by_cause():
        raise connect.SparkConnectGrpcException("No space left on device\n\tat org.apache.spark…")


def test_a_wrong_plan_stays_what_it_is_over_connect_too():
    """It is ours to mend, not the user's."""
    with pytest.raises(connect.AnalysisException), told_by_cause():
        raise connect.AnalysisException("no such column")
