"""The Spark expressions follow the layout table: a release that does not exist is read when the table has its row."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from bridge.codec.native import layout
from spark_jobs.normalise import records
from tests.support import future_layout

pytestmark = pytest.mark.spark


@pytest.fixture
def future_records(monkeypatch):
    """``spark_jobs.normalise.records`` as it would be beside the longer table."""
    table = ModuleType("bridge.codec.native.layout")
    monkeypatch.setitem(sys.modules, table.__name__, table)
    exec(compile(future_layout.source(), layout.__file__, "exec"), table.__dict__)
    spec = spec_from_file_location("records_of_the_future", records.__file__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_form_of_a_new_row_is_read_field_by_field(spark, future_records):
    """Seventeen fields: the two new ones are typed columns; today's expressions stop at fifteen."""
    body = "Pub\x011\x01R\x01g\x01t\x01I\x01tag\x01k\x01h:1\x012\x013\x013\x01O\x01true\x01ch\x017\x01Q"
    pieces = spark.createDataFrame([(body, None)], "piece string, bad struct<error_field:string>")
    given = pieces.select("piece", records.bad(None, records.F.lit("x"), records.F.col("piece")).alias("bad"))
    frame = given.withColumn("bad", records.F.when(records.F.lit(False), records.F.col("bad")))
    names = ("client_host", "retry_times", "request_id", "msg_type")
    (new,) = future_records.typed_records(frame, msg_type_map="a").select(*names).collect()
    (today,) = records.typed_records(frame, msg_type_map="a").select(*names).collect()
    assert tuple(new) == ("ch", 7, "Q", "Delay_Msg")
    assert tuple(today) == ("ch", None, None, "Delay_Msg")
