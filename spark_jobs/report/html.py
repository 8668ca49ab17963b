"""``report.html``: one file without network requests, readable without script and style."""

from __future__ import annotations

from collections import Counter
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup

from bridge.page.markup import SIDE_COLOUR, content_policy, style_sheet
from spark_jobs.report.charts import (
    CURVE_STYLES,
    assign_losses,
    curves,
    dash,
    merge_buckets,
    sign,
    stacked,
    swatch,
    timeline,
    trend,
)
from spark_jobs.report.glossary import (
    FIELD_VERDICTS,
    FINE,
    GROUP_COLOUR,
    GROUPS,
    REASONS,
    SIDE_NAME,
    STATUSES,
    group_field_verdict,
    group_finding,
)
from spark_jobs.report.graph_files import graph_svg
from spark_jobs.report.headline import describe_loss, describe_scope, describe_verdict, list_figures, list_problems
from spark_jobs.report.result import AGES, GROUP_COUNTS, MOST_SAMPLES, balance, split_heaviest
from spark_jobs.report.samples import NONE_SHOWN, choose_in_turns, drop_repeated, render_samples
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import count, duration, utc
from spark_jobs.taxonomy import FieldVerdict, Kind, Outcome, Reason, Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from spark_jobs.report.result import Finding, Group, Result, Topic
    from spark_jobs.report.samples import ShownSamples

_MOST_BYTES: Final = 1_500_000  # fit for a mail
_PER_STRATUM: Final = MOST_SAMPLES // 8
_MOST_ROWS: Final = 50  # of one table: ten screens of a phone
_UNFOLDED: Final = dict(zip(GROUPS, (0, 1, 0, 4), strict=True))
"""Samples of a finding that the page shows unfolded, by group."""

_OUTCOME_LABEL: Final = {
    Outcome.PASS.value: "holds",
    Outcome.WARN.value: "warns",
    Outcome.FAIL.value: "does not hold",
    Outcome.INCONCLUSIVE.value: "cannot be judged",
}


def render_page(result: Result, link_template: str | None = None) -> str:
    """Return the page; it drops samples, never numbers, to stay within 1.5 MB of UTF-8, and counts them.

    ``link_template`` is the address behind a sample, with ``samples.LINK_FIELDS`` in braces.
    """
    bare = _page(result, NONE_SHOWN)
    chosen = choose_in_turns(drop_repeated(result.samples), at_most=MOST_SAMPLES, per_stratum=_PER_STRATUM)
    room = _MOST_BYTES - len(bare.encode("utf-8", "backslashreplace")) - 10_000
    shown = render_samples(chosen, result.timelines, room_bytes=room, link_template=link_template)
    return _page(result, shown) if shown.count else bare


def _page(result: Result, shown: ShownSamples) -> str:
    style = style_sheet("spark_jobs.report")
    script = (files("spark_jobs.report") / "templates" / "page.js").read_text(encoding="utf-8")
    sections, problems = _sections(result, shown), list_problems(result)
    ids = {name for name, _, _ in sections}
    hrefs = [_href(part.target, shown, ids) for part in problems]
    steps = {part.label: (href, part.step) for part, href in zip(problems, hrefs, strict=True) if part.step}
    page = environment().get_template("page.html.j2")
    return page.render(
        result=result,
        lead="" if problems and result.verdict == Verdict.FAIL.value else describe_verdict(result),
        parts=problems,
        hrefs=hrefs,
        steps=steps,
        figures=list_figures(result),
        scope=describe_scope(result),
        sign=sign(result.verdict),
        style=style,
        script=Markup(script),  # noqa: S704 - our own file
        policy=content_policy(style, script),
        sections=sections,
    )


def _href(target: str | Finding, shown: ShownSamples, ids: Container[str]) -> str:
    """Return the id of a section, or of the samples of a finding; without samples, of the table of findings."""
    if isinstance(target, str):
        return target
    if target[0] == Status.MALFORMED.value and "malformed" in ids:
        return "malformed"
    matches = [finding for finding in shown.findings if finding[0] == target[0] and target[1] in {None, finding[1]}]
    return _anchor_of(*matches[0]) if matches else "statuses"


def _anchor_of(status: str, reason: str | None = None) -> str:
    return "found-" + "".join(letter if letter.isalnum() else "-" for letter in f"{status} {reason or ''}".strip())


# -- the sections: what each template needs beside the result ----------------------------------------------------------
def _sections(result: Result, shown: ShownSamples) -> list[tuple[str, str, Markup]]:
    shared = {"result": result, "side_name": SIDE_NAME, "most_rows": _MOST_ROWS}
    rendered = []
    for name, title, values_of in _SECTIONS:
        values = values_of(result, shown)
        if values is not None:
            template = environment().get_template(f"sections/{name}.html.j2")
            rendered.append((name, title, Markup(template.render(**shared, **values))))  # noqa: S704 - autoescaped
    return rendered


