"""Add legs up to edges (producer to topic, topic to consumer group), and build the graph of reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.columns import apply_to_distinct
from spark_jobs.graph.legs import COUNTS, FATES, MEMBER, follow
from spark_jobs.judging.columns import NullableInts
from spark_jobs.judging.durations import Histogram, group_histograms
from spark_jobs.report.graph import CONSUME, NODE_KINDS, PUBLISH, Edge, Graph, Node, Spread, node_id
from spark_jobs.sums import by, greatest, least, sum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

MOST_EDGES: Final = 2_000
"""So many edges of each kind are shown one by one; one more sums up all others."""
SPREADS: Final = ("busy_ms", "queue_ms")

_EdgeKey = tuple[str, "str | None", "str | None"]
"""Kind, party and topic."""
_Member = tuple[str, "str | None", "str | None", "str | None", "str | None", "str | None"]
"""As ``legs.MEMBER``."""
_Span = tuple["int | None", "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSum:
    """What the legs of one edge come to: ``counts`` by ``COUNTS``, a histogram of each of ``SPREADS`` that is known."""

    counts: Counter[str] = field(default_factory=Counter)
    max_retry_times: int | None = field(default=None, metadata=by(greatest))
    first_ms: int | None = field(default=None, metadata=by(least))
    last_ms: int | None = field(default=None, metadata=by(greatest))
    spreads: dict[str, Histogram] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What some messages add to a graph: as large as the graph, whatever their number."""

    edges: dict[_EdgeKey, EdgeSum] = field(default_factory=dict)
    members: Counter[_Member] = field(default_factory=Counter)


def find_judged_span(first_ms: int | None, end_ms: int | None, grace_ms: int) -> _Span:
    """Return from when to when the data is complete enough to call a send or a delivery missing."""
    opening_ms = None if first_ms is None else first_ms + grace_ms
    return opening_ms, None if end_ms is None else end_ms - grace_ms


def add_up(legs: pa.Table, owned: Mapping[tuple[str, str], str], judged: _Span) -> GraphPart:
    """Return the messages' part of the graph.

    ``legs`` are all of each message; ``owned`` is ``legs.choose_owners`` of the whole run; ``judged`` is
    ``find_judged_span``.
    """
    ways = follow(legs, owned, opening_ms=judged[0], horizon_ms=judged[1])
    return GraphPart(_sum_edges(ways), _count_members(ways))


_EDGE: Final = [*MEMBER[:3]]
_SUMS: Final[list[Any]] = [
    *((name, "sum") for name in COUNTS),
    *(("retry_times", "max"), ("event_ms", "min"), ("event_ms", "max")),
]


def _sum_edges(ways: pa.Table) -> dict[_EdgeKey, EdgeSum]:
    keys, key_of = apply_to_distinct(lambda *key: key, *(ways[name].combine_chunks() for name in _EDGE))
    spreads: defaultdict[_EdgeKey, dict[str, Histogram]] = defaultdict(dict)
    for name in SPREADS:
        for at, one in group_histograms(key_of, NullableInts.of(ways[name].combine_chunks())):
            spreads[keys[at]][name] = one
    return {
        (key := (row["kind"], row["party"], row["topic"])): EdgeSum(
            counts=Counter({name: row[f"{name}_sum"] for name in COUNTS}),
            max_retry_times=row["retry_times_max"],
            first_ms=row["event_ms_min"],
            last_ms=row["event_ms_max"],
            spreads=spreads[key],
        )
        for row in ways.group_by(_EDGE, use_threads=False).aggregate(_SUMS).to_pylist()
    }


def _count_members(ways: pa.Table) -> Counter[_Member]:
    counted = ways.group_by([*MEMBER], use_threads=False).aggregate([([], "count_all")])
    *columns, counts = (counted[name].to_pylist() for name in (*MEMBER, "count_all"))
    return Counter(dict(zip(zip(*columns, strict=True), counts, strict=True)))


