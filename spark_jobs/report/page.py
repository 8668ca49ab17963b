"""This module knows how ``report.html`` is put together: one file, no request, readable without script and style."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from spark_jobs.report import palette
from spark_jobs.report.books import balance
from spark_jobs.report.glossary import FIELD_VERDICTS, REASONS, STATUSES
from spark_jobs.report.headline import SIDE_NAME, headline, loss_sentence
from spark_jobs.report.samples import by_turns, sample_views
from spark_jobs.report.svg.bars import latency_range, latency_scale, stacked
from spark_jobs.report.svg.shapes import sign, swatch
from spark_jobs.report.svg.timeline import bars_of, timeline
from spark_jobs.report.templating import environment, template_text
from spark_jobs.taxonomy import FieldVerdict, Kind, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.report.result import Result, Sample
    from spark_jobs.report.samples import SampleView

__all__ = ["MOST_PAGE_BYTES", "MOST_SAMPLES", "render_page"]

MOST_PAGE_BYTES = 1_500_000
"""What a browser opens at once and a mail still takes; samples give way, numbers never do."""

MOST_SAMPLES, _MOST_PER_STRATUM, _MOST_ROWS = 400, 50, 200

_AGREEING = (FieldVerdict.EQUAL, FieldVerdict.EQUAL_NORMALISED, FieldVerdict.WITHIN_TOLERANCE)


def render_page(result: Result, *, most_bytes: int = MOST_PAGE_BYTES) -> str:
    """Return the whole page, at most ``most_bytes`` of UTF-8 as long as its fixed part fits in them."""
    bare = _page(result, [])
    chosen = by_turns(result.samples, at_most=MOST_SAMPLES, per_stratum=_MOST_PER_STRATUM)
    room = most_bytes - len(bare.encode("utf-8", "backslashreplace")) - 10_000
    return _page(result, _that_fit(chosen, room)) if chosen else bare


def _that_fit(chosen: Sequence[Sample], room_bytes: int) -> list[tuple[SampleView, Markup]]:
    sheet = environment().get_template("sample.html.j2")
    fitting = []
    for view in sample_views(chosen):
        written = Markup(sheet.render(view=view, swatch=_swatch))  # noqa: S704 - rendered with autoescape
        room_bytes -= len(written.encode("utf-8", "backslashreplace"))
        if room_bytes < 0:
            break
        fitting.append((view, written))
    return fitting


def _page(result: Result, samples: Sequence[tuple[SampleView, Markup]]) -> str:
    style, script = template_text("style.css"), template_text("page.js")
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            result=result,
            head=headline(result),
            sign=sign(result.verdict, palette.VERDICT_COLOUR.get(result.verdict, "#7a8794")),
            palette=palette,
            swatch=_swatch,
            style=Markup(style),  # noqa: S704 - our own file
            script=Markup(script),  # noqa: S704 - our own file
            policy=_content_policy(style, script),
            balance=balance(result.inputs),
            kinds=_kinds(result),
            statuses=_in_order(result.status, Status),
            reasons=_in_order(result.reason, Reason),
            about={entry.name: entry for entry in (*STATUSES, *REASONS, *FIELD_VERDICTS)},
            glossary=(("Statuses", STATUSES), ("Reasons", REASONS), ("Field verdicts", FIELD_VERDICTS)),
            side_name=SIDE_NAME,
            loss_sentence=loss_sentence,
            stacked=stacked,
            timeline=timeline(result.timeline),
            bars=bars_of(result.timeline),
            fields=_fields(result),
            ranges=_ranges(result),
            strata=_strata(samples),
            shown_samples=len(samples),
            most_rows=_MOST_ROWS,
        )
    )


def _swatch(word: str) -> Markup:
    colours = palette.STATUS_COLOUR | palette.FIELD_COLOUR | palette.OUTCOME_COLOUR | palette.VERDICT_COLOUR
    return swatch(colours[word]) if word in colours else Markup("")


def _content_policy(style: str, script: str) -> str:
    """Return the policy the page lays on itself: no request at all, and no script or style but the two we wrote."""
    digests = {
        part: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for part, text in (("style", style), ("script", script))
    }
    allowed = "; ".join(f"{part}-src 'sha256-{digest}'" for part, digest in digests.items())
    return f"default-src 'none'; {allowed}; img-src data:; base-uri 'none'; form-action 'none'"


def _kinds(result: Result) -> list[str]:
    """Return the columns of the status table: the known kinds in their order, then any other that came."""
    return list(dict.fromkeys((*(kind.value for kind in Kind), *result.status_by_kind)))


def _in_order(counts: dict[str, int], closed_list: type[Status | Reason]) -> list[tuple[str, int]]:
    """Return every word of the closed list with its count, and after them whatever else was counted."""
    names = dict.fromkeys((*(word.value for word in closed_list), *counts))
    return [(name, counts.get(name, 0)) for name in names]


def _fields(result: Result) -> list[dict[str, Any]]:
    rows = []
    for item in result.fields:
        compared = sum(item.verdicts.values()) - item.verdicts.get(FieldVerdict.NOT_COMPARABLE.value, 0)
        agreeing = sum(item.verdicts.get(verdict.value, 0) for verdict in _AGREEING)
        bar = stacked(item.verdicts, palette.FIELD_COLOUR)
        rows.append({"item": item, "compared": compared, "agreeing": agreeing, "bar": bar})
    return rows


def _ranges(result: Result) -> dict[str, dict[object, Markup]]:
    """Return the drawn range of every latency: the stages on one axis, the groups' process times on another."""
    stages = {name: row for name, row in result.latency.items() if row.count}
    groups = {at: group.process for at, group in enumerate(result.groups) if group.process.count}
    drawn: dict[str, dict[object, Markup]] = {}
    for name, rows, width in (("stages", stages, 220), ("groups", groups, 84)):
        scale = latency_scale(rows.values())
        drawn[name] = {key: latency_range(row, scale, width=width) for key, row in rows.items()}
    return drawn


def _strata(samples: Sequence[tuple[SampleView, Markup]]) -> dict[str, list[Markup]]:
    """Return the samples under their finding, what weighs most first: unexplained, then problems, then what is fine."""
    strata: defaultdict[str, list[Markup]] = defaultdict(list)
    for view, written in sorted(samples, key=lambda sample: _weight(sample[0])):
        strata[view.stratum].append(written)
    return dict(strata)


def _weight(view: SampleView) -> tuple[bool, bool, str]:
    return (view.reason != Reason.UNEXPLAINED.value, view.status not in palette.PROBLEMS, view.stratum)
