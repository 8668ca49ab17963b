"""Write the files that a finished run leaves for people and programs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from bridge.storage import committed
from otel_mqtrace._errors import UsageError
from spark_jobs.report.glossary import label_finding
from spark_jobs.report.headline import describe_scope, figures, loss_sentence, meaning, parts
from spark_jobs.report.html import render_page
from spark_jobs.report.result import balance
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import ABSENT, count, duration, number, percent, value_text, visible
from spark_jobs.taxonomy import ExitCode, FieldVerdict, Outcome, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bridge.storage import AnyPath
    from spark_jobs.report.html import PageOptions
    from spark_jobs.report.result import Field, Gate, Latency, Loss, MalformedSample, Result, Sample, SideInputs

# -- summary.md --------------------------------------------------------------------------------------------------------
MOST_SUMMARY_BYTES = 60_000
"""The contract's limit; a GitHub comment takes 64 KB."""

_SIGN = {"PASS": "✅", "WARN": "⚠️", "FAIL": "❌", "INCONCLUSIVE": "❔", "pass": "✅", "warn": "⚠️", "fail": "❌"}
_MOST_ROWS = 40
_COUNTED = {
    "messages": "Messages",
    "deliveries": "Deliveries",
    "failures": "Failed",
    "redeliveries": "Redelivered",
    "unmatched": "Not on both sides",
}
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
    yield _table("Gates", ("Gate", "Outcome", "Value", "Must be", "Explanation"), map(_gate, result.gates))
    lines = [(line.label, count(line.native), count(line.otlp)) for line in balance(result.inputs)]
    losses = "".join(f"* {loss_sentence(side, loss)}\n" for side, loss in sorted(result.loss.items()))
    yield f"{_table('Balance', ('', 'Native trace', 'OTLP'), lines)}\n{losses}"
    yield _counts("Statuses", "Status", result.status)
    yield _counts("Reasons", "Reason", result.reason)
    rules = [(cell(rule), count(n)) for rule, n in result.reason_detail.items() if n]
    yield _table("Rules behind the reasons", ("Rule", "Events"), rules)
    yield _counted_losses(result)
    fields = [(cell(item.name), _field_verdicts(item)) for item in result.fields if _is_unequal(item)]
    yield _table("Fields that are not equal everywhere", ("Field", "Verdicts"), fields)
    latency = [
        (cell(name), count(row.count), *map(duration, (row.p50, row.p95, row.p99, row.max)))
        for name, row in result.latency.items()
    ]
    yield _table("Latency", ("Stage", "Events", "p50", "p95", "p99", "Maximum"), latency)
    groups = [
        (cell(group.topic), cell(group.group), *(count(getattr(group, name)) for name in _COUNTED))
        for group in result.groups
    ]
    yield _table("Who consumed what", ("Topic", "Group", *_COUNTED.values()), groups)
    places = ("Side", "Source", "Line", "Record", "Field", "Reason")
    yield _table("Malformed input", places, map(_bad, result.malformed))
    yield _table("Sample events", ("Finding", "Message id", "Kind", "Topic", "Group"), map(_sample, result.samples))


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    if not lines:
        return ""
    more = f"\n{count(len(lines) - _MOST_ROWS)} more in report.html.\n" if len(lines) > _MOST_ROWS else ""
    top = f"### {title}\n\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}\n"
    return top + "".join(lines[:_MOST_ROWS]) + more


def _gate(gate: Gate) -> Sequence[str]:
    outcome, bound = (
        f"{_SIGN.get(gate.outcome, '❔')} {cell(gate.outcome)}",
        f"{cell(gate.op)} {number(gate.threshold)}",
    )
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
            *map(cell, (line.side, line.component, line.cause, line.service)),
            *map(count, (line.counted, line.attributed, line.surplus)),
        )
        for line in result.ledger.lines
    ]
    heads = ("Lost by", "Component", "Cause", "Service", "Counted", "Attributed", "Surplus")
    table = _table("Counted losses", heads, rows) or "### Counted losses\n\nThe ledgers count none.\n"
    return table + "".join(f"\n* {cell(note, limit=300)}\n" for note in result.ledger.notes)


def _is_unequal(item: Field) -> bool:
    return sum(item.verdicts.values()) > item.verdicts.get(FieldVerdict.EQUAL.value, 0)


def _field_verdicts(item: Field) -> str:
    return ", ".join(f"{cell(label_finding(name))} {count(n)}" for name, n in item.verdicts.items() if n)


def _bad(bad: MalformedSample) -> Sequence[str]:
    places = (ABSENT if at is None else str(at) for at in (bad.line, bad.record_index))
    return cell(bad.side), cell(bad.path), *places, cell(bad.field), cell(bad.reason)


