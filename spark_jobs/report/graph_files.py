"""The graph as HTML, SVG and DOT: producers, topics and consumer groups from left to right, and the edges between them.

Every edge leaves its card as a straight stub with its numbers above it. Stubs of a card are one label apart and cards
do not overlap, so that no label lies on another or on an edge.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.page.markup import (
    AMBER,
    BLUE,
    GREEN,
    RED,
    SLATE,
    content_policy,
    drawing,
    element,
    label,
    path,
    rect,
    style_sheet,
    titled,
)
from spark_jobs.report.graph import CONSUME, NODE_KINDS, PUBLISH, describe_edge, node_name
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import count, plural, utc, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from markupsafe import Markup

    from spark_jobs.report.graph import Edge, Graph, Node

MOST_NODES: Final = 20
"""Nodes drawn per column; a line below it counts the others."""

_WIDTH, _CARD_WIDTH, _TOP, _BETWEEN = 1200, 232.0, 34.0, 12.0
_NAME_HEIGHT, _LINE_HEIGHT, _PADDING = 26.0, 15.0, 8.0
_LEFTS: Final = dict(zip(NODE_KINDS, (1.0, 484.0, 967.0), strict=True))
_HEADINGS: Final = dict(zip(NODE_KINDS, ("Producers", "Topics", "Consumer groups"), strict=True))
_NOUNS: Final = dict(zip(NODE_KINDS, ("producer", "topic", "consumer group"), strict=True))
_COLOURS: Final = dict(zip(NODE_KINDS, (BLUE, AMBER, GREEN), strict=True))
_FINE, _TROUBLED = SLATE, RED
_LONGEST_NAME, _LONGEST_NOTE, _LONGEST_LABEL = 25, 36, 29
_THICKEST: Final = 5.0
_STUB: Final = 160.0
_PORT, _LABELLED_PORT = 7.0, 17.0
_MOST_LABELS: Final = 8
"""Edges of one node with their numbers beside them, the busiest; the others have a tooltip only."""
_LEAST_SERVICE: Final = 8
_MOST_DESCRIBED: Final = 12


@dataclass(frozen=True, slots=True)
class _Card:
    """A node with the lines of text below its name and its position."""

    node: Node
    lines: tuple[str, ...]
    left: float
    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def graph_svg(graph: Graph) -> Markup:
    """Return the drawing of the busiest ``MOST_NODES`` of a column as ``<svg>``, in the text colour of its page."""
    chosen = _choose_columns(graph)
    cards, bottom = _place_cards(chosen, _notes(graph))
    height = bottom + 24
    text = _describe(graph)
    marks = [element("title", "Producers, topics and consumer groups"), element("desc", text)]
    marks += _edges(chosen, cards)
    marks += [_card(card) for card in cards.values()]
    for kind, left in _LEFTS.items():
        marks.append(label(left, 16, _HEADINGS[kind], size=13, font_weight=600))
        if more := chosen.hidden[kind]:
            note = f"and {plural(more, _NOUNS[kind])} more"
            marks.append(label(left, height - 8, note, size=12, font_style="italic"))
    if not graph.nodes:
        marks.append(label(_WIDTH / 2, _TOP + 26, "no message was sent or delivered", text_anchor="middle", size=13))
    return drawing(marks, width=_WIDTH, height=height, text=text, css="wide")


def _place_cards(chosen: _Columns, notes: Mapping[str, tuple[str, ...]]) -> tuple[dict[str, _Card], float]:
    """Return the cards by node and the bottom of the tallest column; shorter columns are centred."""
    leaving, arriving = Counter(edge.source for edge in chosen.edges), Counter(edge.target for edge in chosen.edges)
    heights: dict[str, float] = {}
    for node in (node for nodes in chosen.shown.values() for node in nodes):
        labelled = min(leaving[node.id], _MOST_LABELS)
        stubs = labelled * _LABELLED_PORT + (leaving[node.id] - labelled) * _PORT
        text = _NAME_HEIGHT + _LINE_HEIGHT * len(notes[node.id])
        heights[node.id] = _PADDING + max(text, stubs, arriving[node.id] * _PORT)
    columns_of = {
        kind: sum(heights[node.id] + _BETWEEN for node in nodes) - _BETWEEN for kind, nodes in chosen.shown.items()
    }
    tallest = max([*columns_of.values(), 44.0])
    cards = {}
    for kind, nodes in chosen.shown.items():
        top = _TOP + (tallest - columns_of[kind]) / 2
        for node in nodes:
            cards[node.id] = _Card(node, notes[node.id], _LEFTS[kind], top, heights[node.id])
            top += heights[node.id] + _BETWEEN
    return cards, _TOP + tallest


def _describe(graph: Graph) -> str:
    """Return the text for screen readers: the number of nodes and the busiest edges."""
    names = {node.id: node_name(node, limit=80) for node in graph.nodes}
    sizes = [plural(sum(node.kind == kind for node in graph.nodes), _NOUNS[kind]) for kind in NODE_KINDS]
    busiest = sorted(graph.edges, key=lambda edge: -edge.count)[:_MOST_DESCRIBED]
    edges = [f"{names[edge.source]} to {names[edge.target]}: {describe_edge(edge)}" for edge in busiest]
    return ". ".join((", ".join(sizes), *edges, "All numbers are in the tables"))


# -- cards -------------------------------------------------------------------------------------------------------------
def _card(card: _Card) -> Markup:
    node, colour, name = card.node, _COLOURS[card.node.kind], node_name(card.node)
    unknown = {"stroke_dasharray": "4 3"} if node.name is None or node.stands_for else {}
    box = {"fill_opacity": 0.1, "stroke": colour, "rx": 8, **unknown}
    first = card.middle - (_NAME_HEIGHT + _LINE_HEIGHT * len(card.lines)) / 2 + 17
    marks = [
        rect(card.left, card.top, _CARD_WIDTH, card.height, colour, **box),
        label(card.left + 10, first, _shorten(name, _LONGEST_NAME), size=12.5, font_weight=600),
    ]
    for at, text in enumerate(card.lines, start=1):
        marks.append(label(card.left + 10, first + _LINE_HEIGHT * at + 1, text, size=11, fill_opacity=0.85))
    lists = {"services": node.services, "groups": node.groups, "namespaces": node.namespaces}
    parts = (name, *(f"{word}: {visible(', '.join(names))}" for word, names in lists.items() if names), *card.lines)
    return titled("\n".join(parts), *marks)


def _shorten(text: str, longest: int) -> str:
    """Return ``text`` without its middle: names differ at their ends."""
    if len(text) <= longest:
        return text
    tail = longest // 2 - 1
    return f"{text[: longest - tail - 1]}…{text[-tail:]}"


def _notes(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Return the lines below the name of each node: its numbers in full, and a service as far as there is room."""
    edges_of: defaultdict[str, list[Edge]] = defaultdict(list)
    for edge in graph.edges:
        edges_of[edge.source if edge.kind == PUBLISH else edge.target].append(edge)
    totals = graph.topic_totals()
    notes = {}
    for node in graph.nodes:
        is_topic = node.kind == "topic"
        lines = _wrap(_topic_note(totals[node.id]) if is_topic else _party_note(node, edges_of[node.id]))
        notes[node.id] = lines if is_topic else _with_service(lines, node)
    return notes


