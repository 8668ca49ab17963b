"""This module knows the graph as a drawing, left to right: producers, topics, consumer groups, and what flows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from bridge.page.palette import AMBER, BLUE, DARK_PAGE, GREEN, LIGHT_PAGE, RED, SLATE
from spark_jobs.report.graph import CONSUME, NODE_KINDS, PUBLISH
from spark_jobs.report.graph_files import node_name, told
from spark_jobs.report.svg.layers import columns
from spark_jobs.report.svg.shapes import element, label, rect, titled
from spark_jobs.report.wording import count, plural, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.report.graph import Edge, Graph, Node
    from spark_jobs.report.svg.layers import Columns

__all__ = ["MOST_NODES", "graph_svg"]

MOST_NODES: Final = 20
"""Nodes drawn per column; how many more there are is said below it, and all are in ``graph.json``."""

_WIDTH, _CARD_WIDTH, _CARD_HEIGHT, _PITCH, _TOP = 1200, 276, 44, 56, 34
_LEFTS: Final = dict(zip(NODE_KINDS, (1.0, 462.0, 923.0), strict=True))
_HEADINGS: Final = dict(zip(NODE_KINDS, ("Producers", "Topics", "Consumer groups"), strict=True))
_NOUNS: Final = dict(zip(NODE_KINDS, ("producer", "topic", "consumer group"), strict=True))
_COLOURS: Final = dict(zip(NODE_KINDS, (BLUE, AMBER, GREEN), strict=True))
_FINE, _TROUBLED = SLATE, RED
_LONGEST_NAME, _LONGEST_NOTE = 31, 41
_THICKEST: Final = 5.0
_PORT_PITCH: Final = 7.0
_LABEL_HEIGHT: Final = 12.0
_MOST_TOLD: Final = 12
_HALO: Final = {"stroke": "Canvas", "stroke_width": 3, "stroke_linejoin": "round", "paint_order": "stroke"}
"""The page's own colour around a text, so that the line below does not strike it out."""

_STYLE: Final = (
    f"svg{{color-scheme:light dark;color:#1c2227;background:{LIGHT_PAGE}}}"
    f"@media (prefers-color-scheme:dark){{svg{{color:#e5e9ec;background:{DARK_PAGE}}}}}"
)


@dataclass(frozen=True, slots=True)
class _Curve:
    """An edge with the points it begins and ends at."""

    edge: Edge
    x1: float
    y1: float
    x2: float
    y2: float


def graph_svg(graph: Graph, *, standalone: bool = False, most_nodes: int = MOST_NODES) -> Markup:
    """Return the drawing as ``<svg>`` with presentation attributes, in the text colour of the page around it.

    Args:
        graph: what to draw.
        standalone: make it a file of its own: with its namespace, and with colours for light and dark.
        most_nodes: nodes per column; the busiest are drawn.
    """
    chosen = columns(graph, most_nodes=most_nodes)
    rows = max((len(nodes) for nodes in chosen.shown.values()), default=0)
    height = _TOP + max(rows, 1) * _PITCH + 24.0
    tops = _tops(chosen, rows)
    totals = _notes(graph)
    marks: list[Markup] = [element("style", [Markup(_STYLE)])] if standalone else []  # noqa: S704 - our own text
    marks += [element("title", ["Producers, topics and consumer groups"]), element("desc", [_says(graph)])]
    marks += _curves(chosen, tops)
    for kind in NODE_KINDS:
        marks += _column(kind, chosen, tops, totals, height)
    if not graph.nodes:
        marks.append(label(_WIDTH / 2, _TOP + 26, "no message was sent or delivered", text_anchor="middle", size=13))
    space = {"xmlns": "http://www.w3.org/2000/svg"} if standalone else {"class_": "wide"}
    box = {"viewBox": f"0 0 {_WIDTH} {height:.0f}", "width": _WIDTH, "height": height}
    return element(
        "svg", marks, **space, role="img", aria_label=_says(graph), **box, font_family="system-ui, sans-serif"
    )


def _tops(chosen: Columns, rows: int) -> dict[str, float]:
    """Return where each card begins; shorter columns stand in the middle."""
    return {
        node.id: _TOP + (rows - len(nodes)) * _PITCH / 2 + at * _PITCH
        for nodes in chosen.shown.values()
        for at, node in enumerate(nodes)
    }


