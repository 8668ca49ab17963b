"""The vocabulary of the report: colours, definitions, numbers and times."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.report import glossary as palette
from spark_jobs.report import wording
from spark_jobs.report.glossary import FIELD_VERDICTS, REASONS, STATUSES, label_finding
from spark_jobs.taxonomy import FieldVerdict, Reason, Status
from tools.handbook import BLOCKS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize(
    ("entries", "closed_list"), [(STATUSES, Status), (REASONS, Reason), (FIELD_VERDICTS, FieldVerdict)]
)
def test_every_word_of_a_closed_list_has_an_entry_in_order(entries, closed_list):
    assert [entry.name for entry in entries] == [word.value for word in closed_list]
    assert len({entry.label for entry in entries}) == len(entries)
    assert all(entry.label and entry.definition and entry.example and entry.cause and entry.action for entry in entries)


def test_every_generated_table_is_in_one_page_of_the_docs():
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    assert {name: text.count(f"<!-- generated: {name} -->\n{block}<!-- end -->") for name, block in BLOCKS.items()} == (
        dict.fromkeys(BLOCKS, 1)
    )


@pytest.mark.parametrize(
    ("status", "reason", "group", "label"),
    [
        ("MATCHED_EXACT", "HALF_RECORD", "fine", "Equal: half of its native record is missing"),
        ("PENDING", None, "waiting", "Not settled yet"),
        ("NATIVE_ONLY", "IN_FLIGHT", "waiting", "Missing in OpenTelemetry: its handler is still running"),
        ("NATIVE_ONLY", "COUNTERPART_MALFORMED", "explained", "Missing in OpenTelemetry: its span could not be read"),
        (
            "OTLP_ONLY",
            "COUNTERPART_MALFORMED",
            "explained",
            "Missing in the native trace: its native record could not be read",
        ),
        ("OTLP_ONLY", "UNEXPLAINED", "problem", "Missing in the native trace: no explanation"),
        ("MISMATCHED", None, "problem", "Differs"),
        ("NOVEL", "{x}", "problem", "NOVEL: {x}"),
    ],
)
def test_finding_has_a_group_and_a_label(status, reason, group, label):
    assert palette.group_finding(status, reason) == group
    assert label_finding(status, reason) == label


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.4, "0.4 ms"), (5, "5 ms"), (9_999, "9,999 ms"), (12_340, "12.3 s"), (60_000, "1 min"), (7_200_000, "2 h")],
)
def test_duration_is_shown_in_a_suitable_unit(ms, text):
    assert wording.duration(ms) == text


def test_share_of_0_or_100_percent_is_exact():
    assert wording.percent(1, 10**6) == "< 0.01 %"
    assert wording.percent(10**6 - 1, 10**6) == "> 99.99 %"
    assert (wording.percent(0, 5), wording.percent(5, 5), wording.percent(0, 0)) == ("0 %", "100 %", "—")


@given(st.text(max_size=60), st.integers(min_value=1, max_value=50))
def test_cut_text_shows_its_length(text, limit):
    shown = wording.visible(text, limit=limit)
    assert ("characters)" in shown[-20:]) or len(text) <= limit
    assert "\n" not in shown
