"""A ``Result`` made by hand: balanced, with every kind of finding, and something in every section of the report."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from spark_jobs.report import result as report
from spark_jobs.report.graph import CONSUME, PUBLISH, Edge, Graph, Node, Spread, node_id

T0 = 1_795_276_800_000  # 2026-11-21 16:00:00 UTC

ATTEMPT = "7F000001A3B418B4AAC20C9B7E5D0011"
FINDINGS: dict[tuple[str, str | None], dict[str, int]] = {
    ("MATCHED_EXACT", None): {"publish": 1900, "consume": 3250, "transaction_end": 54},
    ("MATCHED_NORMALISED", None): {"publish": 80, "consume": 640, "transaction_end": 11},
    ("MISMATCHED", None): {"publish": 3, "consume": 4},
    ("DUPLICATED_NATIVE", None): {"publish": 2, "consume": 3},
    ("DUPLICATED_OTLP", None): {"consume": 3},
    ("DUPLICATED_BOTH", None): {"consume": 1},
    ("NATIVE_ONLY", "BY_DESIGN"): {"publish": 6, "consume": 3},
    ("NATIVE_ONLY", "IN_FLIGHT"): {"consume": 3},
    ("NATIVE_ONLY", "DROP_ATTRIBUTED"): {"consume": 3},
    ("NATIVE_ONLY", "UNEXPLAINED"): {"consume": 4},
    ("OTLP_ONLY", "HALF_RECORD"): {"consume": 4},
    ("OTLP_ONLY", "DROP_ATTRIBUTED"): {"consume": 5},
    ("OTLP_ONLY", "UNEXPLAINED"): {"consume": 3},
    ("PENDING", None): {"consume": 4},
}

NO_NUMBER = "Pub\x011795276800000\x01DefaultRegion\x01orders\x01OrderTopic\x01…\x01fourty\x01"

BY_KIND: dict[str, Counter[str]] = defaultdict(Counter)
for (_status, _), _kinds in FINDINGS.items():
    for _kind, _count in _kinds.items():
        BY_KIND[_kind][_status] += _count
BY_KIND["consume"].update(OUT_OF_SCOPE=26, MALFORMED=2)


def rows_of(kind: type, names: str, *rows: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a ``kind`` for each row, whose values stand in the order of ``names``."""
    return tuple(kind(**dict(zip(names.split(), row, strict=True))) for row in rows)


def side_fields(*, at_ms: int = T0, **changes: Any) -> dict[str, Any]:
    message = {"offset_msg_id": "OrderTopic-2@118", "topic": "OrderTopic", "body_length": 312, "msg_type": "Normal_Msg"}
    message |= {"tags": "created", "keys": ["订单-4711", "🧾4711"], "transaction_id": None}
    call = {"group_name": "billing", "attempt_id": ATTEMPT, "retry_times": 0}
    call |= {"success": True, "context_code": "SUCCESS"}
    hosts = {"region_id": "DefaultRegion", "store_host": "127.0.0.1:9092", "client_host": "10.0.3.17"}
    times = {"start_ms": at_ms, "end_ms": at_ms + 48, "cost_ms": 48}
    span = dict.fromkeys(("trace_id", "span_id", "service"))
    path = "native/date=2026-11-21/part-00000.parquet"
    record = {"path": path, "line": 41, "record_index": 3, "writer": "mqtrace", "raw_hash": -5512345678901234}
    return {**message, **call, **hosts, **times, **span, **record, **changes}


