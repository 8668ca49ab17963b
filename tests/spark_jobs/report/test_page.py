import html
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bridge.page.markup import check_template
from otel_mqtrace._errors import UsageError
from spark_jobs.report.glossary import group_finding
from spark_jobs.report.html import render_page
from spark_jobs.report.result import Field, Inputs, Latency, Result, Sample, SideInputs, Span, TimeBucket, Topic
from spark_jobs.report.samples import LINK_FIELDS
from spark_jobs.report.summary import render_summary
from spark_jobs.taxonomy import FieldVerdict, Status, Verdict
from tests.support.html_page import Page
from tests.support.results import gates, groups, instances, otlp_fields, result, sample, timeline, timelines, trend
from tools.pictures import find_sections, main

DOCS = Path(__file__).parents[3] / "docs"
SECTIONS = (
    *("verdict", "timeline", "gates", "samples", "malformed", "statuses", "fields", "losses", "trend", "traffic"),
    *("latency", "timing", "ledger", "inputs", "glossary"),
)
LATE = replace(gates()[0], name="late", value=2.5, threshold=1)
CLEAN = {"verdict": "PASS", "exit_code": 0, "findings": {}, "loss": {}, "gates": ()}


@pytest.fixture(scope="module")
def whole() -> str:
    return render_page(result())


@pytest.fixture(scope="module")
def read(whole: str) -> Page:
    return Page(whole)


def page(made: Result) -> Page:
    return Page(render_page(made))


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_sections_come_in_reading_order_and_every_link_arrives(read):
    assert [name for name in read.ids if name in SECTIONS] == list(SECTIONS)
    assert {attrs["href"][1:] for tag, attrs in read.elements if tag == "a"} <= set(read.ids)
    assert len(read.ids) == len(set(read.ids))


def test_picture_in_the_docs_shows_the_current_sections(whole):
    drawn = json.loads((DOCS / "report.json").read_text(encoding="utf-8"))
    may_lack = {"Unreadable input", "Where losses come from", "The last runs", "Counted losses"}
    today = find_sections(whole)
    assert drawn == [name for name in today if name in drawn or name not in may_lack]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_title_and_headline_show_the_verdict(verdict):
    text = render_page(result(verdict=verdict.value))
    assert f"<title>{verdict.value} " in text
    assert re.search(rf"<h1>.*</svg> {verdict.value}</h1>", text)


def first_sentence(made: Result) -> str:
    (sentence,) = re.findall(r'<p class="meaning">(.*?)</p>', render_page(made))
    return html.unescape(re.sub("<.*?>", "", sentence)).strip()


def test_verdict_sentence_links_each_count_to_its_samples():
    assert first_sentence(result()) == (
        "4 spans lost without explanation, 3 native records lost without explanation, "
        "2 pieces unreadable, 7 events differ, 9 events duplicated."
    )
    head = render_page(result()).partition("</header>")[0]
    assert re.findall(r'<a href="#([\w-]+)">', head.partition('class="meaning"')[2].partition("</p>")[0]) == [
        *("found-NATIVE-ONLY-UNEXPLAINED", "found-OTLP-ONLY-UNEXPLAINED", "malformed", "found-MISMATCHED"),
        "statuses",  # no sample of a duplicate in the native trace
    ]
    steps = head.partition('class="steps"')[2]
    assert [re.sub("<.*?>", "", step).partition(":")[0] for step in re.findall(r"<li>(.*?)</li>", steps)] == [
        *("No explanation", "Unreadable", "Differs", "Duplicated")
    ]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"gates": (LATE,), "status": {}, "loss": {}}, "late is 2.5 (must be <= 1)."),
        ({**CLEAN, "status": {"MATCHED_EXACT": 5}}, "The two formats agree: no gate fails."),
        (
            {"status": {"MISMATCHED": 1}, "loss": {"native": replace(result().loss["native"], unexplained=1)}},
            "1 native record lost without explanation, 1 event differs.",
        ),
    ],
    ids=["a gate that no count explains", "a clean run", "one of each"],
)
def test_verdict_sentence_names_what_there_is(changes, sentence):
    assert first_sentence(result(inputs=Inputs(), **changes)) == sentence


