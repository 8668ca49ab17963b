"""The demo from end to end: orders, both formats, reconciliation, comparison with the seeded faults."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from pyarrow import dataset

from bridge.demo.faults import COLUMNS, FaultySpanExporter, compare, encode_with_faults, plan_faults
from bridge.demo.shop import (
    BILLING,
    CONSUME,
    ORDERS,
    PAYMENTS,
    RETRY_TOPICS,
    SHIPPING,
    Billing,
    Department,
    OrderDesk,
    events_of,
    order_book,
    serve_all,
    ship,
)
from bridge.forwarder.kafka_source import KafkaTraceSource
from bridge.forwarder.service import forward_once
from bridge.storage.locks import LOCK_FILE, hold
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace._program import delay_interrupt
from otel_mqtrace._terminal import progress_bar
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.landing import LandingWriter
from otel_mqtrace.spans.queue import count_lost
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bridge.demo.faults import FaultPlan, Findings, Row
    from bridge.demo.shop import Order


@contextmanager
def _stage(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a stage of ``total`` steps (``None``: unknown) on standard error; yield what advances it.

    On a terminal that is a bar or a spinner and the time it took, else one line when the stage begins.
    """
    if not sys.stderr.isatty():
        sys.stderr.write(f"mqtrace demo: {title}{'' if total is None else f' ({total})'}\n")
        sys.stderr.flush()
    done = 0
    with progress_bar(title, is_kept=True) as show:

        def advance(steps: int) -> None:
            nonlocal done
            done += steps
            show(completed=done, total=total, amount=f"{done} of {total}")

        yield advance
        show(total=total or 1, completed=total or 1)


_MARKER: Final = ".mqtrace-demo"
_NOTE: Final = "Written by `mqtrace demo`, which replaces its own output here when it runs again.\n"


class Workspace(NamedTuple):
    """Where a run of the demo writes below ``root``.

    ``landing`` are the trace messages as they were landed, ``otlp`` is OpenTelemetry's own JSON lines. ``report`` is
    what the reconciliation writes.
    """

    root: Path
    landing: Path
    otlp: Path
    report: Path


@contextmanager
def open_workspace(root: Path) -> Iterator[Workspace]:
    """Hold ``root`` for this block alone, ready for a run: created, or emptied of an earlier run.

    Raises ``UsageError`` for a file, for a directory that another run holds or that has anything the demo did not
    write, and for what the system does not let us make or empty.
    """
    with hold(root, name="--out"):
        try:
            workspace = _empty(root)
        except OSError as error:
            reason = f"{error.strerror or error}: {error.filename or root}"
            raise UsageError(f"--out {root} cannot be used ({reason}); name a directory that can be written") from error
        yield workspace


def _empty(root: Path) -> Workspace:
    spans, landing, report, marker = ours = [root / name for name in ("otlp", "landing", "report", _MARKER)]
    present = {path for path in root.iterdir() if not path.name.startswith(LOCK_FILE)}
    if present and (marker not in present or present - set(ours)):
        raise UsageError(f"{root} holds files that are not the demo's: give --out an empty or a new directory")
    for path in present:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    marker.write_text(_NOTE, encoding="utf-8")
    spans.mkdir()
    landing.mkdir()
    return Workspace(root, landing, spans / "traces.jsonl", report)


TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
GRACE_MS: Final = 2_000
"""How late a record may arrive: longer than a batch lingers. The last order is sent this long after all the others."""

_CHUNK: Final = 100  # orders; a block of the order book, so that no transaction is torn apart
_PARTITIONS: Final = 4
_MESSAGES_PER_TRACE_PARTITION: Final = 2000  # far below what the embedded broker keeps of a partition
_FLUSH_MS: Final = 30_000
_SETTLE_S: Final = (GRACE_MS + 500) / 1e3


