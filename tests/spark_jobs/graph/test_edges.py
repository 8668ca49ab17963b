"""Legs add up to edges: a fate or an origin for every message, first legs and copies, in parts, and capped."""

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.graph.edges import GraphPart, add_up, build_graph
from spark_jobs.graph.legs import LEG, choose_owners, find_owners
from spark_jobs.sums import sum_of

OPENING_MS, HORIZON_MS = 1_000, 9_000


def leg(kind: str, message: str = "M", **fields: Any) -> dict[str, Any]:
    flags = {"identified": True, "success": True, "inside": True, "on_native": False, "on_otlp": True}
    clean = {**flags, "bare_topic": "orders", "event_ms": 5_000, "finished": True if kind == "consume" else None}
    return {**dict.fromkeys(LEG.names), **clean, "kind": kind, "message": message, **fields}


def sent(**fields: Any) -> dict[str, Any]:
    return leg("publish", **{"service": "shop", **fields})


def taken(**fields: Any) -> dict[str, Any]:
    return leg("consume", **{"group": "G", **fields})


def ended(state: str) -> dict[str, Any]:
    return leg("transaction_end", transaction_state=f"{state}_MESSAGE")


def add_up_in(parts: int, legs: list[dict[str, Any]], judged: Any = (OPENING_MS, HORIZON_MS)) -> GraphPart:
    numbers = {message: at for at, message in enumerate(dict.fromkeys(one["message"] for one in legs))}
    some = [[one for one in legs if numbers[one["message"]] % parts == part] for part in range(parts)]
    tables = [pa.Table.from_pylist(rows, schema=LEG) for rows in some]
    owned = choose_owners(sum_of(dict, map(find_owners, tables)))
    return sum_of(GraphPart, (add_up(table, owned, judged) for table in tables))


def counts_of(part: GraphPart) -> dict[Any, dict[str, int]]:
    return {key: {name: count for name, count in edge.counts.items() if count} for key, edge in part.edges.items()}


HALF, DELAYED, REPLY = {"msg_type": "Trans_Msg_Half"}, {"msg_type": "Delay_Msg"}, {"bare_topic": "A_REPLY_TOPIC"}
FAILED, LATE, NAMELESS = {"success": False}, {"event_ms": HORIZON_MS + 1}, {"identified": False}
# In the order in which fates are tried: a message that could have a later one, too, has the first that applies.
ENDINGS = {
    "consumed": [sent(**FAILED, **HALF), taken()],
    "failed": [sent(**FAILED, **HALF), sent(**FAILED, event_ms=6_000), ended("ROLLBACK")],
    "rolled_back": [sent(**HALF), ended("ROLLBACK"), leg("recall")],
    "uncommitted": [sent(**HALF), sent(**FAILED, event_ms=6_000), leg("recall")],
    "recalled": [sent(**HALF, **REPLY), ended("COMMIT"), ended("ROLLBACK"), leg("recall")],
    "reply": [sent(**REPLY, **NAMELESS)],
    "unidentified": [sent(**NAMELESS, **LATE)],
    "pending": [sent(**LATE, **DELAYED)],
    "delayed": [sent(**DELAYED)],
    "never_consumed": [sent(success=None, event_ms=HORIZON_MS)],
}
BEGINNINGS = {
    "unidentified": [taken(**NAMELESS, event_ms=OPENING_MS - 1)],
    "unjudged": [taken(event_ms=OPENING_MS - 1)],
    "never_published": [taken(event_ms=OPENING_MS)],
}


@pytest.mark.parametrize(
    ("name", "legs"),
    [
        *((f"fate_{fate}", legs) for fate, legs in ENDINGS.items()),
        *((f"origin_{origin}", legs) for origin, legs in BEGINNINGS.items()),
        ("fate_pending", [sent(event_ms=None)]),
        ("origin_unjudged", [taken(event_ms=None)]),
        ("origin_unjudged", [taken(**LATE)]),
    ],
)
def test_message_has_the_first_fate_or_origin_that_applies(name, legs):
    counts = sum(map(Counter, counts_of(add_up_in(1, legs)).values()), Counter())
    assert {word: n for word, n in counts.items() if word.startswith(("fate_", "origin_"))} == {name: 1}


