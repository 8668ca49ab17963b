"""``summary.md``: the run for a CI step summary or a review comment, at most 60 KB."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_jobs.report.glossary import label_finding
from spark_jobs.report.headline import describe_scope, figures, loss_sentence, meaning, parts
from spark_jobs.report.result import balance
from spark_jobs.report.wording import ABSENT, count, duration, number, percent, value_text, visible
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.report.result import Result, Sample

__all__ = ["MOST_SUMMARY_BYTES", "cell", "render_summary"]

MOST_SUMMARY_BYTES = 60_000
"""The contract says 60 KB; a review comment takes 64 KB."""

_SIGN = {"PASS": "✅", "WARN": "⚠️", "FAIL": "❌", "INCONCLUSIVE": "❔", "pass": "✅", "warn": "⚠️", "fail": "❌"}
_MOST_ROWS = 40
_GROUP_COLUMNS = (
    ("messages", "Messages"),
    ("deliveries", "Deliveries"),
    ("failures", "Failed"),
    ("redeliveries", "Redelivered"),
    ("unmatched", "Not on both sides"),
)
_STRUCTURAL = re.compile(r"[^\w .,/=+\-→—…⟨⟩%()≠]|(?<!\w)_|_(?!\w)|(?<=www)\.", re.ASCII | re.IGNORECASE)


def render_summary(result: Result, *, most_bytes: int = MOST_SUMMARY_BYTES) -> str:
    """Return GitHub-flavoured Markdown; whole sections at the end are dropped to stay within ``most_bytes``."""
    left_out = "_Further sections are in report.html._\n"
    text, room = "", most_bytes - len(left_out)
    for section in _sections(result):
        if len((text + section).encode("utf-8", "backslashreplace")) > room:
            return text + left_out
        text += section + "\n"
    return text


def cell(text: str | None, *, limit: int = 120) -> str:
    """Return untrusted text without any meaning to Markdown: no table, link, mention, tag or code."""
    if text is None:
        return ABSENT
    return _STRUCTURAL.sub(lambda hit: hit[0] if ord(hit[0]) > 126 else f"&#{ord(hit[0])};", visible(text, limit=limit))  # noqa: PLR2004 - the last printable ASCII


def _sections(result: Result) -> Iterator[str]:
    title = f"{_SIGN.get(result.verdict, '')} {cell(result.verdict)}: message trace reconciliation"
    yield f"## {title}\n\n{meaning(result)}\n"
    yield "".join(f"* **{cell(part.text)}**: {cell(part.step, limit=300)}\n" for part in parts(result))
    rows = "".join(f"* {label}: **{value}** ({note})\n" for label, value, note in figures(result))
    yield f"{rows}* {describe_scope(result)}\n"
    yield _gates(result)
    yield _balance(result)
    yield _counts("Statuses", "Status", result.status)
    yield _counts("Reasons", "Reason", result.reason)
    rules = [(cell(rule), count(n)) for rule, n in result.reason_detail.items() if n]
    yield _table("Rules behind the reasons", ("Rule", "Events"), rules)
    yield _ledger(result)
    yield _fields(result)
    yield _latency(result)
    yield _groups(result)
    yield _malformed(result)
    yield _samples(result)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return one table of safe cells, or nothing without rows."""
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    if not lines:
        return ""
    more = f"\n{count(len(lines) - _MOST_ROWS)} more in report.html.\n" if len(lines) > _MOST_ROWS else ""
    top = f"### {title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}\n"
    return top + "".join(lines[:_MOST_ROWS]) + more


def _gates(result: Result) -> str:
    rows = [
        (
            cell(gate.name),
            f"{_SIGN.get(gate.outcome, '❔')} {cell(gate.outcome)}",
            number(gate.value),
            f"{cell(gate.op)} {number(gate.threshold)}",
            cell(gate.explanation, limit=300),
        )
        for gate in result.gates
    ]
    return _table("Gates", ("Gate", "Outcome", "Value", "Must be", "Explanation"), rows)


def _balance(result: Result) -> str:
    rows = [(line.label, count(line.native), count(line.otlp)) for line in balance(result.inputs)]
    lines = [_table("Balance", ("", "Native trace", "OTLP"), rows), "\n"]
    lines += [f"* {loss_sentence(side, loss)}\n" for side, loss in sorted(result.loss.items())]
    return "".join(lines)


def _counts(title: str, head: str, counts: dict[str, int]) -> str:
    whole = sum(counts.values())
    rows = [(cell(label_finding(name)), cell(name), count(n), percent(n, whole)) for name, n in counts.items() if n]
    return _table(title, (head, "Identifier", "Events", "Share"), rows)


def _ledger(result: Result) -> str:
    """Return the counted losses and notes, or nothing without a ledger."""
    if result.ledger is None:
        return ""
    rows = [
        (
            *(cell(text) for text in (line.side, line.component, line.cause, line.service)),
            *(count(number) for number in (line.counted, line.attributed, line.surplus)),
        )
        for line in result.ledger.lines
    ]
    heads = ("Lost by", "Component", "Cause", "Service", "Counted", "Attributed", "Surplus")
    table = _table("Counted losses", heads, rows) or "### Counted losses\n\nThe ledgers count none.\n"
    return table + "".join(f"\n* {cell(note, limit=300)}\n" for note in result.ledger.notes)


def _fields(result: Result) -> str:
    rows = [
        (
            cell(item.name),
            ", ".join(f"{cell(label_finding(name))} {count(n)}" for name, n in item.verdicts.items() if n),
        )
        for item in result.fields
        if sum(item.verdicts.values()) > item.verdicts.get(FieldVerdict.EQUAL.value, 0)
    ]
    return _table("Fields that are not equal everywhere", ("Field", "Verdicts"), rows)


def _latency(result: Result) -> str:
    rows = [
        (cell(name), count(row.count), *(duration(value) for value in (row.p50, row.p95, row.p99, row.max)))
        for name, row in result.latency.items()
    ]
    return _table("Latency", ("Stage", "Events", "p50", "p95", "p99", "Maximum"), rows)


def _groups(result: Result) -> str:
    rows = [
        (
            cell(group.topic),
            cell(group.group),
            *(count(getattr(group, name)) for name, _ in _GROUP_COLUMNS),
        )
        for group in result.groups
    ]
    return _table("Who consumed what", ("Topic", "Group", *(head for _, head in _GROUP_COLUMNS)), rows)


def _malformed(result: Result) -> str:
    rows = [
        (
            cell(bad.side),
            cell(bad.path),
            str(bad.line if bad.line is not None else ABSENT),
            str(bad.record_index if bad.record_index is not None else ABSENT),
            cell(bad.field),
            cell(bad.reason),
        )
        for bad in result.malformed
    ]
    return _table("Malformed input", ("Side", "Source", "Line", "Record", "Field", "Reason"), rows)


def _samples(result: Result) -> str:
    names = ("msg_id", "kind", "topic", "group")
    rows = [
        (cell(_finding(sample)), *(cell(value_text(name, sample.verdict.get(name))) for name in names))
        for sample in result.samples
    ]
    return _table("Sample events", ("Finding", "Message id", "Kind", "Topic", "Group"), rows)


def _finding(sample: Sample) -> str:
    return label_finding(str(sample.verdict.get("status")), sample.verdict.get("reason"))
