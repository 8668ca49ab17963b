"""Records and known writers as tables for a terminal."""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bridge.page.wording import utc, visible
from otel_mqtrace._terminal import open_console, print_table
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.dialects import IMITATORS, cloud_shape_of, quirks_of
from otel_mqtrace.wire.native.layout import DIALECTS, CloudSubAfter, FieldCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


PAGE_RECORDS: Final = 200
"""Records of one page: each has its own head, so that any number of them is printed in the memory of one."""


def print_records(items: Iterable[Mapping[str, Any]]) -> None:
    """Print the JSON objects of records page by page, the bad ones below their page with place, reason and text."""
    console, rest = open_console(), iter(items)
    last_width = max(console.width - sum(width + 2 for _, width, _ in _COLUMNS if width), _LEAST_WIDTH)
    while page := list(islice(rest, PAGE_RECORDS)):
        table = _table((head, width or last_width) for head, width, _ in _COLUMNS)
        for item in page:
            if "error" not in item:
                table.add_row(*(_cell(*lines(item)) for _, _, lines in _COLUMNS))
        if table.row_count:
            print_table(table, console)
        for item in page:
            if "error" in item:
                console.print(_fault(item))
        sys.stdout.flush()
        if getattr(sys.stdout, "has_lost_reader", False):
            raise BrokenPipeError  # as for lines of JSON: the rest is not decoded


def _table(columns: Iterable[tuple[str, int | None]]) -> Table:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head, width in columns:  # folded: a shortened id would be useless
        table.add_column(head, overflow="fold", width=width)
    return table


def _cell(first: object, second: object) -> Text:
    """Two lines; Text, so that [brackets] in a value stay brackets."""
    lines = (("" if value is None else str(value)).split("\n") for value in (first, second))
    shown = ["\n".join(visible(line, limit=None) for line in each) for each in lines]
    return Text.assemble(shown[0], "\n", (shown[1], "dim"))


def _place(item: Mapping[str, Any]) -> tuple[object, object]:
    first, *others = item["written_by"] or [""]
    writers = f"{first.replace('Java client', 'Java')} +{len(others)}" if others else first
    return f"{item['body_index']}.{item['record_index']}", writers


def _kind(item: Mapping[str, Any]) -> tuple[object, object]:
    return item["trace_type"], item["transaction_state"] or item["context_code"] or item["msg_type"]


def _when(item: Mapping[str, Any]) -> tuple[object, object]:
    success, cost_ms, retries = item["success"], item["cost_ms"], item["retry_times"]
    parts = [
        *([] if success is None else ["ok" if success else "failed"]),
        *([] if cost_ms is None else [f"{cost_ms} ms"]),
        *([f"retry {retries}"] if retries else []),
    ]
    timestamp_ms = item["timestamp_ms"]
    return None if timestamp_ms is None else utc(timestamp_ms).removesuffix(" UTC"), ", ".join(parts)


_COLUMNS: Final[tuple[tuple[str, int | None, Callable[[Mapping[str, Any]], tuple[object, object]]], ...]] = (
    ("body.record\nlayout of", 22, _place),
    ("type\noutcome", 16, _kind),
    ("time (UTC)\nsuccess, cost", 23, _when),
    # of a batch each id on a line
    ("message id\nkeys", 33, lambda item: ((item["msg_id"] or "").replace(",", ",\n"), item["keys"])),
    ("topic\ngroup", None, lambda item: (item["topic"], item["group_name"])),
)
"""Heads of both lines, width, and their cells; the last takes the rest."""
_LEAST_WIDTH: Final = 16  # of the last; a terminal too narrow for all takes the same from each


def _fault(item: Mapping[str, Any]) -> Text:
    error = item["error"]
    record = "" if item["record_index"] is None else f" record {item['record_index']}"
    reason = f"{error['field'] or 'record'}: {error['reason']}: {error['text']!r}"
    return Text(f"bad: body {item['body_index']}{record}: {reason}", style="red", overflow="fold")


WRITER_COLUMNS: Final = (
    *("dialect", "releases", "writable", "pub", "sub_before", "sub_after", "sub_after_cloud"),
    *("end_transaction", "recall", "quirks"),
)
_WORDS: Final = {None: "", True: "yes", False: "no"}
GUESS_COLUMNS: Final = ("group_name", "records", "writers", "message_type_map", "evidence")


def known_writers() -> list[dict[str, Any]]:
    """Return one object per known writer: field counts per record type (type name included), and quirks."""
    dialects = (_row(dialect, writable=True, quirks=quirks_of(dialect)) for dialect in DIALECTS.values())
    return [*dialects, *(_row(imitator, writable=False, quirks=imitator.quirks) for imitator in IMITATORS)]


def print_rows(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print known writers, or who can have written each group's records, as a table of ``columns``."""
    table = _table((name.replace("_", "\n"), None) for name in columns)
    for row in rows:
        table.add_row(*(Text(_text_of(row[name])) for name in columns))  # Text, so that [brackets] stay brackets
    print_table(table)


def _text_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    text = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return visible(text, limit=None)


def _row(writer: FieldCounts, *, writable: bool, quirks: str) -> dict[str, Any]:
    cloud = cloud_shape_of(writer)
    return {
        "dialect": writer.name,
        "releases": writer.releases,
        "writable": writable,
        **{trace_type.name.lower(): writer.count(trace_type) for trace_type in TraceType},
        "sub_after_cloud": f"{cloud.fields}{_CLOUD_MARKS[cloud.quirk]}",
        "quirks": quirks,
    }


_CLOUD_MARKS: Final = {CloudSubAfter.SAME: "", CloudSubAfter.GLUED: " glued", CloudSubAfter.TRAILING: " + empty"}