def test_inconclusive_run_shows_the_reason_first_and_provisional_outcomes():
    made = result(verdict="INCONCLUSIVE", exit_code=4, doubt="the native side is empty")
    assert first_sentence(made).startswith("There was not enough to judge by. This is not a pass: the native side is")
    assert "so these outcomes are provisional" in page(made).text


def test_table_of_findings_adds_up_to_the_statuses(whole, read):
    table = read.table("Events by finding and kind")
    assert table.rows[0][1:-3] == ["publish", "consume", "transaction end"]
    assert table.row("Missing in OpenTelemetry: no explanation")[:4] == ["0", "4", "0", "4"]
    assert table.row("Missing in OpenTelemetry: this writer never records it")[:4] == ["6", "3", "0", "9"]
    assert table.row("Unreadable")[:4] == ["0", "2", "0", "2"]
    assert 'title="NATIVE_ONLY UNEXPLAINED"' in whole
    rows = [row for row in table.rows[1:] if row[0] != "All"]
    for at in range(4):
        assert sum(number(row[1 + at]) for row in rows) == number(table.row("All")[at])
    assert number(table.row("All")[3]) == sum(result().status.values())


def test_rules_behind_the_reasons_are_counted(read):
    rules = read.table("The rules behind the reasons")
    assert {rule: number(rules.row(rule)[0]) for rule in result().reason_detail} == result().reason_detail


def test_balance_sheet_shows_both_sides_and_the_gap_without_lines_of_zeros():
    made = result(inputs=Inputs(native=SideInputs(records_read=10, malformed=1, canonical_keys=7), otlp=SideInputs()))
    sheet = page(made).table("Where every record went")
    assert sheet.row("Records read") == ["10", "0"]
    assert sheet.row("less malformed") == ["1", "0"]
    assert sheet.row("Canonical keys") == ["7", "0"]
    assert sheet.row("Not accounted for") == ["2", "0"]
    assert len(sheet.rows) == 5


def test_gates_that_do_not_hold_come_first_and_others_are_folded(whole, read):
    table = read.table("Gates that do not hold or cannot be judged")
    failing = ("unexplained_loss_native", "malformed", "critical_field_agreement")
    others = {"duplicate_excess": "warns", "late_rate": "cannot be judged"}
    assert dict(row[:2] for row in table.rows[1:]) == {**dict.fromkeys(failing, "does not hold"), **others}
    assert [row[0] for row in table.rows[1:]] == [*failing, *others]
    assert table.row("critical_field_agreement")[1:3] == ["0.999512", ">= 1"]
    assert table.row("late_rate")[1] == "—"
    assert "<details><summary>1 gate holds</summary>" in whole
    assert read.table("Gates that hold").row("conflicting_duplicates")[0] == "holds"


def test_timeline_has_a_table_with_the_same_numbers():
    made = result(timeline=timeline(300))
    table = page(made).table("Events by time")
    names = table.rows[0][2:-1]
    assert names == ["fine", "waiting", "explained", "problem"]
    drawn = {name: sum(number(row[2 + at]) for row in table.rows[1:]) for at, name in enumerate(names)}
    expected = dict.fromkeys(names, 0)
    for bucket in made.timeline:
        for finding, n in bucket.findings.items():
            expected[group_finding(*finding)] += n
    assert drawn == expected
    assert len(table.rows) <= 97
    assert table.rows[0][-1] == "Counted by the ledger"
    assert {row[0]: row[-1] for row in table.rows if row[-1] in {"15", "5"}} == {
        "2026-11-21 16:00:00.000 UTC": "15",
        "2026-11-21 16:08:00.000 UTC": "5",
    }


