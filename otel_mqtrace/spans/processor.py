"""The span processor: spans come in by ``on_start`` and ``on_end``, one lane per exporter takes them.

A drop-in for ``BatchSpanProcessor`` that behaves as RocketMQ's ``AsyncTraceDispatcher``: bounded, refusing the newest
when full, counting every loss.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import Observation
from opentelemetry.sdk.trace import SpanProcessor

from otel_mqtrace._clock import SystemClock, compute_deadline
from otel_mqtrace._errors import reraise_from_signal_handler
from otel_mqtrace._workers import at_child_exit, process_generation, refuse_subinterpreter, restart_in_child
from otel_mqtrace.config import Settings
from otel_mqtrace.semconv import SCOPE
from otel_mqtrace.spans.lane import Lane
from otel_mqtrace.spans.limits import keep_limits
from otel_mqtrace.spans.loss_ledger import Ledger
from otel_mqtrace.spans.mapping import copy_span
from otel_mqtrace.spans.queue import ALREADY_SHUTDOWN, EXPORT_FAILED, QUEUE_FULL, SHUTDOWN_TIMEOUT, WANTS_ERROR
from otel_mqtrace.spans.settings import LaneSettings, preset_options, refuse_wrong, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider
    from opentelemetry.sdk.trace import ReadableSpan, Span
    from opentelemetry.sdk.trace.export import SpanExporter
    from typing_extensions import Self

    from otel_mqtrace._clock import Clock, MonotonicNs
    from otel_mqtrace.spans.loss_ledger import OnDrop
    from otel_mqtrace.spans.queue import DropPolicy, LaneStats
    from otel_mqtrace.spans.settings import LingerFrom


_NONE: Final = -1
_LAST_OF_ALL: Final = -100
"""After its clients' spans have ended, and its own children were joined."""
_LONGEST_MS: Final = 365 * 86_400_000
"""Longest wait, infinite ones included: the system's locks have a bound."""


