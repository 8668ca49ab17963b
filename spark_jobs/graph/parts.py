"""Legs add up to edges: producer to topic, topic to consumer group. Parts of a graph add up too."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from spark_jobs.graph.journeys import FATES, ORIGINS, follow
from spark_jobs.judging.columns import NullableInts, find_groups, is_true, join_codes, least_per_group
from spark_jobs.judging.histograms import Histogram, merge_histograms
from spark_jobs.report.graph import CONSUME, PUBLISH

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from spark_jobs.graph.journeys import Journeys
    from spark_jobs.judging.columns import Ints, Mask

__all__ = ["COUNTS", "SPREADS", "EdgeKey", "EdgeSum", "GraphPart", "Member", "add_up", "merge_edges", "merge_parts"]

COUNTS: Final = (
    *("legs", "messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "open", "native", "otlp"),
    *(f"fate_{name}" for name in FATES),
    *(f"origin_{name}" for name in ORIGINS[1:]),
)
"""What is counted on every edge; all of it adds up over edges."""
SPREADS: Final = ("busy_ms", "queue_ms")

EdgeKey = tuple[str, str | None, str | None]
"""Kind, party and topic."""
Member = tuple[str, str | None, str | None, str | None, str | None, str | None]
"""Kind, party, topic, service, group and namespace: who and what an edge's ends stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSum:
    """What the legs of one edge come to: ``counts`` in the order of ``COUNTS``, a histogram of each of ``SPREADS``."""

    counts: Ints
    max_retry_times: int | None
    first_ms: int | None
    last_ms: int | None
    spreads: tuple[Histogram | None, ...]

    @property
    def legs(self) -> int:
        """How many sends or deliveries there are."""
        return int(self.counts[0])


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What some messages add to a graph: as large as the graph, whatever their number.

    ``calls`` counts the deliveries from each party to each service, or group of none, where the sender is known.
    """

    edges: dict[EdgeKey, EdgeSum] = field(default_factory=dict)
    members: Counter[Member] = field(default_factory=Counter)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)


def add_up(
    legs: pa.Table, owned: Mapping[tuple[str, str], str], *, opening_ms: int | None, horizon_ms: int | None
) -> GraphPart:
    """Return what messages add to the graph.

    Args:
        legs: ``LEG``, all legs of each message that has any.
        owned: ``legs.choose_owners`` of the legs of the whole run: those must be merged before.
        opening_ms: deliveries before it may be of messages sent before the data begins; ``None``: none is judged.
        horizon_ms: what was sent or delivered after it may still be completed; ``None``: none is judged.
    """
    ways = follow(legs, owned, opening_ms=opening_ms, horizon_ms=horizon_ms)
    parties, topics = [end.party for end in ways.ends], [*ways.topics, None]
    known = sorted({party for party in parties if party is not None})
    place = {party: at for at, party in enumerate(known)}
    party = np.array([place.get(one, -1) for one in parties], np.int64)[ways.end]  # type: ignore[arg-type]
    codes = join_codes(
        (ways.is_consume.astype(np.int64), 2), (party + 1, len(known) + 1), (ways.topic + 1, len(topics))
    )
    examples, edge = find_groups(codes)
    keys = [
        (CONSUME if consumed else PUBLISH, parties[end], topics[topic])
        for consumed, end, topic in zip(
            ways.is_consume[examples].tolist(), ways.end[examples].tolist(), ways.topic[examples].tolist(), strict=True
        )
    ]
    sums = _sum_edges(_columns(legs, ways), ways, edge, len(keys))
    return GraphPart(dict(zip(keys, sums, strict=True)), _count_members(ways), _count_calls(ways))


def _columns(legs: pa.Table, ways: Journeys) -> dict[str, Any]:
    """Return the columns of ``LEG`` that edges count, as arrays of the journeys' legs."""
    rows = ways.legs

    def column(name: str) -> Any:
        return legs[name].combine_chunks()

    flags: dict[str, Any] = {name: is_true(column(name))[rows] for name in ("identified", "on_native", "on_otlp")}
    numbers = ("event_ms", "retry_times", *SPREADS)
    known: dict[str, Any] = {f"{name}_known": np.asarray(column(name).is_valid()) for name in ("success", "finished")}
    return {
        **flags,
        **{name: NullableInts.of(column(name)).take(rows) for name in numbers},
        **{name: mask[rows] for name, mask in known.items()},
        **{name: is_true(column(name))[rows] for name in ("success", "finished")},
    }


