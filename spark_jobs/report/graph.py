"""The dependency graph as plain data: what ``graph.json`` holds and every drawing is made from.

``to_json`` writes a public contract (``schema_version`` 1): keys are only ever added.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["CONSUME", "NODE_KINDS", "PUBLISH", "Call", "Edge", "Graph", "Node", "Spread", "node_id"]

PUBLISH, CONSUME = "publish", "consume"
NODE_KINDS: Final = ("producer", "topic", "consumer_group")
"""The three kinds of node, in the order messages pass them."""


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

    ``name`` is ``None`` where no record says it: deliveries whose topic nobody knows, say. ``stands_for`` is how many
    nodes an "others" node sums up, 0 for every other.
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
    """Everything one producer sent to one topic, or one consumer group was given of one topic.

    Attributes:
        kind: ``publish`` or ``consume``.
        count: sends, or deliveries.
        messages: different messages among them.
        failures: sends that failed, deliveries the listener failed; ``outcome_unknown`` say neither.
        again: sends or deliveries beyond a message's first.
        via_retry, via_dlq: of them over a retry or a dead-letter topic, folded into the message's own topic.
        unfinished: deliveries of which no end is known.
        native, otlp: how many of ``count`` that side shows.
        fates: publish only: what became of the messages (``spark_jobs.graph.journeys.FATES``).
        origins: consume only: messages whose send is missing, or cannot be told.
        took: how long a send, or the handling of a delivery, took.
        queued: consume only: from the end of the send to the start of the delivery.
        is_loop: consume only: a service of the group sends to the same topic.
        stands_for: how many edges this one sums up; 0 for every edge but the last of each kind, if any were left out.
    """

    source: str
    target: str
    kind: str
    count: int
    messages: int
    failures: int = 0
    outcome_unknown: int = 0
    again: int = 0
    via_retry: int = 0
    via_dlq: int = 0
    unfinished: int = 0
    max_retry_times: int | None = None
    native: int = 0
    otlp: int = 0
    fates: dict[str, int] = field(default_factory=dict)
    origins: dict[str, int] = field(default_factory=dict)
    took: Spread = field(default_factory=Spread)
    queued: Spread = field(default_factory=Spread)
    first_ms: int | None = None
    last_ms: int | None = None
    is_loop: bool = False
    stands_for: int = 0

    @property
    def error_rate(self) -> float:
        """Failed sends or deliveries, of those whose outcome is known."""
        known = self.count - self.outcome_unknown
        return self.failures / known if known else 0.0

    @property
    def retry_rate(self) -> float:
        """Sends or deliveries beyond a message's first, of all."""
        return self.again / self.count if self.count else 0.0

    @property
    def never_consumed(self) -> int:
        """Messages sent here that were old enough to have been delivered to someone, and never were."""
        return self.fates.get("never_consumed", 0)

    @property
    def never_published(self) -> int:
        """Messages delivered here although the data, which goes back far enough, shows no send of them."""
        return self.origins.get("never_published", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the edge in the words of its kind."""
        sent = self.kind == PUBLISH
        names = _PUBLISH_NAMES if sent else _CONSUME_NAMES
        plain = {public: getattr(self, own) for public, own in names.items()}
        rates = {"error_rate": round(self.error_rate, 6), "retry_rate": round(self.retry_rate, 6)}
        spreads = {"publish_ms": self.took} if sent else {"queue_ms": self.queued, "process_ms": self.took}
        return {**plain, **rates, **{name: asdict(spread) for name, spread in spreads.items()}}


_ENDS: Final = {"source": "source", "target": "target", "kind": "kind"}
_COUNTED: Final = {
    name: name for name in ("messages", "failures", "outcome_unknown", "via_retry", "via_dlq", "native", "otlp")
}
_WHEN: Final = {"first_ms": "first_ms", "last_ms": "last_ms", "stands_for": "stands_for"}
_PUBLISH_NAMES: Final = {**_ENDS, "sends": "count", "resends": "again", **_COUNTED, "fates": "fates", **_WHEN}
_CONSUME_NAMES: Final = {
    **_ENDS,
    "deliveries": "count",
    "redeliveries": "again",
    **_COUNTED,
    "unfinished": "unfinished",
    "max_retry_times": "max_retry_times",
    "origins": "origins",
    "loop": "is_loop",
    **_WHEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How often one service reaches another: directly (a child span), and over topics (deliveries)."""

    parent: str
    child: str
    direct: int = 0
    messages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Who sends what to whom. Times are epoch milliseconds, ``None`` where there was nothing to see.

    ``sides`` are the inputs it was made from. What was sent after ``horizon_ms`` is judged by nobody, and neither are
    missing sends of what was delivered before ``opening_ms``.
    """

    sides: tuple[str, ...] = ()
    first_ms: int | None = None
    last_ms: int | None = None
    opening_ms: int | None = None
    horizon_ms: int | None = None
    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    calls: tuple[Call, ...] = ()

    def edges_of(self, kind: str) -> tuple[Edge, ...]:
        """Return the edges of a kind, busiest first, the sum of all others last."""
        return tuple(edge for edge in self.edges if edge.kind == kind)

    def topic_totals(self) -> dict[str, Counter[str]]:
        """Return per topic's node id: sends, messages, never_consumed, deliveries, never_published, consumer_groups."""
        totals: dict[str, Counter[str]] = {node.id: Counter() for node in self.nodes if node.kind == "topic"}
        for edge in self.edges:
            if edge.kind == PUBLISH:
                told = {"sends": edge.count, "messages": edge.messages, "never_consumed": edge.never_consumed}
                totals[edge.target].update(told)
            else:
                told = {"deliveries": edge.count, "never_published": edge.never_published, "consumer_groups": 1}
                totals[edge.source].update(told)
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
            "calls": [asdict(call) for call in self.calls],
        }

    def dumps(self) -> str:
        """Return ``graph.json`` as text: indented, stable keys, non-ASCII kept."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def node_id(kind: str, name: str | None) -> str:
    """Return the id of a node; an unknown name is an empty one, which no producer, topic or group has."""
    return f"{kind}:{name or ''}"