class MqTraceSpanProcessor(SpanProcessor):
    """Hands sampled spans to exporters, each on its own lane; never raises into, blocks or slows the application.

    Args:
        *exporters: OpenTelemetry span exporters; docs/rationale.md lists what they may add.
        max_queue_size: Spans a lane holds at most (2048); more are dropped and counted as ``queue_full``.
        max_export_batch_size: Spans of a batch at most (100). Full batches that wait after an export go together to
            an exporter with ``export_batches``, as all of ours: up to 512 spans at once, after at most 20 ms.
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

    Arguments that are not given come from ``MQTRACE_*``, then ``OTEL_BSP_*``, then the defaults in brackets. A wrong
    value of the environment warns once.

    Raises:
        ValueError: A wrong value is given in code.
        SubinterpreterError: Outside the main interpreter.
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
        objects = {"on_drop": on_drop, "ledger_dir": ledger_dir, "meter_provider": meter_provider, "clock": clock}
        refuse_wrong({"exporters": exporters, **objects})
        self._clock = clock or SystemClock()
        self.settings: LaneSettings = resolve(
            max_queue_size=max_queue_size,
            max_export_batch_size=max_export_batch_size,
            schedule_delay_millis=schedule_delay_millis,
            export_timeout_millis=export_timeout_millis,
            shutdown_timeout_millis=shutdown_timeout_millis,
            drop_policy=drop_policy,
            linger_from=linger_from,
            background=background,
        )
        self._ledger = Ledger(ledger_dir or Settings.from_env().ledger_dir, on_drop=on_drop)
        self.lanes = tuple(
            Lane(exporter, name=name, settings=self.settings, clock=self._clock, ledger=self._ledger)
            for name, exporter in _name_exporters(exporters).items()
        )
        self._start_lanes = tuple(lane for lane in self.lanes if lane.exports_starts)
        self._bind_lanes()
        self._is_shut_down = False
        self._pid, self._prepared_pid = os.getpid(), _NONE
        self._noticing: dict[int, threading.RLock] = {}  # by process
        self._internal_errors = 0
        restart_in_child(self)
        self._observed = [] if meter_provider is None else _observe_lanes(meter_provider, self.lanes)

    @classmethod
    def preset(cls, name: str, *exporters: SpanExporter, **overrides: Any) -> Self:
        """Return a processor with the numbers of a RocketMQ generation: ``rocketmq4`` or ``rocketmq5``.

        ``overrides`` are keyword arguments of the constructor. ``rocketmq5`` caps the batch at 20, as RocketMQ does.
        """
        return cls(*exporters, **preset_options(name, **overrides))

    # -- called by the SDK on the application's thread ---------------------------------------------------------------

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - the SDK's interface
        """Offer a snapshot of a started span to the lanes that export starts; constant time, never raises."""
        if not self._start_lanes:
            return
        try:
            if self._prepared_pid != os.getpid():
                self._prepare()
            if getattr(span, "is_record", False):
                self.offer_record_start(span)
                return
            context = span.context
            if context is None or not context.trace_flags & 1:
                return
            snapshot: ReadableSpan | None = None
            for lane in self._start_lanes:
                if lane.wants is None or lane.wants(span):
                    if snapshot is None:
                        snapshot = copy_span(span, keep_limits(span, dict(span.attributes or {})), end_time=None)
                    lane.offer(snapshot)
        except Exception:  # noqa: BLE001 - nothing of ours reaches the application
            reraise_from_signal_handler()
            self._internal_errors += 1

    @property
    def exports_starts(self) -> bool:
        """Return whether any lane exports starts; that never changes."""
        return bool(self._start_lanes)

    @property
    def exports_only_known_starts(self) -> bool:
        """Return whether every lane that exports starts takes records, and so no send before its end."""
        return all(lane.takes_records for lane in self._start_lanes)

    def on_end(self, span: ReadableSpan) -> None:
        """Offer an ended span to every lane; constant time, never raises, unsampled spans are skipped."""
        try:
            if self._prepared_pid != os.getpid():  # the pid also shows forks that ran no Python hook (uWSGI)
                self._prepare()
            if getattr(span, "is_record", False):  # sampled, and wanted by every exporter of ours
                offers = self._record_offers
            else:
                context, offers = span.context, self._offers
                if context is None or not context.trace_flags & 1:  # sampled: that property costs a call
                    return
            for offer in offers:
                offer(span)
        except Exception:  # noqa: BLE001 - nothing of ours reaches the application
            reraise_from_signal_handler()
            self._internal_errors += 1

    def offer_record_start(self, started: Any) -> None:
        """Offer a record, or its started span, to the lanes that export starts; as :meth:`on_start` otherwise."""
        try:
            if self._prepared_pid != os.getpid():
                self._prepare()
            for offer in self._record_start_offers:
                offer(started)
        except Exception:  # noqa: BLE001 - as above
            reraise_from_signal_handler()
            self._internal_errors += 1

    # -- called by the application ------------------------------------------------------------------------------------

    def stats(self) -> dict[str, LaneStats]:
        """Return every lane's account under its exporter's class name (``…#2`` for a second of the same class)."""
        return {lane.name: lane.stats() for lane in self.lanes}

    def ledger(self) -> dict[str, Any]:
        """Return the losses since this process began, in the format that ``mqtrace reconcile --ledger`` reads.

        Serve them from an endpoint of the application, or set ``MQTRACE_LEDGER_DIR`` to have them written.
        """
        return self._ledger.document()

    @property
    def internal_errors(self) -> int:
        """How many exceptions of our own were caught on the application's thread; 0 unless we have a bug."""
        return self._internal_errors

    def run_once(self, now: MonotonicNs | None = None) -> int:
        """Export at most one batch per lane, if ready at ``now``, without threads; return the number of spans."""
        return sum(lane.run_once(self._clock.monotonic_ns() if now is None else now) for lane in self.lanes)

    def force_flush(self, timeout_millis: float | None = 30_000) -> bool:
        """Export what ended before this call; all lanes work at once, within ``timeout_millis`` over all.

        Returns:
            ``True`` only if all of it was exported in time and the exporters' own ``force_flush`` agreed.
        """
        self._notice_fork()
        deadline = self._deadline(self.settings.export_timeout_millis if timeout_millis is None else timeout_millis)
        flushes = [lane.request_flush(deadline) for lane in self.lanes]
        done = [lane.await_flush(flush) for lane, flush in zip(self.lanes, flushes, strict=True)]
        return all(done)  # awaited first: a lane that failed must not cut the others short

    def shutdown(self, timeout_millis: float | None = None) -> None:
        """Drain all lanes and shut their exporters down, all at once, and count what was left; once only.

        Args:
            timeout_millis: Bound over all lanes together; ``shutdown_timeout_millis`` unless given, 0 is allowed.
        """
        self._notice_fork()
        if self._is_shut_down:
            return
        self._is_shut_down = True
        deadline = self._deadline(self.settings.shutdown_timeout_millis if timeout_millis is None else timeout_millis)
        for lane in self.lanes:
            lane.close(deadline)
        try:
            for lane in self.lanes:
                lane.finish()
        except BaseException:  # a second Ctrl-C, as a rule: the process ends
            for lane in self.lanes:
                lane.give_up()
            raise
        finally:
            for observed in self._observed:
                observed.release()

    def _deadline(self, timeout_ms: float) -> MonotonicNs:
        return compute_deadline(self._clock, min(_LONGEST_MS, timeout_ms))

    # -- forks ---------------------------------------------------------------------------------------------------

    def after_fork(self) -> None:
        """Start over in a child process: empty queues and counters, own locks, no thread until the first span."""
        self._pid, self._prepared_pid = os.getpid(), _NONE
        self._ledger.after_fork()
        for lane in self.lanes:
            lane.after_fork()
        self._bind_lanes()

    def _bind_lanes(self) -> None:
        self._offers: _Offers = tuple(_offer_wanted(lane) for lane in self.lanes)
        self._record_offers: _Offers = tuple(map(_offer_record, self.lanes))
        self._record_start_offers: _Offers = tuple(map(_offer_record, self._start_lanes))

    def _notice_fork(self) -> None:
        pid = os.getpid()
        # Others wait until the first has started over. A thread that only the parent has may hold the parent's lock.
        with self._noticing.setdefault(pid, threading.RLock()):
            if self._pid != pid:
                self.after_fork()

    def _prepare(self) -> None:
        """At the first span of a process: notice a fork without hooks, and flush when a multiprocessing child ends."""
        self._notice_fork()
        self._prepared_pid = self._pid
        reference = weakref.ref(self)

        def flush() -> None:
            alive = reference()
            if alive is not None:
                try:
                    alive.force_flush(alive.settings.shutdown_timeout_millis)
                finally:
                    for lane in alive.lanes:
                        lane.give_up()

        at_child_exit(flush, priority=_LAST_OF_ALL)


_Offers = tuple["Callable[[ReadableSpan], bool]", ...]
"""Where each lane is offered a span."""


def _offer_wanted(lane: Lane) -> Callable[[ReadableSpan], bool]:
    wants, offer = lane.wants, lane.offer
    return offer if wants is None else lambda span: wants(span) and offer(span)


def _offer_record(lane: Lane) -> Callable[[ReadableSpan], bool]:
    return lane.offer if lane.takes_records else _offer_wanted(lane)


def _name_exporters(exporters: tuple[SpanExporter, ...]) -> dict[str, SpanExporter]:
    named: dict[str, SpanExporter] = {}
    for exporter in exporters:
        kind = type(exporter).__name__
        same = sum(type(other).__name__ == kind for other in named.values())
        named[f"{kind}#{same + 1}" if same else kind] = exporter
    return named


# -- self-metrics: observed by callbacks, so that the application's thread pays nothing --------------------------------
COMPONENT_TYPE: Final = "otel_mqtrace.spans.processor.MqTraceSpanProcessor"
"""The convention names a component of a custom kind by its class."""
_ordinals: Final[defaultdict[str, Iterator[int]]] = defaultdict(itertools.count)
_NEVER_EXPORTED: Final = frozenset({QUEUE_FULL, ALREADY_SHUTDOWN, SHUTDOWN_TIMEOUT, WANTS_ERROR})
"""Losses that an exporter never saw, or did not finish before the shutdown's time-out."""


class _ObservedLane:
    """A lane with the labels of its metrics; after its shutdown it is held weakly, and its last counts stay."""

    def __init__(self, lane: Lane) -> None:
        self.labels = _make_labels(COMPONENT_TYPE)
        self.exporter_labels = None if lane.exporter_type is None else _make_labels(lane.exporter_type)
        self._lane: Lane | None = lane
        self.reference = weakref.ref(lane)
        self._counts = process_generation(), lane.stats()

    def release(self) -> None:
        """Hold the lane weakly from now on, so that it and its exporter can be collected."""
        self.stats()
        self._lane = None

    def stats(self) -> LaneStats | None:
        """Return the counts of the lane, or the last ones that it had in this process."""
        lane = self.reference()
        if lane is not None:
            self._counts = process_generation(), lane.stats()
        generation, counts = self._counts
        return counts if generation == process_generation() else None


class _LaneMetrics:
    """The self-metrics of all lanes that report to one meter provider.

    The SDK registers the callbacks of an instrument once: those of a later processor would never be called.
    """

    def __init__(self) -> None:
        self._observed: list[_ObservedLane] = []
        self._duration: Histogram | None = None

    def register(self, meter: Meter) -> None:
        """Create the instruments."""
        # a batch in flight has left the queue, though it is ``pending`` in the lane's account
        sizes = partial(self._observe, lambda each, lane: (lane.queue.waiting, each.labels))
        capacities = partial(self._observe, lambda each, lane: (lane.capacity, each.labels))
        in_flight = partial(self._observe, lambda each, lane: (lane.queue.in_flight, each.exporter_labels))
        meter.create_observable_up_down_counter("otel.sdk.processor.span.queue.size", [sizes], "{span}")
        meter.create_observable_up_down_counter("otel.sdk.processor.span.queue.capacity", [capacities], "{span}")
        meter.create_observable_up_down_counter("otel.sdk.exporter.span.inflight", [in_flight], "{span}")
        meter.create_observable_counter("otel.sdk.processor.span.processed", [self._processed], "{span}")
        meter.create_observable_counter("otel.sdk.exporter.span.exported", [self._exported], "{span}")
        self._duration = meter.create_histogram("otel.sdk.exporter.operation.duration", "s")

    def add(self, lane: Lane) -> _ObservedLane:
        """Observe ``lane`` from now on; its counts stay to the end of the process."""
        observed = _ObservedLane(lane)
        if observed.exporter_labels is not None:
            lane.on_exported = partial(self._record_duration, observed.exporter_labels)
        self._observed.append(observed)
        return observed

    def _observe(self, read: Callable[..., tuple[int, Any]], _options: CallbackOptions) -> Iterable[Observation]:
        alive = ((each, lane) for each in self._observed if (lane := each.reference()) is not None)
        return [Observation(value, labels) for value, labels in itertools.starmap(read, alive) if labels is not None]

    def _processed(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [point for each in self._observed for point in _observe_processed(each.labels, each.stats())]

    def _exported(self, _options: CallbackOptions) -> Iterable[Observation]:
        return [
            point
            for each in self._observed
            if each.exporter_labels is not None
            for point in _observe_processed(each.exporter_labels, each.stats())
            if (point.attributes or {}).get("error.type") not in _NEVER_EXPORTED
        ]

    def _record_duration(self, labels: Mapping[str, str], elapsed_ns: int, succeeded: bool) -> None:  # noqa: FBT001 - as a lane calls it
        if self._duration is not None:
            self._duration.record(elapsed_ns / 1e9, labels if succeeded else {**labels, "error.type": EXPORT_FAILED})


_REAL: Final = "_real_meter_provider"
"""What the API's proxy calls the global provider, once there is one."""
_metrics: Final[weakref.WeakKeyDictionary[MeterProvider, _LaneMetrics]] = weakref.WeakKeyDictionary()


def _observe_lanes(meter_provider: MeterProvider, lanes: Sequence[Lane]) -> list[_ObservedLane]:
    """Report queue size, capacity and processed spans of every lane; losses carry their reason as ``error.type``."""
    created = _LaneMetrics()
    metrics = _metrics.setdefault(_find_registered(meter_provider), created)  # atomic: exactly one thread registers
    observed = [*map(metrics.add, lanes)]
    if metrics is created:
        created.register(meter_provider.get_meter(SCOPE))
    return observed


def _find_registered(meter_provider: MeterProvider) -> MeterProvider:
    """Return the provider that has the instruments: the API's proxy, if it stood for ``meter_provider`` before."""
    known = [reference() for reference in _metrics.keyrefs()]
    return next(
        (each for each in known if each is not None and getattr(each, _REAL, None) is meter_provider), meter_provider
    )


def _make_labels(component_type: str) -> dict[str, str]:
    return {
        "otel.component.type": component_type,
        "otel.component.name": f"{component_type}/{next(_ordinals[component_type])}",
    }


def _observe_processed(labels: Mapping[str, str], stats: LaneStats | None) -> list[Observation]:
    if stats is None:
        return []
    lost = {**stats["dropped"], EXPORT_FAILED: stats["failed"]}
    return [
        Observation(stats["exported"], labels),
        *(Observation(count, {**labels, "error.type": reason}) for reason, count in lost.items() if count),
    ]
