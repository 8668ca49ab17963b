"""What a run carries over: which events are read again, and which are not."""

import pyarrow as pa
import pytest
from pyarrow import parquet

from spark_jobs.history.carried import CarriedPositions, carry_over_events, drop_read_again
from spark_jobs.history.history import read_rows, write_rows
from spark_jobs.schemas import EVENT, NORMALISED
from tests.support.events import publish
from tests.support.reading import PlainEngine

PLACE = {"side": "native", "path": "a", "record_index": 0, "raw_hash": 0, "line": 3}
OTHERS = ({"side": "otlp"}, {"path": ""}, {"record_index": None}, {"raw_hash": None}, {"line": 4})


@pytest.mark.parametrize(
    ("change", "is_again"), [({}, True), ({"line": None}, True), *((one, False) for one in OTHERS)]
)
def test_event_is_read_again_where_position_and_line_agree_or_a_line_is_unknown(change, is_again):
    behind = {**PLACE, "raw_hash": 9}
    for fresh, carried in ((PLACE, {**PLACE, **change}), ({**PLACE, **change}, PLACE)):
        positions = CarriedPositions.of(events(behind, carried, carried))
        fresh_rows, rows = positions.match(events(fresh))
        assert (fresh_rows.tolist(), rows.tolist()) == (([0], [1, 2]) if is_again else ([], []))
        left = drop_read_again(positions, events(fresh, {**fresh, "first_seen_run": 1}))
        assert left["first_seen_run"].to_pylist() == ([1] if is_again else [None, 1])


@pytest.mark.parametrize(("server", "is_again"), [("shop", True), ("bill", False)])
def test_span_that_is_fetched_again_is_read_again_from_another_file_and_line(server, is_again):
    """The temporary directory is another one in every run, and the traces of a page are."""
    carried = {**PLACE, "side": "otlp", "path": "/a/mqtrace-jaeger-ab_1/0/jaeger-shop-16686.jsonl"}
    fresh = {**carried, "path": f"/b/c/mqtrace-jaeger-cd2x/1/jaeger-{server}-16686.jsonl", "line": 4}
    assert CarriedPositions.of(events(carried)).match(events(fresh))[0].tolist() == ([0] if is_again else [])


def events(*rows):
    return pa.Table.from_pylist(list(rows), schema=EVENT)


def write_fresh(path, rows, bad=None):
    table = pa.Table.from_pylist([{**row, "bad": bad} for row in rows], schema=NORMALISED)
    parquet.write_table(table, path, row_group_size=2)
    return str(path)


def test_carried_events_that_are_read_again_are_dropped(tmp_path):
    rows = [
        publish("native", f"N{n}", path=f"{n % 2}.jsonl", line=n, left_as="PENDING", first_seen_run=1) for n in range(4)
    ]
    rows.append(publish("otlp", "S", path="spans.jsonl", left_as="UNEXPLAINED", first_seen_run=1))
    paths = [str(tmp_path / name) for name in ("one.parquet", "two.parquet")]
    write_rows(events(*rows[:2]), paths[0])
    write_rows(events(*rows[2:]), paths[1])
    fresh = [
        write_fresh(tmp_path / "a.parquet", [{**rows[3], "left_as": None, "line": None}, publish("native", "X")]),
        write_fresh(tmp_path / "b.parquet", [publish("otlp", "Y"), {**rows[4], "left_as": None}]),
        write_fresh(tmp_path / "c.parquet", [rows[0]], bad={"reason": "cut off"}),
    ]
    carried = carry_over_events(PlainEngine(), paths, fresh, str(tmp_path / "work"))
    left = [row for path in carried.files for row in read_rows(path, EVENT).to_pylist()]
    assert [row["left_as"] for row in left] == ["PENDING", "PENDING", "PENDING", None, None]
    assert {row["first_seen_run"] for row in left} == {1}
    assert (carried.counts, carried.read_again) == ({"native": 4, "otlp": 1}, {"native": 1, "otlp": 1})
    assert carried.again == tuple(paths)
