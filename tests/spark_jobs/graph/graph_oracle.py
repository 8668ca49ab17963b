"""The graph once more, in plain Python: what the summed edges are compared with. It reads the definitions, not the code.

A leg here is a dictionary with the columns of ``spark_jobs.graph.legs.LEG``.
"""

from collections import Counter, defaultdict
from typing import Any

Leg = dict[str, Any]
Edges = dict[tuple[str, str | None, str | None], Counter[str]]


def edges(legs: list[Leg], *, opening_ms: int, horizon_ms: int) -> Edges:
    """Return ``(kind, party, topic)`` → counts, only those that are not zero; percentiles as ``busy_50`` and so on."""
    owners = _owners(legs)
    messages = defaultdict(list)
    for leg in legs:
        service = leg["service"] or owners.get((leg["kind"], leg["group"]))
        names = (service, leg["group"]) if leg["kind"] == "publish" else (leg["group"], service)
        messages[leg["message"]].append({**leg, "service": service, "party": names[0] or names[1]})
    edges: Edges = defaultdict(Counter)
    times = defaultdict(list)
    for of_message in messages.values():
        for key, counts, leg in _messages(of_message, opening_ms, horizon_ms):
            edges[key].update(counts)
            times[key].append(leg)
    for key, among in times.items():
        for name in ("busy_ms", "queue_ms"):
            values = sorted(leg[name] for leg in among if leg[name] is not None)
            if values:
                edges[key].update({f"{name}_{rank}": _percentile(values, rank) for rank in (50, 95, 99)})
    return {key: Counter({name: n for name, n in counts.items() if n}) for key, counts in edges.items()}


def _owners(legs: list[Leg]) -> dict[tuple[str, str], str]:
    services = defaultdict(set)
    for leg in legs:
        if leg["group"] and leg["service"]:
            services[leg["kind"], leg["group"]].add(leg["service"])
    return {key: next(iter(names)) for key, names in services.items() if len(names) == 1}


def _messages(of_message: list[Leg], opening_ms: int, horizon_ms: int) -> list[tuple[Any, Counter[str], Leg]]:
    direct = [leg["bare_topic"] for leg in of_message if leg["kind"] == "publish" and not leg["via"]]
    base = min((topic for topic in direct if topic), default=None)
    messages, firsts = [], set()
    for leg in sorted(of_message, key=_earliest):
        if leg["kind"] not in {"publish", "consume"}:
            continue
        folded = base or f"%{leg['via']}%{leg['bare_topic']}"
        key = (leg["kind"], leg["party"], folded if leg["via"] else leg["bare_topic"])
        first = key not in firsts and (leg["kind"] == "consume" or not leg["via"])
        firsts.add(key)
        if leg["inside"]:
            messages.append((key, _counts(leg, of_message, opening_ms, horizon_ms, first=first), leg))
    return messages


def _earliest(leg: Leg) -> tuple[bool, bool, bool, int, int]:
    return not leg["inside"], bool(leg["via"]), leg["event_ms"] is None, leg["event_ms"] or 0, leg["retry_times"] or 0


def _counts(leg: Leg, of_message: list[Leg], opening_ms: int, horizon_ms: int, *, first: bool) -> Counter[str]:
    counts = Counter(
        legs=1,
        messages=first,
        failures=leg["success"] is False,
        outcome_unknown=leg["success"] is None,
        again=(not first and leg["identified"]) or (leg["retry_times"] or 0) > 0,
        via_retry=leg["via"] == "RETRY",
        via_dlq=leg["via"] == "DLQ",
        open=leg["finished"] is False,
        native=leg["on_native"],
        otlp=leg["on_otlp"],
    )
    if first and leg["kind"] == "publish":
        counts[f"fate_{_fate(leg, of_message, horizon_ms)}"] += 1
    if first and leg["kind"] == "consume":
        origin = _origin(leg, of_message, opening_ms, horizon_ms)
        counts.update({f"origin_{origin}": 1} if origin else {})
    return counts


def _fate(leg: Leg, of_message: list[Leg], horizon_ms: int) -> str:
    sends = [other for other in of_message if other["kind"] == "publish"]
    states = {other["transaction_state"] for other in of_message}
    types = {other["msg_type"] for other in of_message}
    committed = "COMMIT_MESSAGE" in states
    settled = leg["event_ms"] is not None and leg["event_ms"] <= horizon_ms
    ends = [
        ("consumed", any(other["kind"] == "consume" for other in of_message)),
        ("failed", all(other["success"] is False for other in sends)),
        ("rolled_back", "ROLLBACK_MESSAGE" in states and not committed),
        ("uncommitted", "Trans_Msg_Half" in types and not committed),
        ("recalled", any(other["kind"] == "recall" for other in of_message)),
        ("reply", (leg["bare_topic"] or "").endswith("_REPLY_TOPIC")),
        ("unidentified", not leg["identified"]),
        ("pending", not settled),
        ("delayed", "Delay_Msg" in types),
        ("never_consumed", True),
    ]
    return next(name for name, holds in ends if holds)


def _origin(leg: Leg, of_message: list[Leg], opening_ms: int, horizon_ms: int) -> str | None:
    if any(other["kind"] == "publish" for other in of_message):
        return None
    if not leg["identified"]:
        return "unidentified"
    judged = leg["event_ms"] is not None and opening_ms <= leg["event_ms"] <= horizon_ms
    return "never_published" if judged else "unjudged"


def _percentile(ordered: list[int], rank: int) -> int:
    """Return the smallest value that at least ``rank`` % of all do not exceed."""
    return ordered[max(-(-rank * len(ordered) // 100), 1) - 1]
