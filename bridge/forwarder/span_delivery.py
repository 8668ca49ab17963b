"""Turn trace messages into spans and deliver them over OTLP: decode, pair, encode, send."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from opentelemetry.sdk.trace.export import SpanExportResult

from bridge.codec.files import BodyDecoder
from bridge.forwarder.otlp_requests import MOST_SPANS, requests_of
from bridge.forwarder.pairing import Origin, Pairing, Position
from bridge.forwarder.resume_file import ResumeFile
from bridge.forwarder.span_fields import SpanRules
from bridge.page.wording import plural
from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import MqTraceError, PeerError, UsageError
from otel_mqtrace.client_properties import without_password
from otel_mqtrace.exporters.otlp import GRPC, HTTP, open_stock_exporter, read_partial_success
from otel_mqtrace.wire.native.decode import decode_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Sequence

    from opentelemetry.sdk.trace.export import SpanExporter

    from bridge.forwarder.pairing import Event, Record
    from otel_mqtrace._clock import Clock
    from otel_mqtrace.landing import LandedMessage


_TRACES_PATH: Final = "/v1/traces"
_GRPC: Final = {"grpc": True, "grpcs": False}
"""URL scheme → whether the connection is in the clear."""


class OtlpDelivery:
    """Delivers spans and returns once they are accepted.

    ``endpoint`` is ``http[s]://host:port[/path]`` (the path defaults to ``/v1/traces``) or ``grpc[s]://host:port``;
    headers, TLS and compression come from ``OTEL_EXPORTER_OTLP_*``. ``timeout_s`` is for one request with all its
    retries. ``accepted`` counts the spans of the requests that the receiver took. ``rejected`` of them it rejected all
    the same (OTLP's partial success), ``rejection`` is the first reason that it gave.

    Raises:
        MissingExtraError: the ``otlp`` extra is not installed.
        UsageError: an endpoint of another form, or a variable that the exporter refuses.
    """

    _logger: Final = logging.getLogger("opentelemetry.exporter.otlp")

    def __init__(self, endpoint: str, *, timeout_s: float = 10) -> None:
        self.accepted = self.rejected = 0
        self.rejection = ""
        self._timeout_s = timeout_s
        self._endpoint = without_password(endpoint)
        self._failures = _Failures()
        with ExitStack() as undone:
            undone.callback(self._logger.removeHandler, self._failures)
            self._logger.addHandler(self._failures)
            self._exporter: Any = open_exporter(
                endpoint, timeout_s=timeout_s, on_reply=self._read, on_error=self._failures.note
            )
            if self._failures.logged:
                raise _refused(self._failures.logged)
            undone.pop_all()

    def deliver(self, events: Sequence[Event], rules: SpanRules) -> None:
        """Have the spans of all ``events`` accepted.

        Raises:
            PeerError: some were not, after the exporter's own retries; any of them may have been.
        """
        left = len(events)
        for request in requests_of(events, rules):
            if self._exporter.export(request) is not SpanExportResult.SUCCESS:
                failure = self._failures.describe_failure(plural(left, "span"), self._timeout_s)
                raise PeerError(
                    f"the OTLP receiver {self._endpoint} {failure}; they are not committed and will be forwarded again"
                )
            left -= len(request)
            self.accepted += len(request)

    def close(self) -> None:
        """Close the connection."""
        self._logger.removeHandler(self._failures)
        self._exporter.shutdown()

    def _read(self, body: bytes) -> bytes:
        rejected, reason = read_partial_success(body)
        self.rejected += rejected
        self.rejection = self.rejection or reason
        return body


def open_exporter(
    endpoint: str, *, timeout_s: float, on_reply: Callable[[bytes], bytes], on_error: Callable[[str], object]
) -> SpanExporter:
    """Return OpenTelemetry's exporter; ``on_reply`` gets each good body, ``on_error`` why a request over HTTP failed.

    Raises:
        UsageError: an endpoint of another form, or a variable that the exporter refuses.
    """
    try:
        scheme, host, path, query, _ = parts = urlsplit(endpoint)
        is_known = bool(host and scheme in {"http", "https", *_GRPC} and parts.port != 0)
    except ValueError:  # a bracket that nothing closes, or a port that is no number
        is_known = False
    if not is_known:
        raise UsageError(
            f"--otlp-endpoint {without_password(endpoint)} is not understood: give http[s]://HOST:PORT[/PATH] or "
            "grpc[s]://HOST:PORT"
        )
    if scheme in _GRPC:
        protocol, given = GRPC, {"endpoint": host, "insecure": _GRPC[scheme]}
    else:
        whole = urlunsplit((scheme, host, path if path.strip("/") else _TRACES_PATH, query, ""))
        protocol, given = HTTP, {"endpoint": whole}
    try:
        return open_stock_exporter(protocol, read_reply=on_reply, on_error=on_error, timeout=timeout_s, **given)
    except MqTraceError:
        raise
    except Exception as error:  # of many kinds, one for each variable
        raise _refused(error) from error


def _refused(reason: object) -> UsageError:
    return UsageError(f"the OTLP exporter refuses a variable OTEL_EXPORTER_OTLP_…: {reason}")


class _Failures(logging.Handler):
    """Keeps why a request failed: the error or status over HTTP, else the exporter's log, gRPC's only place for it."""

    noted = logged = ""  # of the last failure: each request that fails sets one

    def emit(self, record: logging.LogRecord) -> None:
        self.logged = record.getMessage()

    def note(self, text: str) -> None:
        """Keep the error or status of a request over HTTP."""
        self.noted = text

    def describe_failure(self, spans: str, timeout_s: float) -> str:
        """Return what the endpoint did not do with ``spans`` in ``timeout_s``, and why where it is known."""
        cause = self.noted or self.logged
        unreachable = _NO_CONNECTION.search(cause)
        if unreachable:
            return f"cannot be reached ({unreachable[1]}) for {spans}: start it or give another --otlp-endpoint"
        if _NO_ANSWER.search(cause):
            return f"did not answer for {spans} within {timeout_s:g} s: see its log, or raise --otlp-timeout-ms"
        why = f" ({cause})" if cause else ""
        return f"did not accept {spans}{why}: see its log, and check --otlp-endpoint and OTEL_EXPORTER_OTLP_…"


_NO_CONNECTION: Final = re.compile(
    r"\b(Connection refused|Name or service not known|Domain name not found|No route to host|(?<!Read )timed out)"
)
_NO_ANSWER: Final = re.compile(r"\bReadTimeout|\bDEADLINE_EXCEEDED")


_SETTLE_AT: Final = 20_000


class SpanForwarding:
    """Turns trace messages into delivered spans. Not thread-safe: one thread forwards.

    ``resume_file`` is what an earlier process has forwarded beyond its last commit; of ``clock`` only the wall clock is
    used.
    """

    def __init__(  # noqa: PLR0913 - every collaborator by name
        self,
        delivery: OtlpDelivery,
        *,
        pairing: Pairing | None = None,
        rules: SpanRules | None = None,
        decoder: BodyDecoder | None = None,
        resume_file: ResumeFile | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._delivery = delivery
        self._pairing = pairing or Pairing()
        self._rules = rules or SpanRules()
        self._decoder = decoder or BodyDecoder()
        self._resume_file = resume_file or ResumeFile()
        self._clock = clock or SystemClock()
        self._ready: list[Event] = []
        self._arrived_ms: dict[int | None, int] = {}
        self._pass_began_ms = self._last_pass_began_ms = 0
        self.counts = self._pairing.counts
        self._since_settled = 0
        self._delivered = 0

    @property
    def has_delivered(self) -> bool:
        """Return whether the receiver has accepted anything."""
        return self._delivery.accepted > 0

    @property
    def rejection(self) -> str:
        """Return why the receiver rejected spans, or what it warns of."""
        return self._delivery.rejection

    @property
    def due(self) -> bool:
        """Return whether so much was taken since the last :meth:`deliver` that it is worth a commit."""
        return self._since_settled >= _SETTLE_AT

    def begin_pass(self) -> None:
        """Note the time: what arrives from here on may be left to the next pass, and nothing older is new in that."""
        self._last_pass_began_ms, self._pass_began_ms = self._pass_began_ms, self._now_ms()

    def take(self, messages: Iterable[LandedMessage]) -> list[LandedMessage]:
        """Read ``messages`` and make spans of what is complete; large heaps of spans are delivered at once.

        Returns:
            Those that are new: an earlier process may have forwarded some, but for records that waited.

        Raises:
            PeerError: as :meth:`deliver`.
        """
        now_ms, new = self._now_ms(), []
        for message in messages:
            arrival_ms = min(message.arrival_ms, now_ms)  # a clock that is ahead must not make anything wait longer
            self._arrived_ms[message.partition] = max(arrival_ms, self._arrived_ms.get(message.partition, 0))
            left = self._resume_file.remaining_records(message)
            if left is None:
                new.append(message)
            # A file may hold what arrived long ago: its records wait from now on for those of the next file. A topic's
            # message that was not there at the last pass arrived later than its writer's clock may say.
            since_ms = now_ms if message.partition is None else max(arrival_ms, self._last_pass_began_ms)
            position = Position(message.source, message.partition, message.offset)
            origin = Origin(position, arrival_ms, message.arrival_ms, since_ms)
            self._ready += self._pairing.add(self._records(message, origin, left))
        whole = len(self._ready) - len(self._ready) % MOST_SPANS
        if whole:
            self._hand_over(whole)
        return new

    def expire(self, behind: Collection[int | None]) -> None:
        """Release records that waited too long, by how far the slowest of the partitions ``behind`` has been read."""
        self._ready += self._pairing.expire(min(self._arrived_ms.get(each, 0) for each in behind))

    def end_pass(self, *, flush: bool = False) -> None:
        """Release records that had waited too long when the pass began, or all (``flush``): all of then was read."""
        self._ready += self._pairing.flush() if flush else self._pairing.expire(self._pass_began_ms)
        self._resume_file.end_pass()

    def deliver(self) -> int:
        """Have everything delivered that does not wait; return how many spans were since the last time.

        Raises:
            PeerError: the receiver did not accept it; it is kept for the next attempt.
        """
        self._hand_over(len(self._ready))
        delivered, self._delivered, self._since_settled = self._delivered, 0, 0
        return delivered

    def hold(self) -> set[Position]:
        """Remember what is delivered, and return from where on to read again: nothing behind it is done yet.

        Raises:
            UsageError: the state cannot be written.
        """
        self._resume_file.remember(self._pairing.waiting())
        return self._pairing.uncommitted() | self._resume_file.unsettled()

    def _records(self, message: LandedMessage, origin: Origin, left: Container[int] | None) -> list[Record]:
        decoder = self._decoder
        records, errors = decode_rows(message.body, origin, msg_type_map=decoder.msg_type_map, charset=decoder.charset)
        if left is None:
            self.counts.bad_records += len(errors)
        else:
            records = [record for record in records if record[1] in left]
        taken = len({record[1] for record in records})
        self.counts.records += taken
        self._since_settled += taken
        return records

    def _hand_over(self, spans: int) -> None:
        """Have the first ``spans`` events that are ready delivered: whole requests, as long as there are more."""
        ready = self._ready[:spans]
        if ready:
            self._delivery.deliver(ready, self._rules)
            del self._ready[:spans]
            self.counts.rejected = self._delivery.rejected
            self.counts.spans += len(ready)
            self._delivered += len(ready)

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // NS_PER_MS
