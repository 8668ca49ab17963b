"""Ledgers of losses in every form they come in, and the one line for what is none."""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path
from threading import Thread
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace._errors import UnreadableInputError, UsageError
from spark_jobs.schemas import CountedDrop
from spark_jobs.sources import ledger
from spark_jobs.sources.ledger import read_ledgers
from spark_jobs.sources.loss_counters import Point, drops_of, increments, series
from tests.support.otlp_json import listed

SECOND_NS = 1_000_000_000
ROW = {"side": "otlp", "component": "OTLPSpanExporter", "cause": "queue_full", "count": 12}
ROW |= {"service": "shop", "instance": "host:4711", "group": "billing"}
ROW |= {"bucket_start_ms": 1_795_262_400_000, "bucket_ms": 10_000}


def own(*rows, version=1) -> str:
    return json.dumps({"ledger_version": version, "rows": list(rows)})


def point_of(attributes, start_s, at_s, value) -> dict:
    times = {"startTimeUnixNano": str(start_s * SECOND_NS), "timeUnixNano": str(at_s * SECOND_NS)}
    return {"attributes": listed(attributes), **times, "asInt": str(value)}


def metric(name, *points, temporality=2, service="shop") -> dict:
    """Return one line of the Collector's file exporter; the points are those of ``point_of``."""
    points = [point_of(*point) for point in points]
    summed = {"aggregationTemporality": temporality, "isMonotonic": True, "dataPoints": points}
    scopes = [{"metrics": [{"name": name, "sum": summed}]}]
    resource = {"attributes": listed({"service.name": service})}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": scopes}]}


def lines(*documents) -> str:
    return "".join(json.dumps(document) + "\n" for document in documents)


@pytest.fixture
def read(tmp_path):
    def read(text: str, name: str = "given.json"):
        path = tmp_path / name
        path.write_text(text)
        return read_ledgers([str(path)])

    return read


def buckets(drops) -> list[tuple[int | None, int | None, int]]:
    return [(drop.bucket_start_ms, drop.bucket_ms, drop.count) for drop in drops.drops]


def test_own_ledger_file_is_read_completely(read):
    drops = read(own(ROW, {**ROW, "count": 0}), "ledger-host-1-4711-0a1b2c3d.json")
    assert drops.drops == (CountedDrop(**ROW, process=f"{4711:04X}"),)
    assert read(own(ROW)).drops[0].process is None
    (unknown,) = read(own({"side": "native", "count": 3})).drops
    assert unknown == CountedDrop(side="native", component="unknown", cause="unknown", count=3)
    start = {"side": "native", "component": "NativeKafkaSpanExporter start"}
    without_room, surrogate = {"bucket_start_ms": 0}, {"cause": "\ud800"}
    drops = read(own(*({**ROW, **changes} for changes in (start, without_room, surrogate))))
    assert [drop.of_start for drop in drops.drops] == [True, False, False]
    assert buckets(drops)[1] == (None, None, 12)
    assert [drop.cause for drop in drops.drops] == ["queue_full", "queue_full", "?"]


METRIC_NAMES = [f"otel_sdk_processor_span_processed{end}" for end in ("", "_total", "_spans_total", "__span__total")]


@pytest.mark.parametrize("name", [*METRIC_NAMES, "otel_sdk_exporter_span_exported_total"])
def test_dump_of_an_sdk_is_read_under_every_spelling(read, name):
    text = f"""# TYPE {name} counter
{name}{{error_type="",otel_component_name="batching_span_processor/0"}} 900
{name}{{error_type="queue_full",otel_component_name="batching_span_processor/0"}} 68.0
{name}{{otel_component_name="batching_span_processor/0"}} 9e2
target_info{{service_name="shop",service_instance_id="i1"}} 1
up 1
"""
    drop = {"side": "otlp", "component": "batching_span_processor/0", "cause": "queue_full", "count": 68}
    assert read(text).drops == (CountedDrop(**drop, service="shop", instance="i1"),)


def test_quoted_names_with_dots_are_read(read):
    """The form Prometheus 3 writes, with a time in milliseconds and one in seconds."""
    text = '{"otel.sdk.processor.span.processed","error.type"="queue_full"} 2 1795262400000\n'
    text += '{"otel.sdk.processor.span.processed", "error.type"="queue_full"} 5 1795262410.5 # {} 1\n# EOF\n'
    assert buckets(read(text)) == [(None, None, 2), (1_795_262_400_000, 10_500, 3)]


