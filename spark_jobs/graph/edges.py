"""Add legs up to edges (producer to topic, topic to consumer group), and build the graph of reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spark_jobs.columns import apply_to_distinct
from spark_jobs.graph.legs import COUNTS, FATES, MEMBER, follow
from spark_jobs.judging.columns import NullableInts
from spark_jobs.judging.durations import Histogram, group_histograms
from spark_jobs.report.graph import CONSUME, PUBLISH, Edge, Graph, Node, Spread, node_id
from spark_jobs.sums import by, greatest, least, sum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

    @property
    def legs(self) -> int:
        """How many sends or deliveries there are."""
        return self.counts["legs"]


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
_RANKS: Final = (0.5, 0.95, 0.99)


class _Row(NamedTuple):
    """An edge, or with ``rest`` the sum of so many."""

    kind: str
    party: str | None
    topic: str | None
    found: EdgeSum
    rest: int = 0


def build_graph(part: GraphPart, *, sides: tuple[str, ...], judged: _Span, at_most: int = MOST_EDGES) -> Graph:
    """Return the graph of a whole run.

    ``judged`` is the span, epoch milliseconds, in which missing sends and deliveries count (``find_judged_span``).
    ``at_most`` edges of each kind stand one by one.
    """
    members = sorted(part.members.items(), key=lambda item: (-item[1], *map(_nulls_last, item[0])))[: 2 * at_most]
    rows = sorted(
        (row for kind in (PUBLISH, CONSUME) for row in _rows(part, kind, at_most)),
        key=lambda row: (row.kind != PUBLISH, row.rest > 0, -row.found.legs, row.party or "", row.topic or ""),
    )
    edges = tuple(map(_edge, rows))
    times = [ms for edge in edges for ms in (edge.first_ms, edge.last_ms) if ms is not None]
    return Graph(
        sides=sides,
        opening_ms=judged[0],
        horizon_ms=judged[1],
        nodes=_nodes(rows, [member for member, _ in members]),
        edges=edges,
        first_ms=min(times, default=None),
        last_ms=max(times, default=None),
    )


def _nulls_last(word: str | None) -> tuple[bool, str]:
    return word is None, word or ""


def _rows(part: GraphPart, kind: str, at_most: int) -> list[_Row]:
    found = [(key, one) for key, one in part.edges.items() if key[0] == kind]
    found.sort(key=lambda item: (-item[1].legs, *map(_nulls_last, item[0])))
    rows = [_Row(*key, one) for key, one in found[:at_most]]
    others = [one for _, one in found[at_most:]]
    if others:
        total = sum_of(EdgeSum, (replace(one, spreads={}) for one in others))
        rows.append(_Row(kind, None, None, total, len(others)))
    return rows


def _ends(kind: str, party: str | None, topic: str | None) -> tuple[tuple[str, str | None], tuple[str, str | None]]:
    """Return the source and the target of an edge, each with its kind."""
    of_party, of_topic = (_PARTIES[kind], party), ("topic", topic)
    return (of_party, of_topic) if kind == PUBLISH else (of_topic, of_party)


def _id(end: tuple[str, str | None], rest: int) -> str:
    return f"{_OTHERS}:{end[0]}" if rest else node_id(*end)


def _edge(row: _Row) -> Edge:
    source, target = (_id(end, row.rest) for end in _ends(*row[:3]))
    counts, is_send = row.found.counts, row.kind == PUBLISH
    took, queued = (_spread(row.found.spreads.get(name)) for name in SPREADS)
    return Edge(
        source=source,
        target=target,
        kind=row.kind,
        count=counts["legs"],
        **{name: counts[name] for name in _PLAIN},
        unfinished=counts["open"],
        max_retry_times=row.found.max_retry_times,
        fates={name: counts[f"fate_{name}"] for name in FATES} if is_send else {},
        origins={} if is_send else {name: counts[f"origin_{name}"] for name in _SHOWN_ORIGINS},
        took=took,
        queued=queued,
        first_ms=row.found.first_ms,
        last_ms=row.found.last_ms,
        stands_for=row.rest,
    )


_SHOWN_ORIGINS: Final = ("never_published", "unidentified", "unjudged")


def _spread(found: Histogram | None) -> Spread:
    if found is None:
        return Spread()
    p50, p95, p99 = found.rank(_RANKS)
    return Spread(count=found.count, p50=p50, p95=p95, p99=p99, min=found.least, max=found.most)


def _nodes(rows: Iterable[_Row], members: Iterable[_Member]) -> tuple[Node, ...]:
    """Return every end of an edge once, in the order messages pass them and the edges are listed."""
    known: defaultdict[str, defaultdict[str, set[str | None]]] = defaultdict(lambda: defaultdict(set))
    for kind, party, topic, service, group, namespace in members:
        of_party = known[node_id(_PARTIES[kind], party)]
        of_party["services"].add(service)
        of_party["groups"].add(group)
        known[node_id("topic", topic)]["namespaces"].add(namespace)
    found: dict[str, Node] = {}
    for row in rows:
        for end in _ends(*row[:3]):
            one = _id(end, row.rest)
            facts = {} if row.rest else {name: tuple(sorted(filter(None, words))) for name, words in known[one].items()}
            shown = _OTHERS if row.rest else end[1]
            found.setdefault(one, Node(id=one, kind=end[0], name=shown, stands_for=row.rest, **facts))
    order = {kind: at for at, kind in enumerate(("producer", "topic", "consumer_group"))}
    return tuple(sorted(found.values(), key=lambda node: order[node.kind]))
