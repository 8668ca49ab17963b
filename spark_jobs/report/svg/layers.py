"""Where the nodes of a graph stand: three columns, ordered so that few edges cross."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_jobs.report.graph import NODE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.report.graph import Edge, Graph, Node

__all__ = ["Columns", "columns"]

_SWEEPS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Per kind of node the ones that are shown, top to bottom, and how many are not; the edges between shown ones."""

    shown: Mapping[str, tuple[Node, ...]]
    hidden: Mapping[str, int]
    edges: tuple[Edge, ...]


def columns(graph: Graph, *, most_nodes: int) -> Columns:
    """Return the busiest ``most_nodes`` topics and who is tied to them most; the sum of all others comes last.

    Ordered by the mean place of the neighbours, a few times in both directions, ties by name: the same graph is drawn
    the same way every time.
    """
    by_kind = {kind: [node for node in graph.nodes if node.kind == kind] for kind in NODE_KINDS}
    topics = _busiest(by_kind["topic"], graph.edges, most_nodes)
    shown = {node.id for node in topics}
    near = [edge for edge in graph.edges if edge.source in shown or edge.target in shown]
    kept = {kind: topics if kind == "topic" else _busiest(by_kind[kind], near, most_nodes) for kind in NODE_KINDS}
    inside = {node.id for nodes in kept.values() for node in nodes}
    edges = tuple(edge for edge in graph.edges if edge.source in inside and edge.target in inside)
    return Columns(
        shown=_untangled(kept, edges),
        hidden={kind: len(by_kind[kind]) - len(kept[kind]) for kind in NODE_KINDS},
        edges=edges,
    )


def _busiest(nodes: Iterable[Node], edges: Iterable[Edge], at_most: int) -> list[Node]:
    """Return the nodes with the most traffic over ``edges``; one without any would stand there alone."""
    busy: Counter[str] = Counter()
    for edge in edges:
        busy.update({edge.source: edge.count, edge.target: edge.count})
    tied = (node for node in nodes if busy[node.id])
    return sorted(tied, key=lambda node: (-busy[node.id], node.id))[:at_most]


def _untangled(kept: dict[str, list[Node]], edges: Iterable[Edge]) -> dict[str, tuple[Node, ...]]:
    neighbours: defaultdict[str, list[str]] = defaultdict(list)
    for edge in edges:
        neighbours[edge.source].append(edge.target)
        neighbours[edge.target].append(edge.source)
    order = {kind: list(nodes) for kind, nodes in kept.items()}
    for sweep in range(_SWEEPS):
        for kind in NODE_KINDS if sweep % 2 else reversed(NODE_KINDS):
            place = {node.id: _middle(at, nodes) for nodes in order.values() for at, node in enumerate(nodes)}
            order[kind].sort(key=lambda node: _key(node, neighbours[node.id], place))
    return {kind: tuple(nodes) for kind, nodes in order.items()}


def _middle(at: int, nodes: list[Node]) -> float:
    """Return a place from 0 to 1, so that columns of different lengths can be compared."""
    return (at + 0.5) / len(nodes)


def _key(node: Node, neighbours: list[str], place: dict[str, float]) -> tuple[bool, float, str]:
    mean = sum(place[one] for one in neighbours) / len(neighbours) if neighbours else place[node.id]
    return bool(node.stands_for), round(mean, 9), node.id
