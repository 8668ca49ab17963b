"""One message id given to thousands of deliveries: what lacks its key still meets, and the work stays bounded."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.sql import functions as F

from spark_jobs.reconcile.pair import BLOCK
from tests.support.events import consumed, delivery
from tests.support.judging import judged

pytestmark = pytest.mark.spark

COPIES, LOST = 2 * BLOCK, 100


def _told(spark, events):
    """Return how many keys each message has of each status, and how far the starts of its pairs lie apart."""
    apart_ms = F.abs(F.col("native.start_ms") - F.col("otlp.start_ms"))
    rows = judged(spark, events).groupBy("msg_id", "status", apart_ms.alias("apart_ms")).count().collect()
    return Counter({(row["msg_id"], row["status"], row["apart_ms"]): row["count"] for row in rows})


def test_each_delivery_of_a_huge_message_meets_its_own_span(spark):
    """A millisecond apart, a hundred spans lost at the start (more than a partner's place may be off), one in the midst."""
    gone = {*range(LOST), COPIES // 2}
    events = []
    for number in range(COPIES):
        events += delivery("DENSE", attempt=f"A{number}", at_ms=number)
        if number not in gone:
            events.append(consumed("DENSE", attempt=None, at_ms=number, span_id=f"{number:016x}"))
        events += delivery("SPARSE", attempt=f"A{number}", at_ms=2_000 * number)
        events.append(consumed("SPARSE", attempt=None, at_ms=2_000 * number + 300, span_id=f"{number:016x}"))
    found = _told(spark, events)
    assert found == _told(spark, events[::-1])
    assert found == {
        ("DENSE", "MATCHED_EXACT", 0): COPIES - len(gone),
        ("DENSE", "NATIVE_ONLY", None): len(gone),
        ("SPARSE", "MISMATCHED", 300): COPIES,
    }