def _sample(sample: Sample) -> Sequence[str]:
    verdict = sample.verdict
    named = (cell(value_text(name, verdict.get(name))) for name in ("msg_id", "kind", "topic", "group"))
    return cell(label_finding(str(verdict.get("status")), verdict.get("reason"))), *named


PREFIX: Final = "mqtrace_reconcile_"
_Sample: TypeAlias = "tuple[Sequence[str], float | int | None]"
_COUNTS: Final = ("messages", "deliveries", "failures", "redeliveries", "unmatched")


@dataclass(frozen=True, slots=True)
class Metric:
    """One gauge, named ``PREFIX + name`` in the file; ``samples`` yields the values of its labels and its value."""

    name: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Result], Iterable[_Sample]]


def render_metrics(result: Result) -> str:
    """Return the text exposition format 0.0.4; an unknown value is left out, never 0."""
    return generate_latest(_Run(result)).decode()


@dataclass(frozen=True, slots=True)
class _Run:
    """A run as ``prometheus_client`` collects it."""

    result: Result

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for metric in METRICS:
            family = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.samples(self.result):
                if value is not None and not math.isnan(value):
                    family.add_metric([visible(label, limit=200) for label in labels], _round(value))
            if family.samples:
                yield family


def _round(value: float) -> float:
    return float(value) if float(value).is_integer() else float(f"{value:.12g}")


_Samples: TypeAlias = "Callable[[Result], Iterable[_Sample]]"


def _one(name: str, help_: str, value_of: Callable[[Result], float | None]) -> Metric:
    return Metric(name, (), help_, lambda result: [((), value_of(result))])


def _by_key(counts_of: Callable[[Result], Mapping[str, float]]) -> _Samples:
    return lambda result: [((name,), n) for name, n in counts_of(result).items()]


def _nested(counts_of: Callable[[Result], Mapping[str, Mapping[str, int]]]) -> _Samples:
    return lambda result: [
        ((outer, inner), n) for outer, counts in counts_of(result).items() for inner, n in counts.items()
    ]


def _verdicts(result: Result) -> Iterable[_Sample]:
    return [((word.value,), int(word.value == result.verdict)) for word in Verdict]


def _records(result: Result) -> Iterable[_Sample]:
    for line in balance(result.inputs):
        yield ("native", line.name), line.native
        yield ("otlp", line.name), line.otlp


def _gates(value_of: Callable[[Gate], float | None]) -> _Samples:
    return lambda result: [((gate.name, gate.op), value_of(gate)) for gate in result.gates]


def _outcomes(result: Result) -> Iterable[_Sample]:
    return [((gate.name, word.value), int(word.value == gate.outcome)) for gate in result.gates for word in Outcome]


def _loss(name: str, help_: str, value_of: Callable[[Loss], float | None]) -> Metric:
    return Metric(
        name, ("side",), help_, lambda result: [((side,), value_of(loss)) for side, loss in result.loss.items()]
    )


def _bound(loss: Loss) -> float | None:
    return None if loss.upper_bound_95_ppm is None else loss.upper_bound_95_ppm * 1e-6


def _ledger(result: Result) -> Iterable[_Sample]:
    for line in result.ledger.lines if result.ledger else ():
        labels = (line.side, line.component, line.cause, line.service or "")
        yield from (((*labels, place), getattr(line, place)) for place in ("counted", "attributed", "surplus"))


def _quantiles(rows_of: Callable[[Result], Iterable[tuple[Sequence[str], Latency]]]) -> _Samples:
    return lambda result: [
        ((*labels, quantile), _seconds(ms))
        for labels, row in rows_of(result)
        for quantile, ms in (("0.5", row.p50), ("0.95", row.p95), ("0.99", row.p99), ("1", row.max))
    ]


def _verdicts_of_fields(result: Result) -> Mapping[str, Mapping[str, int]]:
    return {item.name: item.verdicts for item in result.fields}


def _latency_counts(result: Result) -> Mapping[str, float]:
    return {stage: row.count for stage, row in result.latency.items()}


def _latencies(result: Result) -> Iterable[tuple[Sequence[str], Latency]]:
    return [((stage,), row) for stage, row in result.latency.items()]


def _processing(result: Result) -> Iterable[tuple[Sequence[str], Latency]]:
    return [((group.topic, group.group), group.process) for group in result.groups]


