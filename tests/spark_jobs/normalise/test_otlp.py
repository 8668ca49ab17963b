"""Spans of any layout and any convention become canonical events on Spark."""

from collections import Counter
from pathlib import Path

from spark_jobs.schemas import EVENT
from tests.support.otlp_json import PRODUCER, line, resource, span
from tests.support.reading import events_of, malformed_of, otlp_side, rows_in

VECTORS = Path(__file__).parents[2] / "vectors"
OTLP = VECTORS / "otlp"


def line_of(start="5000000999", tags="T"):
    """Return a send as a line of a Collector's file."""
    attributes = {"messaging.system": "kafka", "messaging.operation.type": "send", "mqtrace.tags": tags}
    return line(resource("shop", span(1, PRODUCER, 5, 1, attributes, startTimeUnixNano=start)))


def test_layouts_give_the_same_events(tmp_path):
    plain = (f"layouts/traces.{layout}" for layout in ("jsonl", "json.zst.framed", "pb.framed", "pb.zst.framed"))
    names = (*plain, "native-zstd/native.jsonl.zst", "native-zstd/native.pb.framed.zst")
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.records_read == 6 * 209
    assert side.records_read + side.exploded == len(events_of(side))
    assert len(side.layouts) == 6
    columns = [name for name in EVENT.names if name not in {"path", "line", "raw_hash"}]
    repeated = Counter(repr([row[name] for name in columns]) for row in events_of(side))
    assert set(repeated.values()) == {6}


def test_damage_is_counted_and_located(tmp_path):
    killed = (f"killed/kill.{layout}" for layout in ("jsonl", "pb.framed", "pb.zst.framed", "json.zst.framed"))
    names = (*killed, "append-after-kill/torn.jsonl", "append-after-kill/torn.pb.framed")
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.truncated_tails == 4
    assert side.records_read == 67 + 67 + 63 + 57 + 78 + 81 + 2
    assert sorted((Path(row["path"]).name, row["line"]) for row in malformed_of(side)) == [
        ("torn.jsonl", 13),
        ("torn.pb.framed", 14),
    ]


def test_foreign_line_is_bad_unless_it_is_of_another_signal(tmp_path):
    """Collectors write U+2028 raw."""
    others = ('{"resourceMetrics": []}', '{"resourceLogs": []}', "{}", '{"hello": 1}')
    path = tmp_path / "made.jsonl"
    path.write_text(line_of(tags="a\u2028b\x85c") + "\n".join((*others, line_of("soon"))), encoding="utf-8")
    side = otlp_side(tmp_path, str(path))
    assert side.records_read + side.exploded == len(rows_in(side.files))
    assert [row["tags"] for row in events_of(side)] == ["a\u2028b\x85c"]
    assert sorted((row["line"], row["field"], row["reason"]) for row in malformed_of(side)) == [
        (5, None, "not OTLP traces"),
        (6, "start_ns", "not a number"),
    ]


def test_empty_files_are_an_empty_side(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    side = otlp_side(tmp_path, str(tmp_path / "empty.jsonl"))
    assert (side.records_read, len(events_of(side)), side.last_event_ms) == (0, 0, None)
