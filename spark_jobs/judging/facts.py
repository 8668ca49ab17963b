"""What must be known of the whole input before any key is judged: its ends, its scopes, what names its topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from spark_jobs.columns import pc, where
from spark_jobs.judging.columns import LATEST, NullableInts, maximum
from spark_jobs.sums import by, greatest, least
from spark_jobs.taxonomy import Kind, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_jobs.columns import Column


_SIDES: Final = ("native", "otlp")
_BY: Final = ("side", "kind", "scope")


@dataclass(frozen=True, slots=True)
class Surveyed:
    """What some events add up to. Instants are epoch milliseconds.

    ``named`` counts the events that name their topic (publish) or group (consume).
    """

    rows: int = 0
    named: int = 0
    first_ms: int | None = field(default=None, metadata=by(least))
    last_ms: int | None = field(default=None, metadata=by(greatest))


@dataclass(frozen=True, slots=True)
class Survey:
    """A part of the run's facts: the events of each side, kind and scope, and the malformed rows of each side."""

    rows: Mapping[tuple[str, str | None, str | None], Surveyed] = field(default_factory=dict)
    malformed: Mapping[str, int] = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        """Return lists and dictionaries that JSON can hold."""
        return {"rows": [[*key, *astuple(row)] for key, row in self.rows.items()], "malformed": dict(self.malformed)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Survey:
        """Return what :meth:`to_plain` was called on."""
        return cls({tuple(row[:3]): Surveyed(*row[3:]) for row in plain["rows"]}, dict(plain["malformed"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Ends in epoch milliseconds, and counts of rows per side (``native``, ``otlp``).

    ``first`` is the first event of each side; ``named`` counts, per side and kind, the events that name their topic
    (publish) or group (consume). ``horizon_ms`` is ``None`` when a side is empty: then nothing can be settled.
    ``has_earlier_input``: it includes all that earlier runs of the history read. ``read_again_from_ms``: the next run
    reads events from then on again; ``None`` if it reads none. ``trace_topics`` are those that records were read from.
    """

    first_ms: int | None = None
    data_end_ms: int | None = None
    horizon_ms: int | None = None
    in_scope: Mapping[str, int] = field(default_factory=dict)
    malformed: Mapping[str, int] = field(default_factory=dict)
    scopes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    first: Mapping[str, int | None] = field(default_factory=dict)
    named: Mapping[tuple[str, str], int] = field(default_factory=dict)
    has_earlier_input: bool = False
    read_again_from_ms: int | None = None
    trace_topics: tuple[str, ...] = ()


def survey(events: pa.Table | pa.RecordBatch, *, trace_topics: Sequence[str] = ()) -> Survey:
    """Count events (``NORMALISED``, or ``EVENT`` without malformed ones) per side, kind and scope, and find their ends.

    A time before 1970 or after the year 9999 is ignored: it would shift the horizon of all others. An event ends at the
    latest when its record arrived, since the clock of a host may be ahead. Spans of ``trace_topics`` are trace traffic,
    despite their ``scope``.
    """
    columns: dict[str, Column] = dict(zip(events.schema.names, events.columns, strict=True))
    malformed: Mapping[str, int] = {}
    if "bad" in columns and columns["bad"].null_count < events.num_rows:
        is_bad = pc.is_valid(columns["bad"])
        malformed = Counter(columns["side"].filter(is_bad).to_pylist())
        columns = {name: columns[name].filter(pc.invert(is_bad)) for name in _USED}
    keys = {name: columns[name].cast(pa.string()) for name in (*_BY, "topic", "group_name")}
    if trace_topics:
        is_traffic = is_trace_traffic(keys["topic"], keys["side"], trace_topics)
        keys["scope"] = pc.if_else(is_traffic, Reason.TRACE_TRAFFIC.value, keys["scope"])
    start, end, arrival = (NullableInts.of(columns[name]).believable() for name in ("start_ms", "end_ms", "arrival_ms"))
    over = maximum(start, end)
    last = NullableInts(np.minimum(over.values, arrival.filled(LATEST)), over.known)
    values = {"name": _names(keys), "first_ms": start.coalesce(end).to_arrow(), "last_ms": last.to_arrow()}
    table = pa.table({**{name: keys[name] for name in _BY}, **values})
    measures: list[Any] = [([], "count_all"), ("name", "count"), ("first_ms", "min"), ("last_ms", "max")]
    found = table.group_by(list(_BY), use_threads=False).aggregate(measures)
    names = ("count_all", "name_count", "first_ms_min", "last_ms_max")
    rows = {tuple(row[name] for name in _BY): Surveyed(*(row[name] for name in names)) for row in found.to_pylist()}
    return Survey(rows, malformed)


_USED: Final = (*_BY, "topic", "group_name", "start_ms", "end_ms", "arrival_ms")


def read_facts(found: Survey, grace_ms: int, *, is_complete: bool = False) -> Facts:
    """Return the facts of a run from the survey of both sides; ``is_complete``: the horizon is the end of the data."""
    inside = {
        side: [row for (of, _, scope), row in found.rows.items() if (of, scope) == (side, None)] for side in _SIDES
    }
    firsts = {side: least(row.first_ms for row in rows) for side, rows in inside.items()}
    known = [end for rows in inside.values() if (end := greatest(row.last_ms for row in rows)) is not None]
    scopes: dict[str, Counter[str]] = {side: Counter() for side in _SIDES}
    named: Counter[tuple[str, str]] = Counter()
    for (side, kind, scope), row in found.rows.items():
        if scope is None:
            named[side, kind or ""] += row.named
        else:
            scopes[side][scope] += row.rows
    return Facts(
        first_ms=least(firsts.values()),
        data_end_ms=max(known, default=None),
        horizon_ms=None if len(known) < len(_SIDES) else max(known) if is_complete else min(known) - grace_ms,
        in_scope={side: sum(row.rows for row in rows) for side, rows in inside.items()},
        malformed={side: found.malformed.get(side, 0) for side in _SIDES},
        scopes=scopes,
        first=firsts,
        named=dict(named),
    )


def is_trace_traffic(topics: Column, sides: Column, trace_topics: Sequence[str]) -> Column:
    """Return for each event whether it is a span of one of ``trace_topics``; topics and sides are texts."""
    is_span = pc.fill_null(pc.equal(sides, "otlp"), fill_value=False)
    return pc.and_(is_span, pc.is_in(topics, pa.array(trace_topics, pa.string())))


def _names(keys: Mapping[str, Column]) -> Column:
    """Return the topic of a publish, the group of a delivery, null of any other event."""
    is_publish, is_consume = (pc.equal(keys["kind"], kind.value) for kind in (Kind.PUBLISH, Kind.CONSUME))
    return pc.coalesce(where(is_publish, keys["topic"]), where(is_consume, keys["group_name"]))