def test_loss_counter_of_a_collector_is_read_without_a_service():
    """Its resource is the Collector's own, not that of the spans it dropped."""
    counted = {
        "otelcol_receiver_refused_spans": "receiver_refused",
        "otelcol_processor_dropped_spans_total": "processor_dropped",
        "otelcol_processor_refused_spans": "processor_refused",
        "otelcol_exporter_enqueue_failed_spans__spans__total": "enqueue_failed",
        "otelcol_exporter_send_failed_spans_total": "send_failed",
        "otelcol_exporter_sent_spans": None,
    }
    points = [Point(series(name, {}, {"service.name": "otelcol"}), 3) for name in counted]
    drops = [drop for point in points for drop in drops_of(increments([point])).drops]
    assert sorted(drop.cause for drop in drops) == sorted(filter(None, counted.values()))
    assert {(drop.service, drop.side, drop.bucket_start_ms) for drop in drops} == {(None, "otlp", None)}


def collector(*counts, at=160, **labels) -> list[Point]:
    """Return the readings of one Collector at one time, each as (counter, component, value)."""
    named = [(f"otelcol_{name}_spans", {**labels, name.split("_")[0]: at_work}, n) for name, at_work, n in counts]
    return [Point(series(name, of_point, {}), value, 100_000, at * 1_000) for name, of_point, value in named]


@pytest.mark.parametrize(
    ("counts", "lost"),
    [
        ([("exporter_enqueue_failed", "otlp", 12), ("receiver_refused", "otlp", 12)], {"enqueue_failed": 12}),
        (
            [
                ("receiver_refused", "a", 10),
                ("receiver_refused", "b", 10),
                ("processor_refused", "m", 15),
                ("exporter_enqueue_failed", "otlp", 6),
                ("exporter_send_failed", "otlp", 3),
            ],
            {"enqueue_failed": 6, "send_failed": 3, "processor_refused": 6, "receiver_refused": 5},
        ),
        (
            [("processor_dropped", "filter", 4), ("receiver_refused", "otlp", 3)],
            {"processor_dropped": 4, "receiver_refused": 3},
        ),
    ],
)
def test_failure_that_a_collector_passes_upwards_is_one_loss(counts, lost):
    """The queue was full and the receiver refused: one budget, of the largest count along the pipeline."""
    drops = drops_of(increments(collector(*counts)))
    totals = Counter()
    for drop in drops.drops:
        totals[drop.cause] += drop.count
    assert totals == lost
    assert drops.again == sum(count for _, _, count in counts) - sum(lost.values())


def test_another_collector_and_another_time_are_other_losses():
    one, other = ("exporter_enqueue_failed", "otlp", 12), ("receiver_refused", "otlp", 12)
    apart = [*collector(one, service_instance_id="i1"), *collector(other, service_instance_id="i2")]
    later = [*collector(one), *collector(("receiver_refused", "otlp", 0)), *collector(other, at=220)]
    for points in (apart, later):
        assert sum(drop.count for drop in drops_of(increments(points)).drops) == 24


def test_dump_of_a_collector_without_losses_has_no_rows(read):
    folder = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
    drops = read((folder / "collector-metrics.txt").read_text(), "metrics.txt")
    assert (drops.drops, len(drops.files)) == ((), 1)


LOSS, OTHER, PROCESSED = {"error.type": "queue_full"}, {}, "otel.sdk.processor.span.processed"


def test_cumulative_counter_becomes_buckets_between_its_readings(read):
    text = lines(
        metric(PROCESSED, (OTHER, 100, 160, 500), (LOSS, 100, 160, 7)),
        metric(PROCESSED, (LOSS, 100, 280, 12)),
        *(metric(PROCESSED, (LOSS, 100, 220, 7)) for _ in range(2)),
    )
    assert buckets(read(text)) == [(100_000, 60_000, 7), (220_000, 60_000, 5)]