def _says(graph: Graph) -> str:
    """Return what a screen reader reads in place of the drawing: how much there is, and the busiest edges."""
    names = {node.id: node_name(node, limit=80) for node in graph.nodes}
    sizes = [plural(sum(node.kind == kind for node in graph.nodes), _NOUNS[kind]) for kind in NODE_KINDS]
    busiest = sorted(graph.edges, key=lambda edge: -edge.count)[:_MOST_TOLD]
    told_edges = [f"{names[edge.source]} to {names[edge.target]}: {told(edge)}" for edge in busiest]
    return ". ".join((", ".join(sizes), *told_edges, "All numbers are in the tables"))


# -- cards ----------------------------------------------------------------------------------------------------------
def _column(
    kind: str, chosen: Columns, tops: Mapping[str, float], notes: Mapping[str, str], height: float
) -> list[Markup]:
    left = _LEFTS[kind]
    marks = [label(left, 16, _HEADINGS[kind], size=13, font_weight=600)]
    marks += [_card(node, left, tops[node.id], notes.get(node.id, "")) for node in chosen.shown[kind]]
    if more := chosen.hidden[kind]:
        marks.append(label(left, height - 8, f"and {plural(more, _NOUNS[kind])} more", size=12, font_style="italic"))
    return marks


def _card(node: Node, left: float, top: float, note: str) -> Markup:
    colour, name = _COLOURS[node.kind], node_name(node)
    unknown = {"stroke_dasharray": "4 3"} if node.name is None or node.stands_for else {}
    marks = [
        rect(left, top, _CARD_WIDTH, _CARD_HEIGHT, colour, fill_opacity=0.1, stroke=colour, rx=8, **unknown),
        label(left + 10, top + 18, _shortened(name, _LONGEST_NAME), size=12.5, font_weight=600),
        label(left + 10, top + 35, _shortened(note, _LONGEST_NOTE), size=11, fill_opacity=0.85),
    ]
    parts = (name, *(f"{word} {visible(', '.join(said))}" for word, said in _about(node) if said), note)
    return titled("\n".join(parts), marks)


def _about(node: Node) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("services:", node.services), ("groups:", node.groups), ("namespaces:", node.namespaces))


def _shortened(text: str, longest: int) -> str:
    """Return ``text`` with its middle left out: names differ at their ends."""
    if len(text) <= longest:
        return text
    tail = longest // 2 - 1
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _notes(graph: Graph) -> dict[str, str]:
    """Return the line below each node's name."""
    sent: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        sent.setdefault(edge.source if edge.kind == PUBLISH else edge.target, []).append(edge)
    totals = graph.topic_totals()
    notes = {}
    for node in graph.nodes:
        if node.kind == "topic":
            notes[node.id] = _topic_note(totals[node.id])
        else:
            notes[node.id] = _party_note(node, sent.get(node.id, []))
    return notes


def _topic_note(total: Mapping[str, int]) -> str:
    parts = [
        plural(total["messages"], "message") if total["sends"] else "no send seen",
        "" if total["consumer_groups"] else "no consumer seen",
        f"{count(total['never_consumed'])} never consumed"
        if total["never_consumed"] and total["consumer_groups"]
        else "",
        f"{count(total['never_published'])} never published" if total["never_published"] else "",
    ]
    return " · ".join(part for part in parts if part)


def _party_note(node: Node, edges: list[Edge]) -> str:
    legs, failures = sum(edge.count for edge in edges), sum(edge.failures for edge in edges)
    service = ", ".join(node.services) if node.kind != "producer" and node.services != (node.name,) else ""
    parts = [
        f"{count(legs)} {'sent' if node.kind == 'producer' else 'delivered'}",
        f"{_share(failures, legs)} failed" if failures else "",
        service,
    ]
    return " · ".join(part for part in parts if part)


# -- edges ----------------------------------------------------------------------------------------------------------
def _curves(chosen: Columns, tops: Mapping[str, float]) -> list[Markup]:
    curves = _placed(chosen.edges, tops)
    names = {node.id: node_name(node) for nodes in chosen.shown.values() for node in nodes}
    most = max((edge.count for edge in chosen.edges), default=1)
    lines = [_curve(curve, names, most) for curve in sorted(curves, key=lambda curve: _is_troubled(curve.edge))]
    return lines + _labels(curves)


