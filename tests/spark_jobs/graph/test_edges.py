"""Legs add up to edges: against a plain Python oracle, in parts, capped, and a fate for every message."""

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jobs.graph.edges import GraphPart, add_up, build_graph
from spark_jobs.graph.legs import LEG, choose_owners, find_owners, merge_owners
from spark_jobs.sums import sum_of

OPENING_MS, HORIZON_MS = 1_000, 9_000
TOPICS = ["orders", "bills", "DefaultCluster_REPLY_TOPIC", None]
_times = st.sampled_from([None, 0, 999, 1_000, 5_000, 8_999, 9_000, 9_001, 20_000])
_outcomes = st.sampled_from([True, True, True, False, None])


def leg(kind: str, message: str, **fields: Any) -> dict[str, Any]:
    flags = {"identified": True, "success": True, "inside": True, "on_native": False, "on_otlp": True}
    clean = {**flags, "bare_topic": "orders", "event_ms": 5_000, "finished": True if kind == "consume" else None}
    return {**dict.fromkeys(LEG.names), **clean, "kind": kind, "message": message, **fields}


@st.composite
def any_leg(draw: st.DrawFn, kind: str, message: str) -> dict[str, Any]:
    consume = kind == "consume"
    return leg(
        kind,
        message,
        bare_topic=draw(st.sampled_from(TOPICS)),
        via=draw(st.sampled_from([None, None, None, "RETRY", "DLQ"])),
        group=draw(st.sampled_from(["G1", "G2", None])),
        service=draw(st.sampled_from(["shop", "bank", None, None])),
        event_ms=draw(_times),
        busy_ms=draw(st.sampled_from([None, 0, 3, 500])),
        queue_ms=draw(st.sampled_from([None, -4, 7, 80])) if consume else None,
        finished=draw(st.booleans()) if consume else None,
        success=draw(_outcomes),
        retry_times=draw(st.sampled_from([None, 0, 0, 2])),
        msg_type=draw(st.sampled_from([None, "Normal_Msg", "Trans_Msg_Half", "Delay_Msg"])),
        inside=draw(st.sampled_from([True, True, True, False])),
        on_native=draw(st.booleans()),
    )


@st.composite
def ways(draw: st.DrawFn, message: str) -> list[dict[str, Any]]:
    """Return the legs of one message: sends, deliveries, copies over retry and dead-letter topics, an end, a recall."""
    identified = draw(st.sampled_from([True, True, True, False]))
    kinds = draw(st.lists(st.sampled_from(["publish", "publish", "consume", "consume"]), max_size=5))
    drawn_legs = [draw(any_leg(kind, message)) for kind in kinds]
    states = draw(st.lists(st.sampled_from(["COMMIT_MESSAGE", "ROLLBACK_MESSAGE"]), max_size=1))
    drawn_legs += [leg("transaction_end", message, transaction_state=state) for state in states]
    drawn_legs += [leg("recall", message)] * draw(st.sampled_from([0, 0, 0, 1]))
    topics = {"bare_topic": "CG"}
    return [{**one, "identified": identified, **(topics if one["via"] else {})} for one in drawn_legs]


def add_up_in(parts: int, legs: list[dict[str, Any]], judged: Any = (OPENING_MS, HORIZON_MS)) -> GraphPart:
    numbers = {message: at for at, message in enumerate(dict.fromkeys(one["message"] for one in legs))}
    some = [[one for one in legs if numbers[one["message"]] % parts == part] for part in range(parts)]
    tables = [pa.Table.from_pylist(rows, schema=LEG) for rows in some]
    owned = choose_owners(merge_owners(map(find_owners, tables)))
    return sum_of(GraphPart, (add_up(table, owned, judged) for table in tables))


def counts_of(part: GraphPart) -> dict[Any, dict[str, int]]:
    """Return the counts and percentiles of each edge that are not zero."""
    edges_of = {}
    for key, edge in part.edges.items():
        counts = {name: count for name, count in edge.counts.items() if count}
        for name, spread in edge.spreads.items():
            ranks = spread.rank((0.5, 0.95, 0.99))
            counts |= {f"{name}_{rank}": value for rank, value in zip((50, 95, 99), ranks, strict=True) if value}
        edges_of[key] = counts
    return edges_of


