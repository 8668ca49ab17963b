"""Write ``summary.md``, GitHub-flavoured Markdown of a bounded size."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from spark_jobs.report import wording
from spark_jobs.report.glossary import SIDE_NAME, label_finding, rank_finding
from spark_jobs.report.headline import describe_loss, describe_scope, describe_verdict, list_figures, list_problems
from spark_jobs.report.result import GROUP_COUNTS, balance
from spark_jobs.report.wording import ABSENT, count, duration, number, percent, value_text, visible
from spark_jobs.taxonomy import FieldVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark_jobs.report.result import Field, Finding, Gate, MalformedSample, Result, Sample

MOST_SUMMARY_BYTES = 60_000
"""The contract's limit; a GitHub comment takes 64 KB."""

_SIGN = {"PASS": "✅", "WARN": "⚠️", "FAIL": "❌", "INCONCLUSIVE": "❔", "pass": "✅", "warn": "⚠️", "fail": "❌"}
_MOST_ROWS = 40
_STRUCTURAL = re.compile(
    r"""[^\w .,;:?'"<>/=+\-→—…⟨⟩%()≠]|:(?! )|<(?!=)|^>|>(?!=)|(?<!\w)_|_(?!\w)|(?<=www)\.""", re.ASCII | re.IGNORECASE
)
"""Of a sentence, ``: ``, ``<=`` and ``>=`` stay readable in a terminal."""


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
    yield f"## {title}\n\n{describe_verdict(result)}\n"
    yield "".join(f"* **{cell(part.text)}**: {cell(part.step, limit=300)}\n" for part in list_problems(result))
    rows = "".join(f"* {label}: **{value}** ({note})\n" for label, value, note in list_figures(result))
    yield f"{rows}* {describe_scope(result)}\n"
    yield _table("Gates", wording.GATE_HEADS, map(_gate, result.gates))
    lines = [(line.label, count(line.native), count(line.otlp)) for line in balance(result.inputs)]
    losses = "".join(f"* {describe_loss(side, loss)}\n" for side, loss in sorted(result.loss.items()))
    yield f"{_table('Balance', ('', 'Native trace', 'OTLP'), lines)}\n{losses}"
    yield _counts("Statuses", "Status", result.status)
    yield _counts("Reasons", "Reason", result.reason)
    rules = [(cell(rule), count(n)) for rule, n in result.reason_detail.items() if n]
    yield _table("The rules behind the reasons", ("Rule", "Events"), rules)
    yield _counted_losses(result)
    fields = [(cell(item.name), _field_verdicts(item)) for item in result.fields if _is_unequal(item)]
    yield _table("Fields that are not equal everywhere", ("Field", "Verdicts"), fields)
    latency = [
        (cell(name.replace("_", " ")), count(row.count), *map(duration, (row.p50, row.p95, row.p99, row.max)))
        for name, row in result.latency.items()
    ]
    yield _table("Latency", wording.LATENCY_HEADS, latency)
    groups = [
        (cell(group.topic), cell(group.group), *(count(getattr(group, name)) for name in GROUP_COUNTS))
        for group in result.groups
    ]
    heads = ("Topic", "Group", "Messages", "Deliveries", "Failed", "Redelivered", "Unmatched")
    yield _table("Who consumed what", heads, groups)
    places = ("Side", "Source", "Line", "Record", "Field", "Reason")
    yield _table("Unreadable input", places, map(_bad, result.malformed))
    samples = sorted(result.samples, key=lambda each: rank_finding(*_finding_of(each)))
    yield _table("Sample events", ("Finding", "Message id", "Kind", "Topic", "Group"), map(_sample, samples))


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    if not lines:
        return ""
    more = f"\n{count(len(lines) - _MOST_ROWS)} more in report.html.\n" if len(lines) > _MOST_ROWS else ""
    top = f"### {title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}\n"
    return top + "".join(lines[:_MOST_ROWS]) + more


def _gate(gate: Gate) -> Sequence[str]:
    outcome = f"{_SIGN.get(gate.outcome, '❔')} {cell(gate.outcome)}"
    bound = f"{gate.op} {number(gate.threshold)}"
    return cell(gate.name), outcome, number(gate.value), bound, cell(gate.explanation, limit=300)


def _counts(title: str, head: str, counts: dict[str, int]) -> str:
    whole = sum(counts.values())
    rows = [(cell(label_finding(name)), cell(name), count(n), percent(n, whole)) for name, n in counts.items() if n]
    return _table(title, (head, "Identifier", "Events", "Share"), rows)


def _counted_losses(result: Result) -> str:
    """Return the counted losses and notes, or nothing without a ledger."""
    if result.ledger is None:
        return ""
    rows = [
        (
            *map(cell, (SIDE_NAME.get(line.side, line.side), line.component, line.cause, line.service)),
            *map(count, (line.counted, line.attributed, line.surplus)),
        )
        for line in result.ledger.lines
    ]
    table = _table("Counted losses", wording.LOSS_HEADS, rows) or f"### Counted losses\n\n{wording.NO_LOSS}\n"
    return table + "".join(f"\n* {cell(note, limit=300)}\n" for note in result.ledger.notes)


def _is_unequal(item: Field) -> bool:
    return sum(item.verdicts.values()) > item.verdicts.get(FieldVerdict.EQUAL.value, 0)


def _field_verdicts(item: Field) -> str:
    return ", ".join(f"{cell(label_finding(name))} {count(n)}" for name, n in item.verdicts.items() if n)


def _bad(bad: MalformedSample) -> Sequence[str]:
    places = (ABSENT if at is None else str(at) for at in (bad.line, bad.record_index))
    return cell(SIDE_NAME.get(bad.side, bad.side)), cell(bad.path), *places, cell(bad.field), cell(bad.reason)


def _sample(sample: Sample) -> Sequence[str]:
    verdict = sample.verdict
    named = (cell(value_text(name, verdict.get(name))) for name in ("msg_id", "kind", "topic", "group"))
    return cell(label_finding(*_finding_of(sample))), *named


def _finding_of(sample: Sample) -> Finding:
    return str(sample.verdict.get("status")), sample.verdict.get("reason")