def _topic_note(total: Mapping[str, int]) -> list[str]:
    return [
        plural(total["messages"], "message") if total["sends"] else "no send seen",
        "" if total["consumer_groups"] else "no consumer seen",
        f"{count(total['never_consumed'])} never consumed"
        if total["never_consumed"] and total["consumer_groups"]
        else "",
        f"{count(total['never_published'])} never published" if total["never_published"] else "",
    ]


def _party_note(node: Node, edges: list[Edge]) -> list[str]:
    legs, failures = sum(edge.count for edge in edges), sum(edge.failures for edge in edges)
    verb = "sent" if node.kind == "producer" else "delivered"
    return [f"{count(legs)} {verb}", f"{_share(failures, legs)} failed" if failures else ""]


def _wrap(parts: Iterable[str]) -> tuple[str, ...]:
    lines: list[str] = []
    for part in filter(None, parts):
        if lines and len(f"{lines[-1]} · {part}") <= _LONGEST_NOTE:
            lines[-1] += f" · {part}"
        else:
            lines.append(part)
    return tuple(lines)


def _with_service(lines: tuple[str, ...], node: Node) -> tuple[str, ...]:
    service = visible(", ".join(node.services))
    room = _LONGEST_NOTE - len(lines[-1]) - 3
    if node.kind == "producer" or node.services == (node.name,) or not service or room < _LEAST_SERVICE:
        return lines
    return (*lines[:-1], f"{lines[-1]} · {_shorten(service, room)}")


