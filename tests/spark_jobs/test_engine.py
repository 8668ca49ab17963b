"""What a run puts in force in a session that is not its own, and what it asks of it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from spark_jobs.engine import as_meant, cost, grouped, versions
from spark_jobs.session import MEANING
from tests.support.settings import configured

pytestmark = pytest.mark.spark


def test_a_session_has_the_settings_that_decide_a_meaning_for_the_run_only(spark):
    """Whatever it was given, and also when the run fails."""
    before = {name: spark.conf.get(name) for name in MEANING}
    within: dict[str, str] = {}
    with configured(spark, {"spark.sql.session.timeZone": "Asia/Shanghai"}):
        with suppress(ZeroDivisionError), as_meant(spark):
            within.update({name: spark.conf.get(name) for name in MEANING})
            raise ZeroDivisionError
        assert within == MEANING
        assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Shanghai"
    assert {name: spark.conf.get(name) for name in MEANING} == before


def test_the_jobs_of_a_group_are_counted_and_no_others(spark):
    """One before, two within."""
    spark.range(3).collect()
    with grouped(spark, "of-a-test", "two jobs"):
        spark.range(3).collect()
        spark.range(3).collect()
    assert cost(spark, "of-a-test") == (2, 2)
    assert set(versions(spark)) == {"spark", "java"}