def otlp_fields(*, at_ms: int = T0, **changes: Any) -> dict[str, Any]:
    span = {"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "span_id": "00f067aa0ba902b7", "service": "order-service"}
    span |= {"path": "otlp/traces.jsonl", "line": 1207, "record_index": 0}
    return side_fields(at_ms=at_ms, **{**span, **changes})


def sample(
    number: int = 1, *, status: str = "MATCHED_EXACT", reason: str | None = None, **verdict: Any
) -> report.Sample:
    """Return one sampled consume; ``native=`` and ``otlp=`` replace a side, ``None`` takes it away."""
    native = verdict.pop("native", side_fields(at_ms=T0 + number))
    otlp = verdict.pop("otlp", otlp_fields(at_ms=T0 + number))
    row = {"kind": "consume", "msg_id": f"7F000001A3B418B4AAC20C9B7E5D{number:04X}", "topic": "OrderTopic"}
    row |= {"group": "billing", "attempt_id": ATTEMPT, "retry_times": 0, "key_level": 1}
    row |= {"status": status, "reason": reason, "reason_detail": None, "timing": "on_time", "event_ms": T0 + number}
    row |= {"native_count": int(native is not None), "otlp_count": int(otlp is not None), "duplicates": None}
    row |= {"field_verdicts": {"topic": "EQUAL", "retry_times": "EQUAL"}, **verdict}
    stratum = status if reason is None else f"{status} {reason}"
    return report.Sample(stratum=stratum, verdict=row, native=native, otlp=otlp)


def findings() -> tuple[report.Sample, ...]:
    wrong = otlp_fields(retry_times=2, store_host="127.0.0.1:9093", end_ms=T0 + 61, cost_ms=61)
    verdicts = {"topic": "EQUAL", "retry_times": "DIFFERENT", "store_host": "DIFFERENT", "client_host": "MISSING_OTLP"}
    publish = {"kind": "publish", "group": "orders-out"}
    return (
        sample(1, status="NATIVE_ONLY", reason="UNEXPLAINED", otlp=None),
        sample(2, status="OTLP_ONLY", reason="UNEXPLAINED", native=None),
        sample(3, status="MISMATCHED", otlp={**wrong, "client_host": None}, field_verdicts=verdicts),
        sample(3, **publish, native=side_fields(at_ms=T0 - 20), otlp=otlp_fields(at_ms=T0 - 20)),
        sample(4, status="DUPLICATED_OTLP", otlp_count=2, duplicates="exact"),
        sample(5, status="NATIVE_ONLY", reason="IN_FLIGHT", otlp=None, native=side_fields(end_ms=None, success=None)),
        sample(6, **publish, status="NATIVE_ONLY", reason="BY_DESIGN", reason_detail="rocketmq-failed-send", otlp=None),
        sample(7, status="PENDING", native=None),
        sample(8, status="MATCHED_NORMALISED", otlp=otlp_fields(success=False, at_ms=T0 + 3)),
    )


def timeline(buckets: int = 30) -> tuple[report.TimeBucket, ...]:
    return tuple(
        report.TimeBucket(
            start_ms=T0 + at * 60_000,
            width_ms=60_000,
            findings={
                ("MATCHED_EXACT", None): 150 + 40 * (at % 5),
                ("MATCHED_NORMALISED", None): 24 + at % 3,
                **({("NATIVE_ONLY", "BY_DESIGN"): 2 + at % 4, ("OTLP_ONLY", "UNEXPLAINED"): 1} if at % 7 == 3 else {}),
                **({("MISMATCHED", None): 1, ("PENDING", None): 1} if at % 11 == 4 else {}),
            },
        )
        for at in range(buckets)
    )


def fields() -> tuple[report.Field, ...]:
    hosts = (("127.0.0.1:9092", "127.0.0.1:9093", 5), ("127.0.0.1:9094", "127.0.0.1:9092", 2))
    return rows_of(
        report.Field,
        "name verdicts differing_pairs",
        ("topic", {"EQUAL": 5942}, ()),
        ("group_name", {"EQUAL": 5942}, ()),
        ("keys", {"EQUAL": 5201, "EQUAL_NORMALISED": 731, "SANITISED": 8, "TRUNCATED": 2}, ()),
        ("store_host", {"EQUAL": 5935, "DIFFERENT": 7}, hosts),
        ("body_length", {"EQUAL": 5300, "NOT_COMPARABLE": 640, "DIFFERENT": 2}, ()),
        ("start_ms", {"EQUAL": 5800, "WITHIN_TOLERANCE": 142}, ()),
        ("client_host", {"EQUAL": 5938, "MISSING_OTLP": 3, "MISSING_NATIVE": 1}, ()),
        ("transaction_id", {"EQUAL": 65, "NOT_COMPARABLE": 5877}, ()),
    )


def gates() -> tuple[report.Gate, ...]:
    unexplained = "7 settled events are on one side only, and neither a rule nor a counter says why."
    return rows_of(
        report.Gate,
        "name op threshold value outcome severity explanation",
        ("unexplained_loss_native", "<=", 0, 7, "fail", "fail", unexplained),
        ("conflicting_duplicates", "<=", 0, 0, "pass", "fail", ""),
        ("malformed", "<=", 0, 2, "fail", "fail", "See the positions below."),
        ("critical_field_agreement", ">=", 1.0, 0.999512, "fail", "fail", ""),
        ("duplicate_excess", "<=", 0.001, 0.0015, "warn", "warn", ""),
        ("late_rate", "<=", 0.01, None, "inconclusive", "warn", ""),
    )


def groups() -> tuple[report.Group, ...]:
    billing = rows_of(report.Latency, "count p50 p95 p99 max", (2012, 48, 410.5, 1210, 9_800), (2012, 12, 88, 240, 800))
    warehouse = rows_of(report.Latency, "count p50 p95 p99 max", (1998, 3, 9, 31, 88), (1998, 10, 71, 180, 640))
    return rows_of(
        report.Group,
        "topic group messages deliveries failures redeliveries unmatched process queue",
        ("OrderTopic", "billing", 1990, 2012, 22, 22, 14, *billing),
        ("OrderTopic", "warehouse", 1988, 1998, 10, 10, 11, *warehouse),
        ("退款-🧾", "audit", 0, 0, 0, 0, 0, report.Latency(), report.Latency()),
    )


SHARES = (0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 0.995, 0.999, 0.9999)


def curved(p50: float, slowest: float, count: int) -> report.Latency:
    curve = tuple(
        (share, p50 * (slowest / p50) ** max(0.0, 2 * share - 1) ** 3 * min(1.0, 2 * share)) for share in SHARES
    )
    known = dict(curve)
    return report.Latency(count=count, p50=p50, p95=known[0.95], p99=known[0.99], max=slowest, curve=curve)


def latency() -> dict[str, report.Latency]:
    until_taken = {"publish": curved(2.1, 310, 1991), "queue": curved(11, 800, 3900)}
    return {**until_taken, "process": curved(25, 9_800, 3955), "end_to_end": curved(39, 10_900, 3900)}


def slowest(msg_id: str) -> dict[str, tuple[report.Exemplar, ...]]:
    named = {"kind": "consume", "topic": "OrderTopic", "group": "billing"}
    known = report.Exemplar(msg_id=msg_id, event_ms=T0 + 3, took_ms=9_800, **named)
    return {"process": (known, report.Exemplar(msg_id="F" * 32, event_ms=T0 + 77, took_ms=9_100, **named))}


def event(native: tuple[Any, ...] | None, otlp: tuple[Any, ...] | None, **verdict: Any) -> report.Sample:
    """Return an event of a message; a side is start, end and success, or ``None``."""
    sides = (
        side and {**dict(zip(("start_ms", "end_ms", "success"), side, strict=True)), "store_host": "127.0.0.1:9092"}
        for side in (native, otlp)
    )
    return report.Sample(
        verdict={"status": "MATCHED_EXACT", **verdict}, **dict(zip(("native", "otlp"), sides, strict=True))
    )


def timelines(msg_id: str) -> dict[str, tuple[report.Sample, ...]]:
    sent, first, again = (T0 - 17, T0 - 9, True), (T0 + 3, T0 + 51, False), (T0 + 600_003, T0 + 600_051, True)
    events = (
        event(sent, sent, kind="publish", group="orders-out", attempt_id=None, retry_times=None),
        event(first, first, kind="consume", group="billing", attempt_id="A1", retry_times=0),
        event(None, first, kind="consume", group="stock", attempt_id="A2", retry_times=0),
        event(again, None, kind="consume", group="billing", attempt_id="A3", retry_times=1),
        event((T0 + 5, None, None), None, kind="consume", group="mail", attempt_id="A4", retry_times=0),
    )
    return {msg_id: events}


def topics() -> tuple[report.Topic, ...]:
    return (
        report.Topic(topic="OrderTopic", sends=1900, failures=6, unmatched=6, publish=curved(2, 310, 1894)),
        report.Topic(topic="退款-🧾", sends=91, failures=0, unmatched=0, publish=curved(3, 40, 91)),
    )


def instances() -> tuple[report.Instance, ...]:
    return rows_of(
        report.Instance,
        "host service events lost_native lost_otlp attributed first_ms last_ms",
        ("10.0.3.17", "order-service", 2_410, 3, 2, 8, T0 + 180_000, T0 + 600_000),
        (None, None, 40, 0, 2, 0, T0 + 1_000, T0 + 1_000),
    )


def trend(runs: int = 12) -> tuple[dict[str, Any], ...]:
    each = {"pending": 4, "records_read": {"native": 9958, "otlp": 5950}, "lifecycle": {}}
    passed = {**each, "verdict": "PASS", "exit_code": 0, "match_rate": 1.0, "unexplained": {"native": 0, "otlp": 0}}
    failed = {**each, "verdict": "FAIL", "exit_code": 1, "match_rate": 0.9931, "unexplained": {"native": 3, "otlp": 4}}
    failed["lifecycle"] = {"NEW": 7, "STILL_OPEN": 2}
    return tuple(
        {"run": run, "time": f"2026-11-{run + 9:02}T16:35:00.000Z", **(failed if run in {4, runs} else passed)}
        for run in range(1, runs + 1)
    )


def graph() -> Graph:
    long = "a-consumer-group-with-a-name-as-long-as-they-are-in-real-systems"
    names = (("producer", "shop"), ("topic", "OrderTopic"), ("topic", "退款-🧾"))
    names += (("consumer_group", "billing"), ("consumer_group", long))
    nodes = tuple(Node(id=node_id(kind, name), kind=kind, name=name) for kind, name in names)
    shop, orders, refunds, billing, long_name = (node.id for node in nodes)
    spread = Spread(count=1900, p50=2, p95=9, p99=31, min=0, max=310)
    sent = {"failures": 6, "fates": {"consumed": 1880, "never_consumed": 14}, "took": spread}
    read = {"failures": 22, "again": 132, "origins": {"published": 1878, "never_published": 2}, "took": spread}
    return Graph(
        sides=("native", "otlp"),
        first_ms=T0,
        last_ms=T0 + 1_800_000,
        opening_ms=T0 + 60_000,
        horizon_ms=T0 + 1_738_000,
        nodes=nodes,
        edges=(
            Edge(source=shop, target=orders, kind=PUBLISH, count=1900, messages=1894, **sent),
            Edge(source=shop, target=refunds, kind=PUBLISH, count=91, messages=91, fates={"never_consumed": 91}),
            Edge(source=orders, target=billing, kind=CONSUME, count=2012, messages=1880, queued=spread, **read),
            Edge(source=orders, target=long_name, kind=CONSUME, count=12, messages=12),
        ),
    )


def result(**changes: Any) -> report.Result:
    """Return a run that failed, with something in every section; ``changes`` replace whole attributes."""
    spans = ("otlp/traces.jsonl", "otlp/traces-2026-11-21T16-20-00.000.jsonl")
    native, otlp = rows_of(
        report.SideInputs,
        "sources layouts records_read exploded malformed truncated_tails out_of_scope half_merged exact_duplicates "
        "other_duplicates canonical_keys last_event_ms",
        (("landing/native",), ("landing-jsonl",), 9958, 0, 2, 1, 4, 3955, 5, 1, 5991, T0 + 1_800_000),
        (spans, ("collector-jsonl",), 5950, 64, 0, 0, 26, 0, 4, 0, 5984, T0 + 1_798_000),
    )
    known = findings()
    told = known[2].verdict["msg_id"]  # in full
    made = report.Result(
        verdict="FAIL",
        exit_code=1,
        window=report.Span(begin_ms=T0, end_ms=T0 + 1_800_000),
        horizon_ms=T0 + 1_738_000,
        grace_ms=60_000,
        writers=report.Writers(),
        inputs=report.Inputs(native=native, otlp=otlp),
        status=dict(sum(BY_KIND.values(), Counter())),
        status_by_kind={kind: dict(counts) for kind, counts in BY_KIND.items()},
        findings={finding: dict(kinds) for finding, kinds in FINDINGS.items()},
        reason={"BY_DESIGN": 9, "IN_FLIGHT": 3, "HALF_RECORD": 4, "DROP_ATTRIBUTED": 8, "UNEXPLAINED": 7},
        reason_detail={"rocketmq-failed-send": 6, "rocketmq-recall": 3},
        fields=fields(),
        gates=gates(),
        conservation=report.Conservation(
            holds=True,
            native="9,958 read = 2 malformed + 4 out of scope + 3,955 folded halves + 6 duplicates + 5,991 keys",
            otlp="5,950 read + 64 exploded = 26 out of scope + 4 duplicates + 5,984 keys",
        ),
        ledger=report.Ledger(
            files=("ledgers/ledger-shop-1-4711-0a1b2c3d.json",),
            rows_read=3,
            attributed={"native": 5, "otlp": 3},
            surplus={"native": 0, "otlp": 12},
            lines=rows_of(
                report.LedgerLine,
                "side component cause service counted attributed surplus",
                ("otlp", "batching_span_processor/0", "queue_full", "shop", 15, 3, 12),
                ("native", "NativeKafkaSpanExporter", "export_failed", None, 5, 5, 0),
            ),
            notes=("12 spans were counted as lost that nothing misses",),
            over_time=((T0 + 180_000, "otlp", 15), (T0 + 600_000, "native", 5), (T0 - 1, "native", 1)),
        ),
        policy_hash="5f" * 32,
        loss={
            "native": report.Loss(unexplained=3, attributed=5, checked=5967, upper_bound_95_ppm=1469.0),
            "otlp": report.Loss(unexplained=4, attributed=3, checked=5974, upper_bound_95_ppm=1713.4),
        },
        groups=groups(),
        timeline=timeline(),
        samples=known,
        malformed=rows_of(
            report.MalformedSample,
            "side path line record_index field reason text",
            ("native", "native/part-00000.parquet", 77, 2, "cost_ms", "not a number", NO_NUMBER),
            ("native", "native/part-00001.jsonl", None, None, None, "cut off", '{"source": "RMQ_SYS'),
        ),
        spark=report.SparkCost(jobs=14, stages=31, wall_seconds=21.4),
        versions={"otel-mqtrace": "0.1.0", "pyspark": "4.0.1", "python": "3.11.7"},
        duplicates={"exact": 8, "conflicting": 1},
        latency=latency(),
        slowest=slowest(told),
        timelines=timelines(told),
        topics=topics(),
        instances=instances(),
        instances_left_off=3,
        arrival={"native": curved(20, 90_000, 9_000)},
        ageing={"PENDING": {"under 1 min": 4}, "IN_FLIGHT": {"1 to 5 min": 2, "5 to 15 min": 1}},
        timing={"on_time": 5890, "late_native": 60, "no_time": 26},
        trend=trend(),
        graph=graph(),
    )
    return replace(made, **changes)