# -- edges -------------------------------------------------------------------------------------------------------------
def _edges(chosen: _Columns, cards: Mapping[str, _Card]) -> list[Markup]:
    """Return every edge, and the numbers of the busiest of each node above their stubs."""
    most = max((edge.count for edge in chosen.edges), default=1)
    ends: dict[tuple[str, str], float] = {}
    for card, tied in _edges_by_card(chosen.edges, cards, "target", "source"):
        pitch = min(_PORT, (card.height - _PADDING) / len(tied))
        for at, edge in enumerate(tied):
            ends[edge.source, edge.target] = card.middle + (at - (len(tied) - 1) / 2) * pitch
    marks: list[Markup] = []
    for card, tied in _edges_by_card(chosen.edges, cards, "source", "target"):
        busiest = sorted(tied, key=lambda edge: (-edge.count, edge.target))[:_MOST_LABELS]
        y = card.middle - sum(_LABELLED_PORT if edge in busiest else _PORT for edge in tied) / 2
        for edge in tied:
            y += _LABELLED_PORT if edge in busiest else _PORT
            line_y = y - _THICKEST / 2
            marks.append(_edge(edge, cards, line_y, ends[edge.source, edge.target], most))
            if edge in busiest:
                marks.append(label(card.left + _CARD_WIDTH + 4, line_y - 4.5, _brief(edge), size=10))
    return marks


def _edges_by_card(
    edges: Iterable[Edge], cards: Mapping[str, _Card], own: str, other: str
) -> list[tuple[_Card, list[Edge]]]:
    at_node: defaultdict[str, list[Edge]] = defaultdict(list)
    for edge in edges:
        at_node[getattr(edge, own)].append(edge)
    for tied in at_node.values():
        tied.sort(key=lambda edge: (cards[getattr(edge, other)].top, getattr(edge, other)))
    return [(cards[node], tied) for node, tied in at_node.items()]


def _edge(edge: Edge, cards: Mapping[str, _Card], y1: float, y2: float, most: int) -> Markup:
    source, target = cards[edge.source], cards[edge.target]
    is_troubled = edge.failures or edge.never_published or (edge.kind == PUBLISH and edge.never_consumed)
    colour = _TROUBLED if is_troubled else _FINE
    thick = 1.2 + (_THICKEST - 1.2) * math.log1p(edge.count) / math.log1p(most)
    x1, x2 = source.left + _CARD_WIDTH, target.left
    bent, tip = x1 + _STUB, x2 - 7
    middle = (bent + tip) / 2
    way = f"M{x1:.1f} {y1:.1f}H{bent:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {tip:.1f} {y2:.1f}"
    line = path(way, stroke=colour, stroke_width=thick, stroke_opacity=0.8)
    arrow = path(f"M{x2:.1f} {y2:.1f}l-9 -4.5v9z", colour)
    title = f"{node_name(source.node)} → {node_name(target.node)}\n{describe_edge(edge)}"
    return titled(title, line, arrow)


def _brief(edge: Edge) -> str:
    text = _round(edge.count)
    for more in (
        f" · {_share(edge.failures, edge.count)} failed" if edge.failures else "",
        f" · {_round(edge.again)} again" if edge.again else "",
    ):
        text += more if len(text + more) <= _LONGEST_LABEL else ""
    return text


