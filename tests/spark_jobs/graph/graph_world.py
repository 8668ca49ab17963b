"""A made-up system as OTLP: direct calls, links across traces, batches, a loop, retries, dead letters, namespaces.

Every message is named by nothing but the span its consumers point at, unless it says ``id``.
"""

from typing import Any

START_MS = 1_795_262_400_000
_KINDS = {"SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}


class Spans:
    """Collects spans by service; ids are counted, so that the same calls give the same spans."""

    def __init__(self) -> None:
        self.by_service: dict[str, list[dict[str, Any]]] = {}
        self._made = 0

    def add(
        self,
        service: str,
        kind: str,
        at_ms: int,
        *,
        took_ms: int = 5,
        parent: dict[str, Any] | None = None,
        links: tuple[dict[str, Any], ...] = (),
        failed: bool = False,
        **attributes: Any,
    ) -> dict[str, Any]:
        """Return the new span: a child of ``parent``, else the root of a trace of its own."""
        self._made += 1
        start_ns = (START_MS + at_ms) * 1_000_000
        span = {
            "traceId": parent["traceId"] if parent else f"{self._made:032x}",
            "spanId": f"{self._made:016x}",
            "parentSpanId": parent["spanId"] if parent else "",
            "name": kind.lower(),
            "kind": _KINDS[kind],
            "startTimeUnixNano": str(start_ns),
            "endTimeUnixNano": str(start_ns + took_ms * 1_000_000),
            "links": [{"traceId": link["traceId"], "spanId": link["spanId"]} for link in links],
            "status": {"code": 2} if failed else {},
            "attributes": [
                {"key": f"messaging.{key.replace('__', '.')}", "value": {"stringValue": value}}
                for key, value in attributes.items()
            ],
        }
        self.by_service.setdefault(service, []).append(span)
        return span

    def send(self, service: str, topic: str, at_ms: int, **more: Any) -> dict[str, Any]:
        """Return the span of one send that takes 5 ms."""
        named = {"message__id": more.pop("id")} if "id" in more else {}
        return self.add(service, "PRODUCER", at_ms, **_messaging("send", topic), **named, **more)

    def process(self, service: str, group: str, topic: str, at_ms: int, **more: Any) -> dict[str, Any]:
        named = {"message__id": more.pop("id")} if "id" in more else {}
        whose = {"consumer__group__name": group}
        return self.add(service, "CONSUMER", at_ms, **_messaging("process", topic), **whose, **named, **more)


def _messaging(operation: str, topic: str) -> dict[str, str]:
    return {"system": "rocketmq", "operation__type": operation, "destination__name": topic}


def world() -> dict[str, Any]:
    """Return one OTLP message with all of it; the last event is 20 s after the first."""
    spans = Spans()
    for at in range(3):  # web calls shop directly; shop sends, billing links across traces, audit is a child
        call = spans.add("web", "CLIENT", at * 10)
        server = spans.add("shop", "SERVER", at * 10, parent=call)
        sent = spans.send("shop", "orders", at * 10, parent=server)
        spans.process("billing", "CG_billing", "orders", 105 + at * 10, links=(sent,), failed=at == 0)
        spans.process("audit", "CG_audit", "orders", 15 + at * 10, parent=sent, links=(sent,))
    pair = tuple(spans.send("shop", "orders", 500 + at) for at in range(2))
    spans.process("billing", "CG_billing", "orders", 600, links=pair)  # one span, two deliveries
    spans.send("shop", "orders", 1_500)  # no link points at it
    spans.send("shop", "orders", 1_500, failed=True)
    _named_messages(spans)
    spans.add("web", "CLIENT", 20_000)
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]},
                "scopeSpans": [{"scope": {"name": "made.up"}, "spans": made}],
            }
            for service, made in spans.by_service.items()
        ]
    }


def _named_messages(spans: Spans) -> None:
    """Add messages with ids: retries, dead letters, namespaces, a loop, one never consumed, one never published."""
    spans.send("shop", "ns1%bills", 2_000, id="R1")
    spans.process("billing", "ns1%CG_bills", "ns1%bills", 2_100, id="R1", failed=True)
    spans.process("billing", "ns1%CG_bills", "%RETRY%ns1%CG_bills", 3_000, id="R1", failed=True)
    spans.process("rescue", "CG_rescue", "%DLQ%ns1%CG_bills", 4_000, id="R1")
    spans.send("shop", "ticks", 5_000, id="L1")
    spans.process("shop", "CG_ticks", "ticks", 5_010, id="L1")
    spans.send("shop", "lost", 6_000, id="N1")
    spans.send("shop", "lost", 19_500, id="N2")  # too young to be missing
    spans.process("billing", "CG_billing", "ghosts", 7_000, id="G1")
    spans.process("billing", "CG_billing", "ghosts", 100, id="G2")  # may have been sent before the data begins
