"""Derive the JSON Schemas of ``result.json``, ``query --json`` and ``inspect --json`` from their dataclasses."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from bridge.query import matching, search, timeline
from otel_mqtrace import model
from spark_jobs import inspect
from spark_jobs.report import graph
from spark_jobs.report import result as results
from spark_jobs.taxonomy import Outcome, Verdict

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: Final[dict[Any, dict[str, Any]]] = {
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": ["number", "null"]},  # NaN and infinity are written as null
    str: {"type": "string"},
    Any: {},
}
_MODULES: Final = (model, matching, timeline, search, graph, results, inspect)
_KNOWN: Final = {name: value for module in _MODULES for name, value in vars(module).items()} | {"Mapping": Mapping}
_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_OPTIONAL_TEXT: Final = {"type": ["string", "null"]}
_OPTIONAL_INT: Final = {"type": ["integer", "null"]}
_VERSION: Final = {"const": 1}


class _Definitions:
    """Collect the schema of each dataclass once, under ``$defs``."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, parts = get_origin(kind) or kind, get_args(kind)
        if origin in (Union, types.UnionType):
            return self._union(parts)
        return self._class(origin, parts)

    def _class(self, origin: Any, parts: tuple[Any, ...]) -> dict[str, Any]:
        if isinstance(origin, type) and dataclasses.is_dataclass(origin):
            return self.named(origin.__name__, origin)
        if issubclass(origin, Enum):
            return {"enum": [each.name if issubclass(origin, int) else each.value for each in origin]}
        if issubclass(origin, Mapping):
            value = int if len(parts) == 1 else parts[1] if parts else Any  # a Counter names its keys only
            return {"type": "object", "additionalProperties": self.of(value)}
        is_pair = origin is tuple and Ellipsis not in parts
        values = {"prefixItems": [self.of(part) for part in parts], "items": False} if is_pair else {}
        return {"type": "array", **(values or {"items": self.of(parts[0])})}

    def _union(self, parts: tuple[Any, ...]) -> dict[str, Any]:
        schemas = [self.of(part) for part in parts]
        if all(isinstance(schema.get("type"), str) and len(schema) == 1 for schema in schemas):
            return {"type": [schema["type"] for schema in schemas]}
        return {"anyOf": schemas}

    def named(self, name: str, kind: type, *, without: tuple[str, ...] = (), **more: dict[str, Any]) -> dict[str, Any]:
        """Return a reference to the schema of a dataclass with fields left out and others added."""
        if name not in self.made:
            self.made[name] = {}
            self.made[name] = _closed({**self.fields(kind, without), **more})
        return {"$ref": f"#/$defs/{name}"}

    def fields(self, kind: type, without: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
        """Return the schema of each field."""
        hints = get_type_hints(kind, vars(sys.modules[kind.__module__]), _KNOWN)
        names = [field.name for field in dataclasses.fields(kind) if field.name not in without]
        return {name: self.of(hints[name]) for name in names}

    def document(self, title: str, properties: dict[str, dict[str, Any]]) -> str:
        """Return the whole schema as text."""
        head = {"$schema": _DIALECT, "title": title, "$comment": "Generated from the code by `make docs`."}
        return json.dumps({**head, **_closed(properties), "$defs": self.made}, indent=1) + "\n"


def _closed(properties: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(values: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": values}


def result_schema() -> str:
    """Return the schema of ``result.json``."""
    made = _Definitions()
    left_out = (
        "samples",
        "timeline",
        "timelines",
        "findings",
        "horizon_ms",
        "fields",
        "graph",
        "unknown_files",
        "carried_from",
    )
    properties = {"schema_version": _VERSION, **made.fields(results.Result, left_out)}
    properties["verdict"] = made.of(Verdict)
    properties["exit_code"] = {"enum": [0, 1, 3, 4]}
    made.made["Gate"]["properties"]["outcome"] = made.of(Outcome)
    optional_graph = {"anyOf": [{"type": "null"}, _graph(made)]}
    return made.document(
        "result.json of mqtrace reconcile",
        {
            **properties,
            "horizon": _OPTIONAL_INT,
            "profile": _TEXT,
            "native_writer": _TEXT,
            "graph": optional_graph,
            "resolved_since_last_run": _COUNT,
            "fields": _map(_map(_COUNT)),
            "differing_pairs": _map(_array(made.of(tuple[str, str, int]))),
        },
    )


def _graph(made: _Definitions) -> dict[str, Any]:
    """Return the schema of a graph; nodes and edges have further keys by their kind."""
    end = {"source": _TEXT, "target": _TEXT, "kind": {"enum": [graph.PUBLISH, graph.CONSUME]}}
    node = {"id": _TEXT, "kind": {"enum": list(graph.NODE_KINDS)}, "name": _OPTIONAL_TEXT}
    times = ("first_ms", "last_ms", "opening_ms", "horizon_ms")
    properties = {
        "schema_version": _VERSION,
        "sides": _array({"enum": ["native", "otlp"]}),
        **dict.fromkeys(times, _OPTIONAL_INT),
        "nodes": _array({"type": "object", "properties": node, "required": list(node)}),
        "edges": _array({"type": "object", "properties": end, "required": list(end)}),
    }
    made.made["Graph"] = _closed(properties)
    return {"$ref": "#/$defs/Graph"}


def query_schema() -> str:
    """Return the schema of ``mqtrace query --json``."""
    made = _Definitions()
    place = made.of(matching.Place)
    made.made["Sighting"] = _closed(
        {
            "trace_type": made.of(model.TraceType),
            "dialect": _TEXT,
            "written_by": _array(_TEXT),
            "seen": _COUNT,
            "places": _array(place),
        }
    )
    seen = {"evidence": _array({"$ref": "#/$defs/Sighting"})}
    step, names = made.fields(timeline.Step), ("Send", "TransactionEnd", "Recall", "Consume")
    for kind, name in zip(timeline.Kind, names, strict=True):
        own = {field: step[field] for field in timeline.STEP_FIELDS[kind]}
        more = {"elapsed_ms": _OPTIONAL_INT} if kind is timeline.Kind.CONSUME else {}
        made.made[name] = _closed({**own, **more, **seen})
    sends, ends, recalls, attempts = (_array({"$ref": f"#/$defs/{name}"}) for name in names)
    group = _closed({"group": _OPTIONAL_TEXT, "outcome": made.of(timeline.Outcome), "attempts": attempts})
    bad = _closed(
        {
            **made.made["Place"]["properties"],
            "field": _OPTIONAL_TEXT,
            "reason": _TEXT,
            "text": _TEXT,
            "names_message": {"type": "boolean"},
        }
    )
    made.made["Message"] = _closed(
        {
            "msg_id": _TEXT,
            **{name: _array(_TEXT) for name in ("topics", "tags", "keys")},
            "summary": _TEXT,
            "findings": _array(made.of(timeline.Finding)),
            "sends": sends,
            "transaction_ends": ends,
            "recalls": recalls,
            "groups": _array(group),
            "timeline": _array(made.of(timeline.Event)),
            "bad_records": _array(bad),
            "records": _COUNT,
            "repeats": _COUNT,
            "trace_id": {"type": ["string", "null"], "pattern": "^[0-9a-f]{32}$"},
            "link": _OPTIONAL_TEXT,
        }
    )
    counts = dict.fromkeys(("found", "left_off", "page", "pages", "total"), _COUNT)
    return made.document(
        "mqtrace query --json",
        {
            "schema_version": _VERSION,
            **counts,
            "searched": made.of(search.Searched),
            "list": _array(made.of(search.Row)),
            "messages": _array({"$ref": "#/$defs/Message"}),
        },
    )


def inspect_schema() -> str:
    """Return the schema of ``mqtrace inspect --json``."""
    made = _Definitions()
    writers = {"profile": _OPTIONAL_TEXT, "native_writer": _OPTIONAL_TEXT, "evidence": _array(_TEXT)}
    properties = {**made.fields(inspect.Inventory), "writers": _closed(writers)}
    return made.document("mqtrace inspect --json", properties)
