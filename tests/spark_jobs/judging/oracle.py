"""The kernel's rules a second time, in plain Python, to compare its verdicts with.

Written from the definitions (statuses, reasons, identity, precedence), not from the kernel. Profile ``mqtrace`` only.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
HALVES = ("before", "after", "whole")

LATE_MS = 60_000
MERGED = ("group_name", "region_id", "retry_times", "start_ms", "end_ms", "cost_ms", "success", "context_code", "topic")
PUBLISH_FIELDS = (
    *("topic", "group_name", "offset_msg_id", "region_id", "body_length", "msg_type", "start_ms", "end_ms", "cost_ms"),
    "success",
)
CONSUME_FIELDS = ("group_name", "region_id", "retry_times", "start_ms", "end_ms", "cost_ms", "success", "context_code")
WEAK_KEYS = {
    **dict.fromkeys(("publish", "consume"), ("group_name",)),
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
    native: list[Row] = field(default_factory=list)
    otlp: list[Row] = field(default_factory=list)
    level: int | None = None

    @property
    def parts(self) -> list[list[Row]]:
        """Return what may be copies of each other: the native records of each half, whole ones, spans or their halves."""
        of_both = {row["half"] for row in self.otlp} == {"before", "after"}
        spans = [[row for row in self.otlp if not of_both or row["half"] == half] for half in HALVES[: 1 + of_both]]
        return [*([row for row in self.native if row["half"] == half] for half in HALVES), *spans]

    @property
    def kept(self) -> tuple[Row | None, Row | None]:
        """Return the record of either side, merged from the earliest of each half."""
        native, spans = self.parts[: len(HALVES)], self.parts[len(HALVES) :]
        return _merge(native) if self.native else None, _merge(spans) if self.otlp else None


def verdicts(events: list[Row], *, grace_ms: int, damaged: dict[str, set[str]], begin_ms: int) -> list[tuple[Any, ...]]:
    """Return ``COMPARED`` of each key.

    ``damaged`` names, per side, the messages that its malformed records mention; ``begin_ms`` is where the window does.
    """
    ends = [_end([row for row in events if row["side"] == side]) for side in ("native", "otlp")]
    horizon_ms = None if None in ends else min(ends) - grace_ms
    messages = defaultdict(list)
    for row in events:
        messages[row["msg_id"] or row["span_id"]].append(row)
    verdicts = []
    for message, rows in messages.items():
        damaged_sides = {side for side, named in damaged.items() if message in named}
        judged = [_judge(key, horizon_ms, max(filter(None, ends)), damaged_sides, begin_ms) for key in _keys(rows)]
        topics = [row["topic"] for row in judged if row["kind"] == "publish" and row["topic"]]
        judged = [{**row, "topic": row["topic"] or min(topics, default=None)} for row in judged]
        verdicts += [tuple(row[name] for name in COMPARED) for row in judged]
    return verdicts


def _end(rows: list[Row]) -> int | None:
    """Return the last time of a side; no event ends later than its record arrived."""
    over = [(_last([row]), row["arrival_ms"]) for row in rows]
    return max((min(last, arrival or last) for last, arrival in over if last is not None), default=None)


def _last(rows: Iterable[Row]) -> int | None:
    return max((ms for row in rows for ms in (row["start_ms"], row["end_ms"]) if ms is not None), default=None)


def _keys(rows: list[Row]) -> list[Key]:
    keys: dict[tuple[str, str], Key] = {}
    for row in rows:
        ident = _ident(row)
        key = keys.setdefault((row["kind"], ident), Key(row["kind"], ident))
        getattr(key, row["side"]).append(row)
    for key in keys.values():
        key.level = 1 if key.native and key.otlp else None
    groups = list(keys.values())
    for level in (2, 3):
        groups = _pair(groups, level)
    return groups


def _ident(row: Row) -> str:
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


def _lacks(row: Row) -> bool:
    needed = {"publish": "offset_msg_id", "consume": "attempt_id"}.get(row["kind"])
    return needed is None or row[needed] is None


def _pair(keys: list[Key], level: int) -> list[Key]:
    """Pair what is one-sided, the nearest starts first, then in order, if one of the two lacks part of its key."""
    native = sorted((key for key in keys if key.level is None and key.native), key=_order)
    otlp = sorted((key for key in keys if key.level is None and key.otlp), key=_order)
    pairs = [(one, other) for one in native for other in otlp if _can_pair(one, other, level)]
    gone = set()
    for one, other in sorted(pairs, key=_distance):  # a stable sort: equally good pairs stay in order of time
        if one.level is None and id(other) not in gone:
            one.otlp, one.level = other.otlp, level
            gone.add(id(other))
    return [key for key in keys if id(key) not in gone]


def _can_pair(one: Key, other: Key, level: int) -> bool:
    native, otlp = one.kept[0], other.kept[1]
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
    kept = key.kept[0] or key.kept[1]
    return (kept["start_ms"], kept["raw_hash"], key.ident)


def _position(row: Row) -> tuple[Any, ...]:
    start_ms = row["end_ms"] if row["start_ms"] is None else row["start_ms"]
    arrival = (row["arrival_ms"] is None, row["arrival_ms"] or 0)
    return (start_ms, row["raw_hash"], arrival, row["path"], row["line"], row["record_index"])


def _merge(parts: list[list[Row]]) -> Row:
    halves = [min(rows, key=_position) for rows in parts if rows]
    merged = dict(halves[0])
    for name in MERGED:
        merged[name] = next((half[name] for half in halves if half[name] is not None), None)
    merged["arrival_ms"] = max((half["arrival_ms"] for half in halves if half["arrival_ms"] is not None), default=None)
    if merged["start_ms"] is None:
        merged["start_ms"] = merged["end_ms"] - merged["cost_ms"]
    return merged


def _judge(key: Key, horizon_ms: int | None, data_end_ms: int, damaged_sides: set[str], begin_ms: int) -> Row:
    sides = [row for row in key.kept if row]
    status, reason = _compare(key) if len(sides) > 1 else _explain(key, data_end_ms, damaged_sides)
    if len(sides) == 1 and reason != "IN_FLIGHT" and (horizon_ms is None or _last(sides) > horizon_ms):
        status, reason = "PENDING", None
    if next(row[name] for name in ("start_ms", "end_ms") for row in sides if row[name] is not None) < begin_ms:
        status, reason = "OUT_OF_SCOPE", None
    native, spans = key.parts[: len(HALVES)], key.parts[len(HALVES) :]
    return {
        "msg_id": (key.native or key.otlp)[0]["msg_id"],
        "topic": next((row["topic"] for row in sides if row["topic"]), None),
        "kind": key.kind,
        "status": status,
        "reason": reason,
        "key_level": key.level,
        "timing": _timing(sides),
        "duplicates": _copies(key.parts),
        "native_count": max(map(len, native)),
        "otlp_count": max(map(len, spans)),
    }


def _timing(sides: list[Row]) -> str:
    """Return whether the records arrived in time: only later than a minute behind the event is late."""
    known = [row for row in sides if row["arrival_ms"] is not None]
    if not known:
        return "no_time"
    if any(row["start_ms"] - row["arrival_ms"] > LATE_MS for row in known):
        return "future"
    over_ms = (row["start_ms"] if row["end_ms"] is None else row["end_ms"] for row in known)
    late = [row["side"] for row, ms in zip(known, over_ms, strict=True) if row["arrival_ms"] - ms > LATE_MS]
    return "late_both" if len(late) > 1 else f"late_{late[0]}" if late else "on_time"


def _explain(key: Key, data_end_ms: int, damaged_sides: set[str]) -> tuple[str, str]:
    side, other = ("native", "otlp") if key.native else ("otlp", "native")
    before, after, *_ = key.parts
    reason = "COUNTERPART_MALFORMED" if other in damaged_sides else "UNEXPLAINED"
    if before and not after:
        reason = "IN_FLIGHT" if data_end_ms - key.kept[0]["start_ms"] <= 15 * 60_000 else "ABANDONED"
    return f"{side.upper()}_ONLY", reason


def _compare(key: Key) -> tuple[str, str | None]:
    native, otlp = key.kept
    parts, spans = key.parts[: len(HALVES)], key.parts[len(HALVES) :]
    reason = "HALF_RECORD" if key.kind == "consume" and bool(parts[0]) != bool(parts[1]) else None
    doubled = [any(len(part) > 1 for part in side) for side in (parts, spans)]
    if any(doubled):
        return f"DUPLICATED_{'BOTH' if all(doubled) else 'NATIVE' if doubled[0] else 'OTLP'}", reason
    verdicts = {_field(name, native[name], otlp[name]) for name in FIELDS[key.kind]}
    if reason or verdicts & {"DIFFERENT", "MISSING_NATIVE", "MISSING_OTLP"}:
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


def _copies(parts: list[list[Row]]) -> str | None:
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