def test_sample_shows_both_sides_the_marked_difference_and_the_position(whole):
    mismatch = re.search(r'<details class="sample"[^>]*data-finding="Differs".*?</details>', whole, re.DOTALL)[0]
    assert "127.0.0.1:909<mark>2</mark>" in mismatch
    assert "127.0.0.1:909<mark>3</mark>" in mismatch
    read = Page(mismatch)
    assert "Native evidence: native/date=2026-11-21/part-00000.parquet, line 41, record 3" in read.text
    assert "OTLP evidence: otlp/traces.jsonl, line 1207, record 0" in read.text
    assert "Sent by orders-out" in read.text
    assert "2026-11-21 16:00:00.003 UTC" in read.text
    assert "raw_hash" not in read.text


def headings(text: str) -> list[str]:
    return re.findall(r'<h3><span class="finding" title="(.*?)">', text)


def test_samples_are_grouped_by_finding_problems_first():
    made = result()
    text = render_page(made)
    titles = headings(text)
    assert sorted(titles) == sorted({item.stratum for item in made.samples})
    assert titles[:2] == ["NATIVE_ONLY UNEXPLAINED", "OTLP_ONLY UNEXPLAINED"]
    assert titles[2:4] == ["DUPLICATED_OTLP", "MISMATCHED"]
    assert titles[-2:] == ["MATCHED_EXACT", "MATCHED_NORMALISED"]
    assert text.count('<details class="sample"') == len(made.samples)
    assert "Missing in OpenTelemetry: no explanation" in text


def rows(made: Result) -> dict[str, str]:
    summaries = re.findall(r'data-finding="(.*?)".*?<summary>(.*?)</summary>', render_page(made), re.DOTALL)
    return {finding: Page(row).text for finding, row in summaries}


def test_sample_row_shows_time_route_and_difference():
    read = rows(result())
    assert "orders-out → OrderTopic" in read["Equal"]
    assert read["Differs"] == (
        "16:00:00.003 OrderTopic → billing · retry_times: 0 ≠ 2 · store_host: 127.0.0.1:9092 ≠ 127.0.0.1:9093 · 1 more field"
    )
    assert read["Missing in OpenTelemetry: no explanation"].endswith("OrderTopic → billing · keys 订单-4711 🧾4711")
    assert "1 native record, 2 spans" in read["Duplicated in OpenTelemetry"]


def test_samples_beyond_the_first_of_a_finding_are_folded():
    text = render_page(result(samples=tuple(sample(at, status="MISMATCHED") for at in range(30))))
    stratum = text.partition('id="found-MISMATCHED"')[2]
    visible, _, folded = stratum.partition('<details class="more">')
    assert (visible.count('class="sample"'), folded.count('class="sample"')) == (4, 26)
    assert "<summary>26 more</summary>" in folded
    fine = render_page(result(samples=(sample(1), sample(2)))).partition('id="found-MATCHED-EXACT"')[2]
    assert fine.index("<summary>2 to open</summary>") < fine.index('class="sample"')


def test_unreadable_input_shows_ten_pieces_and_folds_the_others():
    made = result()
    bad = tuple(replace(made.malformed[0], line=at) for at in range(28))
    inputs = replace(made.inputs, native=replace(made.inputs.native, malformed=28))
    text = render_page(replace(made, malformed=bad, inputs=inputs))
    visible, _, folded = text.partition('id="malformed"')[2].partition("<details>")
    assert (visible.count("<li>"), folded.partition("</details>")[0].count("<li>")) == (10, 18)
    assert "<summary>18 more</summary>" in folded
    assert "native/part-00000.parquet, line 0, record 2" in re.sub("<.*?>", "", visible)


def test_losses_without_host_and_service_are_one_sentence(read):
    assert [row[0] for row in read.table("Client hosts with losses").rows[1:]] == ["10.0.3.17"]
    assert "2 lost events name neither a host nor a service." in read.text


