"""This module knows how the known writers, and guesses who wrote something, look in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from otel_mqtrace._terminal import print_table
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.dialects import IMITATORS, Imitator, cloud_shape_of, quirks_of
from otel_mqtrace.wire.native.layout import DIALECTS, CloudSubAfter, Dialect, FieldCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["known_writers", "print_guesses", "print_writers"]

_WRITER_COLUMNS: Final = (
    *("dialect", "releases", "writable", "pub", "sub_before", "sub_after", "sub_after_cloud"),
    *("end_transaction", "recall", "quirks"),
)
_WORDS: Final = {None: "", True: "yes", False: "no"}
_GUESS_COLUMNS: Final = ("group_name", "records", "writers", "message_type_map", "evidence")


def known_writers() -> list[dict[str, Any]]:
    """Return one object per known writer: field counts per record type (type name included), and quirks."""
    return [*(_dialect_row(dialect) for dialect in DIALECTS.values()), *(_imitator_row(one) for one in IMITATORS)]


def print_writers(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print the known writers as a table."""
    _print_rows(_WRITER_COLUMNS, rows)


def print_guesses(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print who can have written each group's records, and what that rests on."""
    _print_rows(_GUESS_COLUMNS, rows)


def _print_rows(columns: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> None:
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name.replace("_", "\n"), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_said(row[name])) for name in columns))  # Text, so that [brackets] stay brackets
    print_table(table)


def _said(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return _WORDS[value] if value is None or isinstance(value, bool) else str(value)


def _dialect_row(dialect: Dialect) -> dict[str, Any]:
    return _row(dialect, writable=True, quirks=quirks_of(dialect))


def _imitator_row(imitator: Imitator) -> dict[str, Any]:
    return _row(imitator, writable=False, quirks=imitator.quirks)


def _row(writer: FieldCounts, *, writable: bool, quirks: str) -> dict[str, Any]:
    cloud = cloud_shape_of(writer)
    return {
        "dialect": writer.name,
        "releases": writer.releases,
        "writable": writable,
        **{_column(trace_type): writer.count(trace_type) for trace_type in TraceType},
        "sub_after_cloud": f"{cloud.fields}{_CLOUD_MARKS[cloud.quirk]}",
        "quirks": quirks,
    }


_CLOUD_MARKS: Final = {CloudSubAfter.SAME: "", CloudSubAfter.GLUED: " glued", CloudSubAfter.TRAILING: " + empty"}


def _column(trace_type: TraceType) -> str:
    return trace_type.name.lower()
