import re
from dataclasses import replace
from itertools import pairwise

import pytest

from spark_jobs.report.measured import Latency, Topic
from spark_jobs.report.page import PageOptions, render_page
from spark_jobs.report.result import Field, Inputs, Result, Sample, SideInputs, Span, TimeBucket
from spark_jobs.taxonomy import FieldVerdict, Reason, Status, Verdict
from tests.support.html_page import Page
from tests.support.measured_results import instances, latency, lives, trend
from tests.support.results import gates, groups, result, sample, timeline

SECTIONS = (
    *("verdict", "balance", "gates", "statuses", "reasons", "timeline", "trend", "flow", "topics", "groups"),
    *(
        "fields",
        "latency",
        "open",
        "duplicates",
        "late",
        "losses",
        "ledger",
        "malformed",
        "samples",
        "inputs",
        "glossary",
    ),
)


def page(made: Result) -> Page:
    return Page(render_page(made))


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_sections_come_in_reading_order():
    """Whoever reads from the top meets the verdict first and the glossary last, and every link of the page arrives."""
    read = page(result())
    assert [name for name in read.ids if name in SECTIONS] == list(SECTIONS)
    targets = {attrs["href"][1:] for tag, attrs in read.elements if tag == "a"}
    assert targets <= set(read.ids)
    assert len(read.ids) == len(set(read.ids))


@pytest.mark.parametrize("verdict", list(Verdict))
def test_the_title_and_the_headline_say_the_verdict(verdict):
    """A browser tab is enough to know how the run ended."""
    text = render_page(result(verdict=verdict.value))
    assert f"<title>{verdict.value} " in text
    assert re.search(rf"<h1>.*</svg> {verdict.value}</h1>", text)


def test_the_status_table_shows_the_numbers_of_the_result():
    """Every status has its row, every kind its column, and the last row adds them up."""
    made = result()
    table = page(made).table("Events by status and kind")
    kinds = table.rows[0][1:-3]
    for status in Status:
        cells = table.row(status.value)
        expected = [made.status_by_kind.get(kind, {}).get(status.value, 0) for kind in kinds]
        assert [number(cell) for cell in cells[: len(kinds)]] == expected
        assert number(cells[len(kinds)]) == made.status[status.value]
    assert number(table.row("All")[len(kinds)]) == sum(made.status.values())


def test_a_status_or_kind_nobody_foresaw_is_still_shown():
    """The closed lists grow one day; a report must not hide what it does not know."""
    read = page(result(status={"NOVEL": 3}, status_by_kind={"dance": {"NOVEL": 3}}))
    table = read.table("Events by status and kind")
    assert "dance" in table.rows[0]
    assert table.row("NOVEL")[-3] == "3"


def test_the_reasons_and_their_rules_show_the_numbers_of_the_result():
    """Reasons are a closed list with a meaning; the rules of BY_DESIGN follow by name."""
    made = result()
    read = page(made)
    reasons = read.table("Events by reason")
    assert {reason.value: number(reasons.row(reason.value)[0]) for reason in Reason} == {
        reason.value: made.reason.get(reason.value, 0) for reason in Reason
    }
    rules = read.table("The rules behind the reasons")
    assert {rule: number(rules.row(rule)[0]) for rule in made.reason_detail} == made.reason_detail


def test_the_balance_sheet_shows_both_sides_and_what_is_missing():
    """A record that is in no place of the books is shown as such."""
    made = result(inputs=Inputs(native=SideInputs(records_read=10, malformed=1, canonical_keys=7), otlp=SideInputs()))
    sheet = page(made).table("Where every record went")
    assert sheet.row("Records read") == ["10", "0"]
    assert sheet.row("less malformed") == ["1", "0"]
    assert sheet.row("Canonical keys") == ["7", "0"]
    assert sheet.row("Not accounted for") == ["2", "0"]


def test_every_gate_is_shown_with_its_value_and_threshold():
    """A gate without a value says so instead of showing a zero."""
    table = page(result()).table("Every gate with its value and threshold")
    for gate in gates():
        assert table.row(gate.name)[0] == gate.outcome
    assert table.row("critical_field_agreement")[1:3] == ["0.999512", ">= 1"]
    assert table.row("late_rate")[1] == "—"


def test_the_timeline_has_a_table_with_the_same_numbers():
    """Who cannot see the drawing reads the same sums."""
    made = result(timeline=timeline(300))
    table = page(made).table("Events by time and status")
    names = table.rows[0][2:-1]
    drawn = {name: sum(number(row[2 + at]) for row in table.rows[1:]) for at, name in enumerate(names)}
    expected = {name: sum(bucket.status.get(name, 0) for bucket in made.timeline) for name in names}
    assert drawn == expected
    assert len(table.rows) <= 97
    assert table.rows[0][-1] == "Counted by the ledger"
    assert {row[0]: row[-1] for row in table.rows if row[-1] in {"15", "5"}} == {
        "2026-11-21 16:00:00.000 UTC": "15",
        "2026-11-21 16:08:00.000 UTC": "5",
    }


