"""Legs of messages: one row for each send to a topic, delivery to a consumer group, end of a transaction and recall.

A verdict is one leg: copies of a record are one row, and so are the record and the span of one event. ``follow`` finds
the topic of each leg, and how each message ended.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage import read_row_groups
from otel_mqtrace.model import MessageType, TransactionState
from spark_jobs.columns import (
    apply_to_distinct,
    as_rows,
    begins_run,
    encode,
    find_groups,
    is_known,
    is_true,
    join_codes,
    map_values,
    mark,
    take_rows,
)
from spark_jobs.judging.columns import NullableInts, either, flatten_sides, is_equal
from spark_jobs.schemas import PREFIXES, bare
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask

_LONGEST_NAME: Final = 1_000
_MOST_OWNERS: Final = 1_000
"""So many groups are given their service, those with the most legs that name it first."""

_TEXT: Final[Any] = pa.string()
_WORD: Final[Any] = pa.dictionary(pa.int32(), pa.string())
_LONG: Final[Any] = pa.int64()
_BOOL: Final[Any] = pa.bool_()

LEG: Final = pa.schema(
    {
        "message": _TEXT,  # the id, or a position of the row's own; never null
        "identified": _BOOL,  # whether the id is one that others could name
        "kind": _WORD,
        "group": _WORD,  # without its namespace
        "service": _WORD,
        "via": _WORD,  # RETRY, DLQ, or null
        "namespace": _WORD,
        "bare_topic": _WORD,  # for a retry or dead-letter topic: the group it belongs to
        "event_ms": _LONG,
        "busy_ms": _LONG,  # start to end
        "queue_ms": _LONG,
        "finished": _BOOL,  # deliveries only
        "success": _BOOL,
        "retry_times": pa.int32(),
        "msg_type": _WORD,
        "transaction_state": _WORD,
        "inside": _BOOL,  # of the window
        "on_native": _BOOL,
        "on_otlp": _BOOL,
    }
)
"""One send, delivery, end of a transaction or recall. Times are epoch milliseconds."""

_REPEATED: Final = ("kind", "topic", "group", "status", "otlp.service")
_OF_SIDE: Final = ("start_ms", "end_ms", "success", "msg_type", "transaction_state")
_COLUMNS: Final = (
    *("kind", "msg_id", "topic", "group", "retry_times", "status", "event_ms", "queue_ms"),
    *(f"{side}.{name}" for side in ("native", "otlp") for name in _OF_SIDE),
    "otlp.service",
)
_POSITIONS: Final = (
    *("msg_id", "otlp.trace_id", "otlp.span_id"),
    *(f"{side}.{name}" for side in ("native", "otlp") for name in ("path", "line", "record_index")),
)
"""Columns that are read only where a message has no id."""


def read_verdict_legs(paths: Sequence[str]) -> pa.Table:
    """Return ``LEG`` of the verdicts in parquet files of ``VERDICT``; all verdicts of a message are among them."""
    verdicts = _read(paths, _COLUMNS)
    positions = _read(paths, _POSITIONS) if verdicts["msg_id"].null_count else None
    return make_legs(verdicts, positions)


def _read(paths: Iterable[str], columns: Sequence[str]) -> pa.Table:
    tables: list[pa.Table] = []
    for path in paths:
        # Arrow cannot read a dictionary inside a struct from several row groups at once.
        tables += read_row_groups(path, columns, read_dictionary=list(_REPEATED))
    return pa.concat_tables(tables, promote_options="permissive")  # Spark writes some columns as never null


def make_legs(verdicts: pa.Table, positions: pa.Table | None = None) -> pa.Table:
    """Return ``LEG`` of ``VERDICT``: nothing is added up, nothing is left out.

    Args:
        verdicts: ``VERDICT``, or of it what a leg is made of.
        positions: columns of the same rows with the position of a row without a message id, if not among ``verdicts``.
    """
    columns = flatten_sides(verdicts)
    is_consume = is_equal(columns["kind"], Kind.CONSUME.value)
    start, end = (NullableInts.of(either(columns, name)) for name in ("start_ms", "end_ms"))
    made = {
        "message": _messages(columns if positions is None else flatten_sides(positions)),
        "identified": columns["msg_id"].is_valid(),
        "kind": _rename(columns["kind"], str),
        **_groups_and_services(columns),
        "via": _rename(columns["topic"], lambda name: _prefix(name, 1)),
        "namespace": _rename(columns["topic"], lambda name: _prefix(name, 2)),
        "bare_topic": _rename(columns["topic"], lambda name: _bare(name[:_LONGEST_NAME])),
        "event_ms": NullableInts.of(columns["event_ms"]).believable().to_arrow(),
        "busy_ms": (end - start).to_arrow(),
        "queue_ms": columns["queue_ms"],
        "finished": pa.array(end.known, mask=~is_consume),
        "success": either(columns, "success"),
        "retry_times": columns["retry_times"],
        **{name: _rename(either(columns, name), str) for name in ("msg_type", "transaction_state")},
        "inside": pa.array(~is_equal(columns["status"], Status.OUT_OF_SCOPE.value)),
        "on_native": columns["on_native"],
        "on_otlp": columns["on_otlp"],
    }
    arrays = [made[field.name] for field in LEG]
    return pa.table(arrays, schema=LEG)


def _groups_and_services(columns: Mapping[str, Column]) -> dict[str, Column]:
    return {
        "group": _rename(columns["group"], lambda name: _bare(name[:_LONGEST_NAME])),
        "service": _rename(columns["otlp.service"], lambda name: name[:_LONGEST_NAME] or None),
    }


def _messages(columns: Mapping[str, Column]) -> Column:
    ids = columns["msg_id"]
    if not ids.null_count:
        return ids
    found = [ids, pc.binary_join_element_wise("span:", columns["otlp.trace_id"], "/", columns["otlp.span_id"], "")]
    for side in ("native", "otlp"):
        position = [columns[f"{side}.{name}"].cast(pa.string()) for name in ("path", "line", "record_index")]
        found.append(pc.binary_join_element_wise("row", *position, ":"))
    return pc.coalesce(*found, pa.scalar("row:"))


def _rename(column: Column, rule: Callable[[str], str | None]) -> Column:
    return map_values(column, rule, _TEXT).dictionary_encode()


def _prefix(resource: str, number: int) -> str | None:
    found = PREFIXES.match(resource[:_LONGEST_NAME])
    return found[number] if found else None


def _bare(resource: str) -> str | None:
    """Return a topic's or group's name without prefix and namespace; as it is where nothing would be left."""
    return bare(resource) or resource or None


OWNERS: Final = pa.schema(
    {"kind": _TEXT, "group": _TEXT, "least": _TEXT, "greatest": _TEXT, "naming": _LONG, "legs": _LONG}
)
"""How the legs of each kind and group name services: the least and the greatest name, how many legs name one, and how
many legs there are."""


def find_verdict_owners(verdicts: pa.Table) -> pa.Table:
    """Return what ``find_owners`` does of the legs of ``VERDICT``, or of its kind, group and OTLP service."""
    columns = flatten_sides(verdicts)
    return find_owners(pa.table({"kind": columns["kind"], **_groups_and_services(columns)}))


def find_owners(legs: pa.Table) -> pa.Table:
    """Return how each kind and group of ``LEG`` names its services."""
    named = (
        legs.select(["kind", "group", "service"])
        .combine_chunks()
        .group_by(["kind", "group", "service"], use_threads=False)
    )
    counted: Any = named.aggregate([([], "count_all")])
    kinds, groups, services = (counted[name].cast(_TEXT) for name in ("kind", "group", "service"))
    legs_of = counted["count_all"]
    naming = pc.if_else(services.is_valid(), legs_of, 0)
    rows = pa.table([kinds, groups, services, services, naming, legs_of], schema=OWNERS)
    return merge_owners([rows.filter(groups.is_valid())])


def merge_owners(parts: Iterable[pa.Table]) -> pa.Table:
    """Return the sum of parts that ``find_owners`` returned."""
    rows = pa.concat_tables([OWNERS.empty_table(), *parts])
    sums: Any = [("least", "min"), ("greatest", "max"), ("naming", "sum"), ("legs", "sum")]
    found = rows.group_by(["kind", "group"], use_threads=False).aggregate(sums)
    return found.select(["kind", "group", *("_".join(one) for one in sums)]).rename_columns(OWNERS.names)


def choose_owners(found: pa.Table) -> dict[tuple[str, str], str]:
    """Return the service of each ``(kind, group)`` of one service only, some of whose legs name none.

    Only the native side saw those legs: the one service that else uses their group is theirs.
    """
    sole = [
        (-row["naming"], (row["kind"], row["group"]), row["least"])
        for row in found.to_pylist()
        if row["least"] is not None and row["least"] == row["greatest"] and row["naming"] < row["legs"]
    ]
    return {key: owner for _, key, owner in sorted(sole)[:_MOST_OWNERS]}


FATES: Final = (
    "consumed",
    "failed",
    "rolled_back",
    "uncommitted",
    "recalled",
    "reply",
    "unidentified",
    "pending",
    "delayed",
    "never_consumed",
)
"""How a sent message ended, the first that applies; only of ``never_consumed`` is a delivery missing."""
ORIGINS: Final = ("published", "unidentified", "unjudged", "never_published")
"""Whether the send of a delivered message is known, the first that applies."""

NUMBERS: Final = ("event_ms", "retry_times", "busy_ms", "queue_ms")
COUNTS: Final = (
    *("legs", "messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "open", "native", "otlp"),
    *(f"fate_{name}" for name in FATES),
    *(f"origin_{name}" for name in ORIGINS[1:]),
)
"""What is counted on every edge; all of it adds up over edges."""

MEMBER: Final = ("kind", "party", "topic", "service", "group", "namespace")
"""Who and what the ends of an edge stand for; the first three identify the edge."""
_REPLY_TOPIC: Final = "_REPLY_TOPIC"  # RocketMQ appends it to the cluster's name
_PUBLISH, _CONSUME = Kind.PUBLISH.value, Kind.CONSUME.value
_WORDS: Final = ("kind", "via", "namespace", "bare_topic", "group", "service")
_LAST: Final = np.iinfo(np.int64).max


class End(NamedTuple):
    """The names that legs have in common.

    ``party`` is the producer (its service, else its group) or the consumer group (else its service). ``folded`` is the
    topic of a leg over a retry or dead-letter topic whose message's own topic is not known.
    """

    kind: str
    via: str | None
    namespace: str | None
    bare_topic: str | None
    group: str | None
    service: str | None
    party: str | None

    @property
    def folded(self) -> str | None:
        """The name of a retry or dead-letter topic without its namespace."""
        return None if self.via is None or self.bare_topic is None else f"%{self.via}%{self.bare_topic}"


def follow(
    legs: pa.Table, owned: Mapping[tuple[str, str], str], *, opening_ms: int | None, horizon_ms: int | None
) -> pa.Table:
    """Return the sends and deliveries inside the window, from all ``legs`` of each message.

    The columns are ``MEMBER``, the flags ``COUNTS``, and ``NUMBERS`` as in ``LEG``. A retry or dead-letter topic is
    folded into the topic that its message was sent to.

    Deliveries before ``opening_ms`` may be of messages sent before the data begins; what was sent or delivered after
    ``horizon_ms`` may still be completed; ``None``: none is judged.
    """
    given = _Given(legs, owned)
    messages = _Messages(given)
    rows = np.flatnonzero(given.is_publish | given.is_consume)
    message, end = given.message[rows], given.end[rows]
    topic = np.where(given.is_via[rows], messages.topic[message], given.bare_topics[end])
    topic = np.where(topic == _LAST, given.folded[end], topic)
    is_first = _is_first(given, rows, topic)
    is_publish = given.is_publish[rows]
    fate, origin = np.full(len(rows), -1), np.full(len(rows), -1)
    sends, deliveries = np.flatnonzero(is_first & is_publish), np.flatnonzero(is_first & ~is_publish)
    is_reply = np.array([name.endswith(_REPLY_TOPIC) for name in given.topics] + [False])
    fate[sends] = _find_fates(given, messages, rows[sends], is_reply[topic[sends]], horizon_ms)
    origin[deliveries] = _find_origins(given, messages, rows[deliveries], opening_ms, horizon_ms)
    inside = np.flatnonzero(given.inside[rows])
    names = [name for name in MEMBER if name != "topic"]
    words = {name: pa.array([getattr(one, name) for one in given.ends], _TEXT) for name in names}
    found = {name: take_rows(column, end[inside]) for name, column in words.items()}
    found["topic"] = take_rows(pa.array(given.topics, _TEXT), topic[inside])
    flags = _count_flags(given, rows[inside], is_first[inside])
    flags |= {f"fate_{name}": fate[inside] == place for place, name in enumerate(FATES)}
    flags |= {f"origin_{name}": origin[inside] == place for place, name in enumerate(ORIGINS)}
    numbers: Any = legs.select(NUMBERS).take(as_rows(rows[inside]))
    found |= {name: pa.array(flags[name]) for name in COUNTS} | {name: numbers[name] for name in NUMBERS}
    return pa.table(found)


def _count_flags(given: _Given, rows: Ints, is_first: Mask) -> dict[str, Mask]:
    """Return what is counted of each leg; one whose message was sent or delivered there before is ``again``."""
    found: dict[str, Mask] = {
        "legs": np.ones(len(rows), bool),
        "messages": is_first,
        "failures": (given.has_outcome & ~given.is_accepted)[rows],
        "outcome_unknown": ~given.has_outcome[rows],
        "again": (~is_first & given.identified[rows]) | (given.retries[rows] > 0),
        "open": given.is_open[rows],
        "native": given.on_native[rows],
        "otlp": given.on_otlp[rows],
    }
    return found | {f"via_{word.lower()}": is_equal(given.via, word)[rows] for word in ("RETRY", "DLQ")}


class _Given:
    """The columns of legs as arrays; what is only about words is found once per distinct combination of them."""

    def __init__(self, legs: pa.Table, owned: Mapping[tuple[str, str], str]) -> None:
        columns: dict[str, Any] = {name: legs[name].combine_chunks() for name in legs.column_names}
        self.ends, self.end = apply_to_distinct(partial(_make_end, owned), *(columns[name] for name in _WORDS))
        self.topics = _distinct(name for end in self.ends for name in (end.bare_topic, end.folded))
        self.parties = _distinct(end.party for end in self.ends)
        self.bare_topics = _places((end.bare_topic for end in self.ends), self.topics)
        self.folded = _places((end.folded for end in self.ends), self.topics)
        self.party = _places((end.party for end in self.ends), self.parties)
        kinds = (_PUBLISH, _CONSUME, Kind.RECALL.value)
        self.is_publish, self.is_consume, self.is_recall = (is_equal(columns["kind"], kind) for kind in kinds)
        self.via, self.is_via = columns["via"], is_known(columns["via"])
        messages = encode(columns["message"])
        self.message, self.messages = messages.values, messages.room
        self.identified, self.inside = is_true(columns["identified"]), is_true(columns["inside"])
        self.event = NullableInts.of(columns["event_ms"])
        self.retries = NullableInts.of(columns["retry_times"]).filled(0)
        self.has_outcome = is_known(columns["success"])
        self.is_accepted = ~self.has_outcome | is_true(columns["success"])
        self.is_open = is_known(columns["finished"]) & ~is_true(columns["finished"])
        self.on_native, self.on_otlp = is_true(columns["on_native"]), is_true(columns["on_otlp"])
        self.types, self.states = columns["msg_type"], columns["transaction_state"]


def _make_end(owned: Mapping[tuple[str, str], str], *words: Any) -> End:
    kind, via, namespace, bare_topic, group, service = words
    service = owned.get((kind, group)) if service is None else service
    best, other = (service, group) if kind == _PUBLISH else (group, service)
    return End(kind, via, namespace, bare_topic, group, service, other if best is None else best)


def _distinct(names: Iterable[str | None]) -> list[str]:
    return sorted({name for name in names if name is not None})


def _places(names: Iterable[str | None], among: list[str]) -> Ints:
    """Return the place of each name, -1 for none."""
    places: dict[str | None, int] = {name: at for at, name in enumerate(among)}
    return np.array([places.get(name, -1) for name in names], np.int64)


class _Messages:
    """Facts from all legs of a message; arrays by message."""

    def __init__(self, given: _Given) -> None:
        self._given = given
        rows = np.flatnonzero(given.is_publish & ~given.is_via & (given.bare_topics >= 0)[given.end])
        self.topic = np.full(given.messages, _LAST)  # the least known one of its direct sends
        np.minimum.at(self.topic, given.message[rows], given.bare_topics[given.end[rows]])
        self.is_published = self._any(given.is_publish)
        self.is_accepted = self._any(given.is_publish & given.is_accepted)
        self.is_consumed = self._any(given.is_consume)
        self.is_recalled = self._any(given.is_recall)
        self.is_half = self._any(is_equal(given.types, MessageType.TRANS_HALF.value))
        self.is_delayed = self._any(is_equal(given.types, MessageType.DELAY.value))
        self.is_committed = self._any(is_equal(given.states, TransactionState.COMMIT_MESSAGE.value))
        self.is_rolled_back = self._any(is_equal(given.states, TransactionState.ROLLBACK_MESSAGE.value))

    def _any(self, holds: Mask) -> Mask:
        return mark(self._given.messages, self._given.message[holds])


def _is_first(given: _Given, rows: Ints, topic: Ints) -> Mask:
    """Return which legs represent their message: the best, earliest one in the window of each topic and party."""
    whose, is_publish = given.party[given.end[rows]], given.is_publish[rows]
    parts = ((given.message[rows], given.messages), (is_publish.astype(np.int64), 2))
    names = ((whose + 1, len(given.parties) + 1), (topic + 1, len(given.topics) + 1))
    examples, group = find_groups(join_codes(*parts, *names))
    is_first = mark(len(rows), examples)
    several = np.flatnonzero((np.bincount(group, minlength=len(examples)) > 1)[group])
    if len(several):
        chosen, groups = rows[several], group[several]
        event = given.event.filled(_LAST)[chosen]
        order = np.lexsort((given.retries[chosen], event, given.is_via[chosen], ~given.inside[chosen], groups))
        is_first[several] = False
        is_first[several[order[begins_run(groups[order])]]] = True
    return is_first & ~(is_publish & given.is_via[rows])


def _find_fates(given: _Given, messages: _Messages, rows: Ints, is_reply: Mask, horizon_ms: int | None) -> Ints:
    """Return the place in ``FATES`` of each of these first sends."""
    message = given.message[rows]
    is_open = ~messages.is_committed[message]
    holds = {
        "consumed": messages.is_consumed[message],
        "failed": ~messages.is_accepted[message],
        "rolled_back": messages.is_rolled_back[message] & is_open,
        "uncommitted": messages.is_half[message] & is_open,
        "recalled": messages.is_recalled[message],
        "reply": is_reply,
        "unidentified": ~given.identified[rows],
        "pending": ~_is_before(given, rows, horizon_ms),
        "delayed": messages.is_delayed[message],
    }
    return np.select([holds[name] for name in FATES[:-1]], list(range(len(holds))), len(holds))


def _find_origins(
    given: _Given, messages: _Messages, rows: Ints, opening_ms: int | None, horizon_ms: int | None
) -> Ints:
    """Return the place in ``ORIGINS`` of each of these first deliveries."""
    event = given.event.take(rows)
    is_after = event.known & (event.values >= opening_ms) if opening_ms is not None else np.zeros(len(rows), bool)
    holds = {
        "published": messages.is_published[given.message[rows]],
        "unidentified": ~given.identified[rows],
        "unjudged": ~is_after | ~_is_before(given, rows, horizon_ms),
    }
    return np.select([holds[name] for name in ORIGINS[:-1]], list(range(len(holds))), len(holds))


def _is_before(given: _Given, rows: Ints, horizon_ms: int | None) -> Mask:
    if horizon_ms is None:
        return np.zeros(len(rows), bool)
    event = given.event.take(rows)
    return event.known & (event.values <= horizon_ms)