def _round(n: int) -> str:
    """Return up to five digits as they are, larger numbers as ``120k``, ``1.2M`` or ``3.4G``."""
    for size, unit in ((10**9, "G"), (10**6, "M")):
        if n >= size:
            return f"{n / size:,.1f}{unit}"
    return f"{n // 1000}k" if n >= 10**5 else count(n)


def _share(part: int, whole: int) -> str:
    """Return a share in whole percent; ``0 %`` and ``100 %`` are exact."""
    shown = round(100 * part / whole)
    return "< 1 %" if not shown else "> 99 %" if shown == 100 and part < whole else f"{shown} %"  # noqa: PLR2004


# -- columns, ordered so that few edges cross --------------------------------------------------------------------------
_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """By kind of node: the shown ones, top to bottom, and the number of hidden ones; the edges between shown nodes."""

    shown: Mapping[str, tuple[Node, ...]]
    hidden: Mapping[str, int]
    edges: tuple[Edge, ...]


def _choose_columns(graph: Graph) -> _Columns:
    """Return the ``MOST_NODES`` busiest topics and their busiest producers and groups; the sum of others comes last.

    Nodes are ordered by the mean position of their neighbours, a few times in both directions, then by name.
    """
    by_kind = {kind: [node for node in graph.nodes if node.kind == kind] for kind in NODE_KINDS}
    topics = _busiest(by_kind["topic"], graph.edges, MOST_NODES)
    shown = {node.id for node in topics}
    near = [edge for edge in graph.edges if edge.source in shown or edge.target in shown]
    kept = {kind: topics if kind == "topic" else _busiest(by_kind[kind], near, MOST_NODES) for kind in NODE_KINDS}
    inside = {node.id for nodes in kept.values() for node in nodes}
    edges = tuple(edge for edge in graph.edges if edge.source in inside and edge.target in inside)
    return _Columns(
        shown=_untangle(kept, edges),
        hidden={kind: len(by_kind[kind]) - len(kept[kind]) for kind in NODE_KINDS},
        edges=edges,
    )


def _busiest(nodes: Iterable[Node], edges: Iterable[Edge], at_most: int) -> list[Node]:
    busy: Counter[str] = Counter()
    for edge in edges:
        busy.update({edge.source: edge.count, edge.target: edge.count})
    tied = (node for node in nodes if busy[node.id])
    return sorted(tied, key=lambda node: (-busy[node.id], node.id))[:at_most]


def _untangle(kept: dict[str, list[Node]], edges: Iterable[Edge]) -> dict[str, tuple[Node, ...]]:
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for edge in edges:
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    order = {kind: list(nodes) for kind, nodes in kept.items()}
    for sweep in range(_SWEEPS):
        for kind in NODE_KINDS if sweep % 2 else reversed(NODE_KINDS):
            # from 0 to 1, comparable across columns of different lengths
            position = {one.id: (at + 0.5) / len(some) for some in order.values() for at, one in enumerate(some)}
            order[kind].sort(key=lambda node: _key(node, neighbours[node.id], position))
    return {kind: tuple(nodes) for kind, nodes in order.items()}


def _key(node: Node, neighbours: list[str], position: dict[str, float]) -> tuple[bool, float, str]:
    mean = sum(position[one] for one in neighbours) / len(neighbours) if neighbours else position[node.id]
    return bool(node.stands_for), round(mean, 9), node.id


_SHAPES: Final = {"producer": "box", "topic": "cylinder", "consumer_group": "box"}


def render_dot(graph: Graph) -> str:
    """Return the graph for Graphviz, left to right."""
    lines = ["digraph messages {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    lines += [
        f"  {_quote(node.id)} [label={_quote(node_name(node))}, shape={_SHAPES[node.kind]}];" for node in graph.nodes
    ]
    for edge in graph.edges:
        colour = ", color=red" if edge.failures or edge.never_consumed or edge.never_published else ""
        ends = f"{_quote(edge.source)} -> {_quote(edge.target)}"
        lines.append(f"  {ends} [label={_quote(describe_edge(edge))}, weight={min(edge.count, 1000)}{colour}];")
    return "\n".join((*lines, "}")) + "\n"


def _quote(text: str) -> str:
    escaped = visible(text, limit=2_000).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- graph.html --------------------------------------------------------------------------------------------------------
