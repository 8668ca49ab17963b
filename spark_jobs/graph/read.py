"""This module knows how the collected rows of the graph's frames become plain data: nodes, edges, calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.graph.edges import ORIGINS, SPREADS
from spark_jobs.graph.journeys import FATES
from spark_jobs.report.graph import CONSUME, PUBLISH, Call, Edge, Graph, Node, Spread, node_id

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["read_calls", "read_graph"]

_OTHERS: Final = "others"
_ENDS: Final = {PUBLISH: ("producer", "topic"), CONSUME: ("topic", "consumer_group")}
_PLAIN: Final = ("messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "native", "otlp")


def read_graph(edge_rows: Iterable[Any], member_rows: Iterable[Any], **about: Any) -> Graph:
    """Return the graph of the collected rows of ``edges.edges`` and ``edges.members``.

    ``about`` is handed to ``Graph``: sides, opening_ms, horizon_ms, calls.
    """
    members = list(member_rows)
    loops = _loops(members)
    rows = sorted(edge_rows, key=lambda row: (row["kind"] != PUBLISH, row["rest"] > 0, -row["legs"], _names(row)))
    found = tuple(_edge(row, loops) for row in rows)
    times = [ms for edge in found for ms in (edge.first_ms, edge.last_ms) if ms is not None]
    return Graph(
        nodes=_nodes(rows, members),
        edges=found,
        first_ms=min(times, default=None),
        last_ms=max(times, default=None),
        **about,
    )


def _names(row: Any) -> tuple[str, str]:
    return row["party"] or "", row["topic"] or ""


def _ends(row: Any) -> tuple[tuple[str, str | None], tuple[str, str | None]]:
    """Return kind and name of where an edge begins and ends."""
    parts = {"topic": row["topic"], "producer": row["party"], "consumer_group": row["party"]}
    source, target = _ENDS[row["kind"]]
    return (source, parts[source]), (target, parts[target])


def _id(end: tuple[str, str | None], rest: int) -> str:
    return f"{_OTHERS}:{end[0]}" if rest else node_id(*end)


def _edge(row: Any, loops: set[tuple[str | None, str | None]]) -> Edge:
    source, target = (_id(end, row["rest"]) for end in _ends(row))
    sent = row["kind"] == PUBLISH
    took, queued = (_spread(row[name]) for name in SPREADS)
    return Edge(
        source=source,
        target=target,
        kind=row["kind"],
        count=row["legs"],
        **{name: row[name] for name in _PLAIN},
        unfinished=row["open"],
        max_retry_times=row["max_retry_times"],
        fates={name: row[f"fate_{name}"] for name in FATES} if sent else {},
        origins={} if sent else {name: row[f"origin_{name}"] for name in ORIGINS},
        took=took,
        queued=queued,
        first_ms=row["first_ms"],
        last_ms=row["last_ms"],
        is_loop=not sent and not row["rest"] and (row["topic"], row["party"]) in loops,
        stands_for=row["rest"],
    )


def _spread(row: Any) -> Spread:
    if row is None or not row["count"]:
        return Spread()
    p50, p95, p99 = row["ranks"]
    return Spread(count=row["count"], p50=p50, p95=p95, p99=p99, min=row["least"], max=row["most"])


def _loops(members: Iterable[Any]) -> set[tuple[str | None, str | None]]:
    """Return topic and group of every delivery to a service that sends to the same topic."""
    senders: defaultdict[str | None, set[str]] = defaultdict(set)
    for row in members:
        if row["kind"] == PUBLISH and row["service"]:
            senders[row["topic"]].add(row["service"])
    return {
        (row["topic"], row["party"])
        for row in members
        if row["kind"] == CONSUME and row["topic"] is not None and row["service"] in senders[row["topic"]]
    }


def _nodes(rows: Iterable[Any], members: Iterable[Any]) -> tuple[Node, ...]:
    """Return every end of an edge once, in the order messages pass them and the edges are told."""
    told: dict[str, dict[str, set[str]]] = {}
    for row in members:
        (source, target) = _ends(row)
        topic, party = (source, target) if row["kind"] == CONSUME else (target, source)
        _add(told, node_id(*topic), namespaces=row["namespace"])
        _add(told, node_id(*party), services=row["service"], groups=row["group"])
    found: dict[str, Node] = {}
    for row in rows:
        for end in _ends(row):
            one = _id(end, row["rest"])
            facts = (
                {name: tuple(sorted(values)) for name, values in told.get(one, {}).items()} if not row["rest"] else {}
            )
            name = end[1] if not row["rest"] else _OTHERS
            found.setdefault(one, Node(id=one, kind=end[0], name=name, stands_for=row["rest"], **facts))
    order = {kind: at for at, kind in enumerate(("producer", "topic", "consumer_group"))}
    return tuple(sorted(found.values(), key=lambda node: order[node.kind]))


def _add(told: dict[str, dict[str, set[str]]], node: str, **facts: str | None) -> None:
    known = told.setdefault(node, {})
    for name, value in facts.items():
        if value:
            known.setdefault(name, set()).add(value)


def read_calls(direct: Iterable[Any], messages: Iterable[Any]) -> tuple[Call, ...]:
    """Return the collected ``parent, child, calls`` of both kinds as one list, most frequent first."""
    counted: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name, rows in (("direct", direct), ("messages", messages)):
        for row in rows:
            counted[row["parent"], row["child"]][name] += row["calls"]
    found = (Call(parent=parent, child=child, **counts) for (parent, child), counts in counted.items())
    return tuple(sorted(found, key=lambda call: (-call.direct - call.messages, call.parent, call.child)))
