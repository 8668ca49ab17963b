"""What a history keeps of a run, and what a trend shows of the last ones."""

from __future__ import annotations

import json

from otel_mqtrace._clock import WallNs
from spark_jobs.history.trend import TREND_RUNS, summarise_run, trend_points
from tests.support.events import START_MS
from tests.support.results import result

NOON_NS = WallNs(START_MS * 1_000_000)


def test_line_of_a_run_has_its_number_time_counts_and_gates():
    """As plain JSON."""
    given = result()
    line = summarise_run(given, run=3, wall_ns=NOON_NS)
    assert (line["run"], line["time"]) == (3, "2026-11-21T12:00:00.000Z")
    assert line["status"] == dict(given.status)
    assert set(line["gates"]) == {gate.name for gate in given.gates}
    assert line["unexplained"] == {side: loss.unexplained for side, loss in given.loss.items()}
    assert line["inputs"]["native"]["files"] == len(given.inputs.native.sources)
    assert 0 < line["match_rate"] < 1
    assert json.loads(json.dumps(line)).keys() == line.keys()


def test_trend_shows_the_last_runs():
    lines = [summarise_run(result(), run=number, wall_ns=NOON_NS) for number in range(1, TREND_RUNS + 3)]
    points = trend_points(lines)
    assert [point["run"] for point in points] == list(range(3, TREND_RUNS + 3))
    assert points[0]["pending"] == lines[0]["status"]["PENDING"]
    assert points[0]["records_read"] == {side: lines[0]["inputs"][side]["records_read"] for side in ("native", "otlp")}


def test_point_of_a_line_that_lacks_something_is_made_all_the_same():
    """A line of an earlier version."""
    (point,) = trend_points([{"run": 1}])
    assert (point["run"], point["verdict"], point["pending"], point["records_read"]) == (1, None, 0, {})
