"""The drawings: what they show is what was counted."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.report.charts import curves, merge_buckets, stacked, timeline, trend
from spark_jobs.report.glossary import GROUP_COLOUR
from spark_jobs.report.headline import describe_loss
from spark_jobs.report.result import Latency, Loss, TimeBucket
from spark_jobs.report.samples import swimlane
from spark_jobs.taxonomy import Kind, Status
from tests.support.results import event
from tests.support.results import timelines as measured_timelines
from tests.support.results import trend as measured_trend

counts = st.dictionaries(st.sampled_from(list(GROUP_COLOUR)), st.integers(0, 10**9))
findings = st.dictionaries(
    st.tuples(st.sampled_from(list(Status)), st.none() | st.just("BY_DESIGN")), st.integers(0, 10**9)
)


def rects(drawing):
    return list(ET.fromstring(drawing).iter("rect"))


@given(counts)
def test_stacked_bar_fills_its_width_and_shows_every_part(parts):
    drawn = rects(stacked(parts, GROUP_COLOUR, width=260))[1:]
    present = [name for name in GROUP_COLOUR if parts.get(name)]
    assert [rect.get("fill") for rect in drawn] == [GROUP_COLOUR[name] for name in present]
    assert all(float(rect.get("width")) >= 1.49 for rect in drawn)
    assert all(float(rect.get("x")) + float(rect.get("width")) <= 260.1 for rect in drawn)


@given(st.lists(findings, max_size=300), st.integers(0, 10**13))
def test_merged_buckets_keep_every_event(counts, start_ms):
    buckets = [
        TimeBucket(start_ms=start_ms + at * 1000, width_ms=1000, findings=some) for at, some in enumerate(counts)
    ]
    bars = merge_buckets(buckets)
    assert len(bars) <= 96
    assert sum(sum(bar.findings.values()) for bar in bars) == sum(sum(some.values()) for some in counts)
    assert all(sum(bar.groups.values()) == sum(bar.findings.values()) for bar in bars)
    ET.fromstring(timeline(bars, {}))


def test_wild_clock_is_one_bar_before_a_gap():
    usual = [
        TimeBucket(start_ms=1_795_276_800_000 + at * 1000, width_ms=1000, findings={("MATCHED_EXACT", None): 1})
        for at in range(20)
    ]
    wild = TimeBucket(start_ms=0, width_ms=1000, findings={("NATIVE_ONLY", "UNEXPLAINED"): 1})
    assert "Events over time, 1 bar; " in timeline(merge_buckets([wild]), {})
    bars = merge_buckets([wild, *usual])
    assert len(bars) == 21
    assert [bar.gap_ms for bar in bars] == [0, 1_795_276_799_000, *[0] * 19]


def test_bars_fill_the_width_and_gap_has_a_label():
    bar = TimeBucket(start_ms=0, width_ms=1000, findings={("MATCHED_EXACT", None): 1})
    drawn = timeline(merge_buckets([bar, replace(bar, start_ms=90_000_000)]), {})
    assert max(float(rect.get("x")) + float(rect.get("width")) for rect in rects(drawn)) > 940
    words = [text.text for text in ET.fromstring(drawn).iter("text")]
    assert "1 d without events" in words
    assert {"1970-01-01", "1970-01-02"} <= set(words)


percentiles = st.none() | st.just(float("nan")) | st.just(float("inf")) | st.floats(-1e9, 1e12)
latencies = st.builds(
    Latency, count=st.integers(1, 10**6), p50=percentiles, p95=percentiles, p99=percentiles, max=percentiles
)
instants = st.none() | st.integers(0, 10**13)
stays = st.none() | st.tuples(instants, instants, st.none() | st.booleans())
texts = {"group": st.none() | st.text(max_size=80), "attempt_id": st.none() | st.text(max_size=9)}
kinds, retries = st.sampled_from([*(kind.value for kind in Kind), "dance"]), st.none() | st.integers(0, 16)
timelines = st.builds(event, stays, stays, kind=kinds, retry_times=retries, **texts)


@given(st.lists(timelines, max_size=12))
def test_every_bar_lies_within_the_drawing(events):
    drawing = swimlane(events)
    if not drawing:
        return
    for rect in ET.fromstring(drawing).iter("rect"):
        assert float(rect.get("x")) >= 1.9
        assert float(rect.get("width")) >= 3
        assert float(rect.get("x")) + float(rect.get("width")) <= 960.1


def test_lanes_show_failures_open_ends_missing_records_and_the_broker():
    (timeline,) = measured_timelines("M").values()
    root = ET.fromstring(swimlane(timeline, timeline[1]))
    words = [text.text for text in root.iter("text")]
    assert [word for word in words if word.startswith(("Sent", "Consumed", "Broker"))] == [
        *("Sent by orders-out", "Broker", "Consumed by billing", "Consumed by stock", "Consumed by mail")
    ]
    assert words.count("not recorded") == 3
    assert words.count("48 ms, failed") == 3
    assert {"127.0.0.1:9092", "no end", "10 min"} <= set(words)
    assert "Consumed by stock: recorded by OTLP" in root.get("aria-label")


def test_different_times_of_both_sides_are_marked():
    differing = event((0, 40, None), (0, 90, None), kind="consume", group="g", status="MISMATCHED")
    assert swimlane([differing]).count("≠") == 2


@given(st.dictionaries(st.sampled_from(["publish", "queue", "process", "end_to_end", "more"]), latencies, max_size=5))
def test_curve_stays_within_its_frame(rows):
    curved_rows = {
        name: replace(row, curve=((0.5, row.p50 or 0.0), (0.99, row.p99 or 0.0))) for name, row in rows.items()
    }
    drawing = ET.fromstring(curves(curved_rows))
    for path in drawing.iter("path"):
        points = [tuple(map(float, step.split())) for step in re.split("[ML]", path.get("d"))[1:]]
        assert all(56 <= x <= 988 and 14 <= y <= 260 for x, y in points)


def test_trend_has_a_column_with_verdict_and_losses_for_every_run():
    drawing = ET.fromstring(trend(measured_trend(12)))
    titles = [title.text for title in drawing.iter("title")]
    assert len(titles) == 12
    assert titles[3] == "run 4: FAIL, matched 99.31 %; native lacks 3, otlp lacks 4"
    alone = ET.fromstring(trend([{"run": 1, "verdict": "?", "unexplained": None}]))
    assert "of the last 1 run;" in alone.get("aria-label")


def test_words_beside_a_count_of_one_are_singular():
    alone = Latency(count=1, p50=4, p99=4, max=4, curve=((0.5, 4.0),))
    assert "end to end: 1 event, half within 4 ms" in curves({"end_to_end": alone})
    lacking = describe_loss("otlp", Loss(checked=1, unexplained=1, attributed=0, upper_bound_95_ppm=None))
    assert lacking == "OTLP lacks 1 of 1 event without explanation."