def test_empty_run_is_a_whole_page():
    lists = ("fields", "gates", "groups", "timeline", "samples", "malformed", "trend", "topics", "instances")
    names = ("status", "status_by_kind", "findings", "reason", "reason_detail", "loss", "latency", "versions", "timing")
    names += ("duplicates", "ageing", "slowest", "arrival")
    known = {"verdict": "INCONCLUSIVE", "exit_code": 4, "window": Span(), "inputs": Inputs()}
    known |= dict.fromkeys(("horizon_ms", "graph", "ledger"))
    read = page(result(**known, **dict.fromkeys(lists, ()), **{name: {} for name in names}))
    remarks = ("This is not a pass", "No gate was set", "No event carries a time", "Nothing was consumed", "No sample")
    assert [sentence for sentence in remarks if sentence not in read.text] == []
    assert not {"trend", "losses", "ledger"} & set(read.ids)
    assert {attrs["href"][1:] for tag, attrs in read.elements if tag == "a"} <= set(read.ids)


def test_broken_balance_comes_first():
    """When the identity does not hold, no other number deserves belief."""
    made = result()
    broken = result(conservation=type(made.conservation)(holds=False, native="1 ≠ 2", otlp="fine"))
    text = render_page(broken)
    assert first_sentence(broken).startswith("The counts do not balance, ")
    assert 'href="#inputs">The counts do not balance' in text
    assert re.search("<details open><summary>.*The counts do not balance", text)
    assert "1 ≠ 2" in text


def test_tables_drawings_and_headings_are_accessible(read):
    assert all(attrs.get("scope") in {"row", "col"} for tag, attrs in read.elements if tag == "th")
    drawings = [attrs for tag, attrs in read.elements if tag == "svg"]
    visible = [each for each in drawings if each.get("aria-hidden") != "true"]
    assert visible
    assert all(each["role"] == "img" and each["aria-label"] for each in visible)
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in read.elements}
    headings = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))


def test_page_makes_no_network_request(whole, read):
    loading = {"src", "href", "action", "data", "srcset", "poster", "xlink:href", "formaction"}
    for tag, attrs in read.elements:
        assert "style" not in attrs, tag
        for name in loading & set(attrs):
            assert attrs[name].startswith("#") or attrs[name] == "data:,", (tag, name, attrs[name])
    assert not re.search(r"url\(|@import|https?:|wss?:|fetch\(|XMLHttpRequest|import\(", whole)
    assert "default-src &#39;none&#39;" in whole or "default-src 'none'" in whole


def test_many_groups_and_topics_show_the_worst_and_sum_up_the_others():
    one, *_ = groups()
    quiet = replace(one, deliveries=10, failures=0, unmatched=0)
    many = [replace(quiet, topic=f"topic-{at // 100:03}", group=f"group-{at:05}") for at in range(10_000)]
    many = (*many[:-1], replace(many[-1], unmatched=3))
    topic = Topic(topic="", sends=7, failures=0, unmatched=0, publish=Latency())
    topics = tuple(replace(topic, topic=f"topic-{at:05}", failures=int(at == 9_998)) for at in range(10_000))
    read = page(result(groups=many, topics=topics))
    table = read.table("Who consumed what")
    assert len(table.rows) == 1 + 50 + 1
    assert table.rows[-2][1] == "group-09999"
    assert table.rows[-1][:3] == ["9,950 other pairs of topic and group", "19,800,500", "99,500"]
    sent = read.table("Topics")
    assert sent.rows[-2][0] == "topic-09998"
    assert sent.rows[-1][:3] == ["9,950 other topics", "69,650", "0"]


