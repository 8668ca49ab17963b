"""Compare what was seeded with what was found, event by event, and print it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bridge.demo.faults import EXPECTED, MATCHED, FaultKind
from bridge.demo.orders import CONSUME, PUBLISH, Event, events_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from bridge.demo.faults import Expectation, Fault, FaultPlan
    from bridge.demo.orders import Order


COLUMNS: Final = ("kind", "msg_id", "topic", "group", "retry_times", "status", "reason", "field_verdicts")
"""The columns of ``verdicts/`` that are needed."""

Row = dict[str, Any]
_DIFFERENT: Final = "DIFFERENT"
_GATE_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One event: its fault (``None``: it is clean), and the verdict found (``None``: none)."""

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
    strangers = [f"{event}: {_describe_verdict(row)}" for event, group in rows_of.items() for row in group]
    return Findings(findings=findings, surprises=(*strangers, *_miscounted(plan, result), *_misjudged(result)))


def _event_of(row: Row) -> Event:
    kind = str(row["kind"])
    where = {PUBLISH: row["topic"], CONSUME: row["group"]}.get(kind)
    return Event(kind, row["msg_id"] or "", where or "", (row["retry_times"] or 0) if kind == CONSUME else 0)


def _finding(event: Event, fault: Fault | None, rows: list[Row]) -> Finding:
    expectation = MATCHED if fault is None else EXPECTED[fault.kind]
    as_expected = len(rows) == 1 and _fulfils(rows[0], expectation, fault)
    return Finding(event, fault, " + ".join(map(_describe_verdict, rows)) or None, as_expected)


def _fulfils(row: Row, expectation: Expectation, fault: Fault | None) -> bool:
    if row["status"] not in expectation.statuses or row["reason"] != expectation.reason:
        return False
    if fault is None or fault.field is None:
        return True
    # Exactly the altered field differs: an altered value must not drag others along.
    return [name for name, verdict in (row["field_verdicts"] or ()) if verdict == _DIFFERENT] == [fault.field]


def _describe_verdict(row: Row) -> str:
    different = sorted(name for name, verdict in (row["field_verdicts"] or ()) if verdict == _DIFFERENT)
    return " ".join(str(word) for word in (row["status"], row["reason"], *different) if word)


def _miscounted(plan: FaultPlan, result: Mapping[str, Any]) -> Iterator[str]:
    seeded = Counter[str]()
    for event, fault in plan.items():
        if fault.kind is FaultKind.MALFORMED_NATIVE:
            seeded["native"] += 2 if event.kind == CONSUME else 1  # both halves of a consume are damaged
        elif fault.kind is FaultKind.MALFORMED_OTLP:
            seeded["otlp"] += 1
    for side in ("native", "otlp"):
        counted = result["inputs"][side]["malformed"]
        if counted != seeded[side]:
            yield f"{side}: {counted} malformed records counted, {seeded[side]} seeded"


def _misjudged(result: Mapping[str, Any]) -> Iterator[str]:
    if not result["conservation"]["holds"]:
        yield f"the balance does not hold: {result['conservation']}"
    if result["exit_code"] != _GATE_FAILED:
        yield f"exit code {result['exit_code']} ({result['verdict']}): seeded losses must fail a gate, no more"


_MOST_SHOWN: Final = 20


def seeded_against_found(findings: Findings) -> Table:
    """Return the table: fault, the verdict it must get, how many were seeded, how many were found as such."""
    table = Table(title="Seeded against found", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("expected verdict")
    table.add_column("seeded", justify="right")
    table.add_column("found", justify="right")
    for kind in (*FaultKind, None):
        verdict = "MATCHED" if kind is None else _describe_expected(EXPECTED[kind])
        seeded = findings.seeded(kind)
        found = sum(one.as_expected for one in seeded)
        name = "none: clean events" if kind is None else kind.value
        table.add_row(name, verdict, str(len(seeded)), _marked(found, wanted=len(seeded)))
    table.add_row("anything else", "", "0", _marked(len(findings.surprises), wanted=0))
    return table


def discrepancies(findings: Findings) -> Iterator[str]:
    """Yield a line for each event that was not found as expected and for each surprise, the first few of them."""
    lines = [*map(_line, (one for one in findings.findings if not one.as_expected)), *findings.surprises]
    yield from lines[:_MOST_SHOWN]
    if len(lines) > _MOST_SHOWN:
        yield f"and {len(lines) - _MOST_SHOWN} more"


def _marked(count: int, *, wanted: int) -> str:
    return f"{count} {'✓' if count == wanted else '✗'}"


def _describe_expected(expectation: Expectation) -> str:
    return " ".join((*sorted(expectation.statuses), *filter(None, (expectation.reason,))))


def _line(finding: Finding) -> str:
    event = finding.event
    seeded = "clean" if finding.fault is None else finding.fault.kind.value
    field = f" ({finding.fault.field})" if finding.fault is not None and finding.fault.field else ""
    where = " ".join(filter(None, (event.kind, event.where, f"attempt {event.attempt}" if event.attempt else "")))
    return f"{event.msg_id} {where}: {seeded}{field}, found {finding.found or 'nothing'}"
