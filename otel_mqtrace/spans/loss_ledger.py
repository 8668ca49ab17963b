"""The ledger of lost messages, which ``mqtrace reconcile --ledger`` reads, and the reports of losses.

It counts messages, not spans, by cause, service, group and ten-second bucket of the span's own time. The thread that
loses a span only counts it; the lane's worker reports to the log, to ``on_drop`` and to the file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace import semconv
from otel_mqtrace._errors import raised_failure, reraise_from_signal_handler
from otel_mqtrace.spans.limits import has_lost_type
from otel_mqtrace.spans.mapping import raw_attribute, readable_span
from otel_mqtrace.spans.queue import EXPORT_FAILED, LaneStats, count_lost

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace._clock import MonotonicNs

_logger = logging.getLogger(__name__)
LEDGER_VERSION: Final = 1
BUCKET_MS: Final = 10_000
MAX_ROWS: Final = 10_000
"""Above it, losses of one cause share a row without service, instance and group; above twice that, the bucket of time 0
too."""
_BUCKET_NS: Final = BUCKET_MS * 1_000_000
_SAVE_EVERY_NS: Final = 5_000_000_000
_LOG_EVERY_NS: Final = 30_000_000_000
_LAST_WAIT_S: Final = 0.5
_OF_MESSAGES: Final = ("messaging.", "mqtrace.")  # attributes


OnDrop = Callable[[str, Mapping[str, int]], None]
"""``on_drop(lane, {reason: spans lost since the last call})``, called by the lane's worker."""


def count_messages(span: ReadableSpan) -> int:
    """Return how many messages ``span`` is for."""
    messages = raw_attribute(span, semconv.MESSAGING_BATCH_MESSAGE_COUNT)
    return messages if isinstance(messages, int) and messages > 0 else 1


