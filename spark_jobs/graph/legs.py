"""Legs of messages: one row for each send to a topic, delivery to a consumer group, end of a transaction and recall.

A verdict is one leg: copies of a record are one row, and so are the record and the span of one event. ``follow`` finds
the topic of each leg, and how each message ended.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage.paths import read_row_groups
from otel_mqtrace.model import MessageType, TransactionState, parse_name, strip_prefixes
from spark_jobs.columns import (
    begins_run,
    encode,
    find_groups,
    is_known,
    is_true,
    join_codes,
    map_distinct,
    map_values,
    mark,
    take_rows,
)
from spark_jobs.judging.columns import NullableInts, either, flatten_sides, is_equal, least_text_per_group
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask

_LONGEST_NAME: Final = 1_000
_MOST_OWNERS: Final = 1_000
"""So many groups are given their service, those with the most legs that name it first."""

_TEXT: Final[Any] = pa.string()
_ENDS: Final = pa.struct(dict.fromkeys(("party", "service", "folded"), _TEXT))
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
        "via": _rename(columns["topic"], lambda name: parse_name(name[:_LONGEST_NAME]).via),
        "namespace": _rename(columns["topic"], lambda name: parse_name(name[:_LONGEST_NAME]).namespace),
        "bare_topic": _rename(columns["topic"], _bare),
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
        "group": _rename(columns["group"], _bare),
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


def _bare(resource: str) -> str | None:
    """Return a topic's or group's name without prefix and namespace; as it is where nothing would be left."""
    name = resource[:_LONGEST_NAME]
    return strip_prefixes(name) or name or None


Owners: TypeAlias = "dict[tuple[str, str], Counter[str | None]]"
"""How many legs of each kind and group name each service, and how many name none."""


def find_verdict_owners(verdicts: pa.Table) -> Owners:
    """Return what ``find_owners`` does of the legs of ``VERDICT``, or of its kind, group and OTLP service."""
    columns = flatten_sides(verdicts)
    return find_owners(pa.table({"kind": columns["kind"], **_groups_and_services(columns)}))


def find_owners(legs: pa.Table) -> Owners:
    """Return how each kind and group of ``LEG`` names its services."""
    names = ["kind", "group", "service"]
    counted = legs.select(names).combine_chunks().group_by(names, use_threads=False).aggregate([([], "count_all")])
    found: Owners = {}
    for row in counted.to_pylist():
        if row["group"] is not None:
            found.setdefault((row["kind"], row["group"]), Counter())[row["service"]] += row["count_all"]
    return found


def choose_owners(found: Owners) -> dict[tuple[str, str], str]:
    """Return the service of each ``(kind, group)`` of one service only, some of whose legs name none.

    Only the native side saw those legs: the one service that else uses their group is theirs.
    """
    sole = []
    for key, legs_of in found.items():
        services = [name for name in legs_of if name is not None]
        if len(services) == 1 and None in legs_of:
            sole.append((-legs_of[services[0]], key, services[0]))
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
_LAST: Final = np.iinfo(np.int64).max


def follow(
    legs: pa.Table, owned: Mapping[tuple[str, str], str], *, opening_ms: int | None, horizon_ms: int | None
) -> pa.Table:
    """Return the sends and deliveries inside the window, from all ``legs`` of each message.

    The columns are ``MEMBER``, the flags ``COUNTS``, and ``NUMBERS`` as in ``LEG``. A retry or dead-letter topic is
    folded into the topic that its message was sent to.

    Deliveries before ``opening_ms`` may be of messages sent before the data begins; what was sent or delivered after
    ``horizon_ms`` may still be completed; ``None``: none is judged.
    """
    given = _MessageLegs(legs, owned)
    is_first = given.find_first()
    fate = np.where(is_first & given.is_publish, given.find_fates(horizon_ms), -1)
    origin = np.where(is_first & given.is_consume, given.find_origins(opening_ms, horizon_ms), -1)
    flags = given.find_flags(is_first)
    flags |= {f"fate_{name}": fate == place for place, name in enumerate(FATES)}
    flags |= {f"origin_{name}": origin == place for place, name in enumerate(ORIGINS)}
    columns = {**given.names, **{name: pa.array(flags[name]) for name in COUNTS}, **given.numbers}
    return pa.table(columns).filter(pa.array(given.inside & (given.is_publish | given.is_consume)))


class _MessageLegs:
    """All legs of some messages; ``names`` are the columns of ``MEMBER``, ``numbers`` those of ``NUMBERS``."""

    def __init__(self, legs: pa.Table, owned: Mapping[tuple[str, str], str]) -> None:
        self._columns: dict[str, Any] = {name: legs[name].combine_chunks() for name in legs.column_names}
        self.is_publish, self.is_consume = (self._is("kind", kind.value) for kind in (Kind.PUBLISH, Kind.CONSUME))
        self.inside, self._is_identified = (is_true(self._columns[name]) for name in ("inside", "identified"))
        self._is_via = is_known(self._columns["via"])
        self._messages = encode(self._columns["message"])
        self._event = NullableInts.of(self._columns["event_ms"])
        self._retries = NullableInts.of(self._columns["retry_times"]).filled(0)
        self._has_outcome = is_known(self._columns["success"])
        self._is_failed = self._has_outcome & ~is_true(self._columns["success"])
        self.numbers = {name: self._columns[name] for name in NUMBERS}
        self.names = self._find_names(owned)

    def _is(self, name: str, word: str) -> Mask:
        return is_equal(self._columns[name], word)

    def _has_any(self, holds: Mask) -> Mask:
        """Return the legs of the messages of which a condition holds for any leg."""
        message = self._messages.values
        return mark(self._messages.room, message[holds])[message]

    def _find_names(self, owned: Mapping[tuple[str, str], str]) -> dict[str, Column]:
        words = (self._columns[name] for name in ("kind", "group", "service", "via", "bare_topic"))
        party, service, folded = map_distinct(partial(_name_ends, owned), _ENDS, *words).flatten()
        message, bare_topic = self._messages.values, self._columns["bare_topic"].cast(_TEXT)
        sends = np.flatnonzero(self.is_publish & ~self._is_via)
        sent_to = least_text_per_group(message[sends], self._messages.room, take_rows(bare_topic, sends))
        topic = pc.if_else(pa.array(self._is_via), take_rows(sent_to, message), bare_topic)
        kind, group, namespace = (self._columns[name].cast(_TEXT) for name in ("kind", "group", "namespace"))
        names = (kind, party, pc.coalesce(topic, folded), service, group, namespace)
        return dict(zip(MEMBER, names, strict=True))

    def find_first(self) -> Mask:
        """Return which legs represent their message: the best, earliest one in the window of each topic and party."""
        codes = (self._messages, *(encode(self.names[name]) for name in ("kind", "party", "topic")))
        examples, group = find_groups(join_codes(*((one.values, one.room) for one in codes)))
        is_first = mark(len(group), examples)
        several = np.flatnonzero((np.bincount(group) > 1)[group])
        if len(several):
            rank = (self._retries, self._event.filled(_LAST), self._is_via, ~self.inside, group)
            order = several[np.lexsort([each[several] for each in rank])]
            is_first[several] = False
            is_first[order[begins_run(group[order])]] = True
        return is_first & ~(self.is_publish & self._is_via)

    def find_flags(self, is_first: Mask) -> dict[str, Mask]:
        """Return what is counted of each leg; one whose message was sent or delivered there before is ``again``."""
        finished = self._columns["finished"]
        return {
            "legs": np.ones(len(is_first), bool),
            "messages": is_first,
            "failures": self._is_failed,
            "outcome_unknown": ~self._has_outcome,
            "again": (~is_first & self._is_identified) | (self._retries > 0),
            "via_retry": self._is("via", "RETRY"),
            "via_dlq": self._is("via", "DLQ"),
            "open": is_known(finished) & ~is_true(finished),
            **{side: is_true(self._columns[f"on_{side}"]) for side in ("native", "otlp")},
        }

    def find_fates(self, horizon_ms: int | None) -> Ints:
        """Return the place in ``FATES`` of the message of each leg."""
        is_open = ~self._has_any(self._is("transaction_state", TransactionState.COMMIT_MESSAGE.value))
        rolled_back = self._is("transaction_state", TransactionState.ROLLBACK_MESSAGE.value)
        holds = {
            "consumed": self._has_any(self.is_consume),
            "failed": ~self._has_any(self.is_publish & ~self._is_failed),
            "rolled_back": self._has_any(rolled_back) & is_open,
            "uncommitted": self._has_any(self._is("msg_type", MessageType.TRANS_HALF.value)) & is_open,
            "recalled": self._has_any(self._is("kind", Kind.RECALL.value)),
            "reply": is_true(pc.ends_with(self.names["topic"], _REPLY_TOPIC)),
            "unidentified": ~self._is_identified,
            "pending": ~self._is_before(horizon_ms),
            "delayed": self._has_any(self._is("msg_type", MessageType.DELAY.value)),
        }
        return np.select([holds[name] for name in FATES[:-1]], list(range(len(holds))), len(holds))

    def find_origins(self, opening_ms: int | None, horizon_ms: int | None) -> Ints:
        """Return the place in ``ORIGINS`` of the message of each leg."""
        is_after_opening = (self._event - NullableInts.constant(opening_ms)).exceeds(-1)
        holds = {
            "published": self._has_any(self.is_publish),
            "unidentified": ~self._is_identified,
            "unjudged": ~(is_after_opening & self._is_before(horizon_ms)),
        }
        return np.select([holds[name] for name in ORIGINS[:-1]], list(range(len(holds))), len(holds))

    def _is_before(self, horizon_ms: int | None) -> Mask:
        return (NullableInts.constant(horizon_ms) - self._event).exceeds(-1)


def _name_ends(owned: Mapping[tuple[str, str], str], *words: Any) -> tuple[str | None, ...]:
    """Return the party of a leg, its service, and the name of a retry or dead-letter topic without its namespace.

    The party is the producer (its service, else its group) or the consumer group (else its service).
    """
    kind, group, service, via, bare_topic = words
    service = owned.get((kind, group)) if service is None else service
    best, other = (service, group) if kind == Kind.PUBLISH.value else (group, service)
    folded = None if via is None or bare_topic is None else f"%{via}%{bare_topic}"
    return other if best is None else best, service, folded