def test_samples_lay_both_sides_open_with_the_difference_marked_and_the_place():
    """The evidence of a mismatch: both values, the differing part, and where each was read."""
    text = render_page(result())
    mismatch = re.search(r'<details class="sample"[^>]*data-status="MISMATCHED".*?</details>', text, re.DOTALL)[0]
    assert "127.0.0.1:909<mark>2</mark>" in mismatch
    assert "127.0.0.1:909<mark>3</mark>" in mismatch
    read = Page(mismatch)
    assert "Native evidence: native/date=2026-11-21/part-00000.parquet, line 41, record 3" in read.text
    assert "OTLP evidence: otlp/traces.jsonl, line 1207, record 0" in read.text
    assert "sent by orders-out" in read.text
    assert "2026-11-21 16:00:00.003 UTC" in read.text


def test_samples_are_grouped_under_their_finding():
    """Each stratum has a heading, unexplained loss first and matches last, and each sample exactly one place."""
    made = result()
    text = render_page(made)
    headings = re.findall(r"<h3>(.*?) <small>", text)
    assert sorted(headings) == sorted({item.stratum for item in made.samples})
    assert headings[:2] == ["NATIVE_ONLY UNEXPLAINED", "OTLP_ONLY UNEXPLAINED"]
    assert set(headings[-3:]) == {"MATCHED_EXACT", "MATCHED_NORMALISED", "PENDING"}
    assert text.count('<details class="sample"') == len(made.samples)


def test_a_page_with_four_hundred_samples_stays_small():
    """400 full samples, both sides and a lane each, keep to the budget or give way, and the page says how many did."""
    many = tuple(sample(number, status="MISMATCHED" if number % 2 else "NATIVE_ONLY") for number in range(1000))
    text = render_page(result(samples=many))
    shown = text.count('<details class="sample"')
    assert len(text.encode()) <= 1_500_000
    assert shown == 100  # 50 of each finding
    assert f"{1000 - shown} more samples are left out" in text


def test_long_values_make_samples_give_way_and_never_the_numbers():
    """Hostile sizes cost samples, one of every finding stays."""
    long = {f"field_{at}": "x" * 10_000 for at in range(40)}
    many = tuple(sample(number, status=f"STATUS_{number % 10}", native=long, otlp=dict(long)) for number in range(400))
    made = result(samples=many)
    text = render_page(made, most_bytes=600_000)
    shown = text.count('<details class="sample"')
    assert 10 <= shown < 400
    assert len(text.encode()) <= 600_000
    assert {f"STATUS_{at}" for at in range(10)} <= set(re.findall(r"<h3>(.*?) <small>", text))
    assert page(made).table("Events by status and kind").row("MISMATCHED")[4] == "7"


def test_an_empty_run_is_a_whole_page_too():
    """Nothing read on either side: the page says so in every section instead of breaking."""
    nothing = result(
        verdict="INCONCLUSIVE",
        exit_code=4,
        window=Span(),
        horizon_ms=None,
        inputs=Inputs(),
        status={},
        status_by_kind={},
        reason={},
        reason_detail={},
        fields=(),
        gates=(),
        loss={},
        latency={},
        groups=(),
        timeline=(),
        samples=(),
        malformed=(),
        versions={},
        duplicates={},
        timing={},
    )
    text = page(nothing).text
    for sentence in (
        "This is not a pass",
        "No gate was set",
        "No event carries a time",
        "Nothing was consumed",
        "No sample",
    ):
        assert sentence in text


def test_broken_books_are_the_first_thing_said():
    """When the identity does not hold, no other number deserves belief."""
    made = result()
    broken = result(conservation=type(made.conservation)(holds=False, native="1 ≠ 2", otlp="fine"))
    text = render_page(broken)
    assert text.index("The books do not balance") < text.index('id="balance"')
    assert "1 ≠ 2" in text


def test_tables_and_drawings_speak_to_screen_readers():
    """Captions, scopes, landmarks and labels: none is forgotten."""
    read = page(result())
    assert all(attrs.get("scope") in {"row", "col"} for tag, attrs in read.elements if tag == "th")
    drawings = [attrs for tag, attrs in read.elements if tag == "svg"]
    assert drawings
    assert all(
        attrs.get("aria-hidden") == "true" or (attrs["role"] == "img" and attrs["aria-label"]) for attrs in drawings
    )
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in read.elements}
    headings = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(headings))


