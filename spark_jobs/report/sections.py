"""The sections of ``report.html`` in reading order, and the values that each shows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from bridge.page.palette import SIDE_COLOUR
from spark_jobs.report.books import balance
from spark_jobs.report.glossary import FIELD_VERDICTS, REASONS, STATUSES
from spark_jobs.report.headline import SIDE_NAME, loss_sentence
from spark_jobs.report.listing import listing
from spark_jobs.report.measured import AGES
from spark_jobs.report.palette import FINE, GROUP_COLOUR, GROUPS, group_field_verdict, group_finding
from spark_jobs.report.samples import once
from spark_jobs.report.svg.bars import stacked
from spark_jobs.report.svg.curves import LOOKS, curves
from spark_jobs.report.svg.graph import graph_svg
from spark_jobs.report.svg.shapes import dash, swatch
from spark_jobs.report.svg.timeline import bars_of, counted_of, timeline
from spark_jobs.report.svg.trend import trend
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import count, duration, utc
from spark_jobs.taxonomy import FieldVerdict, Kind, Outcome, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spark_jobs.report.measured import Group, Topic
    from spark_jobs.report.result import Finding, Result
    from spark_jobs.report.samples import Shown

__all__ = ["MOST_ROWS", "Section", "anchor_of", "sections"]

MOST_ROWS: Final = 50
"""Rows of one table: ten screens of a phone. What is left out is counted in the table or under it."""

_MOST_BAD: Final = 200
_MOST_OPEN: Final = dict(zip(GROUPS, (0, 1, 0, 4), strict=True))
"""Samples of a finding that stand on the page unfolded."""

_OUTCOME_LABEL: Final = {
    Outcome.PASS.value: "holds",
    Outcome.WARN.value: "warns",
    Outcome.FAIL.value: "does not hold",
    Outcome.INCONCLUSIVE.value: "cannot be judged",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One written section."""

    id: str
    title: str
    written: Markup


def sections(result: Result, shown: Shown) -> list[Section]:
    """Return every section that has something to show, in reading order."""
    shared = {"result": result, "side_name": SIDE_NAME, "most_rows": MOST_ROWS}
    found = []
    for name, title, make in _SECTIONS:
        values = make(result, shown)
        if values is not None:
            template = environment().get_template(f"sections/{name}.html.j2")
            found.append(Section(name, title, Markup(template.render(**shared, **values))))  # noqa: S704 - autoescaped
    return found


def anchor_of(status: str, reason: str | None = None) -> str:
    """Return the id of the place where the samples of a finding stand."""
    return "found-" + "".join(letter if letter.isalnum() else "-" for letter in f"{status} {reason or ''}".strip())


def _timeline(result: Result, _shown: Shown) -> dict[str, Any]:
    bars, counted = bars_of(result.timeline), result.ledger.over_time if result.ledger else ()
    return {
        "timeline": timeline(result.timeline, counted),
        "bars": bars,
        "counted": counted_of(bars, counted),
        "groups_seen": [group for group in GROUP_COLOUR if any(bar.groups.get(group) for bar in bars)],
    }


def _gates(result: Result, _shown: Shown) -> dict[str, Any]:
    holding = [gate for gate in result.gates if gate.outcome == Outcome.PASS.value]
    broken = [gate for gate in result.gates if gate.outcome != Outcome.PASS.value]
    return {"holding": holding, "broken": broken, "outcomes": _OUTCOME_LABEL}


def _samples(result: Result, shown: Shown) -> dict[str, Any]:
    left_out = len(once(result.samples)) - shown.count
    return {"findings": shown.findings, "left_out": left_out, "most_open": _MOST_OPEN, "anchor_of": anchor_of}


def _malformed(result: Result, _shown: Shown) -> dict[str, Any] | None:
    native, otlp = result.inputs.native, result.inputs.otlp
    total, tails = native.malformed + otlp.malformed, native.truncated_tails + otlp.truncated_tails
    return {"total": total, "tails": tails, "listed": result.malformed[:_MOST_BAD]} if total or tails else None


def _statuses(result: Result, _shown: Shown) -> dict[str, Any]:
    rows = _count_findings(result)
    groups: Counter[str] = Counter()
    for row in rows:
        groups[group_finding(row["status"], row["reason"])] += row["total"]
    seen = {*result.status, *result.reason}
    return {
        "rows": rows,
        "kinds": [kind for kind in dict.fromkeys((*Kind, *result.status_by_kind)) if result.status_by_kind.get(kind)],
        "all": sum(result.status.values()),
        "bar": stacked(groups, GROUP_COLOUR, width=720),
        "absent": [word.value for word in (*Status, *Reason) if word.value not in seen],
    }


def _count_findings(result: Result) -> list[dict[str, Any]]:
    """Return a row for every finding that occurred; what a status has beyond its findings is a row without a reason."""
    rows: dict[Finding, dict[str, Any]] = {}
    rest, rest_by_kind = Counter(result.status), {kind: Counter(n) for kind, n in result.status_by_kind.items()}
    for (status, reason), kinds in result.findings.items():
        total = sum(kinds.values())
        rows[status, reason] = {"status": status, "reason": reason, "kinds": Counter(kinds), "total": total}
        rest[status] -= total
        for kind, n in kinds.items():
            rest_by_kind.setdefault(kind, Counter())[status] -= n
    for status, total in (+rest).items():
        row = rows.setdefault((status, None), {"status": status, "reason": None, "kinds": Counter(), "total": 0})
        row["total"] += total
        row["kinds"].update({kind: found[status] for kind, found in rest_by_kind.items() if found[status] > 0})
    order = {None: -1} | {word.value: at for at, word in enumerate((*Status, *Reason))}
    return sorted(rows.values(), key=lambda row: [order.get(row[word], 99) for word in ("status", "reason")])