# -- the graph of the sums --------------------------------------------------------------------------------------------
_OTHERS: Final = "others"
_PARTIES: Final = {PUBLISH: "producer", CONSUME: "consumer_group"}
_PLAIN: Final = ("messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "native", "otlp")
_SHOWN_ORIGINS: Final = ("never_published", "unidentified", "unjudged")
_RANKS: Final = (0.5, 0.95, 0.99)
_Shown = tuple[_EdgeKey, EdgeSum, int]
"""An edge, or with a number the sum of so many."""


def build_graph(part: GraphPart, *, sides: tuple[str, ...], judged: _Span, at_most: int = MOST_EDGES) -> Graph:
    """Return the graph of a whole run.

    ``judged`` is the span, epoch milliseconds, in which missing sends and deliveries count (``find_judged_span``).
    ``at_most`` edges of each kind stand one by one.
    """
    shown = [one for kind in (PUBLISH, CONSUME) for one in _choose_edges(part, kind, at_most)]
    ends = [_find_ends(*key, rest) for key, _, rest in shown]
    members = sorted(part.members, key=lambda member: (-part.members[member], *map(_nulls_last, member)))
    edges = tuple(_edge(source.id, target.id, *one) for (source, target), one in zip(ends, shown, strict=True))
    times = [ms for edge in edges for ms in (edge.first_ms, edge.last_ms)]
    return Graph(
        sides=sides,
        opening_ms=judged[0],
        horizon_ms=judged[1],
        nodes=_describe_nodes(chain(*ends), members[: 2 * at_most]),
        edges=edges,
        first_ms=least(times),
        last_ms=greatest(times),
    )


def _choose_edges(part: GraphPart, kind: str, at_most: int) -> Iterator[_Shown]:
    """Yield the busiest edges of a kind, busiest first, then the sum of the others."""
    found = [item for item in part.edges.items() if item[0][0] == kind]
    found.sort(key=lambda item: (-item[1].counts["legs"], *map(_nulls_last, item[0])))
    chosen, others = found[:at_most], [one for _, one in found[at_most:]]
    for key, one in sorted(chosen, key=lambda item: (-item[1].counts["legs"], *(word or "" for word in item[0]))):
        yield key, one, 0
    if others:
        yield (kind, None, None), sum_of(EdgeSum, (replace(one, spreads={}) for one in others)), len(others)


def _nulls_last(word: str | None) -> tuple[bool, str]:
    return word is None, word or ""


def _find_ends(kind: str, party: str | None, topic: str | None, rest: int) -> tuple[Node, Node]:
    """Return the source and the target of an edge, or of the sum of so many."""
    of_party, of_topic = (
        Node(
            id=f"{_OTHERS}:{end}" if rest else node_id(end, name),
            kind=end,
            name=_OTHERS if rest else name,
            stands_for=rest,
        )
        for end, name in ((_PARTIES[kind], party), ("topic", topic))
    )
    return (of_party, of_topic) if kind == PUBLISH else (of_topic, of_party)


def _edge(source: str, target: str, key: _EdgeKey, found: EdgeSum, rest: int) -> Edge:
    counts, is_send = found.counts, key[0] == PUBLISH
    took, queued = (_spread(found.spreads.get(name)) for name in SPREADS)
    return Edge(
        source=source,
        target=target,
        kind=key[0],
        count=counts["legs"],
        **{name: counts[name] for name in _PLAIN},
        unfinished=counts["open"],
        max_retry_times=found.max_retry_times,
        fates={name: counts[f"fate_{name}"] for name in FATES} if is_send else {},
        origins={} if is_send else {name: counts[f"origin_{name}"] for name in _SHOWN_ORIGINS},
        took=took,
        queued=queued,
        first_ms=found.first_ms,
        last_ms=found.last_ms,
        stands_for=rest,
    )


def _spread(found: Histogram | None) -> Spread:
    if found is None:
        return Spread()
    p50, p95, p99 = found.rank(_RANKS)
    return Spread(count=found.count, p50=p50, p95=p95, p99=p99, min=found.least, max=found.most)


def _describe_nodes(ends: Iterable[Node], members: Iterable[_Member]) -> tuple[Node, ...]:
    """Return every end of an edge once, with what it stands for, in the order that messages pass them."""
    known: defaultdict[str, defaultdict[str, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for kind, party, topic, service, group, namespace in members:
        of_party = known[node_id(_PARTIES[kind], party)]
        of_party["services"].add(service)
        of_party["groups"].add(group)
        known[node_id("topic", topic)]["namespaces"].add(namespace)
    nodes: dict[str, Node] = {}
    for node in ends:
        facts: dict[str, Any] = {name: tuple(sorted(filter(None, words))) for name, words in known[node.id].items()}
        nodes.setdefault(node.id, replace(node, **facts))
    return tuple(sorted(nodes.values(), key=lambda node: NODE_KINDS.index(node.kind)))
