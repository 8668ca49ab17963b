"""This module knows OpenTelemetry's side of the door: spans come in by ``on_start``/``on_end``, lanes take them.

A drop-in for ``BatchSpanProcessor`` with RocketMQ's manners: bounded, refusing the newest when full, counting
everything (``AsyncTraceDispatcher`` of apache/rocketmq; presets below follow its generations).
"""

from __future__ import annotations

import os
import sys
import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from otel_mqtrace._clock import MonotonicNs, SystemClock
from otel_mqtrace.config import Settings
from otel_mqtrace.spans.lane import Lane
from otel_mqtrace.spans.ledger import Ledger
from otel_mqtrace.spans.limits import bounded, is_ours
from otel_mqtrace.spans.self_metrics import observe
from otel_mqtrace.spans.settings import LaneSettings, fitting_batch, refuse_wrong, resolve
from otel_mqtrace.spans.worker import refuse_subinterpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace import Span
    from opentelemetry.sdk.trace.export import SpanExporter
    from typing_extensions import Self

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.spans.losses import OnDrop
    from otel_mqtrace.spans.queue import DropPolicy
    from otel_mqtrace.spans.settings import LingerFrom
    from otel_mqtrace.spans.stats import LaneStats

__all__ = ["PRESETS", "MqTraceSpanProcessor"]

_NS_PER_MS: Final = 1_000_000
_NOWHERE: Final = -1
_LONGEST_MS: Final = 365 * 86_400_000
"""Longer waits, infinite ones too, are this long: the system's locks have a bound."""

PRESETS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "rocketmq4": {
            "max_queue_size": 1024,
            "max_export_batch_size": 100,
            "schedule_delay_millis": 500,
            "linger_from": "arrival",
        },
        "rocketmq5": {
            "max_queue_size": 2048,
            "max_export_batch_size": 10,
            "schedule_delay_millis": 5000,
            "linger_from": "last_batch",
        },
    }
)
"""``AsyncTraceDispatcher``'s numbers and flush rules: 4.9.4-5.3.0 (first record older than 500 ms), and since 5.3.1
(a batch's worth waits, or 5000 ms since the last flush)."""
_ROCKETMQ5_BATCH_CAP: Final = 20
"""``Math.min(20, traceMsgBatchNum)`` since 5.3.1."""


