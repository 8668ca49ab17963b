"""This module knows how to build by hand what a run measures: curves, the slowest, timelines of messages, hosts, runs."""

from __future__ import annotations

from typing import Any

from spark_jobs.report.graph import CONSUME, PUBLISH, Call, Edge, Graph, Node, Spread, node_id
from spark_jobs.report.result import Exemplar, Instance, Interval, Latency, MessageEvent, Topic

T0 = 1_795_276_800_000  # 2026-11-21 16:00:00 UTC
SHARES = (0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 0.995, 0.999, 0.9999)


def curved(p50: float, slowest: float, count: int) -> Latency:
    """Return a distribution with a long tail between its median and its slowest event."""
    curve = tuple(
        (share, p50 * (slowest / p50) ** max(0.0, 2 * share - 1) ** 3 * min(1.0, 2 * share)) for share in SHARES
    )
    known = dict(curve)
    return Latency(count=count, p50=p50, p95=known[0.95], p99=known[0.99], max=slowest, curve=curve)


def latency() -> dict[str, Latency]:
    """Return the four stages."""
    return {
        "publish": curved(2.1, 310, 1991),
        "queue": curved(11, 800, 3900),
        "process": curved(25, 9_800, 3955),
        "end_to_end": curved(39, 10_900, 3900),
    }


def slowest(msg_id: str) -> dict[str, tuple[Exemplar, ...]]:
    """Return one exemplar that is a sample (of ``tests.support.results``), and one that is none."""
    named = {"kind": "consume", "topic": "OrderTopic", "group": "billing"}
    known = Exemplar(msg_id=msg_id, event_ms=T0 + 3, took_ms=9_800, **named)
    return {"process": (known, Exemplar(msg_id="F" * 32, event_ms=T0 + 77, took_ms=9_100, **named))}


def timelines(msg_id: str) -> dict[str, tuple[MessageEvent, ...]]:
    """Return a message that was sent, failed with one group, came again ten minutes later and was lost by OTLP once."""
    told: dict[str, Any] = {"status": "MATCHED_EXACT", "store_host": "127.0.0.1:9092"}
    sent, first, again = (
        Interval(T0 - 17, T0 - 9, True),
        Interval(T0 + 3, T0 + 51, False),
        Interval(T0 + 600_003, T0 + 600_051, True),
    )
    return {
        msg_id: (
            MessageEvent(
                kind="publish", group="orders-out", attempt_id=None, retry_times=None, native=sent, otlp=sent, **told
            ),
            MessageEvent(
                kind="consume", group="billing", attempt_id="A1", retry_times=0, native=first, otlp=first, **told
            ),
            MessageEvent(
                kind="consume", group="stock", attempt_id="A2", retry_times=0, native=None, otlp=first, **told
            ),
            MessageEvent(
                kind="consume", group="billing", attempt_id="A3", retry_times=1, native=again, otlp=None, **told
            ),
            MessageEvent(
                kind="consume",
                group="mail",
                attempt_id="A4",
                retry_times=0,
                native=Interval(T0 + 5, None),
                otlp=None,
                **told,
            ),
        )
    }


def topics() -> tuple[Topic, ...]:
    """Return two topics, one with failed sends."""
    return (
        Topic(topic="OrderTopic", sends=1900, failures=6, unmatched=6, publish=curved(2, 310, 1894)),
        Topic(topic="退款-🧾", sends=91, failures=0, unmatched=0, publish=curved(3, 40, 91)),
    )


def instances() -> tuple[Instance, ...]:
    """Return two hosts with losses."""
    return (
        Instance(
            host="10.0.3.17",
            service="order-service",
            events=2_410,
            lost_native=3,
            lost_otlp=2,
            attributed=8,
            first_ms=T0 + 180_000,
            last_ms=T0 + 600_000,
        ),
        Instance(
            host=None,
            service=None,
            events=40,
            lost_native=0,
            lost_otlp=2,
            attributed=0,
            first_ms=T0 + 1_000,
            last_ms=T0 + 1_000,
        ),
    )


def trend(runs: int = 12) -> tuple[dict[str, Any], ...]:
    """Return the last runs of a history, one of which failed."""
    return tuple(
        {
            "run": run,
            "time": f"2026-11-{run + 9:02}T16:35:00.000Z",
            "verdict": "FAIL" if run in {4, runs} else "PASS",
            "exit_code": int(run in {4, runs}),
            "match_rate": 0.9931 if run in {4, runs} else 1.0,
            "unexplained": {"native": 3, "otlp": 4} if run in {4, runs} else {"native": 0, "otlp": 0},
            "lifecycle": {"NEW": 7, "STILL_OPEN": 2} if run in {4, runs} else {},
            "pending": 4,
            "records_read": {"native": 9958, "otlp": 5950},
        }
        for run in range(1, runs + 1)
    )


def graph() -> Graph:
    """Return one producer, two topics and two groups, with failures, redeliveries and messages nobody consumed."""
    made = {
        "producer": ("shop",),
        "topic": ("OrderTopic", "退款-🧾"),
        "consumer_group": ("billing", "a-consumer-group-with-a-name-as-long-as-they-are-in-real-systems"),
    }
    nodes = tuple(Node(id=node_id(kind, name), kind=kind, name=name) for kind, names in made.items() for name in names)
    shop, orders, refunds, billing, long_name = (node.id for node in nodes)
    spread = Spread(count=1900, p50=2, p95=9, p99=31, min=0, max=310)
    return Graph(
        sides=("native", "otlp"),
        first_ms=T0,
        last_ms=T0 + 1_800_000,
        opening_ms=T0 + 60_000,
        horizon_ms=T0 + 1_738_000,
        nodes=nodes,
        edges=(
            Edge(
                source=shop,
                target=orders,
                kind=PUBLISH,
                count=1900,
                messages=1894,
                failures=6,
                fates={"consumed": 1880, "never_consumed": 14},
                took=spread,
            ),
            Edge(source=shop, target=refunds, kind=PUBLISH, count=91, messages=91, fates={"never_consumed": 91}),
            Edge(
                source=orders,
                target=billing,
                kind=CONSUME,
                count=2012,
                messages=1880,
                failures=22,
                again=132,
                origins={"published": 1878, "never_published": 2},
                took=spread,
                queued=spread,
            ),
            Edge(source=orders, target=long_name, kind=CONSUME, count=12, messages=12, is_loop=True),
        ),
        calls=(Call(parent="shop", child="billing", messages=2012),),
    )


def measured(msg_id: str) -> dict[str, Any]:
    """Return all of it by the names of a ``Result``; ``msg_id`` is the message that is told in full."""
    return {
        "latency": latency(),
        "slowest": slowest(msg_id),
        "timelines": timelines(msg_id),
        "topics": topics(),
        "instances": instances(),
        "instances_left_off": 3,
        "arrival": {"native": curved(20, 90_000, 9_000)},
        "ageing": {"PENDING": {"under 1 min": 4}, "IN_FLIGHT": {"1 to 5 min": 2, "5 to 15 min": 1}},
        "timing": {"on_time": 5890, "late_native": 60, "no_time": 26},
        "trend": trend(),
        "graph": graph(),
    }
