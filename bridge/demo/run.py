"""This module knows the demo from end to end: orders in, both formats out, reconciled, held against what was seeded."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from bridge.demo.faults import plan_faults
from bridge.demo.findings import compare
from bridge.demo.orders import order_book
from bridge.demo.reconciliation import reconcile
from bridge.demo.system import GRACE_MS, TRACE_TOPIC, create_topics, run_orders
from bridge.demo.workspace import claim
from bridge.forwarder.service import forward_once
from bridge.forwarder.source import KafkaTraceSource
from otel_mqtrace.landing.writer import LandingWriter
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bridge.demo.findings import Findings
    from bridge.demo.progress import Stages
    from bridge.demo.workspace import Workspace

__all__ = ["demonstrate"]

_FORWARDER_GROUP: Final = "mqtrace-forward"


def demonstrate(
    out: Path, *, messages: int, seed: int, stages: Stages, on_start: Callable[[], object] = lambda: None
) -> tuple[Workspace, Findings]:
    """Run the whole system once and return where it wrote and what was found of what was seeded.

    ``on_start`` is called when nothing speaks against the run any more.

    Raises ``UsageError`` for too few messages or a directory that is not ours, ``PeerError`` when a part did not work.
    """
    book = order_book(messages, seed=seed)
    plan = plan_faults(book, seed=seed)
    workspace = claim(out)
    on_start()
    with EmbeddedKafka() as kafka:
        create_topics(kafka, messages)
        with stages.stage("orders sent, billed, shipped and traced", messages) as advance:
            run_orders(kafka.bootstrap_servers, book, plan, otlp=workspace.otlp, advance=advance)
        kafka.assert_untrimmed(TRACE_TOPIC)
        with stages.stage("trace topic forwarded to the landing"):
            _land(kafka.bootstrap_servers, workspace)
    with stages.stage("both sides reconciled on Spark"):
        reconciled = reconcile(workspace, grace_ms=GRACE_MS)
    findings = compare(book, plan, reconciled.rows, reconciled.result)
    workspace.findings.write_text(_as_json(findings, messages=messages, seed=seed), encoding="utf-8")
    return workspace, findings


def _land(bootstrap_servers: str, workspace: Workspace) -> None:
    with (
        KafkaTraceSource(bootstrap_servers, TRACE_TOPIC, group=_FORWARDER_GROUP) as source,
        LandingWriter(workspace.landing, format="parquet") as landing,
    ):
        forward_once(source, landing)


def _as_json(findings: Findings, *, messages: int, seed: int) -> str:
    faults = [
        {
            "fault": one.fault.kind.name,
            "field": one.fault.field,
            "kind": one.event.kind,
            "msg_id": one.event.msg_id,
            "where": one.event.where,
            "attempt": one.event.attempt,
            "found": one.said,
            "as_expected": one.as_expected,
        }
        for one in findings.findings
        if one.fault is not None
    ]
    clean = findings.seeded(None)
    whole = {
        "messages": messages,
        "seed": seed,
        "agree": findings.agree,
        "clean_events": {"seeded": len(clean), "matched": sum(one.as_expected for one in clean)},
        "faults": faults,
        "surprises": list(findings.surprises),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
