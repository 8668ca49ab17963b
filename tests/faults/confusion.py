"""Compare verdicts with the truth, event by event: what was expected, and the verdict."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from tests.faults.truth import UNHARMED, Event, Expected, Truth

NOTHING = "(nothing)"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cell:
    """One key: the fault that befell it, what it should be called and what it is called; ``flaws`` are finer points."""

    fault: str
    event: Event
    expected: str
    got: str
    flaws: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.expected == self.got and not self.flaws


def compared(truth: Truth, rows: Iterable[Row]) -> list[Cell]:
    """Return one cell per key expected or said."""
    spans = {event.message for event in truth.keys}
    rows_of: dict[Event, list[Row]] = defaultdict(list)
    for row in rows:
        rows_of[_event(row, spans)].append(row)
    cells = []
    for event, expected in truth.keys.items():
        cells += [
            _cell(truth.faults[event], event, want, row) for want, row in _matched(expected, rows_of.pop(event, []))
        ]
    for fault, events, expected in truth.among:
        matches = [(event, row) for event in events for row in rows_of.pop(event, [])]
        owner = {id(row): event for event, row in matches}
        pairs = _matched(expected, [row for _, row in matches])
        cells += [_cell(fault, owner.get(id(row), events[0]), want, row) for want, row in pairs]
    cells += [_cell(UNHARMED, event, None, row) for event, others in rows_of.items() for row in others]
    return cells


def _event(row: Row, known: set[str]) -> Event:
    span_id = row["otlp"] and row["otlp"]["span_id"]
    message = span_id if span_id in known else row["msg_id"] or span_id or ""
    return Event(row["kind"], message, row["group"] if row["kind"] == "consume" else None)


def _word(row: Row) -> str:
    return row["status"] if row["reason"] is None else f"{row['status']} {row['reason']}"


def _matched(expected: Iterable[Expected], rows: list[Row]) -> list[tuple[Expected | None, Row | None]]:
    """Pair wanted and found verdicts of one event: those that agree first, the rest in order."""
    left, wanted, pairs = list(rows), list(expected), []
    for exact in (True, False):
        for want in list(wanted):
            same = (row for row in left if _word(row) == want.word and not (exact and _flaws(want, row)))
            row = next(same, None)
            if row is not None:
                pairs.append((want, row))
                wanted.remove(want)
                left = [other for other in left if other is not row]
    return [*pairs, *zip_longest(wanted, left)]


def _cell(fault: str, event: Event, want: Expected | None, row: Row | None) -> Cell:
    got = NOTHING if row is None else _word(row)
    if want is None or row is None:
        return Cell(fault, event, NOTHING if want is None else want.word, got)
    return Cell(fault, event, want.word, got, _flaws(want, row))


def _flaws(want: Expected, row: Row) -> tuple[str, ...]:
    wrong = [f"{name} is {row[name]}, not {value}" for name, value in want.also.items() if row[name] != value]
    verdicts = row["field_verdicts"].items()
    strange = {name: verdict for name, verdict in verdicts if verdict not in {"EQUAL", "NOT_COMPARABLE"}}
    if want.fields and strange != want.fields:
        wrong.append(f"fields {strange}, not {want.fields}")
    return tuple(wrong)


def disagreements(cells: Iterable[Cell]) -> list[str]:
    counted = Counter(
        f"{cell.fault} ({cell.event.kind}): expected {cell.expected}, got {'; '.join((cell.got, *cell.flaws))}"
        for cell in cells
        if not cell.agrees
    )
    return [f"{count} of: {words}" for words, count in sorted(counted.items())]
