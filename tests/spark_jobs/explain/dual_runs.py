"""Two real runs, recorded by both systems, and what others like them look like: every variant made from their events."""

from __future__ import annotations

import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.reading import events_of, native_side, otlp_side

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_CORPUS: Final = Path(__file__).parents[2] / "vectors" / "dual"

Event = dict[str, Any]
Lost = tuple[str, str, str, str | None]
"""Status, kind, message id and consumer group of a key of which one side was taken away."""


def dual_events(name: str, workdir: Path, *, native_writer: str) -> list[Event]:
    """Return the events of both sides of one run of the corpus."""
    folder = _CORPUS / name
    sides = native_side(workdir, folder / "native.jsonl"), otlp_side(workdir, folder / "otlp.jsonl")
    rows = [row for side in sides for row in events_of(side)]
    return [{**row, "writer": row["writer"] if row["side"] == "otlp" else native_writer} for row in rows]


def old_names(events: Iterable[Event]) -> list[Event]:
    """Return the run as the agent's default convention tells it: no outcome of deliveries, a span per batched message."""
    made = []
    for event in events:
        if event["side"] == "native" or event["kind"] is None:
            made.append(event)
        elif event["kind"] == "consume":
            made.append(_old_delivery(event))
        else:
            made.append({**event, "writer": "java-agent-old"})
    return made


def _old_delivery(event: Event) -> Event:
    old = {**event, "writer": "java-agent-old", "success": None, "context_code": None, "body_length": None}
    if event["batch_size"] == 1:
        return old
    child = f"{zlib.crc32(repr((event['span_id'], event['record_index'])).encode()):016x}"
    end_ms = event["start_ms"]
    alone = {"batch_size": None, "record_index": 0, "end_ms": end_ms, "cost_ms": 0}
    return {**old, **alone, "parent_span_id": event["span_id"], "span_id": child}


def sampled_half(events: Iterable[Event]) -> list[Event]:
    """Return the run under a sampler of one half.

    A message's send and its single deliveries are sampled together; the span of a batch decides for itself and says of
    each message whether its send was sampled.
    """
    kept = []
    for event in events:
        if event["side"] == "native":
            kept.append(event)
        elif event["kind"] == "consume" and (event["batch_size"] or 2) > 1:
            call = event["parent_span_id"] if event["writer"] == "java-agent-old" else event["span_id"]
            if _chosen(call):
                kept.append({**event, "sent_sampled": _chosen(event["msg_id"])})
        elif _chosen(event["msg_id"] or event["span_id"]):
            kept.append(event)
    return kept


def _chosen(text: str) -> bool:
    return zlib.crc32(text.encode()) % 2 == 0


def killed(events: list[Event], service: str, *, at_ms: int, spans_ms: int, native_ms: int) -> list[Event]:
    """Return the run with the process of a service killed: each exporter had handed on all but its last moments."""
    groups = {event["group_name"] for event in events if event["service"] == service and event["kind"] == "consume"}

    def is_left(event: Event) -> bool:
        mine = event["service"] == service or (event["side"] == "native" and event["group_name"] in groups)
        behind_ms = spans_ms if event["side"] == "otlp" else native_ms
        return not mine or max(event["start_ms"] or 0, event["end_ms"] or 0) <= at_ms - behind_ms

    return list(filter(is_left, events))


def without_native_trace(events: Iterable[Event], kind: str, names: Callable[[str], bool]) -> list[Event]:
    """Return the run with native trace switched off for sends to some topics, or for some consumer groups."""
    name = {"publish": "topic", "consume": "group_name"}[kind]
    return [
        event
        for event in events
        if not (event["side"] == "native" and event["kind"] == kind and names(event[name] or ""))
    ]


def by_header(events: Iterable[Event]) -> list[Event]:
    """Return the run with message properties captured: sends without an answer have their id from there."""
    made = []
    for number, event in enumerate(events):
        sent = event["side"] == "otlp" and event["kind"] == "publish"
        if sent and event["msg_id"] is None:
            made.append({**event, "msg_id": f"C000020262BB60E53B936993FFFF{number:04X}", "id_source": "header"})
        else:
            made.append(event)
    return made


def silently_lost(events: list[Event], *, one_in: int) -> tuple[list[Event], set[Lost]]:
    """Take one side of some events away, without a trace; both sides must know them, and only once."""
    known = {side: Counter(map(_key, _distinct(events, side))) for side in ("native", "otlp")}
    once = [key for key, count in known["native"].items() if count == 1 == known["otlp"][key]]
    unlucky = {key: _chance(key) for key in once if key[1] and _chance(key) % one_in == 0}
    missing = {key: "native" if chance // one_in % 2 else "otlp" for key, chance in unlucky.items()}
    left = [event for event in events if missing.get(_key(event)) != event["side"]]
    return left, {(f"{_OTHER[side].upper()}_ONLY", *key) for key, side in missing.items()}


_OTHER: Final = {"native": "otlp", "otlp": "native"}


def _key(event: Event) -> tuple[str, str | None, str | None]:
    return event["kind"], event["msg_id"], event["group_name"] if event["kind"] == "consume" else None


def _chance(key: tuple[str, str | None, str | None]) -> int:
    return zlib.crc32(repr(key).encode())


def _distinct(events: list[Event], side: str) -> Iterator[Event]:
    """Yield the events of one side that have a partner in principle; of the two halves of a delivery the second."""
    for event in events:
        if event["side"] == side and event["scope"] is None and event["half"] != "before":
            yield event
