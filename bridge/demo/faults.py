"""The faults of the demo: the seeded ones, how each is applied, what the reconciliation must report, and did report."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from bridge.demo.shop import Order
    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.wire.native import EncodedContext


class FaultKind(Enum):
    """What is done to one event; the value is how the demo's table names it."""

    DROPPED_NATIVE = "native record dropped"
    DROPPED_OTLP = "span dropped"
    DUPLICATED_NATIVE = "native record doubled"
    DUPLICATED_OTLP = "span doubled"
    ALTERED_NATIVE = "native field altered"
    ALTERED_OTLP = "span attribute altered"
    MALFORMED_NATIVE = "native bytes damaged"
    MALFORMED_OTLP = "OTLP line damaged"
    AFTER_LOST = "SubAfter lost"
    BEFORE_LOST = "SubBefore lost"
    CRASHED = "handler crashed"


MATCHED: Final = ("MATCHED_EXACT", "MATCHED_NORMALISED")
"""The statuses that an event without a fault may have; it has no reason."""

# Nothing here is written down in a ledger: a record that is missing on one side is an unexplained loss.
EXPECTED: Final[dict[FaultKind, tuple[str, str | None]]] = {
    FaultKind.DROPPED_NATIVE: ("OTLP_ONLY", "UNEXPLAINED"),
    FaultKind.DROPPED_OTLP: ("NATIVE_ONLY", "UNEXPLAINED"),
    FaultKind.DUPLICATED_NATIVE: ("DUPLICATED_NATIVE", None),
    FaultKind.DUPLICATED_OTLP: ("DUPLICATED_OTLP", None),
    FaultKind.ALTERED_NATIVE: ("MISMATCHED", None),
    FaultKind.ALTERED_OTLP: ("MISMATCHED", None),
    FaultKind.MALFORMED_NATIVE: ("OTLP_ONLY", "COUNTERPART_MALFORMED"),
    FaultKind.MALFORMED_OTLP: ("NATIVE_ONLY", "COUNTERPART_MALFORMED"),
    FaultKind.AFTER_LOST: ("MISMATCHED", "HALF_RECORD"),
    FaultKind.BEFORE_LOST: ("MISMATCHED", "HALF_RECORD"),
    FaultKind.CRASHED: ("NATIVE_ONLY", "IN_FLIGHT"),
}
"""Kind of fault → status and reason of its event."""

