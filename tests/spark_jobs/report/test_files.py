"""The five files of a run, each read back by the kind of program it is for."""

import html
import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spark_jobs.report.files import render_junit, render_reports
from spark_jobs.report.glossary import label_finding
from spark_jobs.report.prometheus import MOST_GROUPS, PREFIX, render_metrics
from spark_jobs.report.result import GROUP_COUNTS, Latency, MalformedSample
from spark_jobs.report.summary import render_summary
from spark_jobs.taxonomy import Reason, Status
from tests.support.results import gates, groups, result, sample, side_fields


def metrics(made):
    """Read the exposition format back: {(name, {(label, value), …}): number}."""
    read = {}
    for family in text_string_to_metric_families(render_metrics(made)):
        for each in family.samples:
            key = (each.name.removeprefix(PREFIX), frozenset(each.labels.items()))
            assert key not in read, f"twice: {key}"
            read[key] = each.value
    return read


def test_result_json_has_the_counts_of_the_run_and_null_for_nan_and_infinity():
    made = result(latency={"queue": Latency(count=1, p50=float("nan"), p95=float("inf"))})
    read = json.loads(made.dumps(), parse_constant=pytest.fail)
    assert read["latency"]["queue"]["p50"] is None
    assert read["latency"]["queue"]["p95"] is None
    assert (read["horizon"], read["status"], read["reason"]) == (made.horizon_ms, made.status, made.reason)
    assert read["inputs"]["native"]["records_read"] == made.inputs.native.records_read
    assert read["fields"]["store_host"] == {"EQUAL": 5935, "DIFFERENT": 7}
    assert "samples" not in read


def test_junit_has_one_test_per_gate():
    suite = ET.fromstring(render_junit(result()).encode())
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert list(cases) == [gate.name for gate in gates()]
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert failed == ["unexplained_loss_native", "malformed", "critical_field_agreement"]
    message = cases["critical_field_agreement"].find("failure").get("message")
    assert ("0.999512" in message, ">= 1" in message) == (True, True)
    assert cases["late_rate"].find("skipped") is not None
    assert cases["duplicate_excess"].find("failure") is None
    assert cases["duplicate_excess"].findtext("system-out").startswith("warn: ")
    inner = suite.find("testsuite")
    assert [inner.get(name) for name in ("tests", "failures", "skipped", "errors")] == [*"6310"]


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"conservation": replace(result().conservation, holds=False), "exit_code": 3}, "conservation", ""),
        ({"exit_code": 4, "verdict": "INCONCLUSIVE", "doubt": "no native side"}, "conclusive", "no native side"),
    ],
)
def test_junit_has_an_error_when_the_balance_fails_or_the_run_is_inconclusive(changes, name, message):
    suite = ET.fromstring(render_junit(result(gates=gates()[1:2], **changes)).encode())
    (erroneous,) = [case for case in suite.iter("testcase") if case.find("error") is not None]
    assert erroneous.get("name") == name
    assert message in "".join(erroneous.itertext())


def test_metrics_contain_the_numbers_of_the_result():
    made = result()
    read = metrics(made)

    def value(name, **labels):
        return read[name, frozenset(labels.items())]

    assert {dict(labels)["status"]: count for (name, labels), count in read.items() if name == "events"} == made.status
    assert [value("reason_events", reason=reason) for reason in made.reason] == [*made.reason.values()]
    assert value("verdict", verdict="FAIL") == sum(count for (name, _), count in read.items() if name == "verdict") == 1
    assert value("records", side="native", place="records_read") == 9958
    assert value("gate_value", gate="critical_field_agreement", op=">=") == 0.999512
    assert value("latency_seconds", stage="publish", quantile="0.5") == 0.0021
    assert value("unexplained_ratio_upper_bound", side="otlp") == pytest.approx(0.0017134)
    assert value("group_events", topic="OrderTopic", group="billing", count="redeliveries") == 22
    assert value("horizon_seconds") == made.horizon_ms / 1000


def test_groups_beyond_the_most_heavy_are_added_up():
    quiet = replace(groups()[0], unmatched=0, failures=0)
    some = [replace(quiet, group=f"g{at}", messages=at, deliveries=at) for at in range(203)]
    read = metrics(result(groups=tuple(some)))
    own = {labels for (name, labels) in read if name == "group_events"}
    assert len(own) == MOST_GROUPS * len(GROUP_COUNTS)
    others = {dict(labels)["count"]: value for (name, labels), value in read.items() if name == "other_group_events"}
    assert others["pairs"] == others["deliveries"] == 3  # 0, 1 and 2