def create_topics(kafka: EmbeddedKafka, messages: int) -> None:
    """Create every topic; the trace topic gets partitions enough that retention never touches it."""
    for topic in (ORDERS, PAYMENTS, *RETRY_TOPICS):
        kafka.create_topic(topic, _PARTITIONS)
    kafka.create_topic(TRACE_TOPIC, _PARTITIONS + messages // _MESSAGES_PER_TRACE_PARTITION)


def run_orders(
    bootstrap_servers: str, book: Sequence[Order], plan: FaultPlan, *, otlp: Path, advance: Callable[[int], None]
) -> None:
    """Send, consume and trace every order; native records lie on the trace topic and spans in ``otlp`` afterwards.

    ``advance`` gets the number of orders done, chunk by chunk. Raises ``PeerError`` when anything was dropped, failed
    or did not return in time, ``UsageError`` when ``otlp`` cannot be written.
    """
    with ExitStack() as stack:
        spans = FaultySpanExporter(otlp, plan)
        processor = stack.enter_context(_instrument(bootstrap_servers, plan, spans))
        desk, departments = stack.enter_context(_open_shop(bootstrap_servers))
        for orders in _chunks(book):
            if orders[-1] is book[-1]:
                threading.Event().wait(_SETTLE_S)
            desk.take(orders)
            serve_all(departments, sum(event.kind == CONSUME for order in orders for event in events_of(order)))
            processor.force_flush(_FLUSH_MS)
            spans.check()
            advance(len(orders))


def _chunks(book: Sequence[Order]) -> Iterator[list[Order]]:
    # The last order travels alone, and late: whatever is older than it by the grace period counts as settled.
    remaining = iter(book[:-1])
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk
    yield [book[-1]]


@contextmanager
def _open_shop(bootstrap_servers: str) -> Iterator[tuple[OrderDesk, list[Department]]]:
    billing = Billing(bootstrap_servers)
    departments = [
        Department(BILLING, Billing.TOPICS, billing.handle, bootstrap_servers=bootstrap_servers),
        Department(SHIPPING, [ORDERS], ship, bootstrap_servers=bootstrap_servers),
    ]
    try:
        yield OrderDesk(bootstrap_servers), departments
    finally:
        for department in departments:
            department.close()
        billing.close()


@contextmanager
def _instrument(bootstrap_servers: str, plan: FaultPlan, spans: FaultySpanExporter) -> Iterator[MqTraceSpanProcessor]:
    """Trace the block into both exporters, each with the plan's faults; raise if a lane lost a span of its own."""
    processor = MqTraceSpanProcessor(
        NativeKafkaSpanExporter(
            bootstrap_servers=bootstrap_servers,
            trace_topic=TRACE_TOPIC,
            dialect=DEFAULT_DIALECT,
            encode=partial(encode_with_faults, plan),
        ),
        spans,
        max_queue_size=2048,
        max_export_batch_size=100,
    )
    provider = TracerProvider(
        resource=Resource({"service.name": "order-system"}),
        sampler=ALWAYS_ON,
        span_limits=SpanLimits(),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(tracer_provider=provider, exporters=(), enabled=True, trace_topic=TRACE_TOPIC)
    try:
        yield processor
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
    spans.check()
    for lane, stats in processor.stats().items():
        if count_lost(stats) or stats["pending"]:
            raise PeerError(f"the demo lost spans on its own, seeded faults aside: {lane}: {dict(stats)}")


_PROGRAM: Final = Path(__file__).parents[2] / "spark_jobs" / "__main__.py"
_DRIVER_MEMORY: Final = "1g"
_WITH_RESULT: Final = (0, 1, 3, 4)
"""Exit codes of a run that wrote its result, of any verdict."""
_SEEDED: Final = "<p>The demo seeded faults in this run: its table shows how many of each, and what was found.</p>"


def reconcile(workspace: Workspace, *, grace_ms: int) -> tuple[dict[str, Any], list[Row]]:
    """Run ``reconcile`` over both sides; return its result and its verdicts, or raise ``PeerError`` without a result.

    The field verdicts of a row are pairs.
    """
    # Not by -m, which would take a package of that name in the working directory.
    command = [sys.executable, str(_PROGRAM), "reconcile"]
    sides = ["--native", str(workspace.landing), "--otlp", str(workspace.otlp), "--out", str(workspace.report)]
    options = ["--grace", f"{grace_ms}ms", "--driver-memory", _DRIVER_MEMORY]
    code, printed = _run_command([*command, *sides, *options])
    written = workspace.report / "result.json"
    if code not in _WITH_RESULT or not written.exists():
        reason = printed.splitlines()[-1].removeprefix("mqtrace: error: ")
        raise PeerError(f"the reconciliation ended with exit code {code}: {reason}")
    page = workspace.report / "report.html"
    page.write_text(page.read_text(encoding="utf-8").replace("<h1>", f"{_SEEDED}\n<h1>", 1), encoding="utf-8")
    result = json.loads(written.read_text(encoding="utf-8"))
    verdicts = dataset.dataset(str((workspace.report / "verdicts").absolute()), format="parquet")
    return result, verdicts.to_table(columns=list(COLUMNS)).to_pylist()


def _run_command(command: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of a command and what it printed; an interrupt ends it, and waits until it has cleaned up.

    In a session of its own it gets one signal, ours, wherever Ctrl-C comes from.
    """
    process = None
    try:
        with delay_interrupt():
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
        output, errors = process.communicate()
    except KeyboardInterrupt:
        if process is not None:
            process.terminate()
            sys.stderr.write("mqtrace demo: interrupted: Spark is being ended, which may take some seconds\n")
            process.communicate()
        raise
    return process.returncode, errors.strip() or output.strip() or "it printed nothing"


def demonstrate(out: Path, *, messages: int, seed: int, on_start: Callable[[], object]) -> tuple[Workspace, Findings]:
    """Run the whole system once and return where it wrote and which seeded faults were found.

    ``on_start`` is called after the checks, when the run begins.

    Raises ``UsageError`` for too few messages or a directory that is not ours alone, ``PeerError`` when a part did not
    work.
    """
    book = order_book(messages, seed=seed)
    plan = plan_faults(book, seed=seed)
    with open_workspace(out) as workspace:
        on_start()
        with EmbeddedKafka() as kafka:
            create_topics(kafka, messages)
            with _stage("sending, billing, shipping and tracing orders", messages) as advance:
                run_orders(kafka.bootstrap_servers, book, plan, otlp=workspace.otlp, advance=advance)
            kafka.assert_untrimmed(TRACE_TOPIC)
            with (
                _stage("forwarding the trace topic to the landing"),
                KafkaTraceSource(kafka.bootstrap_servers, TRACE_TOPIC) as source,
                LandingWriter(workspace.landing, format="parquet") as landing,
            ):
                forward_once(source, landing)
        with _stage("reconciling both sides on Spark"):
            result, rows = reconcile(workspace, grace_ms=GRACE_MS)
        return workspace, compare(book, plan, rows, result)
