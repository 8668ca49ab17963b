"""The drawings: what they show is what was counted."""

from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.report.palette import STATUS_COLOUR
from spark_jobs.report.measured import Latency
from spark_jobs.report.result import TimeBucket
from spark_jobs.report.svg.bars import latency_range, latency_scale, stacked
from spark_jobs.report.svg.swimlane import Lane, Stay, swimlane
from spark_jobs.report.svg.timeline import bars_of, timeline

counts = st.dictionaries(st.sampled_from(list(STATUS_COLOUR)), st.integers(0, 10**9))


def rects(drawing):
    return list(ET.fromstring(drawing).iter("rect"))


@given(counts)
def test_a_stacked_bar_fills_its_width_and_hides_nothing(parts):
    """Every part that exists is at least a visible sliver, none sticks out."""
    drawn = rects(stacked(parts, STATUS_COLOUR, width=260))[1:]
    present = [name for name in STATUS_COLOUR if parts.get(name)]
    assert [rect.get("fill") for rect in drawn] == [STATUS_COLOUR[name] for name in present]
    assert all(float(rect.get("width")) >= 1.49 for rect in drawn)
    assert all(float(rect.get("x")) + float(rect.get("width")) <= 260.1 for rect in drawn)


@given(st.lists(counts, max_size=300), st.integers(0, 10**13))
def test_merging_buckets_loses_no_event(statuses, start_ms):
    """At most 96 bars, and their sum is the sum of the buckets."""
    buckets = [
        TimeBucket(start_ms=start_ms + at * 1000, width_ms=1000, status=status) for at, status in enumerate(statuses)
    ]
    bars = bars_of(buckets)
    assert len(bars) <= 96
    assert sum(sum(bar.status.values()) for bar in bars) == sum(sum(status.values()) for status in statuses)
    ET.fromstring(timeline(buckets))


def test_one_wild_clock_does_not_squeeze_the_rest_into_one_bar():
    """A record of 1970 is a bar before a gap; the minute everything else happened in keeps its bars."""
    usual = [
        TimeBucket(start_ms=1_795_276_800_000 + at * 1000, width_ms=1000, status={"MATCHED_EXACT": 1})
        for at in range(20)
    ]
    bars = bars_of([TimeBucket(start_ms=0, width_ms=1000, status={"NATIVE_ONLY": 1}), *usual])
    assert len(bars) == 21
    assert [bar.gap for bar in bars] == [False, True, *[False] * 19]


def test_an_empty_timeline_is_still_a_drawing():
    """No bucket, no division by zero."""
    assert "none in any bucket" in timeline([])


percentiles = st.none() | st.just(float("nan")) | st.just(float("inf")) | st.floats(-1e9, 1e12)
latencies = st.builds(
    Latency, count=st.integers(1, 10**6), p50=percentiles, p95=percentiles, p99=percentiles, max=percentiles
)


@given(st.lists(latencies, min_size=1, max_size=5))
def test_every_latency_stays_on_its_axis(rows):
    """Missing, negative, infinite: whatever the percentiles are, the marks lie inside the drawing."""
    scale = latency_scale(rows)
    for row in rows:
        drawing = ET.fromstring(latency_range(row, scale, width=220))
        for mark in drawing.iter():
            for name in ("x", "x1", "x2", "cx"):
                assert 0 <= float(mark.get(name, "0")) <= 220


stays = st.none() | st.builds(
    Stay, st.none() | st.integers(-(10**15), 10**15), st.none() | st.integers(-(10**15), 10**15)
)


@given(st.lists(st.builds(Lane, st.text(max_size=80), stays, stays), max_size=12))
def test_every_stay_lies_inside_its_lane(lanes):
    """Also with clocks that run backwards, halves without an end, and sides without a record."""
    drawing = swimlane(
        [Lane("".join(c for c in lane.name if c.isprintable()), lane.native, lane.otlp) for lane in lanes]
    )
    for rect in ET.fromstring(drawing).iter("rect"):
        assert float(rect.get("x")) >= 209.9
        assert float(rect.get("width")) >= 3


def test_a_lane_says_who_recorded_it():
    """What the drawing shows by absence, its label says in words."""
    drawing = swimlane([Lane("publish p", Stay(1, 5), None), Lane("consume g", Stay(7, 9), Stay(7, 9), this=True)])
    says = ET.fromstring(drawing).get("aria-label")
    assert says == "publish p recorded by native; consume g recorded by native and OTLP"
    assert "not recorded" in drawing
