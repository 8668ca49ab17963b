"""Print the pages of ``docs/`` that are generated from tables in the code.

``python -m tools.generated_docs`` writes them; a test compares them with what would be written now.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native import IMITATORS, layout
from tools.command_reference import command_line_page
from tools.handbook import filled_in
from tools.json_schemas import inspect_schema, query_schema, result_schema
from tools.monitoring import alert_rules, dashboard
from tools.python_reference import python_page, table

if TYPE_CHECKING:
    from collections.abc import Callable


DOCS = Path(__file__).resolve().parent.parent / "docs"
_NOTE = "<!-- Generated from {source} by `make docs`. Edit that file, not this page. -->"


def wire_format_page() -> str:
    """Return ``wire-format.md``: every form, field kind, dialect and ordinal of the native trace format."""
    lines = [
        _NOTE.format(source="otel_mqtrace/wire/native/layout.py"),
        "# The native trace format",
        "",
        "A trace message's body is a run of records. A record is its type name and its fields, joined by U+0001 and",
        "terminated by U+0002. The wire has no escaping, length or version: a reader",
        "chooses the longest form of the type that the record's field count fills.",
        "",
        f"An absent text is written as the word `{layout.NULL_TEXT}`. Our encoder writes a separator inside a value as",
        f"`{layout.REPLACEMENT}` and counts it.",
        "",
        f"Written by default: dialect `{layout.DEFAULT_DIALECT}`.",
    ]
    lines += ["", "## Forms", "", "Counts include the type name, which is field 0.", ""]
    for trace_type in TraceType:
        lines += [f"### {trace_type.value}", "", *_forms(trace_type), ""]
    lines += ["## Fields", "", *table(("field", "kind"), ((f"`{n}`", k.value) for n, k in layout.FIELDS.items()))]
    lines += ["", "## Dialects", "", "One row per generation of writers; a dash is a type that it never writes.", ""]
    lines += [*_dialects(), "", "### Other clients", "", "Read, and never written.", "", *_imitators(), ""]
    lines += ["## Ordinals", "", *_ordinals(), "", *_ambiguities(), ""]
    return "\n".join(lines)


_AMBIGUITIES = (
    (
        "the writer's version",
        "nothing on the wire names it",
        "`dialect` is the newest writer of that shape; `mqtrace dialects FILE` names all that fit: Go shows by its ids",
    ),
    (
        "the ordinal of a message type",
        "maps a and b share their ordinals",
        "map a by default (or `--msg-type-map b`); under map b the dialect is one that writes it",
    ),
    (
        "the charset",
        "up to 4.9.8 it is the platform's",
        "UTF-8 by default (or `--charset`, on `encode`, too); unreadable bytes become U+FFFD",
    ),
    (
        f"the word `{layout.NULL_TEXT}`",
        "Java writes it for no value, and a key may be that word",
        "it stays the word; `absent()` returns whether it most likely means no value",
    ),
    (
        "the channel of a `SubAfter` before 4.9.5",
        "both channels write the same",
        "decoded as LOCAL; the bytes come out the same",
    ),
    (
        "what a `SubAfter` of six or eight fields lacks",
        "only C++ and ONS write these forms",
        "`dialect` is `5.5.0`, as which `encode` writes it, an absent number as 0; `written_by` names the client",
    ),
    (
        "the eighth field of a `SubAfter` of eight",
        "ONS writes a status there that no other reader reads",
        "read and not kept",
    ),
    (
        "a glued CLOUD `SubAfter`",
        "it has no terminator",
        "taken apart when read, never written: `encode` writes the form that fixed it",
    ),
    ("U+0001 and U+0002 inside a value", "they cut the record in pieces", "the pieces are reported; never written"),
    (
        "an empty text at the very end",
        "Java's reader counts such a field as missing and loses the body",
        f"read; written as `{layout.NULL_TEXT}`. No released push consumer was seen to write one",
    ),
)


def _ambiguities() -> list[str]:
    return [
        "## What the bytes do not contain",
        "",
        "What a client of a known dialect wrote is decoded, and encoded again to the same bytes in that dialect. Three",
        "rows of this table are exceptions: what is glued, cut by a separator, or empty at the end. The others are",
        "what has to be known beside the bytes.",
        "",
        *table(("what", "why", "what we do"), _AMBIGUITIES),
        "",
        "A piece longer than 16 MiB is one bad record. Everything else that cannot be read is reported with its",
        "index, field, reason and text, and its neighbours are read.",
    ]


def _imitators() -> list[str]:
    head = ("client", *(t.value for t in TraceType), "CLOUD SubAfter", "what else is known")
    rows = (
        (one.releases, *(str(one.count(t) or "-") for t in TraceType), one.cloud_sub_after.value, one.quirks)
        for one in IMITATORS
    )
    return table(head, rows)


def _forms(trace_type: TraceType) -> list[str]:
    forms = layout.FORMS[trace_type]
    longest = max(form.count for form in forms)
    head = ("count", *(str(index) for index in range(1, longest)))
    return table(head, ((str(f.count), *(f"`{n}`" for n in f.fields), *[""] * (longest - f.count)) for f in forms))


def _dialects() -> list[str]:
    head = ("dialect", "releases", *(t.value for t in TraceType), "CLOUD SubAfter", "type map", "keys split")
    rows = (
        (
            f"`{row.name}`",
            row.releases,
            *(str(row.count(t) or "-") for t in TraceType),
            row.cloud_sub_after.value,
            row.message_type_map,
            "yes" if row.splits_keys else "no",
        )
        for row in layout.DIALECTS.values()
    )
    return table(head, rows)


def _ordinals() -> list[str]:
    maps = layout.MESSAGE_TYPE_MAPS
    rows = ((str(n), *(f"`{maps[name][n].value}`" for name in sorted(maps))) for n in range(len(MessageType)))
    codes = ", ".join(f"{code.value} `{code.name}`" for code in ContextCode)
    states = ", ".join(f"`{state.value}`" for state in TransactionState)
    head = ("message type", *(f"map {name}" for name in sorted(maps)))
    return [*table(head, rows), "", f"Context codes: {codes}.", "", f"Transaction states, by name: {states}."]


def attributes_page() -> str:
    """Return ``attributes.md``: every attribute and header name of ``semconv.py``, section by section."""
    lines = [
        _NOTE.format(source="otel_mqtrace/semconv.py"),
        "# Attributes and headers",
        "",
        f"Semantic conventions: <{semconv.SCHEMA_URL}>. What each name carries stands in",
        "[the table of the data model](architecture.md#what-a-span-carries).",
    ]
    for title, names in _sections(inspect.getsource(semconv)):
        rows = ((f"`{getattr(semconv, name)!s}`", f"`semconv.{name}`") for name in names)
        lines += ["", f"## {title}", "", *table(("name", "constant"), rows)]
    return "\n".join([*lines, ""])


def _sections(source: str) -> list[tuple[str, list[str]]]:
    """Read the sections from the ``# -- title ----`` comments and the constants under each."""
    assigned = {node.lineno: node.target.id for node in ast.parse(source).body if _is_constant(node)}  # type: ignore[attr-defined]
    sections: list[tuple[str, list[str]]] = []
    for number, line in enumerate(source.splitlines(), start=1):
        if line.startswith("# -- "):
            title = line.strip("# -")
            sections.append((title[0].upper() + title[1:], []))
        elif number in assigned and sections:
            sections[-1][1].append(assigned[number])
    return [(title, names) for title, names in sections if names]


def _is_constant(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id.isupper()


def _filled(name: str) -> str:
    return filled_in((DOCS / name).read_text(encoding="utf-8"))


_WITH_BLOCKS = (
    "architecture.md",
    "operations.md",
    "reconciliation/findings.md",
    "reconciliation/inputs.md",
    "reconciliation/policy.md",
)

PAGES: dict[str, Callable[[], str]] = {
    "wire-format.md": wire_format_page,
    "attributes.md": attributes_page,
    "reference/command-line.md": command_line_page,
    "reference/python.md": python_page,
    **{name: partial(_filled, name) for name in _WITH_BLOCKS},
    "deploy/grafana-dashboard.json": dashboard,
    "deploy/prometheus-alerts.yaml": alert_rules,
    "../spark_jobs/report/result.schema.json": result_schema,
    "../spark_jobs/inspect.schema.json": inspect_schema,
    "../bridge/query/query.schema.json": query_schema,
}
"""File name, seen from ``docs/`` → what prints it."""


def main() -> int:
    """Write every page that differs from the code's current output; return 0."""
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"written: docs/{name}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