class MqTraceSpanProcessor(SpanProcessor):
    """Hands sampled spans to exporters, each on a lane of its own; never raises into, blocks or slows the application.

    Args:
        *exporters: OpenTelemetry span exporters; :class:`otel_mqtrace.spans.lane.Lane` lists what they may add.
        max_queue_size: Spans a lane holds at most (2048); more are dropped and counted as ``queue_full``.
        max_export_batch_size: Spans that leave together at most (100).
        schedule_delay_millis: Longest wait of a span for its batch to fill (500).
        export_timeout_millis: Given to exporters whose ``export`` takes ``timeout_millis`` (30000); others own theirs.
        shutdown_timeout_millis: Bound of ``shutdown()``, over all lanes together (30000).
        drop_policy: ``newest`` refuses what comes when full, as RocketMQ does; ``oldest`` evicts what waited longest.
        linger_from: What the delay counts from: a span's ``arrival``, or the ``last_batch`` that left.
        on_drop: ``on_drop(lane, {reason: spans})``, called by the lane's worker with what was lost since the last call.
        ledger_dir: Where the drop ledger is written (``MQTRACE_LEDGER_DIR``); see :meth:`ledger`.
        meter_provider: Where the SDK self-metrics ``otel.sdk.processor.span.*`` go, if anywhere.
        clock: Time, for tests.
        background: ``False`` starts no thread; spans leave by ``run_once``, ``force_flush`` and ``shutdown``.

    What is not given comes from ``MQTRACE_*``, then ``OTEL_BSP_*``, then the defaults in brackets. Wrong values given
    in code raise ``ValueError``; wrong ones of the environment warn once. ``SubinterpreterError`` outside the main one.
    """

    def __init__(  # noqa: PLR0913 - the public contract: every tunable by its OpenTelemetry name
        self,
        *exporters: SpanExporter,
        max_queue_size: int | None = None,
        max_export_batch_size: int | None = None,
        schedule_delay_millis: float | None = None,
        export_timeout_millis: float | None = None,
        shutdown_timeout_millis: float | None = None,
        drop_policy: DropPolicy | None = None,
        linger_from: LingerFrom | None = None,
        on_drop: OnDrop | None = None,
        ledger_dir: str | os.PathLike[str] | None = None,
        meter_provider: MeterProvider | None = None,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        refuse_subinterpreter()
        self._clock = clock or SystemClock()
        self.settings: LaneSettings = resolve(
            max_queue_size=max_queue_size,
            max_export_batch_size=max_export_batch_size,
            schedule_delay_ms=schedule_delay_millis,
            export_timeout_ms=export_timeout_millis,
            shutdown_timeout_ms=shutdown_timeout_millis,
            drop_policy=drop_policy,
            linger_from=linger_from,
            background=background,
        )
        self._ledger = Ledger(ledger_dir or Settings.from_env().ledger_dir, clock=self._clock)
        self.lanes = tuple(
            Lane(
                exporter,
                name=name,
                settings=self.settings,
                clock=self._clock,
                ledger=self._ledger,
                on_drop=on_drop,
            )
            for name, exporter in _named(exporters).items()
        )
        self._start_lanes = tuple(lane for lane in self.lanes if lane.exports_starts)
        self._open_doors()
        self._shut = False
        self._pid = self._settled_in = os.getpid()
        self._internal_errors = 0
        _after_fork_in_child(self)
        if meter_provider is not None:
            observe(meter_provider, self.settings.max_queue_size, self.lanes)

    @classmethod
    def preset(cls, name: str, *exporters: SpanExporter, **overrides: Any) -> Self:
        """Return a processor with the numbers of a RocketMQ generation: ``rocketmq4`` or ``rocketmq5``.

        ``overrides`` are keyword arguments of the constructor. ``rocketmq5`` caps the batch at 20, as RocketMQ does.
        """
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
        given = {argument: value for argument, value in overrides.items() if value is not None}
        options: dict[str, Any] = {**PRESETS[name], **given}
        refuse_wrong(options)
        if "max_export_batch_size" not in given:
            options |= fitting_batch(options)
        if name == "rocketmq5":
            options["max_export_batch_size"] = min(options["max_export_batch_size"], _ROCKETMQ5_BATCH_CAP)
        return cls(*exporters, **options)

    # -- called by the SDK on the application's thread ---------------------------------------------------------------

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's interface
        """Offer a snapshot of a started span to the lanes that export starts; constant time, never raises.

        One of ours that does not say anything yet is passed over: whoever opened it calls :meth:`told_of_start`.
        """
        try:
            if self._start_lanes and (span.attributes or span.dropped_attributes or not is_ours(span)):
                self.told_of_start(span)
        except Exception:  # noqa: BLE001 - nothing of ours reaches the application
            self._internal_errors += 1

    on_start.can_be_told_of_it_later = True  # type: ignore[attr-defined]  # what hooks/_start.py looks for

    @property
    def wants_starts(self) -> bool:
        """Whether there is a lane that exports starts; that never changes."""
        return bool(self._start_lanes)

    @property
    def exports_only_known_starts(self) -> bool:
        """Whether every lane that exports starts goes by :func:`has_record`, which takes no send before its end."""
        return all(getattr(lane.exporter, "takes_records", False) for lane in self._start_lanes)

    def told_of_start(self, span: ReadableSpan) -> None:
        """Do the same for a span that was told its attributes after it had started."""
        try:
            if getattr(span, "is_record", False):
                self._offer_record(span, is_start=True)
                return
            context, snapshot = span.context, None
            if context is None or not context.trace_flags & 1:
                return
            for lane in self._start_lanes:
                if lane.wants is not None and not lane.wants(span):
                    continue
                if snapshot is None:
                    if self._settled_in != os.getpid():
                        self._settle_in_child()
                    snapshot = _snapshot(span)
                lane.offer(snapshot)
        except Exception:  # noqa: BLE001 - nothing of ours reaches the application
            self._internal_errors += 1

    def on_end(self, span: ReadableSpan) -> None:
        """Offer an ended span to every lane; constant time, never raises, unsampled spans are skipped."""
        try:
            if getattr(span, "is_record", False):
                self._offer_record(span, is_start=False)
                return
            context = span.context
            if context is None or not context.trace_flags & 1:  # sampled: the property of that name costs a call
                return
            if self._settled_in != os.getpid():  # the pid tells forks that ran no Python hook (uWSGI)
                self._settle_in_child()
            if self._only_door is not None:  # one lane, which takes all there is
                self._only_door(span)
                return
            for wants, offer in self._doors:
                if wants is None or wants(span):
                    offer(span)
        except Exception:  # noqa: BLE001 - nothing of ours reaches the application
            self._internal_errors += 1

    def _offer_record(self, span: ReadableSpan, *, is_start: bool) -> None:
        """Offer the span of a record, which is sampled; those of our exporters want every one."""
        if self._settled_in != os.getpid():
            self._settle_in_child()
        for wants, offer in self._record_start_doors if is_start else self._record_doors:
            if wants is None or wants(span):
                offer(span)

    # -- called by the application ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, LaneStats]:
        """Return every lane's account under its exporter's class name (``…#2`` for a second of the same class)."""
        return {lane.name: lane.stats() for lane in self.lanes}

    def ledger(self) -> dict[str, Any]:
        """Return what was lost since this process began, in the format ``mqtrace reconcile --ledger`` reads.

        Serve it from an endpoint of the application, or have it written: ``MQTRACE_LEDGER_DIR``.
        """
        return self._ledger.document()

    @property
    def internal_errors(self) -> int:
        """How often something of ours failed on the application's thread and was swallowed; 0 unless we have a bug."""
        return self._internal_errors

    def run_once(self, now: MonotonicNs | None = None) -> int:
        """Export at most one batch per lane, if ready at ``now``; return the number of spans.

        For tests and for hosts without threads.
        """
        return sum(lane.run_once(self._clock.monotonic_ns() if now is None else now) for lane in self.lanes)

    def force_flush(self, timeout_millis: float | None = 30_000) -> bool:
        """Export what ended before this call; all lanes work at once, within ``timeout_millis`` over all.

        Returns:
            ``True`` only if all of it was exported in time and the exporters' own ``force_flush`` agreed.
        """
        self._notice_fork()
        deadline = self._deadline(self.settings.export_timeout_ms if timeout_millis is None else timeout_millis)
        flushes = [lane.request_flush(deadline) for lane in self.lanes]
        done = [lane.await_flush(flush) for lane, flush in zip(self.lanes, flushes, strict=True)]
        return all(done)  # every lane was waited for, even after one had failed

    def shutdown(self, timeout_millis: float | None = None) -> None:
        """Drain all lanes and shut their exporters down, all at once, and count what was left; once only.

        Args:
            timeout_millis: Bound over all lanes together; ``shutdown_timeout_millis`` unless given, 0 is allowed.
        """
        self._notice_fork()
        if self._shut:
            return
        self._shut = True
        deadline = self._deadline(self.settings.shutdown_timeout_ms if timeout_millis is None else timeout_millis)
        for lane in self.lanes:
            lane.close(deadline)
        for lane in self.lanes:
            lane.finish()

    def _deadline(self, timeout_ms: float) -> MonotonicNs:
        return MonotonicNs(self._clock.monotonic_ns() + int(min(_LONGEST_MS, timeout_ms) * _NS_PER_MS))

    # -- forks ---------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Begin anew in a child process: empty queues and counters, own locks, no thread until the first span."""
        self._pid, self._settled_in = os.getpid(), _NOWHERE
        self._ledger.after_fork()
        for lane in self.lanes:
            lane.after_fork()
        self._open_doors()

    def _open_doors(self) -> None:
        """Look up what each lane wants to be asked and given: once, not with every span."""
        self._doors: _Doors = tuple((lane.wants, lane.offer) for lane in self.lanes)
        self._record_doors: _Doors = tuple(map(_record_door, self.lanes))
        self._record_start_doors: _Doors = tuple(map(_record_door, self._start_lanes))
        wants, offer = self._doors[0] if len(self._doors) == 1 else (None, None)
        self._only_door: Callable[[ReadableSpan], int] | None = offer if wants is None else None

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self.after_fork()

    def _settle_in_child(self) -> None:
        """At the child's first span: notice a fork nobody told us of, and flush when a multiprocessing child ends.

        Such a child leaves by ``os._exit``, past ``atexit``. It clears its finalizers while starting, after the fork
        hooks ran: hence only now.
        """
        self._notice_fork()
        self._settled_in = self._pid
        for module in ("multiprocessing.util", "billiard.util"):
            util: Any = sys.modules.get(module)
            if util is not None:
                util.Finalize(self, _flush_at_exit, args=(weakref.ref(self),), exitpriority=10)


_Doors = tuple["tuple[Callable[[ReadableSpan], bool] | None, Callable[[ReadableSpan], int]]", ...]
"""Whether each lane wants a span, and where it is offered."""


def _record_door(lane: Lane) -> tuple[Callable[[ReadableSpan], bool] | None, Callable[[ReadableSpan], int]]:
    return None if getattr(lane.exporter, "takes_records", False) else lane.wants, lane.offer


def _flush_at_exit(processor: weakref.ref[MqTraceSpanProcessor]) -> None:
    alive = processor()
    if alive is not None:
        alive.force_flush(alive.settings.shutdown_timeout_ms)


def _after_fork_in_child(processor: MqTraceSpanProcessor) -> None:
    if hasattr(os, "register_at_fork"):
        reference = weakref.ref(processor)  # the hook can never be taken back: it must not keep the processor alive

        def begin_anew() -> None:
            alive = reference()
            if alive is not None:
                alive.after_fork()

        os.register_at_fork(after_in_child=begin_anew)


def _named(exporters: tuple[SpanExporter, ...]) -> dict[str, SpanExporter]:
    named: dict[str, SpanExporter] = {}
    for exporter in exporters:
        kind = type(exporter).__name__
        same = sum(type(other).__name__ == kind for other in named.values())
        named[f"{kind}#{same + 1}" if same else kind] = exporter
    return named


def _snapshot(span: ReadableSpan) -> ReadableSpan:
    """Return what ``span`` is at its start, without holding on to the live one; no end time."""
    unread = getattr(span, "snapshot", None)
    return (unread and unread()) or ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=bounded(span, dict(span.attributes or {})),
        links=tuple(span.links),
        kind=span.kind,
        start_time=span.start_time,
        instrumentation_scope=span.instrumentation_scope,
    )