@settings(max_examples=12)
@given(data=st.data(), parts=st.integers(1, 3))
def test_edges_agree_with_the_plain_python_oracle(data, parts):
    legs = [one for at in range(30) for one in data.draw(ways(f"M{at}"))]
    expected = expected_edges(legs, opening_ms=OPENING_MS, horizon_ms=HORIZON_MS)
    assert counts_of(add_up_in(parts, legs)) == expected


@settings(max_examples=5)
@given(data=st.data())
def test_graph_does_not_depend_on_the_number_of_parts(data):
    legs = [one for at in range(20) for one in data.draw(ways(f"M{at}"))]
    how = {"sides": ("otlp",), "judged": (OPENING_MS, HORIZON_MS), "at_most": 3}
    assert build_graph(add_up_in(4, legs), **how) == build_graph(add_up_in(1, legs), **how)


@pytest.fixture(scope="module")
def capped_part():
    legs = []
    for topic, sends in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
        known = {"bare_topic": topic, "service": "shop", "group": "P", "busy_ms": 9}
        legs += [leg("publish", f"{topic}{at}", **known) for at in range(sends)]
        legs.append(leg("consume", f"{topic}0", bare_topic=topic, service="shop", group=f"G{topic}", queue_ms=7))
    legs.append(leg("consume", "x", bare_topic=None, service=None, group="Ga", on_native=True, on_otlp=False))
    return add_up_in(2, legs)


def test_edges_beyond_the_cap_are_summed_up_in_one_edge_a_kind(capped_part):
    capped = build_graph(capped_part, sides=("otlp",), judged=(OPENING_MS, HORIZON_MS), at_most=2)
    sends, deliveries = capped.edges_of("publish"), capped.edges_of("consume")
    assert [(edge.target, edge.count, edge.stands_for) for edge in sends] == [
        ("topic:a", 5, 0),
        ("topic:b", 4, 0),
        ("others:topic", 5, 2),
    ]
    assert (sends[0].took.p95, sends[-1].took.count) == (9, 0)
    assert sum(edge.count for edge in sends) == 14
    assert sum(edge.count for edge in deliveries) == 5
    assert deliveries[-1].stands_for == 3
    assert [node.name for node in capped.nodes if node.stands_for] == ["others", "others", "others"]


@pytest.fixture(scope="module")
def whole(capped_part):
    return build_graph(capped_part, sides=("otlp",), judged=(OPENING_MS, HORIZON_MS), direct={("web", "shop"): 4})


def test_delivery_to_a_service_that_sends_to_the_topic_is_a_loop(whole):
    assert {edge.source for edge in whole.edges_of("consume") if edge.is_loop} == {f"topic:{name}" for name in "abcd"}
    calls = {(call.parent, call.child): (call.direct, call.messages) for call in whole.calls}
    assert calls == {("web", "shop"): (4, 0), ("shop", "shop"): (0, 4)}


def test_node_lists_the_services_and_groups_it_stands_for(whole):
    nodes = {node.id: node for node in whole.nodes}
    assert nodes["producer:shop"].groups == ("P",)
    assert nodes["consumer_group:Ga"].services == ("shop",)


def test_no_message_is_missing_without_a_settled_part():
    legs = [leg("publish", "m", service="shop"), leg("consume", "n", group="G")]
    counts = counts_of(add_up_in(1, legs, (None, None)))
    assert counts["publish", "shop", "orders"]["fate_pending"] == 1
    assert counts["consume", "G", "orders"]["origin_unjudged"] == 1


# -- The graph once more, in plain Python. It reads the definitions, not the code
Leg = dict[str, Any]
Edges = dict[tuple[str, str | None, str | None], Counter[str]]


def expected_edges(legs: list[Leg], *, opening_ms: int, horizon_ms: int) -> Edges:
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
