"""The kernel's rules once more, in plain Python and as slowly as it likes: what its verdicts are compared with.

It reads the definitions (statuses, reasons, identity, precedence), not the implementation. Profile ``mqtrace`` only.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

TIMEOUT_MS = 15 * 60_000
LATE_MS = 60_000
MERGED = ("group_name", "region_id", "retry_times", "start_ms", "end_ms", "cost_ms", "success", "context_code", "topic")
PUBLISH_FIELDS = (
    *("topic", "group_name", "offset_msg_id", "region_id", "body_length", "msg_type", "start_ms", "end_ms", "cost_ms"),
    "success",
)
CONSUME_FIELDS = ("group_name", "region_id", "retry_times", "start_ms", "end_ms", "cost_ms", "success", "context_code")
WEAK_KEYS = {
    "publish": ("group_name",),
    "consume": ("group_name",),
    "transaction_end": ("transaction_state", "from_transaction_check"),
    "recall": (),
}
ADDRESS = ("topic", "group_name", "region_id", "start_ms", "msg_type")
FIELDS = {
    "publish": PUBLISH_FIELDS,
    "consume": CONSUME_FIELDS,
    "transaction_end": (*ADDRESS, "transaction_id", "transaction_state", "from_transaction_check"),
    "recall": ADDRESS,
}
TOLERANCE_MS = {"start_ms": 0, "end_ms": 5, "cost_ms": 5}
COMPARED = ("msg_id", "topic", "kind", "status", "reason", "key_level", "timing", "duplicates")
COMPARED += ("native_count", "otlp_count")


@dataclass
class Key:
    """One canonical key while it is put together."""

    kind: str
    ident: str
    native: list[dict[str, Any]] = field(default_factory=list)
    otlp: list[dict[str, Any]] = field(default_factory=list)
    level: int | None = None


@dataclass
class Judged:
    """One verdict: what it says, and the record that was kept of either side."""

    msg_id: str | None
    kind: str
    status: str
    reason: str | None
    key_level: int | None
    native_count: int
    otlp_count: int
    duplicates: str | None
    native: dict[str, Any] | None
    otlp: dict[str, Any] | None
    sent_topic: str | None = None

    @property
    def topic(self) -> str | None:
        """Return its own topic; where it names none, that of its message's sends."""
        return next((side["topic"] for side in (self.native, self.otlp) if side and side["topic"]), self.sent_topic)

    @property
    def event_ms(self) -> int:
        times = [side[name] for name in ("start_ms", "end_ms") for side in (self.native, self.otlp) if side]
        return next(ms for ms in times if ms is not None)

    @property
    def timing(self) -> str:
        """Return whether its records arrived in time: only later than a minute behind the event is late."""
        arrivals = {side: _arrived(row) for side, row in (("native", self.native), ("otlp", self.otlp)) if row}
        known = {side: ms for side, ms in arrivals.items() if ms is not None}
        if not known:
            return "no_time"
        if any(ahead_ms > LATE_MS for ahead_ms, _ in known.values()):
            return "future"
        late = [side for side, (_, behind_ms) in known.items() if behind_ms > LATE_MS]
        return "late_both" if len(late) > 1 else f"late_{late[0]}" if late else "on_time"

    def as_tuple(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in COMPARED)


def _arrived(row: dict[str, Any]) -> tuple[int, int] | None:
    """Return by how much the event was ahead of its record's arrival, and how far the record was behind it."""
    if row["arrival_ms"] is None:
        return None
    over_ms = row["start_ms"] if row["end_ms"] is None else row["end_ms"]
    return row["start_ms"] - row["arrival_ms"], row["arrival_ms"] - over_ms


def verdicts(
    events: list[dict[str, Any]], *, grace_ms: int, damaged: dict[str, set[str]], begin_ms: int | None = None
) -> list[Judged]:
    """Return one verdict per key: status, reason, level, copies, kept records.

    ``damaged`` names, per side, the messages that its malformed records mention; ``begin_ms`` is where the window does.
    """
    horizon_ms, data_end_ms = horizon(events, grace_ms), max(filter(None, ends(events).values()))
    messages = defaultdict(list)
    for row in events:
        messages[row["msg_id"] or row["span_id"]].append(row)
    verdicts = []
    for message, rows in messages.items():
        hurt = {side: message in named for side, named in damaged.items()}
        judged = [_judge(key, horizon_ms, data_end_ms, hurt) for key in _keys(rows)]
        topics = [key.topic for key in judged if key.kind == "publish" and key.topic]
        verdicts += [replace(key, sent_topic=min(topics, default=None)) for key in judged]
    for key in verdicts:
        if begin_ms is not None and key.event_ms < begin_ms:
            key.status, key.reason = "OUT_OF_SCOPE", None
    return verdicts


