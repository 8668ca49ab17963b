"""This module knows the sections of ``report.html`` in reading order, and what each is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from bridge.page.palette import SIDE_COLOUR
from spark_jobs.report import palette
from spark_jobs.report.books import balance
from spark_jobs.report.glossary import FIELD_VERDICTS, REASONS, STATUSES
from spark_jobs.report.headline import SIDE_NAME, loss_sentence
from spark_jobs.report.listing import listing
from spark_jobs.report.measured import AGES
from spark_jobs.report.svg.bars import latency_range, latency_scale, stacked
from spark_jobs.report.svg.curves import LOOKS, curves
from spark_jobs.report.svg.graph import graph_svg
from spark_jobs.report.svg.shapes import dash, swatch
from spark_jobs.report.svg.timeline import bars_of, counted_of, timeline
from spark_jobs.report.svg.trend import trend
from spark_jobs.report.templating import environment
from spark_jobs.taxonomy import FieldVerdict, Kind, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from spark_jobs.report.measured import Group, Latency, Topic
    from spark_jobs.report.result import Result
    from spark_jobs.report.samples import Shown

__all__ = ["MOST_ROWS", "Part", "parts", "swatch_of"]

MOST_ROWS: Final = 200
"""Rows of one table; what is left out is counted in it or under it."""

_AGREEING = (FieldVerdict.EQUAL, FieldVerdict.EQUAL_NORMALISED, FieldVerdict.WITHIN_TOLERANCE)
_ABOUT = {entry.name: entry for entry in (*STATUSES, *REASONS, *FIELD_VERDICTS)}


@dataclass(frozen=True, slots=True)
class Part:
    """One written section."""

    id: str
    title: str
    written: Markup


def parts(result: Result, shown: Shown) -> list[Part]:
    """Return every section that has something to say; the first ones are there in every report."""
    found = []
    for name, title, values in _SECTIONS:
        told = values(result, shown)
        if told is not None:
            template = environment().get_template(f"sections/{name}.html.j2")
            written = Markup(template.render(**_shared(result), **told))  # noqa: S704 - rendered with autoescape
            found.append(Part(name, title, written))
    return found


def swatch_of(word: str) -> Markup:
    """Return the square in the colour of a word of the closed lists; nothing for a word without one."""
    colours = palette.STATUS_COLOUR | palette.FIELD_COLOUR | palette.OUTCOME_COLOUR | palette.VERDICT_COLOUR
    return swatch(colours[word]) if word in colours else Markup("")


def _shared(result: Result) -> dict[str, Any]:
    return {
        "result": result,
        "palette": palette,
        "swatch": swatch_of,
        "about": _ABOUT,
        "side_name": SIDE_NAME,
        "most_rows": MOST_ROWS,
    }


def _balance(result: Result, _shown: Shown) -> dict[str, Any]:
    return {"balance": balance(result.inputs), "loss_sentence": loss_sentence}


def _nothing_more(_result: Result, _shown: Shown) -> dict[str, Any]:
    return {}


def _statuses(result: Result, _shown: Shown) -> dict[str, Any]:
    kinds = list(dict.fromkeys((*(kind.value for kind in Kind), *result.status_by_kind)))
    return {"kinds": kinds, "statuses": _in_order(result.status, Status), "stacked": stacked}


def _reasons(result: Result, _shown: Shown) -> dict[str, Any]:
    return {"reasons": _in_order(result.reason, Reason)}


def _in_order(counts: dict[str, int], closed_list: type[Status | Reason]) -> list[tuple[str, int]]:
    """Return every word of the closed list with its count, and after them whatever else was counted."""
    names = dict.fromkeys((*(word.value for word in closed_list), *counts))
    return [(name, counts.get(name, 0)) for name in names]


def _timeline(result: Result, _shown: Shown) -> dict[str, Any]:
    bars, counted = bars_of(result.timeline), result.ledger.over_time if result.ledger else ()
    return {
        "timeline": timeline(result.timeline, counted),
        "bars": bars,
        "counted": counted_of(bars, counted),
        "statuses": _in_order(result.status, Status),
    }


def _trend(result: Result, _shown: Shown) -> dict[str, Any] | None:
    legend = [(swatch(SIDE_COLOUR[side]), name) for side, name in SIDE_NAME.items()]
    points = [{"unexplained": {}, "pending": 0, "match_rate": None, **point} for point in result.trend]
    return {"points": points, "drawing": trend(points), "legend": legend} if points else None


def _flow(result: Result, _shown: Shown) -> dict[str, Any] | None:
    return {"drawing": graph_svg(result.graph)} if result.graph and result.graph.nodes else None


def _topics(result: Result, _shown: Shown) -> dict[str, Any] | None:
    names = ("sends", "failures", "unmatched")
    shown = listing(result.topics, most=MOST_ROWS, weight=_trouble_of_topic, sums=names)
    return {"topics": shown} if result.topics else None


def _trouble_of_topic(topic: Topic) -> tuple[int, int]:
    return topic.unmatched + topic.failures, topic.sends


def _groups(result: Result, _shown: Shown) -> dict[str, Any]:
    names = ("messages", "deliveries", "failures", "redeliveries", "unmatched")
    shown = listing(result.groups, most=MOST_ROWS, weight=_trouble_of_group, sums=names)
    return {"groups": shown, "ranges": _ranges([group.process for group in shown.shown], width=84)}


def _trouble_of_group(group: Group) -> tuple[int, int]:
    return group.unmatched + group.failures, group.deliveries


def _ranges(rows: Sequence[Latency], *, width: int) -> list[Markup]:
    scale = latency_scale(row for row in rows if row.count)
    return [latency_range(row, scale, width=width) if row.count else Markup("") for row in rows]


def _fields(result: Result, _shown: Shown) -> dict[str, Any]:
    rows = []
    for item in result.fields:
        compared = sum(item.verdicts.values()) - item.verdicts.get(FieldVerdict.NOT_COMPARABLE.value, 0)
        agreeing = sum(item.verdicts.get(verdict.value, 0) for verdict in _AGREEING)
        bar = stacked(item.verdicts, palette.FIELD_COLOUR)
        rows.append({"item": item, "compared": compared, "agreeing": agreeing, "bar": bar})
    return {"fields": rows}


def _latency(result: Result, shown: Shown) -> dict[str, Any]:
    drawable = [name for name, row in result.latency.items() if row.curve]
    ranges = dict(zip(result.latency, _ranges(list(result.latency.values()), width=220), strict=True))
    legend = [(dash(*look), name) for look, name in zip(LOOKS, drawable, strict=False)]
    return {"ranges": ranges, "curves": curves(result.latency), "legend": legend, "anchors": shown.anchors}


def _open(result: Result, _shown: Shown) -> dict[str, Any] | None:
    return {"ages": [name for name, _ in AGES]} if any(result.ageing.values()) else None


def _losses(result: Result, _shown: Shown) -> dict[str, Any] | None:
    return {} if result.instances else None


def _ledger(result: Result, _shown: Shown) -> dict[str, Any] | None:
    return {"ledger": result.ledger} if result.ledger else None


def _samples(_result: Result, shown: Shown) -> dict[str, Any]:
    return {"strata": shown.strata, "shown_samples": shown.count}


def _glossary(_result: Result, _shown: Shown) -> dict[str, Any]:
    return {"glossary": (("Statuses", STATUSES), ("Reasons", REASONS), ("Field verdicts", FIELD_VERDICTS))}


_SECTIONS: Final[Iterable[tuple[str, str, Callable[[Result, Shown], dict[str, Any] | None]]]] = (
    ("balance", "Balance", _balance),
    ("gates", "Gates", _nothing_more),
    ("statuses", "Statuses", _statuses),
    ("reasons", "Reasons", _reasons),
    ("timeline", "Timeline", _timeline),
    ("trend", "Runs", _trend),
    ("flow", "Flow", _flow),
    ("topics", "Topics", _topics),
    ("groups", "Groups", _groups),
    ("fields", "Fields", _fields),
    ("latency", "Latency", _latency),
    ("open", "Open", _open),
    ("duplicates", "Duplicates", _nothing_more),
    ("late", "Late", _nothing_more),
    ("losses", "Losses", _losses),
    ("ledger", "Ledger", _ledger),
    ("malformed", "Malformed", _nothing_more),
    ("samples", "Samples", _samples),
    ("inputs", "Inputs", _nothing_more),
    ("glossary", "Glossary", _glossary),
)