def _groups(result: Result) -> Iterable[_Sample]:
    for group in result.groups:
        yield from (((group.topic, group.group, name), getattr(group, name)) for name in _COUNTS)


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _of_spark(name: str) -> Callable[[Result], float | None]:
    return lambda result: getattr(result.spark, name) if result.spark else None


_GROUP_QUANTILE = ("topic", "group", "quantile")
_LEDGER_LABELS = ("side", "component", "cause", "service", "place")
_LEDGER_HELP = "Losses that ledgers counted, those attributed to missing events, and the surplus."
_BOUND_HELP = "Upper bound of the unexplained share of events, 95 % confidence."

METRICS: Final[tuple[Metric, ...]] = (
    Metric("verdict", ("verdict",), "1 for the verdict of the run, 0 for the others.", _verdicts),
    _one("exit_code", "Exit code of the run.", lambda result: int(result.exit_code)),
    Metric("records", ("side", "place"), "Lines of the balance sheet, in records.", _records),
    _one("balanced", "1 when every record is accounted for.", lambda result: int(result.conservation.holds)),
    Metric("events", ("status",), "Events by status.", _by_key(lambda result: result.status)),
    Metric("kind_events", ("kind", "status"), "Events by kind and status.", _nested(lambda it: it.status_by_kind)),
    Metric("reason_events", ("reason",), "Events by reason.", _by_key(lambda result: result.reason)),
    Metric("field_verdicts", ("field", "verdict"), "Compared fields by verdict.", _nested(_verdicts_of_fields)),
    Metric("gate_value", ("gate", "op"), "Measured value of a gate.", _gates(lambda gate: gate.value)),
    Metric("gate_threshold", ("gate", "op"), "Threshold of a gate.", _gates(lambda gate: gate.threshold)),
    Metric("gate_outcome", ("gate", "outcome"), "1 for the outcome of the gate, 0 for the others.", _outcomes),
    _loss("unexplained_events", "Events this side lacks without explanation.", lambda loss: loss.unexplained),
    _loss("attributed_events", "Events this side lacks for another named reason.", lambda loss: loss.attributed),
    _loss("checked_events", "Events this side should have.", lambda loss: loss.checked),
    _loss("unexplained_ratio_upper_bound", _BOUND_HELP, _bound),
    Metric("ledger_drops", _LEDGER_LABELS, _LEDGER_HELP, _ledger),
    Metric("latency_seconds", ("stage", "quantile"), "Latency of a stage.", _quantiles(_latencies)),
    Metric("latency_events", ("stage",), "Events behind the latency of a stage.", _by_key(_latency_counts)),
    Metric("group_events", ("topic", "group", "count"), "Consumption of a topic by a group.", _groups),
    Metric("group_process_seconds", _GROUP_QUANTILE, "Processing time of a group.", _quantiles(_processing)),
    _one("window_begin_seconds", "Begin of the window, Unix time.", lambda result: _seconds(result.window.begin_ms)),
    _one("window_end_seconds", "End of the window, Unix time.", lambda result: _seconds(result.window.end_ms)),
    _one("horizon_seconds", "Settled horizon, Unix time.", lambda result: _seconds(result.horizon_ms)),
    _one("spark_jobs", "Spark jobs of the run.", _of_spark("jobs")),
    _one("spark_stages", "Spark stages of the run.", _of_spark("stages")),
    _one("wall_seconds", "Wall time of the run.", lambda result: result.wall_seconds),
)
"""Every metric in the order of the file; ``docs/reconciliation/findings.md`` lists the same."""


_ELEMENT: Final = {Outcome.FAIL.value: "failure", Outcome.INCONCLUSIVE.value: "skipped"}


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    element: str  # failure, error, skipped, or empty for a test that passed
    message: str
    output: str


def render_junit(result: Result) -> str:
    """Return the suite: a failed gate is a failure with value and threshold, an inconclusive one is skipped.

    A run that does not balance (exit code 3) or is inconclusive (exit code 4) adds an error, so that it never looks
    green.
    """
    cases = [_case(gate) for gate in result.gates]
    if result.exit_code == ExitCode.INCONCLUSIVE:
        cases.append(_Case("conclusive", "error", "the run is inconclusive", meaning(result)))
    if not result.conservation.holds or result.exit_code == ExitCode.IDENTITY_BROKEN:
        equations = f"native: {result.conservation.native}; OTLP: {result.conservation.otlp}"
        cases.append(_Case("conservation", "error", "the books do not balance", equations))
    counts = {name: sum(case.element == name for case in cases) for name in ("failure", "error", "skipped")}
    page = environment().get_template("junit.xml.j2")
    return page.render(result=result, cases=cases, counts=counts)