def _sum_edges(columns: Mapping[str, Any], ways: Journeys, edge: Ints, size: int) -> Iterable[EdgeSum]:
    counts = np.zeros((size, len(COUNTS)), np.int64)
    for at, name in enumerate(COUNTS):
        kind, _, word = name.partition("_")
        if kind == "fate":
            holds = ways.fate == FATES.index(word)
        elif kind == "origin":
            holds = ways.origin == ORIGINS.index(word)
        else:
            holds = _holds(name, columns, ways)
        counts[:, at] = np.bincount(edge[holds], minlength=size)
    retries, event = columns["retry_times"], columns["event_ms"]
    least = [least_per_group(edge, size, values) for values in (_negate(retries), event, _negate(event))]
    most_retries, first_ms, last_ms = (
        [sign * value if known else None for value, known in zip(one.values.tolist(), one.known.tolist(), strict=True)]
        for sign, one in zip((-1, 1, -1), least, strict=True)
    )
    spreads = [_histograms(edge, columns[name]) for name in SPREADS]
    for at in range(size):
        yield EdgeSum(
            counts=counts[at],
            max_retry_times=most_retries[at],
            first_ms=first_ms[at],
            last_ms=last_ms[at],
            spreads=tuple(found.get(at) for found in spreads),
        )


def _holds(name: str, columns: Mapping[str, Any], ways: Journeys) -> Mask:
    """Tell which legs a count is of. A leg repeats another one if its message was sent or delivered there before."""
    found: Mask
    if name == "legs":
        found = np.ones(len(ways.legs), bool)
    elif name == "messages":
        found = ways.is_first
    elif name == "failures":
        found = columns["success_known"] & ~columns["success"]
    elif name == "outcome_unknown":
        found = ~columns["success_known"]
    elif name == "again":
        found = (~ways.is_first & columns["identified"]) | columns["retry_times"].exceeds(0)
    elif name == "open":
        found = columns["finished_known"] & ~columns["finished"]
    elif name in {"native", "otlp"}:
        found = columns[f"on_{name}"]
    else:
        word = name.removeprefix("via_").upper()
        found = np.array([end.via == word for end in ways.ends], bool)[ways.end]
    return found


def _negate(values: NullableInts) -> NullableInts:
    return NullableInts(-values.values, values.known)


def _histograms(edge: Ints, values: NullableInts) -> dict[int, Histogram]:
    """Return the histogram of each edge's known values, by its number."""
    order = np.argsort(edge[values.known], kind="stable")
    edges, known = edge[values.known][order], values.values[values.known][order]
    if not len(edges):
        return {}
    begins = np.flatnonzero(np.r_[True, edges[1:] != edges[:-1]]).tolist()
    return {
        int(edges[begin]): Histogram.of(known[begin:end])
        for begin, end in zip(begins, [*begins[1:], len(edges)], strict=True)
    }


def _count_members(ways: Journeys) -> Counter[Member]:
    found: Counter[Member] = Counter()
    topics = [*ways.topics, None]
    examples, like = find_groups(join_codes((ways.end, len(ways.ends)), (ways.topic + 1, len(topics))))
    for row, count in zip(examples.tolist(), np.bincount(like).tolist(), strict=True):
        end, topic = ways.ends[ways.end[row]], topics[ways.topic[row]]
        found[end.kind, end.party, topic, end.service, end.group, end.namespace] += count
    return found


def _count_calls(ways: Journeys) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    rows = np.flatnonzero(ways.is_consume & (ways.sender >= 0))
    codes = join_codes((ways.end[rows], len(ways.ends)), (ways.sender[rows], len(ways.senders)))
    examples, like = find_groups(codes)
    for row, count in zip(rows[examples].tolist(), np.bincount(like).tolist(), strict=True):
        end = ways.ends[ways.end[row]]
        child = end.group if end.service is None else end.service
        if child is not None:
            found[ways.senders[ways.sender[row]], child] += count
    return found


def merge_parts(parts: Iterable[GraphPart]) -> GraphPart:
    """Return the sum of the parts."""
    merged = GraphPart()
    sums: dict[EdgeKey, list[EdgeSum]] = {}
    for part in parts:
        merged.members.update(part.members)
        merged.calls.update(part.calls)
        for key, one in part.edges.items():
            sums.setdefault(key, []).append(one)
    merged.edges.update({key: some[0] if len(some) == 1 else merge_edges(some) for key, some in sums.items()})
    return merged


def merge_edges(some: Sequence[EdgeSum]) -> EdgeSum:
    """Return the sum of at least one edge."""

    def known(name: str) -> list[int]:
        return [value for value in (getattr(one, name) for one in some) if value is not None]

    spreads = ([one for one in each if one is not None] for each in zip(*(one.spreads for one in some), strict=True))
    return EdgeSum(
        counts=np.sum([one.counts for one in some], axis=0),
        max_retry_times=max(known("max_retry_times"), default=None),
        first_ms=min(known("first_ms"), default=None),
        last_ms=max(known("last_ms"), default=None),
        spreads=tuple(merge_histograms(each) if each else None for each in spreads),
    )
