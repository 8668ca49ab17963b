"""The faults of the demo: which are seeded, how each is applied, and what the reconciliation must and did report."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from rich.box import SIMPLE_HEAD
from rich.table import Table

from bridge.demo.shop import CONSUME, PUBLISH, TRANSACTION_END, Event, OrderKind, draw, event_of, events_of
from bridge.page.wording import plural
from otel_mqtrace import semconv
from otel_mqtrace._errors import UsageError, describe_write_fix
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.spans.mapping import copy_span, trace_context_of
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, FIELDS, FieldKind, form_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from bridge.demo.shop import Order
    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.wire.native import EncodedContext


class _Effect(NamedTuple):
    """How the demo's table names a fault, the status and reason that its event must get, and what is written of it.

    ``records`` and ``spans`` are how often each is written; records of the type ``lost`` are not. Nothing is written
    down in a ledger: what is missing on one side is an unexplained loss.
    """

    words: str
    verdict: tuple[str, str | None]
    records: int = 1
    spans: int = 1
    lost: TraceType | None = None


class FaultKind(Enum):
    """What is done to one event. A fault that loses one type of record is for consumes, which have two."""

    DROPPED_NATIVE = _Effect("native record dropped", ("OTLP_ONLY", "UNEXPLAINED"), records=0)
    DROPPED_OTLP = _Effect("span dropped", ("NATIVE_ONLY", "UNEXPLAINED"), spans=0)
    DUPLICATED_NATIVE = _Effect("native record doubled", ("DUPLICATED_NATIVE", None), records=2)
    DUPLICATED_OTLP = _Effect("span doubled", ("DUPLICATED_OTLP", None), spans=2)
    ALTERED_NATIVE = _Effect("native field altered", ("MISMATCHED", None))
    ALTERED_OTLP = _Effect("span attribute altered", ("MISMATCHED", None))
    MALFORMED_NATIVE = _Effect("native bytes damaged", ("OTLP_ONLY", "COUNTERPART_MALFORMED"))
    MALFORMED_OTLP = _Effect("OTLP line damaged", ("NATIVE_ONLY", "COUNTERPART_MALFORMED"))
    AFTER_LOST = _Effect("SubAfter lost", ("MISMATCHED", "HALF_RECORD"), lost=TraceType.SUB_AFTER)
    BEFORE_LOST = _Effect("SubBefore lost", ("MISMATCHED", "HALF_RECORD"), lost=TraceType.SUB_BEFORE)
    # The process took the end of the call along, and its span.
    CRASHED = _Effect("handler crashed", ("NATIVE_ONLY", "IN_FLIGHT"), spans=0, lost=TraceType.SUB_AFTER)


MATCHED: Final = ("MATCHED_EXACT", "MATCHED_NORMALISED")
"""The statuses that an event without a fault may have; it has no reason."""

_ALTERABLE: Final = {
    TRANSACTION_END: ("tags", "keys"),
    PUBLISH: ("body_length", "store_host", "tags", "keys"),
    CONSUME: ("context_code", "keys"),
}
_MESSAGES_PER_FAULT: Final = 500
_MOST_PER_ROW: Final = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at one event; ``field`` is the altered field under its name in a verdict, ``None`` for other faults."""

    kind: FaultKind
    field: str | None = None


FaultPlan = dict[Event, Fault]