def _placed(edges: Iterable[Edge], tops: Mapping[str, float]) -> list[_Curve]:
    """Give every edge places of its own on the sides of its cards, in the order of their other ends."""
    begins = _ports(edges, "source", "target", tops)
    ends = _ports(edges, "target", "source", tops)
    placed = []
    for edge in edges:
        key = (edge.source, edge.target)
        first, second = ("producer", "topic") if edge.kind == PUBLISH else ("topic", "consumer_group")
        placed.append(_Curve(edge, _LEFTS[first] + _CARD_WIDTH, begins[key], _LEFTS[second], ends[key]))
    return placed


def _ports(edges: Iterable[Edge], own: str, other: str, tops: Mapping[str, float]) -> dict[tuple[str, str], float]:
    at_node: dict[str, list[Edge]] = {}
    for edge in edges:
        at_node.setdefault(getattr(edge, own), []).append(edge)
    found = {}
    for node, tied in at_node.items():
        tied.sort(key=lambda edge: (tops[getattr(edge, other)], getattr(edge, other)))
        pitch = min(_PORT_PITCH, (_CARD_HEIGHT - 10) / len(tied))
        for at, edge in enumerate(tied):
            offset = (at - (len(tied) - 1) / 2) * pitch
            found[edge.source, edge.target] = tops[node] + _CARD_HEIGHT / 2 + offset
    return found


def _curve(curve: _Curve, names: Mapping[str, str], most: int) -> Markup:
    edge, colour = curve.edge, _TROUBLED if _is_troubled(curve.edge) else _FINE
    thick = 1.2 + (_THICKEST - 1.2) * math.log1p(edge.count) / math.log1p(most)
    bend, tip = (curve.x2 - curve.x1) / 2, curve.x2 - 7
    way = (
        f"M{curve.x1:.1f} {curve.y1:.1f}C{curve.x1 + bend:.1f} {curve.y1:.1f}"
        f" {tip - bend:.1f} {curve.y2:.1f} {tip:.1f} {curve.y2:.1f}"
    )
    marks = [
        element("path", d=way, fill="none", stroke=colour, stroke_width=thick, stroke_opacity=0.8),
        element("path", d=f"M{curve.x2:.1f} {curve.y2:.1f}l-9 -4.5v9z", fill=colour),
    ]
    loop = "\na service of this group sends to the same topic" if edge.is_loop else ""
    return titled(f"{names[edge.source]} → {names[edge.target]}\n{told(edge)}{loop}", marks)


def _is_troubled(edge: Edge) -> bool:
    return bool(edge.failures or edge.never_published or (edge.kind == PUBLISH and edge.never_consumed))


def _labels(curves: Iterable[_Curve]) -> list[Markup]:
    """Write the busiest edges' numbers on their middles, as far as they do not cover each other."""
    taken: dict[str, list[float]] = {PUBLISH: [], CONSUME: []}
    marks = []
    for curve in sorted(curves, key=lambda curve: (-curve.edge.count, curve.edge.source, curve.edge.target)):
        x, y = (curve.x1 + curve.x2) / 2, (curve.y1 + curve.y2) / 2 - 4
        if all(abs(y - other) >= _LABEL_HEIGHT for other in taken[curve.edge.kind]):
            taken[curve.edge.kind].append(y)
            marks.append(label(x, y, _brief(curve.edge), size=10, text_anchor="middle", **_HALO))
    return marks


def _brief(edge: Edge) -> str:
    parts = [
        count(edge.count),
        f"{_share(edge.failures, edge.count)} failed" if edge.failures else "",
        f"{count(edge.again)} again" if edge.again else "",
        "loop" if edge.is_loop else "",
    ]
    return " · ".join(part for part in parts if part)


def _share(part: int, whole: int) -> str:
    """Return a share in whole percent, never ``0 %`` or ``100 %`` for what only rounds to it."""
    shown = round(100 * part / whole)
    return "< 1 %" if not shown else "> 99 %" if shown == 100 and part < whole else f"{shown} %"  # noqa: PLR2004