RETRIED = {"bare_topic": "G", "via": "RETRY", "retry_times": 1}
COPIES = [
    sent(message="A", busy_ms=4),
    sent(message="A", event_ms=5_001, busy_ms=500),  # a copy
    taken(message="A", event_ms=6_000, queue_ms=-4, on_native=True),
    taken(message="A", event_ms=5_500, queue_ms=80, success=None, **RETRIED),
    taken(message="A", event_ms=7_000, finished=False, **{**RETRIED, "via": "DLQ", "retry_times": 0}),
    taken(message="B", **RETRIED),  # of an unknown topic
    sent(message="C", event_ms=9_500),
    sent(message="C"),
    sent(message="C", event_ms=500, inside=False),
    sent(message="C", event_ms=None),
    taken(message="C", retry_times=1, success=False),
    taken(message="C", retry_times=0),
    *(sent(message="D", bare_topic=None, identified=False) for _ in range(2)),
    sent(message="E", service=None, group="P", bare_topic="bills"),
    sent(message="F", service="bank", group="P", bare_topic="bills"),  # the one service of that group
    sent(message="F", service="bank", group="P", bare_topic="bills", event_ms=None),  # a copy, as its time is unknown
    sent(message="G", service=None, group="Q", bare_topic="bills"),
    taken(message="E", group=None, service="bank", bare_topic="bills"),
    taken(message="E", group=None, service="bank", bare_topic="bills", event_ms=4_000, retry_times=1),  # its first one
    sent(message="H", bare_topic="G", via="RETRY"),
    *(sent(message="I", bare_topic=topic) for topic in ("orders", "audit")),
    taken(message="I", event_ms=8_000, **RETRIED),  # its message's first topic by name
]
EDGES = {
    ("publish", "shop", "orders"): {"legs": 6, "messages": 3, "again": 3, "fate_consumed": 3, "otlp": 6},
    ("publish", "shop", "audit"): {"legs": 1, "messages": 1, "fate_consumed": 1, "otlp": 1},
    ("publish", "shop", None): {"legs": 2, "messages": 1, "fate_unidentified": 1, "otlp": 2},
    ("publish", "bank", "bills"): {"legs": 3, "messages": 2, "again": 1, "fate_consumed": 1, "fate_never_consumed": 1}
    | {"otlp": 3},
    ("publish", "Q", "bills"): {"legs": 1, "messages": 1, "fate_never_consumed": 1, "otlp": 1},
    ("publish", "shop", "%RETRY%G"): {"legs": 1, "again": 1, "via_retry": 1, "otlp": 1},
    ("consume", "G", "orders"): {"legs": 5, "messages": 2, "again": 3, "via_retry": 1, "via_dlq": 1}
    | {"failures": 1, "outcome_unknown": 1, "open": 1, "native": 1, "otlp": 5},
    ("consume", "G", "audit"): {"legs": 1, "messages": 1, "again": 1, "via_retry": 1, "otlp": 1},
    ("consume", "G", "%RETRY%G"): {"legs": 1, "messages": 1, "again": 1, "via_retry": 1}
    | {"origin_never_published": 1, "otlp": 1},
    ("consume", "bank", "bills"): {"legs": 2, "messages": 1, "again": 2, "otlp": 2},
}


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_copies_and_retries_of_a_message_are_counted_beside_its_first_leg(parts):
    part = add_up_in(parts, COPIES)
    assert counts_of(part) == EDGES
    spreads = {
        (key[0], name): one.rank((0.5, 1)) for key, edge in part.edges.items() for name, one in edge.spreads.items()
    }
    assert spreads == {("publish", "busy_ms"): [4, 500], ("consume", "queue_ms"): [-4, 80]}
    graphs = [build_graph(one, sides=("otlp",), judged=(1, 9), at_most=3) for one in (part, add_up_in(1, COPIES))]
    assert graphs[0] == graphs[1]
    sources = [edge.source for edge in graphs[0].edges_of("publish")]
    assert sources == [f"producer:{name}" for name in ("shop", "bank", "shop")] + ["others:producer"]


@pytest.fixture(scope="module")
def capped_part():
    legs = []
    for topic, sends in (("a", 5), ("b", 4), ("c", 3), ("d", 2)):
        known = {"bare_topic": topic, "service": "shop", "group": "P"}
        legs += [leg("publish", f"{topic}{at}", busy_ms=10 * at, **known) for at in range(sends)]
        legs.append(leg("consume", f"{topic}0", bare_topic=topic, service="shop", group=f"G{topic}", queue_ms=7))
    legs.append(leg("consume", "x", bare_topic=None, service=None, group="Ga", on_native=True, on_otlp=False))
    return add_up_in(2, legs)


def test_edges_beyond_the_cap_are_summed_up_in_one_edge_a_kind(capped_part):
    capped = build_graph(capped_part, sides=("otlp",), judged=(OPENING_MS, HORIZON_MS), at_most=2)
    sends, deliveries = capped.edges_of("publish"), capped.edges_of("consume")
    shown = [(edge.target, edge.count, edge.stands_for) for edge in sends]
    assert shown == [("topic:a", 5, 0), ("topic:b", 4, 0), ("others:topic", 5, 2)]
    assert (sends[0].took.p50, sends[0].took.p95, sends[-1].took.count, deliveries[1].queued.p50) == (20, 40, 0, 7)
    assert (capped.sides, capped.opening_ms, capped.horizon_ms) == (("otlp",), OPENING_MS, HORIZON_MS)
    assert sum(edge.count for edge in sends) == 14
    assert sum(edge.count for edge in deliveries) == 5
    assert deliveries[-1].stands_for == 3
    assert [node.name for node in capped.nodes if node.stands_for] == ["others", "others", "others"]


def test_node_lists_the_services_and_groups_it_stands_for(capped_part):
    whole = build_graph(capped_part, sides=("otlp",), judged=(OPENING_MS, HORIZON_MS))
    nodes = {node.id: node for node in whole.nodes}
    assert nodes["producer:shop"].groups == ("P",)
    assert nodes["consumer_group:Ga"].services == ("shop",)


def test_no_message_is_missing_without_a_settled_part():
    counts = counts_of(add_up_in(1, [sent(message="m"), taken(message="n")], (None, None)))
    assert counts["publish", "shop", "orders"]["fate_pending"] == 1
    assert counts["consume", "G", "orders"]["origin_unjudged"] == 1