def plan_faults(book: Sequence[Order], *, seed: int) -> FaultPlan:
    """Return what will be broken: the same number of faults for every kind of fault and every kind of event it fits.

    Oversize orders (they fail by themselves) and the last order (it must be clean) are left alone. The book has at
    least ``command.MIN_MESSAGES`` orders.
    """
    quota = min(_MOST_PER_ROW, max(1, len(book) // _MESSAGES_PER_FAULT))
    eligible = [order for order in book[:-1] if order.kind is not OrderKind.OVERSIZE]
    ranked = sorted(
        (event for order in eligible for event in events_of(order)),
        key=lambda event: draw(seed, "fault", event.kind, event.msg_id, event.where, event.attempt),
    )
    plan: FaultPlan = {}
    taken: set[str] = set()
    # Ends of transactions first: they are the scarcest, and a message takes one fault only.
    for event_kind, kind in product(_ALTERABLE, FaultKind):
        fits = event_kind == CONSUME or kind.value.lost is None
        free = (event for event in ranked if fits and event.kind == event_kind and event.msg_id not in taken)
        fields = _ALTERABLE[event_kind] if kind in {FaultKind.ALTERED_NATIVE, FaultKind.ALTERED_OTLP} else ()
        for event in islice(free, quota):
            taken.add(event.msg_id)
            field = fields[draw(seed, "field", event.msg_id) % len(fields)] if fields else None
            plan[event] = Fault(kind, field)
    return plan


_WORD: Final = "被改"
_ALTERATIONS: Final[dict[str | None, tuple[str, Any, Any]]] = {
    "body_length": (semconv.MESSAGING_MESSAGE_BODY_SIZE, 424242, 424242),
    "store_host": (semconv.MQTRACE_STORE_HOST, "203.0.113.7:9092", "203.0.113.7:9092"),  # TEST-NET-3, for documentation
    "tags": (semconv.MQTRACE_TAGS, _WORD, _WORD),
    "keys": (semconv.MQTRACE_KEYS, (_WORD,), _WORD),
    "context_code": (semconv.MQTRACE_CONTEXT_CODE, ContextCode.TIME_OUT.name, ContextCode.TIME_OUT),
}
"""Field of a verdict → its attribute, the altered attribute, the altered field of the model."""
_CUT_CHARACTERS: Final = 4  # closing brackets: no JSON any more, every id still legible


def encode_with_faults(plan: FaultPlan, trace_ctx: TraceContext, dialect: str) -> EncodedContext:
    """Encode as ``encode_context`` does; the body is empty, doubled, damaged or altered as planned."""
    fault = _find_fault(plan, trace_ctx)
    if fault is None:
        return encode_context(trace_ctx, dialect)
    if fault.kind is FaultKind.ALTERED_NATIVE:
        change: Any = {fault.field: _ALTERATIONS[fault.field][2]}
        if fault.field != "context_code":
            trace_ctx = trace_ctx._replace(beans=tuple(bean._replace(**change) for bean in trace_ctx.beans))
        elif trace_ctx.trace_type is TraceType.SUB_AFTER:  # the half that starts carries no outcome
            trace_ctx = trace_ctx._replace(**change)
    encoded, effect = encode_context(trace_ctx, dialect), fault.kind.value
    body = b"" if trace_ctx.trace_type is effect.lost else encoded.body * effect.records
    if fault.kind is FaultKind.MALFORMED_NATIVE:
        body = _damage(body, trace_ctx.trace_type)
    return replace(encoded, body=body)


def _find_fault(plan: FaultPlan, trace_ctx: TraceContext | None) -> Fault | None:
    event = None if trace_ctx is None else event_of(trace_ctx)
    return None if event is None else plan.get(event)


def _damage(body: bytes, trace_type: TraceType) -> bytes:
    """Write a word where the record's first number stands; the message id stays legible."""
    separator = FIELD_SEPARATOR.encode()
    parts = body.split(separator)
    form = form_for(trace_type, len(parts))
    names = form.fields if form is not None else ()
    numbers = {FieldKind.LONG, FieldKind.INT}
    parts[next(place for place, name in enumerate(names, start=1) if FIELDS[name] in numbers)] = b"damaged"
    return separator.join(parts)


class FaultySpanExporter(SpanExporter):
    """OpenTelemetry's own JSON lines, with the plan's faults, in the file ``path``.

    It writes the file itself: OpenTelemetry's exporter logs a traceback for every batch that a full disk refuses.
    """

    def __init__(self, path: Path, plan: FaultPlan) -> None:
        path.touch()
        self._path = path
        self._plan = plan
        self._error: OSError | None = None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans as one line; a span whose line is to be damaged gets a separate line."""
        kept: list[ReadableSpan] = []
        damaged: list[str] = []
        for span in spans:
            fault = _find_fault(self._plan, trace_context_of(span))
            if fault is None:
                kept.append(span)
            elif fault.kind is FaultKind.ALTERED_OTLP:
                attribute, value, _ = _ALTERATIONS[fault.field]
                kept.append(copy_span(span, {**(span.attributes or {}), attribute: value}))
            elif fault.kind is FaultKind.MALFORMED_OTLP:
                damaged.append(_line_of([span]).rstrip("\n")[:-_CUT_CHARACTERS] + "\n")
            else:
                kept += [span] * fault.kind.value.spans
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines([_line_of(kept), *damaged] if kept else damaged)
        except OSError as error:
            self._error = self._error or error
        return SpanExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Return true: each export has written its spans."""
        del timeout_millis
        return True

    def check(self) -> None:
        """Raise ``UsageError`` if the file could not be written."""
        error = self._error
        if error is not None:
            reason = (error.strerror or str(error)).lower()
            fix = describe_write_fix(error, "give another --out")
            raise UsageError(f"cannot write {self._path}: {reason}; {fix}")


def _line_of(spans: Sequence[ReadableSpan]) -> str:
    line = io.StringIO()
    FileSpanExporter(stream=line).export(spans)
    return line.getvalue()


COLUMNS: Final = ("kind", "msg_id", "topic", "group", "retry_times", "status", "reason", "field_verdicts")
"""The columns of ``verdicts/`` that are needed."""
Row = dict[str, Any]
_GATE_FAILED: Final = 1
_MOST_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One event, its seeded fault (``None`` if clean) and its verdict (``None`` if missing)."""

    event: Event
    fault: Fault | None
    found: str | None
    as_expected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Every event of the run, and the verdicts without an event."""

    findings: tuple[Finding, ...]
    surprises: tuple[str, ...]

    @property
    def agree(self) -> bool:
        """Return whether all seeded faults were found, every clean event was matched, and there is nothing else."""
        return not self.surprises and all(finding.as_expected for finding in self.findings)

    def seeded(self, kind: FaultKind | None) -> tuple[Finding, ...]:
        """Return the findings of one kind of fault, of the clean events for ``None``."""
        return tuple(one for one in self.findings if (None if one.fault is None else one.fault.kind) is kind)


def compare(book: Sequence[Order], plan: FaultPlan, rows: Iterable[Row], result: Mapping[str, Any]) -> Findings:
    """Join every event of ``book`` with the verdict rows, and compare ``result.json`` with the plan as a whole."""
    rows_of: dict[Event, list[Row]] = {}
    for row in rows:
        where = {PUBLISH: row["topic"], CONSUME: row["group"]}.get(row["kind"])
        attempt = (row["retry_times"] or 0) if row["kind"] == CONSUME else 0
        rows_of.setdefault(Event(row["kind"], row["msg_id"] or "", where or "", attempt), []).append(row)
    findings = []
    for event in (event for order in book for event in events_of(order)):
        fault, found = plan.get(event), rows_of.pop(event, [])
        as_expected = len(found) == 1 and _is_expected(found[0], fault)
        findings.append(Finding(event, fault, " + ".join(map(_describe_verdict, found)) or None, as_expected))
    unexpected = [f"{event}: {_describe_verdict(row)}" for event, group in rows_of.items() for row in group]
    return Findings(findings=tuple(findings), surprises=(*unexpected, *_check_result(plan, result)))


def _is_expected(row: Row, fault: Fault | None) -> bool:
    if fault is None:
        return row["status"] in MATCHED and row["reason"] is None
    # Exactly the altered field differs: an altered value must not drag others along.
    is_alone = fault.field is None or _list_differing(row) == [fault.field]
    return is_alone and (row["status"], row["reason"]) == fault.kind.value.verdict


def _describe_verdict(row: Row) -> str:
    return " ".join(filter(None, (row["status"], row["reason"], *_list_differing(row))))


def _list_differing(row: Row) -> list[str]:
    return sorted(name for name, verdict in (row["field_verdicts"] or ()) if verdict == "DIFFERENT")


def _check_result(plan: FaultPlan, result: Mapping[str, Any]) -> Iterator[str]:
    seeded = Counter[str]()
    for event, fault in plan.items():
        if fault.kind is FaultKind.MALFORMED_NATIVE:
            seeded["native"] += 2 if event.kind == CONSUME else 1  # both halves of a consume are damaged
        elif fault.kind is FaultKind.MALFORMED_OTLP:
            seeded["otlp"] += 1
    for side in ("native", "otlp"):
        counted = result["inputs"][side]["malformed"]
        if counted != seeded[side]:
            yield f"{side}: {plural(counted, 'malformed record')} counted, {seeded[side]} seeded"
    if not result["conservation"]["holds"]:
        yield f"the balance does not hold: {result['conservation']}"
    if result["exit_code"] != _GATE_FAILED:
        yield f"exit code {result['exit_code']} ({result['verdict']}): seeded losses must fail a gate, no more"


def tabulate_findings(findings: Findings) -> Table:
    """Return the table: fault, the verdict it must get, how many were seeded, how many were found as such."""
    table = Table(title="Seeded against found", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("expected verdict")
    table.add_column("seeded", justify="right")
    table.add_column("found", justify="right")
    clean = _Effect("none: clean events", ("MATCHED", None))
    for kind in (*FaultKind, None):
        effect, seeded = clean if kind is None else kind.value, findings.seeded(kind)
        found = sum(one.as_expected for one in seeded)
        table.add_row(effect.words, " ".join(filter(None, effect.verdict)), str(len(seeded)), _mark(found, len(seeded)))
    table.add_row("anything else", "", "0", _mark(len(findings.surprises), 0))
    return table


def _mark(count: int, wanted: int) -> str:
    return f"{count} {'✓' if count == wanted else '✗'}"


def describe_discrepancies(findings: Findings) -> Iterator[str]:
    """Yield a line for each event that was not found as expected and for each surprise, the first few of them."""
    lines = [*map(_line, (one for one in findings.findings if not one.as_expected)), *findings.surprises]
    yield from lines[:_MOST_SHOWN]
    if len(lines) > _MOST_SHOWN:
        yield f"and {len(lines) - _MOST_SHOWN} more"


def _line(finding: Finding) -> str:
    event, fault = finding.event, finding.fault
    seeded = "clean" if fault is None else fault.kind.value.words
    field = f" ({fault.field})" if fault is not None and fault.field else ""
    where = " ".join(filter(None, (event.kind, event.where, f"attempt {event.attempt}" if event.attempt else "")))
    return f"{event.msg_id} {where}: {seeded}{field}, found {finding.found or 'nothing'}"
