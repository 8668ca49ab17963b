"""The graph in the formats of other tools: DOT, GraphML, and Jaeger's dependency JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from spark_jobs.report.wording import count, duration, percent, visible

if TYPE_CHECKING:
    from spark_jobs.report.graph import Edge, Graph, Node

__all__ = ["node_name", "render_dependencies", "render_dot", "render_graphml", "told"]

_UNKNOWN: Final = {
    "producer": "(unknown producer)",
    "topic": "(unknown topic)",
    "consumer_group": "(unknown group)",
}
_PLURAL: Final = {"producer": "producers", "topic": "topics", "consumer_group": "consumer groups"}
_SHAPES: Final = {"producer": "box", "topic": "cylinder", "consumer_group": "box"}
_NAMESPACE: Final = "http://graphml.graphdrawing.org/xmlns"
_TYPES: Final = {bool: "boolean", int: "long", float: "double", str: "string"}


def node_name(node: Node, *, limit: int = 300) -> str:
    """Return what a node is called before a reader; a name nobody told is said to be unknown."""
    if node.stands_for:
        return f"other {_PLURAL[node.kind]}"
    return _UNKNOWN[node.kind] if node.name is None else visible(node.name, limit=limit)


def told(edge: Edge) -> str:
    """Return an edge's numbers as one line of text."""
    sent = edge.kind == "publish"
    parts = [
        f"{count(edge.count)} {'sent' if sent else 'delivered'}",
        f"{percent(edge.failures, edge.count)} failed" if edge.failures else "",
        f"{percent(edge.again, edge.count)} {'sent again' if sent else 'redelivered'}" if edge.again else "",
        f"{count(edge.never_consumed)} never consumed" if edge.never_consumed else "",
        f"{count(edge.never_published)} never published" if edge.never_published else "",
        f"queue p95 {duration(edge.queued.p95)}" if edge.queued.count else "",
    ]
    return ", ".join(part for part in parts if part)


def render_dependencies(graph: Graph) -> str:
    """Return ``[{parent, child, callCount}]``, what Jaeger's ``/api/dependencies`` has in ``data``."""
    rows = [
        {"parent": call.parent, "child": call.child, "callCount": call.direct + call.messages} for call in graph.calls
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False) + "\n"


def render_dot(graph: Graph) -> str:
    """Return the graph for Graphviz, left to right."""
    lines = ["digraph messages {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    lines += [
        f"  {_quoted(node.id)} [label={_quoted(node_name(node))}, shape={_SHAPES[node.kind]}];" for node in graph.nodes
    ]
    for edge in graph.edges:
        colour = ", color=red" if edge.failures or edge.never_consumed or edge.never_published else ""
        ends = f"{_quoted(edge.source)} -> {_quoted(edge.target)}"
        lines.append(f"  {ends} [label={_quoted(told(edge))}, weight={min(edge.count, 1000)}{colour}];")
    return "\n".join((*lines, "}")) + "\n"


def _quoted(text: str) -> str:
    escaped = visible(text, limit=2_000).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def render_graphml(graph: Graph) -> str:
    """Return the graph as GraphML: every measure of ``graph.json`` that is one number or text, under its own key."""
    nodes = [(node.id, {"label": node_name(node), **_flat(plain)}) for node, plain in _with_json(graph)]
    edges = [(edge.source, edge.target, _flat(edge.to_json())) for edge in graph.edges]
    root = ET.Element("graphml", xmlns=_NAMESPACE)
    for domain, rows in (("node", [data for _, data in nodes]), ("edge", [data for _, _, data in edges])):
        for name, kind in _keys(rows).items():
            ET.SubElement(root, "key", {"id": f"{domain}.{name}", "for": domain, "attr.name": name, "attr.type": kind})
    drawn = ET.SubElement(root, "graph", id="messages", edgedefault="directed")
    for one, data in nodes:
        _data(ET.SubElement(drawn, "node", id=visible(one, limit=2_000)), "node", data)
    for source, target, data in edges:
        ends = {"source": visible(source, limit=2_000), "target": visible(target, limit=2_000)}
        _data(ET.SubElement(drawn, "edge", ends), "edge", data)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _with_json(graph: Graph) -> list[tuple[Node, dict[str, Any]]]:
    return list(zip(graph.nodes, graph.to_json()["nodes"], strict=True))


def _flat(plain: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested measures under joined names (``queue_ms.p95``), lists as text, what is absent left out."""
    found: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            found[prefix + name] = ", ".join(map(str, value))
        elif value is not None and name not in {"id", "source", "target"}:
            found[prefix + name] = value
    return found


def _keys(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {name: _TYPES[type(value)] for row in rows for name, value in row.items()}


def _data(parent: ET.Element, domain: str, data: dict[str, Any]) -> None:
    for name, value in data.items():
        said = str(value).lower() if isinstance(value, bool) else visible(str(value), limit=2_000)
        ET.SubElement(parent, "data", key=f"{domain}.{name}").text = said