@pytest.mark.parametrize(
    "topics", [("t" * 248 + "a", "t" * 248 + "b"), ("t" * 400, "t" * 399 + "b"), ("a\nb", r"a\nb", r"a\nb (2)")]
)
def test_topics_as_long_as_kafka_allows_or_shown_alike_have_series_of_their_own(topics):
    made = result(groups=tuple(replace(groups()[0], topic=topic) for topic in topics))
    series = [line.rpartition(" ")[0] for line in render_metrics(made).splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_summary_contains_the_verdict_and_every_count():
    made = result()
    text = render_summary(made)
    assert text.startswith("## ❌ FAIL")
    for name, n in {**made.status, **made.reason}.items():
        assert f"| {label_finding(name)} | {name} | {n:,} |" in text
    for rule, n in made.reason_detail.items():
        assert f"| {rule} | {n:,} |" in text
    assert "* **4 spans lost without explanation**: " in text
    assert "* **7 events differ**: Open one of its samples" in text
    for gate in made.gates:
        assert f"| {gate.name} |" in text
    assert {*(status.value for status in Status), *(reason.value for reason in Reason)} >= {*made.status, *made.reason}


def test_summary_shows_samples_of_what_nothing_explains_first():
    findings = [("MATCHED_EXACT", None), ("DUPLICATED_OTLP", None), ("NATIVE_ONLY", "UNEXPLAINED")]
    text = render_summary(
        result(samples=tuple(sample(at, status=status, reason=reason) for at, (status, reason) in enumerate(findings)))
    )
    rows = [line for line in text.partition("### Sample events")[2].splitlines() if "OrderTopic" in line]
    assert [row.split("|")[1].strip() for row in rows] == [label_finding(*finding) for finding in reversed(findings)]


def test_summary_stays_within_sixty_kilobytes():
    many = tuple(replace(groups()[2], topic="退款" * 100, group=f"群{at}") for at in range(1000))
    lots = tuple(replace(gates()[0], name=f"gate-{at}", explanation="因" * 500) for at in range(200))
    text = render_summary(
        result(groups=many, gates=lots, samples=tuple(sample(at, topic="退" * 300) for at in range(400)))
    )
    assert len(text.encode()) <= 60_000
    assert "more in report.html" in text
    tight = render_summary(result(), most_bytes=2000)
    assert len(tight.encode()) <= 2000
    assert tight.endswith("_Further sections are in report.html._\n")


BAD = MalformedSample(side="native", path="", line=7, record_index=0, field=None, reason="cut off", text="x")


@pytest.mark.parametrize(
    ("arguments", "path", "shown"),
    [
        *(([name], "{}/landing/date=1/p.parquet", "landing/date=1/p.parquet") for name in ("landing", "./landing/")),
        (["otlp/*/t-[0-9].jsonl"], "{}/otlp/a/t-1.jsonl", "otlp/a/t-1.jsonl"),
        (["."], "{}/otlp/t.jsonl", "otlp/t.jsonl"),
        (["../run/otlp"], "{}/otlp/t.jsonl", "../run/otlp/t.jsonl"),
        (["{}/landing"], "{}/landing/date=1/p", "landing/date=1/p"),
        (["file://{}/landing/*"], "{}/landing/p", "landing/p"),
        (["{}/spans.jsonl"], "{}/spans.jsonl", "spans.jsonl"),
        (["{}/a", "{}/a/b"], "{}/a/b/p", "b/p"),  # the longest argument
        (["{}/a"], "{}/earlier/run/p", "…/run/p"),
        (["{}/a"], "{}/ab/p", "…/ab/p"),
        (["kafka://localhost:9092/trace"], "kafka://localhost:9092/trace", "kafka://localhost:9092/trace"),
        (["s3a://bucket/landing/p.parquet"], "s3a://bucket/landing/p.parquet", "s3a://bucket/landing/p.parquet"),
    ],
)
def test_path_begins_with_a_relative_argument_or_the_last_part_of_an_absolute_one(
    tmp_path, monkeypatch, arguments, path, shown
):
    here = tmp_path / "run"
    here.mkdir()
    monkeypatch.chdir(here)
    made = result(malformed=(replace(BAD, path=path.format(here)),), samples=(), timelines={})
    summary = render_reports(made, sources=[argument.format(here) for argument in arguments])["summary.md"]
    written = re.findall(r"^\| native trace \| (.*?) \| 7 \|", summary, re.MULTILINE)
    assert [html.unescape(each) for each in written] == [shown]


def test_reports_for_people_show_no_folder_of_the_machine(tmp_path):
    home = tmp_path / "home" / "alice"
    path = str(home / "landing" / "part.jsonl")
    made = result(malformed=(replace(BAD, path=path),), samples=(sample(1, native=side_fields(path=path)),))
    native = replace(made.inputs.native, sources=(path,))
    doubt = {"doubt": f"{path} has grown", "verdict": "INCONCLUSIVE", "exit_code": 4}
    made = replace(made, inputs=replace(made.inputs, native=native), **doubt)
    texts = render_reports(made, sources=[str(home / "landing")])
    for name in ("report.html", "summary.md", "junit.xml"):
        assert "alice" not in texts[name]
    assert "landing/part.jsonl has grown" in texts["report.html"]
    assert json.loads(texts["result.json"])["malformed"][0]["path"] == path