def _timeline(result: Result, _shown: ShownSamples) -> dict[str, Any]:
    bars = merge_buckets(result.timeline)
    losses = assign_losses(bars, result.ledger.over_time if result.ledger else ())
    return {
        "timeline": timeline(bars, losses),
        "bars": bars,
        "counted": losses,
        "groups_seen": [group for group in GROUP_COLOUR if any(bar.groups.get(group) for bar in bars)],
    }


def _gates(result: Result, _shown: ShownSamples) -> dict[str, Any]:
    holding = [gate for gate in result.gates if gate.outcome == Outcome.PASS.value]
    broken = [gate for gate in result.gates if gate.outcome != Outcome.PASS.value]
    return {"holding": holding, "broken": broken, "outcomes": _OUTCOME_LABEL}


def _samples(result: Result, shown: ShownSamples) -> dict[str, Any]:
    left_out = len(drop_repeated(result.samples)) - shown.count
    return {"findings": shown.findings, "left_out": left_out, "most_open": _UNFOLDED, "anchor_of": _anchor_of}


def _malformed(result: Result, _shown: ShownSamples) -> dict[str, Any] | None:
    native, otlp = result.inputs.native, result.inputs.otlp
    total, tails = native.malformed + otlp.malformed, native.truncated_tails + otlp.truncated_tails
    return {"total": total, "tails": tails} if total or tails else None


def _statuses(result: Result, _shown: ShownSamples) -> dict[str, Any]:
    rows = _list_findings(result)
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


def _list_findings(result: Result) -> list[dict[str, Any]]:
    """Return a row for every finding, and for every status without one."""
    rows = [
        {"status": status, "reason": reason, "kinds": kinds, "total": sum(kinds.values())}
        for (status, reason), kinds in result.findings.items()
    ]
    found = {status for status, _ in result.findings}
    for status in (name for name in result.status if name not in found):
        kinds = {kind: counts.get(status, 0) for kind, counts in result.status_by_kind.items()}
        rows.append({"status": status, "reason": None, "kinds": kinds, "total": result.status[status]})
    order = {None: -1} | {word.value: at for at, word in enumerate((*Status, *Reason))}
    return sorted(rows, key=lambda row: [order.get(row[word], 99) for word in ("status", "reason")])


def _fields(result: Result, _shown: ShownSamples) -> dict[str, Any]:
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


def _losses(result: Result, _shown: ShownSamples) -> dict[str, Any] | None:
    """Return the hosts; a share of events without host and service would mean nothing."""
    hosts = [one for one in result.instances if one.host or one.service]
    nowhere = sum(one.lost for one in result.instances if not (one.host or one.service))
    return {"hosts": hosts, "nowhere": nowhere} if result.instances else None


def _trend(result: Result, _shown: ShownSamples) -> dict[str, Any] | None:
    legend = [(swatch(SIDE_COLOUR[side]), name) for side, name in SIDE_NAME.items()]
    points = [{"unexplained": {}, "pending": 0, "match_rate": None, **point} for point in result.trend]
    return {"points": points, "drawing": trend(points), "legend": legend} if len(points) > 1 else None


def _traffic(result: Result, _shown: ShownSamples) -> dict[str, Any]:
    return {
        "drawing": graph_svg(result.graph) if result.graph and result.graph.nodes else None,
        "topics": _heaviest(result.topics, "sends", ("sends", "failures", "unmatched")),
        "groups": _heaviest(result.groups, "deliveries", GROUP_COUNTS),
    }


def _heaviest(rows: Sequence[Topic | Group], size: str, summed: Sequence[str]) -> dict[str, Any]:
    shown, others = split_heaviest(rows, size, _MOST_ROWS)
    sums = {name: sum(getattr(row, name) for row in others) for name in summed}
    return {"shown": shown, "others": len(others), "sums": sums}


def _latency(result: Result, shown: ShownSamples) -> dict[str, Any]:
    drawable = [name for name, row in result.latency.items() if row.curve]
    legend = [(dash(*look), name) for look, name in zip(CURVE_STYLES, drawable, strict=False)]
    return {"curves": curves(result.latency), "legend": legend, "anchors": shown.anchors}


def _inputs(result: Result, _shown: ShownSamples) -> dict[str, Any]:
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
    return {"balance": balance(result.inputs), "describe_loss": describe_loss, "facts": facts}


_WORDS: Final = (("Statuses", STATUSES), ("Reasons", REASONS), ("Field verdicts", FIELD_VERDICTS))
_SECTIONS: Final[Iterable[tuple[str, str, Callable[[Result, ShownSamples], dict[str, Any] | None]]]] = (
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
    (
        "timing",
        "Open, late, duplicated",
        lambda result, _: {"open": any(result.ageing.values()), "ages": list(dict(AGES))},
    ),
    ("ledger", "Counted losses", lambda result, _: {"ledger": result.ledger} if result.ledger else None),
    ("inputs", "Inputs and balance", _inputs),
    ("glossary", "Glossary", lambda _result, _shown: {"glossary": _WORDS}),
)