def test_page_of_ten_million_messages_stays_within_its_size():
    name = "订单<script>" + "x" * 200
    one, *_ = groups()
    topic = Topic(topic="", sends=1_000, failures=1, unmatched=1, publish=result().latency["publish"])
    verdicts = {word.value: 9_999_999 for word in FieldVerdict}
    field = Field(name="", verdicts=verdicts, differing_pairs=((name, name, 9_999_999),) * 5)
    statuses = {status.value: 10_000_000 + at for at, status in enumerate(Status)}
    bucket = TimeBucket(start_ms=0, width_ms=600_000, findings={(name, None): n for name, n in statuses.items()})
    timeline = timelines("M")["M"]
    many = tuple(sample(at, status=f"STATUS_{at % 8}", topic=name, group=name) for at in range(400))
    huge = result(
        status=statuses,
        status_by_kind={f"kind-{at}": statuses for at in range(4)},
        reason_detail={f"rule-{at}": 10_000_000 for at in range(40)},
        fields=tuple(replace(field, name=f"field_{at}") for at in range(20)),
        groups=tuple(replace(one, topic=name, group=f"{name}{at}", deliveries=1_000_000) for at in range(2_000)),
        topics=tuple(replace(topic, topic=f"{name}{at}") for at in range(2_000)),
        timeline=tuple(replace(bucket, start_ms=at * 600_000) for at in range(1_000, 1_288)),
        instances=instances() * 25,
        trend=trend(30),
        samples=many,
        timelines={each.verdict["msg_id"]: timeline * 2 for each in many},
    )
    text = render_page(huge)
    shown = text.count('<details class="sample"')
    assert len(text.encode()) <= 1_500_000
    assert shown >= 40
    assert set(headings(text)) == {f"STATUS_{at}" for at in range(8)}
    assert f"{400 - shown} more samples are left out" in text
    assert "<script>x" not in text
    assert len(render_page(result(samples=(), timelines={})).encode()) <= 300_000


def test_slow_event_that_is_a_finding_is_shown_once_and_linked():
    samples = sample(3, status="MISMATCHED")
    again = Sample(stratum="slowest process", verdict=samples.verdict, native=samples.native, otlp=samples.otlp)
    text = render_page(result(samples=(again, samples)))
    assert text.count('<details class="sample"') == 1
    assert headings(text) == ["MISMATCHED"]
    assert f'<a href="#sample-1"><bdi>{samples.verdict["msg_id"]}' in text


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("javascript:alert('{trace_id}')", "begin it with http"),
        ("jaeger/{trace_id}", "begin it with http"),
        ("https://", "begin it with http"),
        ("https://jaeger.example/trace", "it contains no field"),
        ("https://jaeger.example/{trace}", "{trace} is unknown; use {trace_id}"),
    ],
)
def test_invalid_link_template_is_refused(template, message):
    with pytest.raises(UsageError, match=message.replace("{", r"\{")):
        check_template(template, LINK_FIELDS)


def test_link_quotes_every_id_and_needs_all_of_them():
    hostile = sample(1, topic="a/b?c=d&e#f\"'> <", otlp=otlp_fields(span_id="00ff"))
    template = check_template("https://x.example/{topic}/{span_id}/{msg_id}", LINK_FIELDS)
    text = render_page(result(samples=(hostile, sample(2, otlp=None))), template)
    links = [attrs["href"] for tag, attrs in Page(text).elements if tag == "a" and attrs.get("rel")]
    msg_id = hostile.verdict["msg_id"]
    assert links == [f"https://x.example/a%2Fb%3Fc%3Dd%26e%23f%22%27%3E%20%3C/00ff/{msg_id}"]


def test_pictures_without_a_browser_report_that_nothing_was_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "page.html").write_text("<h2>One</h2>")
    assert main(tmp_path / "page.html", tmp_path / "page.png") == 0
    assert "NOT DRAWN" in capsys.readouterr().out
    assert not (tmp_path / "page.png").exists()


@pytest.mark.parametrize(
    "caption", ["Gates that do not hold or cannot be judged", "Percentiles by stage", "What was counted as lost"]
)
def test_table_has_the_same_heads_on_the_page_and_in_the_summary(caption, read):
    assert f"| {' | '.join(read.table(caption).rows[0])} |" in render_summary(result())