def ends(events: list[dict[str, Any]]) -> dict[str, int | None]:
    """Return the last time of either side; no event ends later than its record arrived."""
    ends: dict[str, int | None] = {}
    for side in ("native", "otlp"):
        rows = [row for row in events if row["side"] == side]
        over = [(_last([row]), row["arrival_ms"]) for row in rows]
        known = [min(last, last if arrival is None else arrival) for last, arrival in over if last is not None]
        ends[side] = max(known, default=None)
    return ends


def horizon(events: list[dict[str, Any]], grace_ms: int) -> int | None:
    """Return up to when everything must have arrived; ``None`` when a side is empty."""
    known = list(ends(events).values())
    return None if None in known else min(known) - grace_ms


def _last(rows: list[dict[str, Any]]) -> int | None:
    return max((ms for row in rows for ms in (row["start_ms"], row["end_ms"]) if ms is not None), default=None)


def _keys(rows: list[dict[str, Any]]) -> list[Key]:
    keys: dict[tuple[str, str], Key] = {}
    for row in rows:
        ident = _ident(row)
        key = keys.setdefault((row["kind"], ident), Key(row["kind"], ident))
        getattr(key, row["side"]).append(row)
    for key in keys.values():
        key.level = 1 if key.native and key.otlp else None
    groups = list(keys.values())
    for level in (2, 3):
        groups = _meet(groups, level)
    return groups


def _ident(row: dict[str, Any]) -> str:
    own = f"own/{row['side']}/{row['span_id'] or row['raw_hash']}"
    if row["kind"] == "publish":
        return f"offset/{row['offset_msg_id']}" if row["offset_msg_id"] else f"start/{row['start_ms']}"
    shares_start = row["side"] == "native" or row["writer"] == "mqtrace"
    if row["kind"] == "transaction_end" and shares_start:
        names = ("transaction_id", "transaction_state", "from_transaction_check", "start_ms")
        return "end/" + "/".join(str(row[name]) for name in names)
    if row["kind"] == "recall":
        return f"recall/{row['topic']}/{row['start_ms']}" if shares_start else own
    if row["kind"] == "transaction_end":
        return own
    return f"attempt/{row['group_name']}/{row['attempt_id']}" if row["attempt_id"] else own


def _lacks(row: dict[str, Any]) -> bool:
    needed = {"publish": "offset_msg_id", "consume": "attempt_id"}.get(row["kind"])
    return needed is None or row[needed] is None


def _meet(keys: list[Key], level: int) -> list[Key]:
    """Pair what is one-sided, the nearest starts first, then in order, if one of the two lacks part of its key."""
    native = sorted((key for key in keys if key.level is None and key.native), key=_order)
    otlp = sorted((key for key in keys if key.level is None and key.otlp), key=_order)
    pairs = [(one, other) for one in native for other in otlp if _may_meet(one, other, level)]
    gone = set()
    for one, other in sorted(pairs, key=_distance):  # a stable sort: equally good pairs stay in order of time
        if one.level is None and id(other) not in gone:
            one.otlp, one.level = other.otlp, level
            gone.add(id(other))
    return [key for key in keys if id(key) not in gone]


def _may_meet(one: Key, other: Key, level: int) -> bool:
    native, otlp = _kept(one.native), min(other.otlp, key=_position)
    if one.kind != other.kind or not (_lacks(native) or _lacks(otlp)):
        return False
    if None not in (native["retry_times"], otlp["retry_times"]) and native["retry_times"] != otlp["retry_times"]:
        return False
    topics = (native["topic"], otlp["topic"])
    if one.kind == "publish" and None not in topics and topics[0] != topics[1]:
        return False
    alike = [native[name] == otlp[name] for name in WEAK_KEYS[one.kind]]
    if level == 2:
        return all(alike) and not (one.kind in {"publish", "consume"} and native["group_name"] is None)
    if one.kind == "recall":
        return False
    return one.kind != "consume" or None in (native["group_name"], otlp["group_name"])


def _distance(pair: tuple[Key, Key]) -> tuple[bool, int]:
    apart_ms = abs(_order(pair[0])[0] - _order(pair[1])[0])
    near = apart_ms <= TOLERANCE_MS["start_ms"]
    return (not near, apart_ms if near else 0)


def _order(key: Key) -> tuple[int, int, str]:
    kept = _kept(key.native) if key.native else min(key.otlp, key=_position)
    return (kept["start_ms"], kept["raw_hash"], key.ident)


