"""What every delivery to a trace topic shares: its interface, its result, its log lines."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace._clock import MonotonicNs
    from otel_mqtrace.exporters.packing import TraceMessage

__all__ = ["DeliveryFailures", "MessageDelivery", "Undelivered"]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What a delivery could not send: ``retriable`` another time, ``rejected`` never, for the broker refuses it."""

    retriable: tuple[TraceMessage, ...] = ()
    rejected: tuple[TraceMessage, ...] = ()

    @property
    def messages(self) -> tuple[TraceMessage, ...]:
        """Both."""
        return self.retriable + self.rejected


class MessageDelivery(Protocol):
    """The way to a trace topic, as an exporter needs it."""

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages`` and return those that were not taken by ``deadline``."""
        ...

    def idle(self) -> None:
        """Use a quiet moment."""
        ...

    def flush(self, deadline: MonotonicNs) -> bool:
        """Return whether nothing is on its way any more."""
        ...

    def close(self, deadline: MonotonicNs) -> None:
        """Refuse further messages, end a running ``deliver`` early, and close the connection by ``deadline``."""
        ...

    def after_fork(self) -> None:
        """Begin anew in a child."""
        ...


class DeliveryFailures:
    """Logs each kind of failure once as a warning, then at DEBUG.

    :attr:`has_spool` says that a spool keeps what was not delivered.
    """

    def __init__(self) -> None:
        self.has_spool = False
        self._logged: set[str] = set()

    def report(self, text: str, *, kind: str | None = None, rejected: bool = False) -> None:
        """Log ``text``, one of a ``kind`` (else the text itself); no spool keeps ``rejected`` messages."""
        kind = text if kind is None else kind
        level = logging.DEBUG if kind in self._logged else logging.WARNING
        self._logged.add(kind)
        if self.has_spool and not rejected:
            _logger.log(level, "mqtrace: native traces wait on disk: %s (said once; counted as spooled)", text)
        else:
            _logger.log(level, "mqtrace: native traces are not delivered: %s (said once; counted in stats())", text)

    def after_fork(self) -> None:
        """A child logs its own."""
        self._logged = set()
