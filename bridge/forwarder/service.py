"""Forward messages and commit each only after it is durable everywhere it goes; count what happened.

It goes to the landing, to an OTLP receiver, or to both. A record that waits for its other half is not delivered yet, so
its message and all later ones of its partition stay uncommitted. A crash repeats messages and never loses one: readers
of the landing detect repeats by (source, partition, offset), receivers of spans by their ids.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Meter, Observation, get_meter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions

    from bridge.forwarder.native_delivery import NativeForwarding
    from bridge.forwarder.span_delivery import SpanForwarding
    from bridge.forwarder.store_landing import Landing
    from bridge.forwarder.trace_source import TraceSource

    Forwarding = SpanForwarding | NativeForwarding

_MOST_FILES: Final = 1_000  # a forwarder finishes a part a second, for months


@dataclass(frozen=True, slots=True)
class ForwardCounts:
    """What one or several passes moved; ``files`` are the last of the ``parts``."""

    messages: int = 0
    body_bytes: int = 0
    parts: int = 0
    spans: int = 0
    files: tuple[str, ...] = ()

    def __add__(self, other: ForwardCounts) -> ForwardCounts:
        return ForwardCounts(
            self.messages + other.messages,
            self.body_bytes + other.body_bytes,
            self.parts + other.parts,
            self.spans + other.spans,
            (*self.files, *other.files)[-_MOST_FILES:],
        )


def forward_once(  # noqa: PLR0913 - targets, and when to end
    source: TraceSource,
    landing: Landing | None = None,
    *,
    spans: Forwarding | None = None,
    stopped: Event | None = None,
    flush: bool = False,
    on_commit: Callable[[ForwardCounts], object] | None = None,
) -> ForwardCounts:
    """Move everything ``source`` has now and return what was moved.

    Whenever a part of ``landing`` is due, by size or age, or enough spans are, everything is finished and the source
    commits, so that a crash does not undo the progress in a backlog. ``stopped`` is checked after every batch, and then
    what was read is finished and committed as well. ``flush`` releases waiting records at the end. ``on_commit`` gets
    what each commit has moved, so that a failure after it leaves nothing uncounted.

    Raises:
        PeerError: the broker or the receiver failed; uncommitted messages will be forwarded again.
        UsageError: the landing cannot be written.
    """
    moved = taken = ForwardCounts()
    stopped = Event() if stopped is None else stopped
    if spans is not None:
        spans.begin_pass()
    with closing(source.drain()) as batches:
        for batch in batches:
            new = batch if spans is None else spans.take(batch)
            if spans is not None and source.behind:
                spans.expire(source.behind)
            if landing is not None:
                landing.write(new)
            taken += ForwardCounts(len(new), sum(len(message.body) for message in new))
            is_stopped = stopped.is_set()
            if is_stopped or (landing is not None and landing.due) or (spans is not None and spans.due):
                moved += _settle(source, landing, spans, taken, on_commit)
                taken = ForwardCounts()
            if is_stopped:
                return moved
    if spans is not None:
        spans.end_pass(flush=flush)
    return moved + _settle(source, landing, spans, taken, on_commit)


def _settle(
    source: TraceSource,
    landing: Landing | None,
    spans: Forwarding | None,
    taken: ForwardCounts,
    on_commit: Callable[[ForwardCounts], object] | None,
) -> ForwardCounts:
    """Keep the promise: first delivered and durable, then committed; return what was ``taken`` and made of it."""
    delivered = 0 if spans is None else spans.deliver()
    parts = () if landing is None else landing.finish()
    source.commit(() if spans is None else spans.hold())
    settled = taken + ForwardCounts(parts=len(parts), spans=delivered, files=tuple(part.file for part in parts))
    if on_commit is not None:
        on_commit(settled)
    return settled


def forward_until(  # noqa: PLR0913 - targets and times
    stopped: Event,
    source: TraceSource,
    landing: Landing | None,
    *,
    pause_ms: float,
    spans: Forwarding | None = None,
    on_commit: Callable[[ForwardCounts], object] | None = None,
    on_pass: Callable[[ForwardCounts], object] | None = None,
) -> ForwardCounts:
    """Repeat :func:`forward_once`, pausing ``pause_ms`` in between, until ``stopped`` is set; return the sum.

    ``on_pass`` gets the counts of each pass once all of it is committed. Records that still wait stay uncommitted, so
    that the next run finds both halves.
    """
    moved = ForwardCounts()
    while not stopped.is_set():
        passed = forward_once(source, landing, spans=spans, stopped=stopped, on_commit=on_commit)
        moved += passed
        if on_pass is not None:
            on_pass(passed)
        stopped.wait(pause_ms / 1e3)
    return moved


_SCOPE: Final = "bridge.forwarder"
METRICS: Final = {
    "mqtrace.forwarder.messages": ("{message}", "Trace messages read."),
    "mqtrace.forwarder.body.size": ("By", "Bytes of their bodies."),
    "mqtrace.forwarder.spans": ("{span}", "Spans that the receiver accepted."),
    "mqtrace.forwarder.records": ("{record}", "Trace records read."),
    "mqtrace.forwarder.bad_records": ("{record}", "Pieces of bodies that are not records."),
    "mqtrace.forwarder.halves": ("{span}", "Spans of one half of a listener call."),
    "mqtrace.forwarder.overflowed": ("{span}", "Halves not waited for because too many waited."),
    "mqtrace.forwarder.repeated": ("{record}", "Records that repeated others."),
    "mqtrace.forwarder.rejected": ("{span}", "Spans that the receiver took and threw away."),
    "mqtrace.forwarder.pending": ("{record}", "Records that wait for their other half now."),
}
"""Name → unit and description. All are counters but the last, a gauge."""
_PENDING: Final = "mqtrace.forwarder.pending"
_OF_SPANS: Final = ("records", "bad_records", "halves", "overflowed", "repeated", "rejected")


class ForwardMetrics:
    """Counts after each commit what it moved; ``moved`` is the sum of that.

    ``rejected`` spans are those of the last commit. ``spans`` is ``None`` when only a landing is filled.
    """

    def __init__(self, spans: SpanForwarding | None = None, *, meter: Meter | None = None) -> None:
        meter = meter or get_meter(_SCOPE)
        self._spans = spans
        self._recorded = dict.fromkeys(_OF_SPANS, 0)
        self.moved, self.rejected = ForwardCounts(), 0
        self._counters = {
            name: meter.create_counter(name, unit=unit, description=description)
            for name, (unit, description) in METRICS.items()
            if name != _PENDING
        }
        unit, description = METRICS[_PENDING]
        meter.create_observable_gauge(_PENDING, [self._pending], unit=unit, description=description)

    def add(self, passed: ForwardCounts) -> None:
        """Add what one commit, or a whole run, has moved."""
        self.moved += passed
        self._counters["mqtrace.forwarder.messages"].add(passed.messages)
        self._counters["mqtrace.forwarder.body.size"].add(passed.body_bytes)
        self._counters["mqtrace.forwarder.spans"].add(passed.spans)
        if self._spans is None:
            return
        now = self._spans.counts.as_dict()
        self.rejected = now["rejected"] - self._recorded["rejected"]
        for name in _OF_SPANS:
            self._counters[f"mqtrace.forwarder.{name}"].add(now[name] - self._recorded[name])
            self._recorded[name] = now[name]

    def _pending(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(0 if self._spans is None else self._spans.counts.pending)]
