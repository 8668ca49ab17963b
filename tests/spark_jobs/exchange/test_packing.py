"""Rows packed into buckets come out whole, in memory and from a mapped file, whatever their number."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark_jobs.exchange.packing import group_pieces, open_bucket, pack_pieces, pieces_of, split_blobs
from spark_jobs.judging.kernel import judge_slices
from spark_jobs.policy.policy import read_policy
from spark_jobs.schemas import NORMALISED
from tests.support.events import consumed, delivery, publish
from tests.support.kernel_runs import judge, plan_of, table_of

BUCKETS = 5


@pytest.fixture(scope="module")
def events():
    """One message with three hundred deliveries, a span of one lost, and forty messages with one each."""
    rows = [*(publish(side, "HOT") for side in ("native", "otlp"))]
    for number in range(300):
        rows += delivery("HOT", attempt=f"A{number}", at_ms=number)
        rows += [consumed("HOT", attempt=f"A{number}", at_ms=number)] if number != 7 else []
    for number in range(40):
        rows += [*delivery(f"M{number}"), consumed(f"M{number}")]
    return rows


@pytest.fixture(scope="module")
def tasks(events, tmp_path_factory):
    directory = tmp_path_factory.mktemp("events")
    for part in range(2):
        table = pa.Table.from_pylist(events[part::2], schema=NORMALISED)
        parquet.write_table(table, directory / f"{part}.parquet", row_group_size=100)
    return group_pieces(pieces_of(map(str, sorted(directory.glob("*.parquet")))), 2)


@pytest.fixture(scope="module")
def buckets(tasks):
    return packed(tasks, together=1)


def packed(tasks, *, together):
    rows_by_bucket = {}
    for task in tasks:
        for bucket, blob in pack_pieces(BUCKETS, task, together=together):
            rows_by_bucket.setdefault(bucket, []).append(blob)
    return rows_by_bucket


def rows_of(table):
    return sorted(repr(sorted(row.items())) for row in table.to_pylist())


@pytest.mark.parametrize("together", [2, 5, 7])
def test_buckets_packed_together_split_into_the_rows_of_each(tasks, buckets, together):
    split_rows = []
    for number, blobs in packed(tasks, together=together).items():
        split = [*split_blobs(blobs, BUCKETS)]
        assert blobs == []
        assert all(bucket // together == number for bucket, _ in split)
        split_rows += [(bucket, rows_of(open_bucket(own).events)) for bucket, own in split]
    assert sorted(split_rows) == sorted(
        (bucket, rows_of(open_bucket([*own]).events)) for bucket, own in buckets.items()
    )


@pytest.mark.parametrize("memory_bytes", [1, 100_000], ids=["a blob a time", "some blobs a time"])
def test_bucket_larger_than_memory_gets_the_same_verdicts(events, buckets, memory_bytes):
    plan, verdicts = plan_of(events, read_policy(None)), []
    for blobs in buckets.values():
        opened = open_bucket([*blobs], memory_bytes)
        for judged in judge_slices(opened.events, plan, columns=opened.columns, keys_per_slice=11):
            assert len(judged.verdicts) <= 11
            verdicts += rows_of(judged.verdicts)
    assert sorted(verdicts) == rows_of(judge(table_of(events), plan).verdicts)
