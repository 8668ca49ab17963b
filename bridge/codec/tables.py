"""This module knows how records and writers look in a terminal."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.codec.native.dialects import IMITATORS, Imitator, quirks_of
from bridge.codec.native.layout import DIALECTS, CloudSubAfter, Dialect
from otel_mqtrace.model import AccessChannel, TraceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["known_writers", "print_guesses", "print_records", "print_writers"]

_WIDTH_WITHOUT_TERMINAL: Final = 260
_WIDEST_COLUMN: Final = 48
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_RECORD_COLUMNS: Final = (
    *("body_index", "record_index", "trace_type", "time", "topic", "group_name", "msg_id", "keys", "retry_times"),
    *("cost_ms", "success", "outcome", "dialect"),
)
_WRITER_COLUMNS: Final = (
    *("dialect", "releases", "writable", "pub", "sub_before", "sub_after", "sub_after_cloud"),
    *("end_transaction", "recall", "quirks"),
)
_GUESS_COLUMNS: Final = ("group_name", "records", "writers", "message_type_map", "evidence")


def print_records(items: Iterable[Mapping[str, Any]]) -> None:
    """Print the JSON objects of records as one table, the bad ones below it with position, field, reason and text."""
    table = _table(_RECORD_COLUMNS)
    faults = []
    for item in items:
        if "error" in item:
            faults.append(_fault(item))
        else:
            shown = {**item, "time": _utc(item["timestamp_ms"]), "outcome": _outcome(item)}
            table.add_row(*_cells(shown[name] for name in _RECORD_COLUMNS))
    _console().print(table, *faults, sep="\n")


def known_writers() -> list[dict[str, Any]]:
    """Return one object per known writer: field counts per record type (type name included), and quirks."""
    return [*(_dialect_row(dialect) for dialect in DIALECTS.values()), *(_imitator_row(one) for one in IMITATORS)]


def print_writers(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the known writers as a table."""
    _print_rows(_WRITER_COLUMNS, rows)


def print_guesses(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print who can have written each group's records, and what that rests on."""
    listed = ({name: _listed(value) for name, value in row.items()} for row in rows)
    _print_rows(_GUESS_COLUMNS, listed)


def _print_rows(columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
    table = _table(columns)
    for row in rows:
        table.add_row(*_cells(row[name] for name in columns))
    _console().print(table)


def _listed(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def _dialect_row(dialect: Dialect) -> dict[str, Any]:
    cloud = dialect.form(TraceType.SUB_AFTER, AccessChannel.CLOUD)
    return {
        "dialect": dialect.name,
        "releases": dialect.releases,
        "writable": True,
        **{_column(trace_type): dialect.count(trace_type) for trace_type in TraceType},
        "sub_after_cloud": f"{cloud.count if cloud else ''}{_CLOUD_MARKS[dialect.cloud_sub_after]}",
        "quirks": quirks_of(dialect),
    }


def _imitator_row(imitator: Imitator) -> dict[str, Any]:
    return {
        "dialect": imitator.name,
        "releases": imitator.releases,
        "writable": False,
        **{_column(trace_type): imitator.count(trace_type) for trace_type in TraceType},
        "sub_after_cloud": None,
        "quirks": imitator.quirks,
    }


_CLOUD_MARKS: Final = {CloudSubAfter.SAME: "", CloudSubAfter.GLUED: " glued", CloudSubAfter.TRAILING: " + empty"}


def _column(trace_type: TraceType) -> str:
    return trace_type.name.lower()


def _outcome(item: Mapping[str, Any]) -> str | None:
    said = item["transaction_state"] or item["context_code"] or item["msg_type"]
    return None if said is None else str(said)


def _utc(timestamp_ms: int | None) -> str | None:
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms or 0)
    except OverflowError:
        return str(timestamp_ms)
    return None if timestamp_ms is None else moment.isoformat(sep=" ", timespec="milliseconds")[:-6]


def _fault(item: Mapping[str, Any]) -> Text:
    error = item["error"]
    record = "" if item["record_index"] is None else f" record {item['record_index']}"
    said = f"{error['field'] or 'record'}: {error['reason']}: {error['text']!r}"
    return Text(f"bad: body {item['body_index']}{record}: {said}", style="red", overflow="fold")


def _cells(values: Iterable[object]) -> list[Text]:
    return [Text("" if value is None else str(value)) for value in values]  # Text, so that [brackets] stay brackets


def _table(columns: Iterable[str]) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD)
    for name in columns:  # folded: an id cut short is no evidence
        table.add_column(name.replace("_", " "), overflow="fold", max_width=_WIDEST_COLUMN)
    return table


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_WITHOUT_TERMINAL)