def _case(gate: Gate) -> _Case:
    message = f"{gate.name} is {number(gate.value)}, must be {gate.op} {number(gate.threshold)}"
    output = f"{gate.outcome}: {message}. {gate.explanation}".strip()
    return _Case(gate.name, _ELEMENT.get(gate.outcome, ""), message, output)


REPORTS: Final[dict[str, Callable[[Result], str]]] = {
    "report.html": render_page,
    "summary.md": render_summary,
    "junit.xml": render_junit,
    "metrics.prom": render_metrics,
    "result.json": lambda result: result.dumps(),
}
"""File name → renderer; ``result.json`` comes last: when it exists, the others are complete."""

_FOR_READERS: Final = ("report.html", "summary.md", "junit.xml")


def write_reports(
    result: Result, out: AnyPath, page: PageOptions | None = None, *, sources: Iterable[str] = ()
) -> dict[str, AnyPath]:
    """Render every report, then write them into ``out``, created if absent, and return their paths by name.

    The reports for people show paths relative to ``sources``, the user's arguments.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    renderers: dict[str, Callable[[Result], str]] = {**REPORTS, "report.html": partial(render_page, options=page)}
    readable = _shorten_paths(result, sources)
    texts = {name: renderers[name](readable if name in _FOR_READERS else result) for name in REPORTS}
    return write_texts(texts, out)


# -- paths as the user gave them, without the folders of this machine --------------------------------------------------
_MAGIC: Final = frozenset("*?[")


def _shorten_paths(result: Result, sources: Iterable[str]) -> Result:
    """Return ``result`` with every path relative to ``sources``, the arguments of the user."""
    roots = _find_roots(sources)

    def shorten_side(fields: Any) -> Any:
        return {**fields, "path": shorten_path(fields["path"], roots)} if fields and fields.get("path") else fields

    def shorten_inputs(side: SideInputs) -> SideInputs:
        return replace(side, sources=tuple(shorten_path(source, roots) for source in side.sources))

    native, otlp = result.inputs.native, result.inputs.otlp
    ledger = result.ledger
    return replace(
        result,
        inputs=replace(result.inputs, native=shorten_inputs(native), otlp=shorten_inputs(otlp)),
        malformed=tuple(replace(bad, path=shorten_path(bad.path, roots)) for bad in result.malformed),
        samples=tuple(
            replace(one, native=shorten_side(one.native), otlp=shorten_side(one.otlp)) for one in result.samples
        ),
        ledger=ledger and replace(ledger, files=tuple(shorten_path(file, roots) for file in ledger.files)),
    )


def shorten_path(path: str, roots: Iterable[tuple[str, str]]) -> str:
    """Return ``path`` below the shown name of its root; a path under no root keeps its last two parts.

    ``roots`` are (absolute path, shown name). Addresses such as ``kafka://`` and ``s3a://`` are returned unchanged.
    """
    local = path.removeprefix("file://")
    if not local.startswith("/"):
        return path
    for root, shown in roots:
        if local == root or local.startswith(f"{root.rstrip('/')}/"):
            return str(Path(shown, local[len(root) :].lstrip("/")))
    return str(Path("…", *Path(local).parts[1:][-2:]))


def _find_roots(sources: Iterable[str]) -> list[tuple[str, str]]:
    """Return each local argument resolved, with its shown name, the longest first.

    A relative argument is shown as the user wrote it, of an absolute one its last part.
    """
    roots = {}
    for source in sources:
        path = Path(source.removeprefix("file://"))
        if "://" in str(source) and not source.startswith("file://"):
            continue
        fixed = next((at for at, part in enumerate(path.parts) if _MAGIC & set(part)), None)
        if fixed is not None and not path.exists():
            path = Path(*path.parts[:fixed])
        roots[str(path.resolve())] = path.name if path.is_absolute() else str(path)
    return sorted(roots.items(), key=lambda root: -len(root[0]))


# -- writing -----------------------------------------------------------------------------------------------------------
def write_texts(texts: Mapping[str, str], out: AnyPath) -> dict[str, AnyPath]:
    """Write ``{file name: text}`` into ``out``, created if absent, in this order, and return their paths by name.

    Each file is written beside its place and renamed, so that no reader sees half of it. Lone surrogates are escaped.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        return {name: _replace(out / name, text.encode("utf-8", "backslashreplace")) for name, text in texts.items()}
    except OSError as refused:
        raise UsageError(f"cannot write the report into {out}: {refused.strerror}; choose another --out") from refused


def _replace(path: AnyPath, content: bytes) -> AnyPath:
    with committed(path) as unready:
        Path(unready).write_bytes(content)
    return path