def test_counts_before_the_first_reading_are_separate(read):
    old = read(lines(metric(PROCESSED, (LOSS, 100, 9_000, 700), (LOSS, 100, 9_060, 703))))
    assert [(drop.before, drop.count) for drop in old.drops] == [(True, 700), (False, 3)]
    assert [drop.before for drop in read(lines(metric(PROCESSED, (LOSS, 100, 9_000, 700)))).drops] == [False]
    beginless = read("otelcol_receiver_refused_spans 7 9000\notelcol_receiver_refused_spans 9 9060\n")
    assert [(drop.before, *bucket) for drop, bucket in zip(beginless.drops, buckets(beginless), strict=True)] == [
        (True, None, None, 7),
        (False, 9_000_000, 60_000, 2),
    ]
    new = read(lines(metric(PROCESSED, (OTHER, 100, 9_000, 1), (OTHER, 100, 9_060, 2), (LOSS, 100, 9_060, 3))))
    assert (buckets(new), new.drops[0].before) == ([(9_000_000, 60_000, 3)], False)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(170, 220, 3), (170, 230, 4)], [(170_000, 50_000, 3), (220_000, 10_000, 1)]),
        ([(170, 220, 9)], [(170_000, 50_000, 9)]),
    ],
    ids=["fell", "began again"],
)
def test_restarted_counter_counts_from_its_new_start(read, points, expected):
    text = lines(metric(PROCESSED, (LOSS, 100, 160, 7), *((LOSS, *point) for point in points)))
    assert buckets(read(text)) == [(100_000, 60_000, 7), *expected]


@pytest.mark.parametrize("temporality", [1, "AGGREGATION_TEMPORALITY_DELTA"])
def test_delta_counts_in_its_own_bucket(read, temporality):
    text = lines(
        metric(PROCESSED, (LOSS, 100, 110, 7), (LOSS, 110, 120, 2), (LOSS, 0, 130, 1), temporality=temporality),
        metric(PROCESSED, (LOSS, 100, 110, 5), temporality=temporality, service="cart"),
    )
    drops = read(text)
    assert sorted((drop.service, drop.bucket_start_ms, drop.count) for drop in drops.drops) == [
        ("cart", 100_000, 5),
        ("shop", 100_000, 7),
        ("shop", 110_000, 2),
        ("shop", 120_000, 1),  # without a start of its own
    ]


def test_unfinished_file_is_read_up_to_its_last_whole_line(read):
    """The Java SDK writes its label as a boolean."""
    whole = lines(metric("processedSpans", ({"dropped": True}, 1, 2, 4)), {"resourceSpans": []})
    assert [drop.cause for drop in read(whole + whole[:40]).drops] == ["queue_full"]


def test_separators_of_lines_inside_a_text_are_characters(tmp_path):
    note = "\u2028\x85\x0c"
    document = metric("processedSpans", ({"dropped": "true", "note": note}, 1, 2, 4))
    (tmp_path / "json").write_text(2 * (json.dumps(document, ensure_ascii=False) + "\r\n"), encoding="utf-8")
    prometheus = f'otelcol_exporter_send_failed_spans{{a="{note}"}} 3\r\n'
    (tmp_path / "prometheus").write_text(prometheus, encoding="utf-8")
    assert {drop.cause for drop in read_ledgers([str(tmp_path)]).drops} == {"queue_full", "send_failed"}


def test_counters_of_our_own_processor_are_ignored_and_reported(read):
    """They do not say which side a lane writes; the ledger file does, and both would count a loss twice."""
    kind = {"error.type": "queue_full", "otel.component.type": "otel_mqtrace.spans.processor.MqTraceSpanProcessor"}
    drops = read(lines(metric("otel.sdk.processor.span.processed", (kind, 1, 2, 9))))
    assert (drops.drops, drops.own) == ((), 1)


@pytest.mark.parametrize("value", ["NaN", "-5", "1e400", str(1 << 60)])
def test_reading_that_is_not_a_count_is_left_out_and_reported(read, value):
    samples = f'otelcol_exporter_send_failed_spans{{exporter="a"}} {value}\nqueue_size {value}\n'
    point = ({"exporter": "a"}, 1, 2, value)
    dump = lines(metric("otelcol_exporter_send_failed_spans", point), metric("otelcol_process_uptime", point))
    for text in (samples, dump):
        counted = read(text)
        assert (counted.drops, counted.unusable) == ((), 1)