_MOST_ROWS: Final = 100

_FATE_MEANINGS: Final = {
    "consumed": "at least one delivery was seen",
    "never_consumed": "old enough to have been delivered, and no delivery was seen",
    "pending": "younger than the horizon, so a delivery may still be on its way",
    "failed": "every send of it failed",
    "rolled_back": "its transaction was rolled back",
    "uncommitted": "a half message whose transaction was not seen to be committed",
    "delayed": "a delayed message, whose time is unknown",
    "recalled": "recalled before its time",
    "reply": "an answer to a request: clients record no delivery of those",
    "unidentified": "its send names no message id and no consumer points at it",
}
"""The fate of a message → its meaning, in the order of the page."""


def render_graph_page(graph: Graph) -> str:
    """Return the page; it is readable without style, script and network."""
    style = style_sheet("spark_jobs.report")
    sides = {"native": "the native message trace", "otlp": "OpenTelemetry spans"}
    read = " and ".join(sides[side] for side in graph.sides)
    page = environment().get_template("graph.html.j2")
    return page.render(
        policy=content_policy(style),
        style=style,
        drawing=graph_svg(graph),
        figures=_figures(graph),
        scope=f"From {read}, events from {utc(graph.first_ms)} to {utc(graph.last_ms)}.",
        judged=_judged(graph),
        names={node.id: node_name(node) for node in graph.nodes},
        services={node.id: visible(", ".join(node.services)) for node in graph.nodes},
        sends=graph.edges_of(PUBLISH),
        deliveries=graph.edges_of(CONSUME),
        fates=_fates(graph),
        not_judged=_not_judged,
        most_rows=_MOST_ROWS,
    )


def _figures(graph: Graph) -> list[tuple[str, str, str]]:
    sizes = [sum(node.kind == kind and not node.stands_for for node in graph.nodes) for kind in NODE_KINDS]
    sends, deliveries = graph.edges_of(PUBLISH), graph.edges_of(CONSUME)
    unconsumed = sum(edge.never_consumed for edge in sends)
    unpublished = sum(edge.never_published for edge in deliveries)
    failed = sum(edge.failures for edge in deliveries)
    others = ", and others" if any(node.stands_for for node in graph.nodes) else ""
    return [
        ("Topics", count(sizes[1]), f"{plural(sizes[0], 'producer')}, {plural(sizes[2], 'consumer group')}{others}"),
        ("Messages", count(sum(edge.messages for edge in sends)), "sent in the window"),
        ("Deliveries", count(sum(edge.count for edge in deliveries)), f"{count(failed)} failed"),
        ("Never consumed", count(unconsumed), f"{count(unpublished)} consumed but never published"),
    ]


def _judged(graph: Graph) -> str:
    if graph.horizon_ms is None or graph.opening_ms is None or graph.opening_ms > graph.horizon_ms:
        return "The data is too short, against the grace period, to call any message never consumed or never published."
    return (
        f"Messages sent after {utc(graph.horizon_ms)} may still be delivered, and what was delivered before"
        f" {utc(graph.opening_ms)} may have been sent before the data begins: neither is called missing."
    )


def _fates(graph: Graph) -> list[tuple[str, int, str]]:
    total: Counter[str] = Counter()
    for edge in graph.edges_of(PUBLISH):
        total.update(edge.fates)
    return [(name.replace("_", " "), total[name], meaning) for name, meaning in _FATE_MEANINGS.items() if total[name]]


def _not_judged(edge: Edge) -> int:
    return sum(n for fate, n in edge.fates.items() if fate not in {"consumed", "never_consumed"})


GRAPH_FILES: Final[dict[str, Callable[[Graph], str]]] = {
    "graph.html": render_graph_page,
    "graph.dot": render_dot,
    "graph.json": lambda graph: graph.dumps(),
}
"""File name → renderer; ``graph.json`` comes last: when it exists, the others are complete."""


def render_files(graph: Graph) -> dict[str, str]:
    """Return the text of every file by name."""
    return {name: render(graph) for name, render in GRAPH_FILES.items()}
