"""The dependency graph as plain data: the content of ``graph.json`` and the input of every drawing.

``to_json`` writes a public contract (``schema_version`` 1): keys are only ever added.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from spark_jobs.report.wording import count, duration, percent, visible

PUBLISH, CONSUME = "publish", "consume"
NODE_KINDS: Final = ("producer", "topic", "consumer_group")
"""The kinds of node in the order that messages pass them."""


_UNKNOWN: Final = {"producer": "(unknown producer)", "topic": "(unknown topic)", "consumer_group": "(unknown group)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One duration, milliseconds, over ``count`` events; ``min`` of a queue time is negative where clocks differ."""

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A producer (a service, else a producer group), a topic or a consumer group.

    ``name`` is ``None`` where no record has it. ``stands_for`` is the number of edges that an "others" node sums up.
    """

    id: str
    kind: str
    name: str | None
    services: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    stands_for: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The sends of one producer to one topic, or the deliveries of one topic to one consumer group.

    Attributes:
        kind: ``publish`` or ``consume``.
        count: sends, or deliveries.
        messages: distinct messages.
        failures: failed sends or deliveries; ``outcome_unknown`` have no outcome.
        again: repeated sends or deliveries of a message.
        via_retry, via_dlq: those over a retry or dead-letter topic, counted at the topic of the message.
        unfinished: deliveries without an end.
        native, otlp: those of ``count`` that the side recorded.
        fates: publish only: messages by fate (``spark_jobs.graph.legs.FATES``).
        origins: consume only: messages by what is known of their send.
        took: duration of a send, or of the handling of a delivery.
        queued: consume only: from the end of the send to the start of the delivery.
        stands_for: the number of edges that an "others" edge sums up.
    """

    source: str
    target: str
    kind: str
    count: int
    again: int = 0
    messages: int
    failures: int = 0
    outcome_unknown: int = 0
    via_retry: int = 0
    via_dlq: int = 0
    native: int = 0
    otlp: int = 0
    unfinished: int = 0
    max_retry_times: int | None = None
    fates: dict[str, int] = field(default_factory=dict)
    origins: dict[str, int] = field(default_factory=dict)
    first_ms: int | None = None
    last_ms: int | None = None
    stands_for: int = 0
    took: Spread = field(default_factory=Spread)
    queued: Spread = field(default_factory=Spread)

    @property
    def error_rate(self) -> float:
        """The share of failures among those with a known outcome."""
        known = self.count - self.outcome_unknown
        return self.failures / known if known else 0.0

    @property
    def retry_rate(self) -> float:
        """The share of sends or deliveries after the first of their message."""
        return self.again / self.count if self.count else 0.0

    @property
    def never_consumed(self) -> int:
        """Messages old enough to have been delivered, without a delivery."""
        return self.fates.get("never_consumed", 0)

    @property
    def never_published(self) -> int:
        """Delivered messages without a send, although the data goes back far enough."""
        return self.origins.get("never_published", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the edge as in ``graph.json``, with the names of its kind."""
        names, plain = _PUBLIC_NAMES[self.kind], asdict(self)
        took, queued = plain.pop("took"), plain.pop("queued")
        shown = {public: value for name, value in plain.items() if (public := names.get(name, name)) is not None}
        rates = {"error_rate": round(self.error_rate, 6), "retry_rate": round(self.retry_rate, 6)}
        spreads = {"publish_ms": took} if self.kind == PUBLISH else {"queue_ms": queued, "process_ms": took}
        return {**shown, **rates, **spreads}


_PUBLIC_NAMES: Final = {
    PUBLISH: {"count": "sends", "again": "resends", **dict.fromkeys(("unfinished", "max_retry_times", "origins"))},
    CONSUME: {"count": "deliveries", "again": "redeliveries", "fates": None},
}
"""The fields of ``Edge`` that ``graph.json`` calls something else, or (``None``) leaves out, by kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The whole graph. Times are epoch milliseconds, ``None`` without events; ``sides`` are the inputs.

    A missing delivery counts up to ``horizon_ms`` only, a missing send from ``opening_ms`` on. ``unknown_files`` are
    those among the sources that hold neither side. ``malformed`` rows and what ``truncated_tails`` lost are not drawn;
    ``first_malformed`` is the place and reason of one row, empty without any.
    """

    sides: tuple[str, ...] = ()
    first_ms: int | None = None
    last_ms: int | None = None
    opening_ms: int | None = None
    horizon_ms: int | None = None
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    unknown_files: frozenset[str] = frozenset()
    malformed: int = 0
    first_malformed: str = ""
    truncated_tails: int = 0

    def edges_of(self, kind: str) -> tuple[Edge, ...]:
        """Return the edges of a kind, busiest first, the sum of others last."""
        return tuple(edge for edge in self.edges if edge.kind == kind)

    def topic_totals(self) -> dict[str, Counter[str]]:
        """Return sends, messages, never_consumed, deliveries, never_published and consumer_groups by topic node id."""
        totals: dict[str, Counter[str]] = {node.id: Counter() for node in self.nodes if node.kind == "topic"}
        for edge in self.edges:
            if edge.kind == PUBLISH:
                counts = {"sends": edge.count, "messages": edge.messages, "never_consumed": edge.never_consumed}
                totals[edge.target].update(counts)
            else:
                counts = {"deliveries": edge.count, "never_published": edge.never_published, "consumer_groups": 1}
                totals[edge.source].update(counts)
        return totals

    def to_json(self) -> dict[str, Any]:
        """Return ``graph.json`` as a dictionary."""
        span = {"sides": self.sides, "first_ms": self.first_ms, "last_ms": self.last_ms}
        totals = self.topic_totals()
        return {
            "schema_version": 1,
            **span,
            "opening_ms": self.opening_ms,
            "horizon_ms": self.horizon_ms,
            "nodes": [{**asdict(node), **totals.get(node.id, {})} for node in self.nodes],
            "edges": [edge.to_json() for edge in self.edges],
        }

    def dumps(self) -> str:
        """Return ``graph.json`` as text: indented, stable keys, non-ASCII kept."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def node_id(kind: str, name: str | None) -> str:
    """Return the id of a node; an unknown name becomes the empty one."""
    return f"{kind}:{name or ''}"


def node_name(node: Node, *, limit: int = 300) -> str:
    """Return the name of a node for readers."""
    if node.stands_for:
        return f"other {node.kind.replace('_', ' ')}s"
    return _UNKNOWN[node.kind] if node.name is None else visible(node.name, limit=limit)


def describe_edge(edge: Edge) -> str:
    """Return the numbers of an edge as one line of text."""
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