def test_the_page_asks_the_network_for_nothing():
    """No address in any attribute that loads, none in the style sheet, and a policy that forbids the rest."""
    text = render_page(result())
    loading = {"src", "href", "action", "data", "srcset", "poster", "xlink:href", "formaction"}
    for tag, attrs in Page(text).elements:
        for name in loading & set(attrs):
            assert attrs[name].startswith("#") or attrs[name] == "data:,", (tag, name, attrs[name])
    assert not re.search(r"url\(|@import|https?:|wss?:|fetch\(|XMLHttpRequest|import\(", text)
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_no_style_attribute_is_used():
    """A viewer that forbids inline styles takes nothing away that says something."""
    assert not any("style" in attrs for _, attrs in page(result()).elements)


def test_ten_thousand_groups_and_topics_are_rows_for_the_telling_ones_and_one_for_the_rest():
    """What is unmatched or failed is shown whatever its name; the sum of what is left out is in the last row."""
    one, *_ = groups()
    many = tuple(
        replace(one, topic=f"topic-{at // 100:03}", group=f"group-{at:05}", deliveries=10, failures=0, unmatched=0)
        for at in range(10_000)
    )
    many = (*many[:-1], replace(many[-1], unmatched=3))
    topics = tuple(
        Topic(topic=f"topic-{at:05}", sends=7, failures=int(at == 9_998), unmatched=0, publish=Latency())
        for at in range(10_000)
    )
    read = page(result(groups=many, topics=topics))
    table = read.table("Topics and consumer groups")
    assert len(table.rows) == 1 + 200 + 1
    assert table.rows[-2][1] == "group-09999"
    assert table.rows[-1][:3] == ["9,800 other pairs of topic and group", "19,502,000", "98,000"]
    sent = read.table("Topics")
    assert sent.rows[-2][0] == "topic-09998"
    assert sent.rows[-1][:3] == ["9,800 other topics", "68,600", "0"]


def test_ten_million_messages_are_no_larger_a_page_than_the_budget():
    """The largest aggregates a run hands over, with long hostile names, and four hundred samples of full messages."""
    name = "订单<script>" + "x" * 200
    one, *_ = groups()
    statuses = {status.value: 10_000_000 + at for at, status in enumerate(Status)}
    told = lives("M")["M"]
    many = tuple(sample(at, status=f"STATUS_{at % 8}", topic=name, group=name) for at in range(400))
    huge = result(
        status=statuses,
        status_by_kind={f"kind-{at}": statuses for at in range(4)},
        reason_detail={f"rule-{at}": 10_000_000 for at in range(40)},
        fields=tuple(
            Field(
                name=f"field_{at}",
                verdicts={word.value: 9_999_999 for word in FieldVerdict},
                differing_pairs=((name, name, 9_999_999),) * 5,
            )
            for at in range(20)
        ),
        groups=tuple(replace(one, topic=name, group=f"{name}{at}", deliveries=1_000_000) for at in range(10_000)),
        topics=tuple(
            Topic(topic=f"{name}{at}", sends=1_000, failures=1, unmatched=1, publish=latency()["publish"])
            for at in range(10_000)
        ),
        timeline=tuple(
            TimeBucket(start_ms=at * 600_000, width_ms=600_000, status=statuses) for at in range(1_000, 1_288)
        ),
        instances=instances() * 25,
        trend=trend(30),
        samples=many,
        lives={each.verdict["msg_id"]: told * 2 for each in many},
    )
    text = render_page(huge)
    shown = text.count('<details class="sample"')
    assert len(text.encode()) <= 1_500_000
    assert shown >= 40
    assert set(re.findall(r"<h3>(STATUS_\d)", text)) == {f"STATUS_{at}" for at in range(8)}
    assert f"{400 - shown} more samples are left out" in text
    assert "<script>x" not in text
    asked = render_page(huge, PageOptions(samples=2_000))
    assert asked.count('<details class="sample"') == 400
    assert len(text.encode()) < len(asked.encode()) <= 10_000_000
    assert len(render_page(result(samples=(), lives={})).encode()) <= 300_000


def test_the_slowest_are_shown_once_and_the_table_leads_to_them():
    """A key that is slow and a finding, too, has one place on the page."""
    found = sample(3, status="MISMATCHED")
    again = Sample(stratum="slowest process", verdict=found.verdict, native=found.native, otlp=found.otlp)
    text = render_page(result(samples=(again, found)))
    assert text.count('<details class="sample"') == 1
    assert re.findall(r"<h3>(.*?) <small>", text) == ["MISMATCHED"]
    assert f'<a href="#sample-1"><bdi>{found.verdict["msg_id"]}' in text


def test_what_a_run_did_not_measure_has_no_section():
    """No ledger, no history, no loss, nothing open: no empty heading, and no link to one."""
    bare = result(trend=(), graph=None, topics=(), instances=(), ageing={}, ledger=None, slowest={}, arrival={})
    assert not {"trend", "flow", "topics", "losses", "open", "ledger"} & set(page(bare).ids)
    targets = {attrs["href"][1:] for tag, attrs in page(bare).elements if tag == "a"}
    assert targets <= set(page(bare).ids)