def test_directory_is_read_once_and_may_be_empty(tmp_path):
    assert read_ledgers([str(tmp_path)]).drops == ()
    (tmp_path / "ledger-h-1-00000000.json").write_text(own(ROW))
    (tmp_path / "ledger-h-1-00000001.part").write_text("{")
    (tmp_path / "spans.jsonl").write_text('{"resourceSpans": []}\n')
    (tmp_path / "notes.txt").write_text("not a ledger at all")
    (tmp_path / "picture").write_bytes(b"\xff\xd8")
    ledgers = read_ledgers([str(tmp_path), str(tmp_path / "ledger-*.json"), str(tmp_path / "ledger-h-1-00000000.json")])
    assert (len(ledgers.drops), len(ledgers.files)) == (1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (own(ROW, version=2), "ledger_version 2 is unknown"),
        ('{"ledger_version": 1, "rows": 3}', "'rows' is not a list"),
        (own(ROW, 3), "row 2 is not a JSON object"),
        (own({**ROW, "side": "left"}), "row 1: side 'left' must be native or otlp"),
        (own({**ROW, "count": -1}), "row 1: count -1 is not a whole number"),
        (own({**ROW, "count": True}), "count True"),
        (own({**ROW, "bucket_start_ms": 1 << 62}), "bucket_start_ms"),
        (own({**ROW, "service": ["shop"]}), "service .* is not text"),
        ('{"rows": []}', "neither a ledger of mqtrace nor OTLP metrics"),
        ('{"resourceSpans": []}', "give it to --otlp"),
        ('{"resourceMetrics": [3]}', "not shaped as OTLP metrics"),
        (lines(metric("otelcol_exporter_send_failed_spans", ({}, 1, 2, True))).replace('"True"', "true"), "not shaped"),
        (lines(metric("otelcol_exporter_send_failed_spans", ({}, 1, 2, 3))).replace('"3"', "9" * 400), "not shaped"),
        ('{"resourceMetrics": []}\n{"resource\n{}\n', "line 2 is not JSON; give a ledger of mqtrace, OTLP metrics"),
        ("three blind mice", "line 1 is not a sample of Prometheus text; give a ledger of mqtrace"),
        ('otelcol_receiver_refused_spans{a="b" 3', "line 1 is not a sample"),
    ],
)
def test_invalid_ledger_is_refused_in_one_line_with_its_place(read, text, message):
    with pytest.raises(UnreadableInputError, match=message) as refused:
        read(text)
    assert "given.json" in str(refused.value)
    assert "--ledger" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_ledger_is_read_from_a_pipe(tmp_path):
    """As of ``--ledger <(curl …/metrics)``."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writing = Thread(target=pipe.write_text, args=("otelcol_receiver_refused_spans 3\n",))
    writing.start()
    assert [drop.count for drop in read_ledgers([str(pipe)]).drops] == [3]
    writing.join()


def test_source_that_names_nothing_is_refused_with_the_fix(tmp_path):
    with pytest.raises(UsageError, match="name the directory itself"):
        read_ledgers([str(tmp_path / "ledger-*.json")])


@pytest.mark.parametrize("pattern", ["", "*.json"])
def test_directory_that_cannot_be_listed_is_refused(pattern, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "scandir", Mock(side_effect=PermissionError(13, "Permission denied")))
    with pytest.raises(UsageError, match=f"--ledger {tmp_path}.* cannot be read: Permission denied"):
        read_ledgers([str(tmp_path / pattern)])


def test_ledger_in_a_hidden_directory_is_read(tmp_path):
    (tmp_path / "..data").mkdir()  # as Kubernetes mounts a volume
    (tmp_path / "..data" / "ledger.json").write_text(own(ROW))
    assert sum(drop.count for drop in read_ledgers([str(tmp_path)]).drops) == ROW["count"]


@pytest.mark.parametrize(
    ("limit", "most", "message"), [("ROWS", 1, "2 rows are too many"), ("BYTES", 10, "larger than")]
)
def test_too_large_ledger_is_refused(read, monkeypatch, limit, most, message):
    monkeypatch.setattr(ledger, f"MOST_{limit}", most)
    with pytest.raises(UsageError, match=message):
        read(own(ROW, ROW))


@given(st.text())
def test_text_is_read_or_refused_in_one_line(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("any") / "ledger"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    with contextlib.suppress(UsageError, UnreadableInputError):
        assert read_ledgers([str(path)]).own >= 0
