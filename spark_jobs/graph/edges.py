"""Add legs up to edges (producer to topic, topic to consumer group), count calls, and build the graph of reports."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.storage import open_parquet, read_row_groups
from spark_jobs.columns import apply_to_distinct, pc
from spark_jobs.exchange.packing import open_blobs, pack_by
from spark_jobs.graph.legs import COUNTS, FATES, MEMBER, follow
from spark_jobs.judging.columns import NullableInts
from spark_jobs.judging.durations import Histogram, group_histograms
from spark_jobs.report.graph import CONSUME, PUBLISH, Call, Edge, Graph, Node, Spread, node_id
from spark_jobs.sums import by, greatest, least, sum_of
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark_jobs.exchange.engine import Engine

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
    """What some messages add to a graph: as large as the graph, whatever their number.

    ``calls`` counts the deliveries from each party to each service, or group of none, where the sender is known.
    """

    edges: dict[_EdgeKey, EdgeSum] = field(default_factory=dict)
    members: Counter[_Member] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)


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
    return GraphPart(_sum_edges(ways), _count_by(ways, *MEMBER), _count_calls(ways))


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


def _count_calls(ways: pa.Table) -> Counter[tuple[str, str]]:
    deliveries = ways.filter(pc.equal(ways["kind"], CONSUME))
    children = pc.coalesce(deliveries["service"], deliveries["group"])
    calls = deliveries.select(["sender"]).append_column("child", children)
    return _count_by(calls.drop_null(), *calls.column_names)


def _count_by(rows: pa.Table, *names: str) -> Counter[Any]:
    """Return how many rows have each combination of these columns."""
    counted = rows.group_by(list(names), use_threads=False).aggregate([([], "count_all")])
    *columns, counts = (counted[name].to_pylist() for name in (*names, "count_all"))
    return Counter(dict(zip(zip(*columns, strict=True), counts, strict=True)))


# -- the graph of the sums --------------------------------------------------------------------------------------------
_OTHERS: Final = "others"
_ENDS: Final = {PUBLISH: ("producer", "topic"), CONSUME: ("topic", "consumer_group")}
_PLAIN: Final = ("messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "native", "otlp")
_RANKS: Final = (0.5, 0.95, 0.99)


class _Row(NamedTuple):
    """An edge, or with ``rest`` the sum of so many."""

    kind: str
    party: str | None
    topic: str | None
    found: EdgeSum
    rest: int = 0


def build_graph(
    part: GraphPart,
    *,
    sides: tuple[str, ...],
    judged: _Span,
    direct: Mapping[tuple[str, str], int] | None = None,
    at_most: int = MOST_EDGES,
) -> Graph:
    """Return the graph of a whole run.

    ``judged`` is the span, epoch milliseconds, in which missing sends and deliveries count (``find_judged_span``).
    ``direct`` counts calls of one service to another without a message. ``at_most`` edges of each kind, and calls,
    stand one by one.
    """
    members = sorted(part.members.items(), key=lambda item: (-item[1], *map(_nulls_last, item[0])))[: 2 * at_most]
    loops = _find_loops(member for member, _ in members)
    rows = sorted(
        (row for kind in (PUBLISH, CONSUME) for row in _rows(part, kind, at_most)),
        key=lambda row: (row.kind != PUBLISH, row.rest > 0, -row.found.legs, row.party or "", row.topic or ""),
    )
    edges = tuple(_edge(row, loops) for row in rows)
    times = [ms for edge in edges for ms in (edge.first_ms, edge.last_ms) if ms is not None]
    return Graph(
        sides=sides,
        opening_ms=judged[0],
        horizon_ms=judged[1],
        nodes=_nodes(rows, [member for member, _ in members]),
        edges=edges,
        calls=_calls(_most_frequent(direct or {}, at_most), _most_frequent(part.calls, at_most)),
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
    parts = {"topic": topic, "producer": party, "consumer_group": party}
    source, target = _ENDS[kind]
    return (source, parts[source]), (target, parts[target])


def _id(end: tuple[str, str | None], rest: int) -> str:
    return f"{_OTHERS}:{end[0]}" if rest else node_id(*end)


def _edge(row: _Row, loops: set[_EdgeKey]) -> Edge:
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
        is_loop=not row.rest and row[:3] in loops,
        stands_for=row.rest,
    )


_SHOWN_ORIGINS: Final = ("never_published", "unidentified", "unjudged")


def _spread(found: Histogram | None) -> Spread:
    if found is None:
        return Spread()
    p50, p95, p99 = found.rank(_RANKS)
    return Spread(count=found.count, p50=p50, p95=p95, p99=p99, min=found.least, max=found.most)


def _find_loops(members: Iterable[_Member]) -> set[_EdgeKey]:
    some = list(members)
    sent = {(topic, service) for kind, _, topic, service, _, _ in some if kind == PUBLISH and service}
    return {
        (kind, party, topic)
        for kind, party, topic, service, _, _ in some
        if kind == CONSUME and topic is not None and (topic, service) in sent
    }


def _nodes(rows: Iterable[_Row], members: Iterable[_Member]) -> tuple[Node, ...]:
    """Return every end of an edge once, in the order messages pass them and the edges are listed."""
    known: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for kind, party, topic, service, group, namespace in members:
        of_topic, of_party = (
            known[node_id(*end)] for end in sorted(_ends(kind, party, topic), key=lambda end: end[0] != "topic")
        )
        for words, name, value in (
            (of_topic, "namespaces", namespace),
            (of_party, "services", service),
            (of_party, "groups", group),
        ):
            if value:
                words[name].add(value)
    found: dict[str, Node] = {}
    for row in rows:
        for end in _ends(*row[:3]):
            one = _id(end, row.rest)
            facts = {} if row.rest else {name: tuple(sorted(values)) for name, values in known[one].items()}
            shown = _OTHERS if row.rest else end[1]
            found.setdefault(one, Node(id=one, kind=end[0], name=shown, stands_for=row.rest, **facts))
    order = {kind: at for at, kind in enumerate(("producer", "topic", "consumer_group"))}
    return tuple(sorted(found.values(), key=lambda node: order[node.kind]))


def _most_frequent(calls: Mapping[tuple[str, str], int], at_most: int) -> list[tuple[tuple[str, str], int]]:
    return sorted(calls.items(), key=lambda item: (-item[1], item[0]))[:at_most]


def _calls(
    direct: Iterable[tuple[tuple[str, str], int]], messages: Iterable[tuple[tuple[str, str], int]]
) -> tuple[Call, ...]:
    counted: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name, pairs in (("direct", direct), ("messages", messages)):
        for pair, calls in pairs:
            counted[pair][name] += calls
    found = (Call(parent=parent, child=child, **counts) for (parent, child), counts in counted.items())
    return tuple(sorted(found, key=lambda call: (-call.direct - call.messages, call.parent, call.child)))


# -- calls from one service into another without a message: spans whose parent is a span of another service ------------
_CALL_COLUMNS: Final = ("trace_id", "span_id", "parent_span_id", "service", "start_ms", "kind")


def count_direct_calls(
    engine: Engine, files: Sequence[str], *, begin_ms: int | None, end_ms: int | None, bucket_rows: int = 200_000
) -> Counter[tuple[str, str]]:
    """Return the calls from one service into another that started from ``begin_ms`` to ``end_ms``, both included.

    ``files`` are ``NORMALISED``, of the OTLP side; spans in scope or not, copies of one count once.
    """
    buckets = sum(open_parquet(path).metadata.num_rows for path in files) // bucket_rows + 1
    found = engine.exchange(partial(_pack_calls, buckets), files, partial(_count_bucket, begin_ms, end_ms), buckets)
    total: Counter[tuple[str, str]] = Counter()
    for one in found:
        total.update(one)
    return total


def _pack_calls(buckets: int, path: str) -> Iterator[tuple[int, bytes]]:
    for table in read_row_groups(path, (*_CALL_COLUMNS, "bad.reason")):
        whole = pc.is_null(table["bad"])
        for name in ("trace_id", "span_id", "service"):
            whole = pc.and_(whole, pc.is_valid(table[name]))
        yield from pack_by(table.filter(whole).select(_CALL_COLUMNS), "trace_id", buckets)


def _count_bucket(
    begin_ms: int | None, end_ms: int | None, _bucket: int, blobs: Sequence[bytes]
) -> Counter[tuple[str, str]]:
    spans = open_blobs(blobs)
    is_delivery = pc.fill_null(pc.equal(spans["kind"], Kind.CONSUME.value), fill_value=False)
    wanted: list[Any] = [(name, "min") for name in ("service", "parent_span_id", "start_ms")]
    once = (
        spans.append_column("is_delivery", is_delivery)
        .group_by(["trace_id", "span_id"], use_threads=False)
        .aggregate([*wanted, ("is_delivery", "max")])
    )
    called = once.filter(pc.and_(pc.is_valid(once["parent_span_id_min"]), pc.invert(once["is_delivery_max"])))
    if begin_ms is not None:
        called = called.filter(pc.greater_equal(called["start_ms_min"], begin_ms))
    if end_ms is not None:
        called = called.filter(pc.less_equal(called["start_ms_min"], end_ms))
    callers = once.select(["trace_id", "span_id", "service_min"]).rename_columns(["trace_id", "span_id", "parent"])
    pairs = called.select(["trace_id", "parent_span_id_min", "service_min"]).join(
        callers, ["trace_id", "parent_span_id_min"], ["trace_id", "span_id"], "inner", use_threads=False
    )
    pairs = pairs.filter(pc.not_equal(pairs["parent"], pairs["service_min"]))
    return _count_by(pairs, "parent", "service_min")
