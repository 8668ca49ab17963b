"""The files of ``mqtrace graph``: page, drawing, JSON and DOT."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from bridge.page.markup import content_policy, style_sheet
from spark_jobs.report.graph import CONSUME, NODE_KINDS, PUBLISH, describe_edge, node_name
from spark_jobs.report.graph_drawing import graph_svg
from spark_jobs.report.templating import environment
from spark_jobs.report.wording import count, plural, utc, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_jobs.report.graph import Edge, Graph

_SHAPES: Final = {"producer": "box", "topic": "cylinder", "consumer_group": "box"}


def render_dot(graph: Graph) -> str:
    """Return the graph for Graphviz, left to right."""
    lines = ["digraph messages {", "  rankdir=LR;", '  node [fontname="sans-serif"];']
    lines += [
        f"  {_quoted(node.id)} [label={_quoted(node_name(node))}, shape={_SHAPES[node.kind]}];" for node in graph.nodes
    ]
    for edge in graph.edges:
        colour = ", color=red" if edge.failures or edge.never_consumed or edge.never_published else ""
        ends = f"{_quoted(edge.source)} -> {_quoted(edge.target)}"
        lines.append(f"  {ends} [label={_quoted(describe_edge(edge))}, weight={min(edge.count, 1000)}{colour}];")
    return "\n".join((*lines, "}")) + "\n"


def _quoted(text: str) -> str:
    escaped = visible(text, limit=2_000).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


# -- graph.html --------------------------------------------------------------------------------------------------------
_MOST_ROWS: Final = 100

FATE_MEANINGS: Final = {
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
    style = style_sheet("spark_jobs.report", "templates/style.css")
    page = environment().get_template("graph.html.j2")
    return page.render(
        policy=content_policy(style),
        style=Markup(style),  # noqa: S704 - our own file
        drawing=graph_svg(graph),
        figures=_figures(graph),
        scope=_scope(graph),
        judged=_judged(graph),
        names={node.id: node_name(node) for node in graph.nodes},
        services={node.id: visible(", ".join(node.services)) for node in graph.nodes},
        sends=graph.edges_of(PUBLISH),
        deliveries=graph.edges_of(CONSUME),
        fates=_fates(graph),
        calls=graph.calls,
        not_judged=_not_judged,
        most_rows=_MOST_ROWS,
    )


def _figures(graph: Graph) -> list[tuple[str, str, str]]:
    sizes = [sum(node.kind == kind and not node.stands_for for node in graph.nodes) for kind in NODE_KINDS]
    sends, deliveries = graph.edges_of(PUBLISH), graph.edges_of(CONSUME)
    unconsumed = sum(edge.never_consumed for edge in sends)
    unpublished = sum(edge.never_published for edge in deliveries)
    failed = sum(edge.failures for edge in deliveries)
    return [
        ("Topics", count(sizes[1]), f"{plural(sizes[0], 'producer')}, {plural(sizes[2], 'consumer group')}"),
        ("Messages", count(sum(edge.messages for edge in sends)), "sent in the window"),
        ("Deliveries", count(sum(edge.count for edge in deliveries)), f"{count(failed)} failed"),
        ("Never consumed", count(unconsumed), f"{count(unpublished)} consumed but never published"),
    ]


def _scope(graph: Graph) -> str:
    sides = {"native": "the native message trace", "otlp": "OpenTelemetry spans"}
    read = " and ".join(sides[side] for side in graph.sides)
    return f"From {read}, events from {utc(graph.first_ms)} to {utc(graph.last_ms)}."


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
    return [(name.replace("_", " "), total[name], meaning) for name, meaning in FATE_MEANINGS.items() if total[name]]


def _not_judged(edge: Edge) -> int:
    return sum(n for fate, n in edge.fates.items() if fate not in {"consumed", "never_consumed"})


GRAPH_FILES: Final[dict[str, Callable[[Graph], str]]] = {
    "graph.html": render_graph_page,
    "graph.svg": lambda graph: graph_svg(graph, standalone=True),
    "graph.dot": render_dot,
    "graph.json": lambda graph: graph.dumps(),
}
"""File name → renderer; ``graph.json`` comes last: when it exists, the others are complete."""