_ANY_EVENT: Final = (TRANSACTION_END, PUBLISH, CONSUME)
_CONSUME_ONLY: Final = frozenset({FaultKind.AFTER_LOST, FaultKind.BEFORE_LOST, FaultKind.CRASHED})
_ALTERABLE: Final = {
    PUBLISH: ("body_length", "store_host", "tags", "keys"),
    CONSUME: ("context_code", "keys"),
    TRANSACTION_END: ("tags", "keys"),
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
    rows = [
        (kind, fault) for kind in _ANY_EVENT for fault in FaultKind if kind == CONSUME or fault not in _CONSUME_ONLY
    ]
    for event_kind, fault_kind in rows:
        free = (event for event in ranked if event.kind == event_kind and event.msg_id not in taken)
        for _ in range(quota):
            event = next(free)
            taken.add(event.msg_id)
            plan[event] = Fault(fault_kind, _choose_field(fault_kind, event, seed))
    return plan


def _choose_field(fault_kind: FaultKind, event: Event, seed: int) -> str | None:
    if fault_kind not in (FaultKind.ALTERED_NATIVE, FaultKind.ALTERED_OTLP):
        return None
    fields = _ALTERABLE[event.kind]
    return fields[draw(seed, "field", event.msg_id) % len(fields)]


_ALTERED_LENGTH: Final = 424242
_ALTERED_HOST: Final = "203.0.113.7:9092"  # TEST-NET-3: an address for documentation
_ALTERED_WORD: Final = "被改"

# field of a verdict → (its attribute, the altered attribute, the altered field of the model)
_ALTERATIONS: Final[dict[str, tuple[str, Any, Any]]] = {
    "body_length": (semconv.MESSAGING_MESSAGE_BODY_SIZE, _ALTERED_LENGTH, _ALTERED_LENGTH),
    "store_host": (semconv.MQTRACE_STORE_HOST, _ALTERED_HOST, _ALTERED_HOST),
    "tags": (semconv.MQTRACE_TAGS, _ALTERED_WORD, _ALTERED_WORD),
    "keys": (semconv.MQTRACE_KEYS, (_ALTERED_WORD,), _ALTERED_WORD),
    "context_code": (semconv.MQTRACE_CONTEXT_CODE, ContextCode.TIME_OUT.name, ContextCode.TIME_OUT),
}

_NUMBERS: Final = (FieldKind.LONG, FieldKind.INT)
_NO_NUMBER: Final = b"damaged"
_CUT_CHARACTERS: Final = 4  # closing brackets: no JSON any more, every id still legible


def encode_with_faults(plan: FaultPlan, trace_ctx: TraceContext, dialect: str) -> EncodedContext:
    """Encode as ``encode_context`` does; the body is empty, doubled, damaged or altered as planned."""
    fault = _find_fault(plan, trace_ctx)
    if fault is not None and fault.kind is FaultKind.ALTERED_NATIVE:
        trace_ctx = _alter_context(trace_ctx, fault)
    encoded = encode_context(trace_ctx, dialect)
    if fault is None or fault.kind not in _BODIES:
        return encoded
    return replace(encoded, body=_BODIES[fault.kind](encoded.body, trace_ctx.trace_type))


def _find_fault(plan: FaultPlan, trace_ctx: TraceContext | None) -> Fault | None:
    event = None if trace_ctx is None else event_of(trace_ctx)
    return None if event is None else plan.get(event)


def _alter_context(trace_ctx: TraceContext, fault: Fault) -> TraceContext:
    field = fault.field or ""
    change = {field: _ALTERATIONS[field][2]}
    if field == "context_code":  # the others are fields of a bean
        # The half that starts carries no outcome: altering it there would be no fault at all.
        return replace(trace_ctx, **change) if trace_ctx.trace_type is TraceType.SUB_AFTER else trace_ctx
    return replace(trace_ctx, beans=tuple(replace(bean, **change) for bean in trace_ctx.beans))


def _damage(body: bytes, trace_type: TraceType) -> bytes:
    """Write a word where the record's first number stands; the message id stays legible."""
    separator = FIELD_SEPARATOR.encode()
    parts = body.split(separator)
    form = form_for(trace_type, len(parts))
    names = form.fields if form is not None else ()
    parts[next(place for place, name in enumerate(names, start=1) if FIELDS[name] in _NUMBERS)] = _NO_NUMBER
    return separator.join(parts)


def _only(lost: TraceType) -> Callable[[bytes, TraceType], bytes]:
    return lambda body, trace_type: b"" if trace_type is lost else body


_BODIES: Final[dict[FaultKind, Callable[[bytes, TraceType], bytes]]] = {
    FaultKind.DROPPED_NATIVE: lambda _body, _trace_type: b"",
    FaultKind.DUPLICATED_NATIVE: lambda body, _trace_type: body * 2,
    FaultKind.MALFORMED_NATIVE: _damage,
    FaultKind.AFTER_LOST: _only(TraceType.SUB_AFTER),
    FaultKind.BEFORE_LOST: _only(TraceType.SUB_BEFORE),
    FaultKind.CRASHED: _only(TraceType.SUB_AFTER),  # the process took its end along, and its span
}


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
        damaged: list[ReadableSpan] = []
        for span in spans:
            fault = _find_fault(self._plan, trace_context_of(span))
            kind = None if fault is None else fault.kind
            if fault is not None and kind is FaultKind.ALTERED_OTLP:
                kept.append(_alter_span(span, fault))
            elif kind is FaultKind.MALFORMED_OTLP:
                damaged.append(span)
            else:
                kept.extend([span] * _COPIES.get(kind, 1))
        lines = [_line_of(kept)] if kept else []
        lines += map(_damage_line, damaged)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
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


_COPIES: Final[dict[FaultKind | None, int]] = {
    FaultKind.DROPPED_OTLP: 0,
    FaultKind.CRASHED: 0,
    FaultKind.DUPLICATED_OTLP: 2,
}


def _alter_span(span: ReadableSpan, fault: Fault) -> ReadableSpan:
    attribute, value, _ = _ALTERATIONS[fault.field or ""]
    return copy_span(span, {**(span.attributes or {}), attribute: value})


def _line_of(spans: Sequence[ReadableSpan]) -> str:
    line = io.StringIO()
    FileSpanExporter(stream=line).export(spans)
    return line.getvalue()


def _damage_line(span: ReadableSpan) -> str:
    return _line_of([span]).rstrip("\n")[:-_CUT_CHARACTERS] + "\n"


COLUMNS: Final = ("kind", "msg_id", "topic", "group", "retry_times", "status", "reason", "field_verdicts")
"""The columns of ``verdicts/`` that are needed."""

Row = dict[str, Any]
_DIFFERENT: Final = "DIFFERENT"
_GATE_FAILED: Final = 1


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
        rows_of.setdefault(_event_of(row), []).append(row)
    findings = tuple(
        _finding(event, plan.get(event), rows_of.pop(event, [])) for order in book for event in events_of(order)
    )
    unexpected = [f"{event}: {_describe_verdict(row)}" for event, group in rows_of.items() for row in group]
    return Findings(findings=findings, surprises=(*unexpected, *_check_counts(plan, result), *_check_run(result)))


def _event_of(row: Row) -> Event:
    kind = str(row["kind"])
    where = {PUBLISH: row["topic"], CONSUME: row["group"]}.get(kind)
    return Event(kind, row["msg_id"] or "", where or "", (row["retry_times"] or 0) if kind == CONSUME else 0)


def _finding(event: Event, fault: Fault | None, rows: list[Row]) -> Finding:
    as_expected = len(rows) == 1 and _is_expected(rows[0], fault)
    return Finding(event, fault, " + ".join(map(_describe_verdict, rows)) or None, as_expected)


def _is_expected(row: Row, fault: Fault | None) -> bool:
    if fault is None:
        return row["status"] in MATCHED and row["reason"] is None
    # Exactly the altered field differs: an altered value must not drag others along.
    different = [name for name, verdict in (row["field_verdicts"] or ()) if verdict == _DIFFERENT]
    return (row["status"], row["reason"]) == EXPECTED[fault.kind] and (
        fault.field is None or different == [fault.field]
    )


def _describe_verdict(row: Row) -> str:
    different = sorted(name for name, verdict in (row["field_verdicts"] or ()) if verdict == _DIFFERENT)
    return " ".join(str(word) for word in (row["status"], row["reason"], *different) if word)


def _check_counts(plan: FaultPlan, result: Mapping[str, Any]) -> Iterator[str]:
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


def _check_run(result: Mapping[str, Any]) -> Iterator[str]:
    if not result["conservation"]["holds"]:
        yield f"the balance does not hold: {result['conservation']}"
    if result["exit_code"] != _GATE_FAILED:
        yield f"exit code {result['exit_code']} ({result['verdict']}): seeded losses must fail a gate, no more"


_MOST_SHOWN: Final = 20


def tabulate_findings(findings: Findings) -> Table:
    """Return the table: fault, the verdict it must get, how many were seeded, how many were found as such."""
    table = Table(title="Seeded against found", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("expected verdict")
    table.add_column("seeded", justify="right")
    table.add_column("found", justify="right")
    for kind in (*FaultKind, None):
        verdict = "MATCHED" if kind is None else " ".join(filter(None, EXPECTED[kind]))
        seeded = findings.seeded(kind)
        found = sum(one.as_expected for one in seeded)
        name = "none: clean events" if kind is None else kind.value
        table.add_row(name, verdict, str(len(seeded)), _mark(found, wanted=len(seeded)))
    table.add_row("anything else", "", "0", _mark(len(findings.surprises), wanted=0))
    return table


def describe_discrepancies(findings: Findings) -> Iterator[str]:
    """Yield a line for each event that was not found as expected and for each surprise, the first few of them."""
    lines = [*map(_line, (one for one in findings.findings if not one.as_expected)), *findings.surprises]
    yield from lines[:_MOST_SHOWN]
    if len(lines) > _MOST_SHOWN:
        yield f"and {len(lines) - _MOST_SHOWN} more"


def _mark(count: int, *, wanted: int) -> str:
    return f"{count} {'✓' if count == wanted else '✗'}"


def _line(finding: Finding) -> str:
    event = finding.event
    seeded = "clean" if finding.fault is None else finding.fault.kind.value
    field = f" ({finding.fault.field})" if finding.fault is not None and finding.fault.field else ""
    where = " ".join(filter(None, (event.kind, event.where, f"attempt {event.attempt}" if event.attempt else "")))
    return f"{event.msg_id} {where}: {seeded}{field}, found {finding.found or 'nothing'}"