def _position(row: dict[str, Any]) -> tuple[Any, ...]:
    start_ms = row["end_ms"] if row["start_ms"] is None else row["start_ms"]
    arrival = (row["arrival_ms"] is None, row["arrival_ms"] or 0)
    return (start_ms, row["raw_hash"], arrival, row["path"], row["line"], row["record_index"])


def _kept(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the native record of a key: the earliest of each half, merged."""
    halves = [
        min(rows_of_half, key=_position) for half in ("before", "after", "whole") if (rows_of_half := _half(rows, half))
    ]
    merged = dict(halves[0])
    for name in MERGED:
        merged[name] = next((half[name] for half in halves if half[name] is not None), None)
    merged["arrival_ms"] = max((half["arrival_ms"] for half in halves if half["arrival_ms"] is not None), default=None)
    if merged["start_ms"] is None:
        merged["start_ms"] = merged["end_ms"] - merged["cost_ms"]
    return merged


def _half(rows: list[dict[str, Any]], half: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["half"] == half]


def _judge(key: Key, horizon_ms: int | None, data_end_ms: int, hurt: dict[str, bool]) -> Judged:
    native = _kept(key.native) if key.native else None
    otlp = min(key.otlp, key=_position) if key.otlp else None
    parts = [_half(key.native, half) for half in ("before", "after", "whole")]
    status, reason = _status(key, native, otlp, parts)
    if status in {"NATIVE_ONLY", "OTLP_ONLY"}:
        reason = _reason(status, parts, native, data_end_ms, hurt)
        last_ms = _last([row for row in (native, otlp) if row])
        if reason != "IN_FLIGHT" and (horizon_ms is None or last_ms > horizon_ms):
            status, reason = "PENDING", None
    counts = (max(len(part) for part in parts), len(key.otlp))
    msg_id = (key.native or key.otlp)[0]["msg_id"]
    return Judged(msg_id, key.kind, status, reason, key.level, *counts, _copies([*parts, key.otlp]), native, otlp)


def _reason(
    status: str,
    parts: list[list[dict[str, Any]]],
    native: dict[str, Any] | None,
    data_end_ms: int,
    hurt: dict[str, bool],
) -> str:
    if native and parts[0] and not parts[1]:
        return "IN_FLIGHT" if data_end_ms - native["start_ms"] <= TIMEOUT_MS else "ABANDONED"
    return "COUNTERPART_MALFORMED" if hurt["otlp" if status == "NATIVE_ONLY" else "native"] else "UNEXPLAINED"


def _status(
    key: Key, native: dict[str, Any] | None, otlp: dict[str, Any] | None, parts: list[list[dict[str, Any]]]
) -> tuple[str, str | None]:
    if native is None or otlp is None:
        return ("OTLP_ONLY" if native is None else "NATIVE_ONLY"), None
    half = key.kind == "consume" and bool(parts[0]) != bool(parts[1])
    reason = "HALF_RECORD" if half else None
    doubled = (any(len(part) > 1 for part in parts), len(key.otlp) > 1)
    if any(doubled):
        return {(True, True): "DUPLICATED_BOTH", (True, False): "DUPLICATED_NATIVE"}.get(
            doubled, "DUPLICATED_OTLP"
        ), reason
    verdicts = {_field(name, native[name], otlp[name]) for name in FIELDS[key.kind]}
    if half or verdicts & {"DIFFERENT", "MISSING_NATIVE", "MISSING_OTLP"}:
        return "MISMATCHED", reason
    return ("MATCHED_NORMALISED" if "WITHIN_TOLERANCE" in verdicts else "MATCHED_EXACT"), None


def _field(name: str, native: Any, otlp: Any) -> str | None:
    if native == otlp:
        return "EQUAL"
    if native is None or otlp is None:
        return "MISSING_NATIVE" if native is None else "MISSING_OTLP"
    near = name in TOLERANCE_MS and abs(native - otlp) <= TOLERANCE_MS[name]
    slack_ms = 1 + TOLERANCE_MS["cost_ms"]  # a cost was rounded down once
    near = near or (name == "cost_ms" and abs(native - otlp) <= slack_ms)
    return "WITHIN_TOLERANCE" if near else "DIFFERENT"


def _copies(parts: list[list[dict[str, Any]]]) -> str | None:
    kinds = set()
    for part in parts:
        hashes = {row["raw_hash"] for row in part}
        contents = {repr([row[name] for name in (*PUBLISH_FIELDS, *CONSUME_FIELDS)]) for row in part}
        if len(contents) > 1:
            kinds.add("conflicting")
        elif len(hashes) > 1:
            kinds.add("equivalent")
        elif len(part) > 1:
            kinds.add("exact")
    return next((kind for kind in ("conflicting", "equivalent", "exact") if kind in kinds), None)
