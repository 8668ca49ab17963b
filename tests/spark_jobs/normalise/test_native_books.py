"""What is counted of native bodies is counted apart from the rows made of them."""

from __future__ import annotations

import base64
import json

import pytest
from pyspark.sql import functions as F

from spark_jobs.jobs.normalise import normalise_native
from spark_jobs.normalise.native import native_bodies, native_events
from spark_jobs.schemas import READ_BODY

pytestmark = pytest.mark.spark

ID = "C000020262BB60E53B936993952C0000"


def landing(path, bodies):
    """Write bodies as a landing, one per line."""
    lines = (json.dumps({"source": "T", "body_base64": base64.b64encode(body).decode()}) for body in bodies)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_each_call_of_a_long_body_has_its_own_size(spark, tmp_path):
    """Four thousand deliveries in one body, in calls of one and of two whose records do not stand side by side."""
    calls = [*range(3_000), *range(1_000)]
    body = "".join(f"SubAfter\x01R{call}\x01{ID}\x013\x01true\x01null\x010\x012000\x01g\x02" for call in calls)
    side = normalise_native(spark, [str(landing(tmp_path / "big.jsonl", [body.encode()]))], tmp_path)
    assert side.records_read == 4_000
    assert {row["batch_size"]: row["count"] for row in side.events.groupBy("batch_size").count().collect()} == {
        1: 2_000,
        2: 2_000,
    }


def test_the_books_of_a_body_are_not_kept_by_what_they_check(spark):
    """A piece lost between the count and the rows is missing from the books; a glued pair is one more, told by itself."""
    record = f"Recall\x015\x01r\x01g\x01t\x01{ID}\x01true\x02"
    half = f"SubAfter\x01REQ\x01{ID}\x013\x01true\x01null\x010\x01"
    body = bytearray((record + half + record).encode())
    read = dict.fromkeys(READ_BODY.names, None) | {"body": body}
    bodies = native_bodies(spark.createDataFrame([tuple(read[name] for name in READ_BODY.names)], READ_BODY))
    assert bodies.first()["raw_records"] == 2
    tampered = bodies.withColumn("raw_records", F.col("raw_records") + 1)
    found = native_events(tampered, writer="mqtrace").agg(F.count(F.lit(1)), F.sum("extra")).first()
    assert tuple(found) == (3, 1)


def test_a_time_at_the_end_of_time_tells_nothing_about_how_far_the_data_reaches(spark, tmp_path):
    """One damaged record does not move the horizon of the run by millions of years."""
    good, far = (f"Recall\x01{at}\x01r\x01g\x01t\x01{ID}\x01true\x02" for at in (5, 2**63 - 1))
    side = normalise_native(spark, [str(landing(tmp_path / "f.jsonl", [(good + far).encode()]))], tmp_path)
    assert (side.records_read, side.last_event_ms) == (2, 5)
