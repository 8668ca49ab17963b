"""Texts of which characters were replaced: equal where both can be read, and nothing else is forgiven."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from spark_jobs.reconcile.replaced import same_but_replaced

pytestmark = pytest.mark.spark

PAIRS = [
    ("order", "order", True),
    ("a_b_c", "a\x01b\x02c", True),
    ("caf\ufffd", "café", True),
    ("caf\ufffd\ufffd", "caf订单", True),
    ("\ufffd\ufffd-7", "订单-7", True),
    ("a\ufffdb\ufffd\ufffdc", "aéb单c", True),
    ("\ufffd", "订", True),
    ("caf\ufffd", "caf", False),
    ("caf\ufffd", "cab", False),
    ("a\ufffdb\ufffdc", "aéc", False),
    ("a\ufffdb\ufffdc", "aéxc", False),
    ("a\ufffdb\ufffdb", "aéb", False),
    ("a.*", "abc", False),
    ("a_b", "a.b", False),
    ("order", "Order", False),
]


def test_a_replacement_stands_for_what_could_not_be_carried_and_nothing_else(spark):
    """In either order of the two sides."""
    rows = [(one, other, same) for one, other, same in PAIRS] + [(other, one, same) for one, other, same in PAIRS]
    frame = spark.createDataFrame(rows, "one string, other string, same boolean")
    wrong = frame.where(same_but_replaced(F.col("one"), F.col("other")) != F.col("same")).collect()
    assert wrong == []