class LaneLosses:
    """The losses of one lane: counted at once, and reported by the lane's worker; never raises.

    ``note`` is called under the lane's lock, from the application's thread too. The log gets one line in thirty seconds
    at most, with totals, so that a dead peer cannot flood it.
    """

    def __init__(self, ledger: Ledger, *, side: str, component: str, on_drop: OnDrop | None) -> None:
        self._ledger = ledger
        self._side = side
        self._component = component
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._counts: defaultdict[tuple[Any, ...], int] = defaultdict(int)
        self._resources: dict[int, Resource] = {}
        self.changes = 0
        self._on_drop = on_drop
        self._logged = 0
        self._has_raised = False
        self._log_next_ns: int | None = None
        self._reported: dict[str, int] = {}
        self._reporting = threading.RLock()  # a shutdown may report while the lane does, even from a signal handler

    def note(self, cause: str, span: ReadableSpan, messages: int | None = None) -> None:
        """Count all ``messages`` of ``span``, or so many, as lost by ``cause``; at its start under another component.

        One that arrived must not be counted: it would excuse the loss of another message. A span that is no message's,
        such as one of HTTP or of a poll, is in the lane's account alone.
        """
        try:
            if messages != 0:
                self._count(cause, readable_span(span), messages)
        except Exception:  # an impossible span must not cost the lane its account
            reraise_from_signal_handler()
            _logger.debug("a lost span is not in the ledger", exc_info=True)

    def _count(self, cause: str, span: ReadableSpan, messages: int | None) -> None:
        if not _may_be_of_a_message(span):
            return
        self.changes += 1
        ended_ns, resource = span.end_time, span.resource
        bucket = (ended_ns or span.start_time or 0) // _BUCKET_NS
        key = (cause, ended_ns is not None, bucket, id(resource), raw_attribute(span, semconv.MQTRACE_GROUP_NAME))
        counts = self._counts
        if key not in counts:
            if len(counts) >= MAX_ROWS:
                key = (cause, ended_ns is not None, bucket if len(counts) < 2 * MAX_ROWS else 0, 0, None)
            else:
                self._resources[id(resource)] = resource  # or its id could be reused
        number = count_messages(span) if messages is None else messages
        counts[key] += number  # no call between read and write: a signal handler could come in there

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the format, in the order they were first lost."""
        return [self._row(key, count) for key, count in self._counts.copy().items()]

    def _row(self, key: tuple[Any, ...], count: int) -> dict[str, Any]:
        cause, ended, bucket, resource_id, group = key
        attributes = getattr(self._resources.get(resource_id), "attributes", None) or {}
        return {
            "side": self._side,
            "component": self._component if ended else f"{self._component} start",
            "service": _text(attributes.get("service.name")),
            "instance": _text(attributes.get("service.instance.id")) or self._process,
            "group": _text(group),
            "bucket_start_ms": bucket * BUCKET_MS,
            "bucket_ms": BUCKET_MS,
            "cause": cause,
            "count": count,
        }

    # -- reports ---------------------------------------------------------------------------------------------------

    def report(self, stats: LaneStats, now: MonotonicNs, *, last: bool = False) -> None:
        """Report new losses in ``stats``; ``last``: no later report will follow."""
        with self._reporting:
            line = self._line(stats, now, last=last)
            new = {} if self._on_drop is None else self._new_losses(stats)
        if line is not None:
            _logger.warning("%s", line)
        if self._on_drop is not None and new:
            try:
                self._on_drop(self._component, new)
            except:  # noqa: E722 - the application's own
                failure, level = raised_failure(), logging.DEBUG if self._has_raised else logging.WARNING
                self._has_raised = True
                _logger.log(level, "mqtrace: on_drop of %s raised (logged once)", self._component, exc_info=failure)
        self._ledger.save_due(now, last=last)

    def _line(self, stats: LaneStats, now: MonotonicNs, *, last: bool) -> str | None:
        """Return the line to log now; ``None``: nothing new was lost, or it is too soon and not the last chance."""
        total = count_lost(stats)
        is_too_soon = self._log_next_ns is not None and now < self._log_next_ns
        if total <= self._logged or (is_too_soon and not last):
            return None
        new, self._logged, self._log_next_ns = total - self._logged, total, now + _LOG_EVERY_NS
        reasons = {reason: count for reason, count in stats["dropped"].items() if count}
        if stats["failed"]:
            reasons["failed"] = stats["failed"]
        listed = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        return (
            f"mqtrace: {self._component}: spans lost since the last line: {new}; totals of {stats['offered']}: {listed}"
        )

    def _new_losses(self, stats: LaneStats) -> dict[str, int]:
        """Return what was lost since the last call, by reason; ``stats`` older than the last ones report nothing."""
        totals = {**stats["dropped"], EXPORT_FAILED: stats["failed"]}
        new = {reason: total - self._reported.get(reason, 0) for reason, total in totals.items()}
        new = {reason: count for reason, count in new.items() if count > 0}
        self._reported |= {reason: totals[reason] for reason in new}
        return new


def _may_be_of_a_message(span: ReadableSpan) -> bool:
    """Return whether ``span`` may stand for a message sent or handled, ours or another instrumentation's.

    A lost span of anything else, counted, would account for a message that was lost elsewhere.
    """
    if raw_attribute(span, semconv.MQTRACE_TRACE_TYPE) is not None or has_lost_type(span):
        return True
    scope, names = span.instrumentation_scope, span.attributes or ()
    is_ours = scope is not None and scope.name == semconv.SCOPE  # a poll or a commit
    return not is_ours and (not names or any(name.startswith(_OF_MESSAGES) for name in names))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class Ledger:
    """The losses of one processor's lanes and, given a directory, their file; never raises.

    Each process has its file, ``ledger-<host>-<pid>-<hex>.json``, rewritten whole under another name and renamed.
    """

    def __init__(self, directory: str | os.PathLike[str] | None, *, on_drop: OnDrop | None = None) -> None:
        self._directory = None if directory is None else Path(directory).absolute()
        self._on_drop = on_drop
        self._begin()

    def _begin(self) -> None:
        self._lanes: list[LaneLosses] = []
        self._saving = threading.Lock()
        self._saved = 0
        self._save_next_ns = 0
        self._has_warned = False
        # A container's process often has the host name and pid of the one before it, whose file must stay.
        self._name = f"ledger-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.json"

    def add_lane(self, *, side: str, component: str) -> LaneLosses:
        """Add a lane and return its losses, none yet; ``side`` is the side that loses."""
        lane = LaneLosses(self, side=side, component=component, on_drop=self._on_drop)
        self._lanes.append(lane)
        return lane

    def document(self) -> dict[str, Any]:
        """Return the ledger in its file format, for an endpoint of the application."""
        return {"ledger_version": LEDGER_VERSION, "rows": [row for lane in self._lanes for row in lane.rows()]}

    def save_due(self, now: MonotonicNs, *, last: bool = False) -> None:
        """Write the file when something new was lost: every five seconds at most, at once for the ``last`` time."""
        changes = sum(lane.changes for lane in self._lanes)
        if self._directory is None or changes == self._saved or not (last or now >= self._save_next_ns):
            return
        # Another lane may be writing; the last time, losses that it has not seen must still be written.
        if not self._saving.acquire(timeout=_LAST_WAIT_S if last else 0.0):
            return
        try:
            self._write(self._directory)
            self._saved, self._save_next_ns = changes, now + _SAVE_EVERY_NS
        except Exception as problem:  # noqa: BLE001 - a shutdown of the application goes on
            self._save_next_ns = now + _SAVE_EVERY_NS
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("mqtrace: the ledger of losses is not written: %s (logged once)", problem)
        finally:
            self._saving.release()

    def after_fork(self) -> None:
        """Begin a ledger of the child's own, to which the lanes are added again."""
        self._begin()

    def _write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / self._name
        beside = path.with_suffix(".part")
        try:
            beside.write_text(json.dumps(self.document()), encoding="utf-8")
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
