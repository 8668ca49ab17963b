"""This module knows how seeded against found is shown: a row per kind of fault, and a line for all that is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from bridge.demo.faults import EXPECTED, FaultKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.demo.faults import Expectation
    from bridge.demo.findings import Finding, Findings

__all__ = ["discrepancies", "seeded_against_found"]

_MOST_SHOWN: Final = 20


def seeded_against_found(findings: Findings) -> Table:
    """Return the table: fault, the verdict it must get, how many were seeded, how many were found as such."""
    table = Table(title="Seeded against found", title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("fault")
    table.add_column("expected verdict")
    table.add_column("seeded", justify="right")
    table.add_column("found", justify="right")
    for kind in (*FaultKind, None):
        verdict = "MATCHED" if kind is None else _words(EXPECTED[kind])
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


def _words(expectation: Expectation) -> str:
    return " ".join((*sorted(expectation.statuses), *filter(None, (expectation.reason,))))


def _line(finding: Finding) -> str:
    event = finding.event
    seeded = "clean" if finding.fault is None else finding.fault.kind.value
    field = f" ({finding.fault.field})" if finding.fault is not None and finding.fault.field else ""
    where = " ".join(filter(None, (event.kind, event.where, f"attempt {event.attempt}" if event.attempt else "")))
    return f"{event.msg_id} {where}: {seeded}{field}, found {finding.said or 'nothing'}"
