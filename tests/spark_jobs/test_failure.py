"""What goes wrong inside Spark is told by what caused it, not by what Spark wrapped around it."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException

from otel_mqtrace._errors import PeerError
from spark_jobs.failure import told_by_cause
from spark_jobs.sources.files import spark_path

pytestmark = pytest.mark.spark


def _count_rows_of(spark, path):
    with told_by_cause():
        spark.read.schema("x int").parquet(spark_path(path)).select("x").collect()


def test_a_failed_job_is_one_line_that_names_the_cause(spark, tmp_path):
    """The stage, the task and the reader each put their own words around it."""
    path = tmp_path / "broken.parquet"
    path.write_text("no parquet at all")
    with pytest.raises(
        PeerError, match=r"^Spark gave up: .*broken\.parquet is not a Parquet file.*; mend that"
    ) as told:
        _count_rows_of(spark, path)
    assert "\n" not in str(told.value)


def test_a_wrong_plan_stays_what_it_is(spark):
    """It is ours to mend, not the user's."""
    with pytest.raises(AnalysisException), told_by_cause():
        spark.range(1).select("no such column")


def _read_with(spark, read):
    with told_by_cause():
        spark.range(1).mapInArrow(read, "x int").collect()


def test_a_reader_in_an_executor_that_gave_up_is_told_in_its_own_words(spark):
    """A broker that falls silent, or a full disk, is no defect of the plan; what else Python raises there is one."""

    def silent(batches):
        list(batches)
        raise PeerError("kafka://h:1/t [0] has been silent at offset 7")
        yield

    def full(batches):
        list(batches)
        raise OSError(28, "No space left on device", "/there/otlp")
        yield

    def broken(batches):
        list(batches)
        raise ZeroDivisionError("ours")
        yield

    with pytest.raises(PeerError, match=r"^Spark gave up: kafka://h:1/t \[0\] has been silent at offset 7; mend that"):
        _read_with(spark, silent)
    with pytest.raises(
        PeerError, match=r"^Spark gave up: OSError: \[Errno 28\] No space left on device: '/there/otlp'; "
    ):
        _read_with(spark, full)
    with pytest.raises(PythonException, match="ours"):
        _read_with(spark, broken)