def _fields(result: Result, _shown: Shown) -> dict[str, Any]:
    differing: list[dict[str, Any]] = []
    agreeing: list[dict[str, Any]] = []
    for item in result.fields:
        groups: Counter[str] = Counter()
        for verdict, n in item.verdicts.items():
            groups[group_field_verdict(verdict)] += n
        compared = sum(item.verdicts.values()) - item.verdicts.get(FieldVerdict.NOT_COMPARABLE.value, 0)
        bar = stacked(groups, GROUP_COLOUR, width=160)
        row = {"item": item, "compared": compared, "agreeing": groups[FINE], "bar": bar}
        (differing if groups[FINE] < compared else agreeing).append(row)
    return {"differing": differing, "agreeing": agreeing}


def _losses(result: Result, _shown: Shown) -> dict[str, Any] | None:
    """Return the hosts; events that name neither host nor service have no share that means anything."""
    hosts = [one for one in result.instances if one.host or one.service]
    unnamed = (one for one in result.instances if not (one.host or one.service))
    nowhere = sum(one.lost_native + one.lost_otlp + one.attributed for one in unnamed)
    return {"hosts": hosts, "nowhere": nowhere} if result.instances else None


def _trend(result: Result, _shown: Shown) -> dict[str, Any] | None:
    legend = [(swatch(SIDE_COLOUR[side]), name) for side, name in SIDE_NAME.items()]
    points = [{"unexplained": {}, "pending": 0, "match_rate": None, **point} for point in result.trend]
    return {"points": points, "drawing": trend(points), "legend": legend} if len(points) > 1 else None


def _traffic(result: Result, _shown: Shown) -> dict[str, Any]:
    topics = listing(result.topics, most=MOST_ROWS, weight=_trouble_of_topic, sums=("sends", "failures", "unmatched"))
    names = ("messages", "deliveries", "failures", "redeliveries", "unmatched")
    groups = listing(result.groups, most=MOST_ROWS, weight=_trouble_of_group, sums=names)
    return {
        "drawing": graph_svg(result.graph) if result.graph and result.graph.nodes else None,
        "topics": topics,
        "groups": groups,
    }


def _trouble_of_topic(topic: Topic) -> tuple[int, int]:
    return topic.unmatched + topic.failures, topic.sends


def _trouble_of_group(group: Group) -> tuple[int, int]:
    return group.unmatched + group.failures, group.deliveries


def _latency(result: Result, shown: Shown) -> dict[str, Any]:
    drawable = [name for name, row in result.latency.items() if row.curve]
    legend = [(dash(*look), name) for look, name in zip(LOOKS, drawable, strict=False)]
    return {"curves": curves(result.latency), "legend": legend, "anchors": shown.anchors}


def _timing(result: Result, _shown: Shown) -> dict[str, Any]:
    return {"open": any(result.ageing.values()), "ages": [name for name, _ in AGES]}


def _ledger(result: Result, _shown: Shown) -> dict[str, Any] | None:
    return {"ledger": result.ledger} if result.ledger else None


def _inputs(result: Result, _shown: Shown) -> dict[str, Any]:
    facts = [
        ("Profile", result.writers.profile),
        ("Native writer", result.writers.native_writer),
        *(("Chosen by", why) for why in result.writers.evidence),
        ("Window", f"{utc(result.window.begin_ms)} to {utc(result.window.end_ms)}"),
        ("Settled horizon", utc(result.horizon_ms)),
        ("Grace", duration(result.grace_ms)),
        ("Wall time", duration(result.wall_seconds * 1000)),
        *sorted(result.versions.items()),
    ]
    if result.spark and result.spark.jobs is not None:
        facts.append(("Spark jobs, stages", f"{count(result.spark.jobs)}, {count(result.spark.stages or 0)}"))
    return {"balance": balance(result.inputs), "loss_sentence": loss_sentence, "facts": facts}


def _glossary(_result: Result, _shown: Shown) -> dict[str, Any]:
    return {"glossary": (("Statuses", STATUSES), ("Reasons", REASONS), ("Field verdicts", FIELD_VERDICTS))}


_SECTIONS: Final[Iterable[tuple[str, str, Callable[[Result, Shown], dict[str, Any] | None]]]] = (
    ("timeline", "Timeline", _timeline),
    ("gates", "Gates", _gates),
    ("samples", "Samples", _samples),
    ("malformed", "Unreadable input", _malformed),
    ("statuses", "What was found", _statuses),
    ("fields", "Fields", _fields),
    ("losses", "Where losses come from", _losses),
    ("trend", "Runs", _trend),
    ("traffic", "Who talks to whom", _traffic),
    ("latency", "Latency", _latency),
    ("timing", "Open, late, duplicated", _timing),
    ("ledger", "Drop ledger", _ledger),
    ("inputs", "Inputs and books", _inputs),
    ("glossary", "Glossary", _glossary),
)
