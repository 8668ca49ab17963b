"""This module knows how a delivery that fails is told: once for each cause, with what it was for and how to mend it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DeliveryFailures", "kafka_failure", "servers_of"]

_logger = logging.getLogger(__name__)
_NO_TOPIC: Final = (
    "the trace topic {topic} does not exist: create it, let MQTRACE_CREATE_TRACE_TOPIC=true create it, or name another "
    "one in MQTRACE_TRACE_TOPIC"
)
_NO_ANSWER: Final = (
    "the broker at {servers} did not take what is for the trace topic {topic} in time: see that it runs and can be "
    "reached from here, or name another one in MQTRACE_BOOTSTRAP_SERVERS"
)
_NOT_ALLOWED: Final = (
    "the broker at {servers} does not let this client write to the trace topic {topic} ({code}): allow it, or give "
    "other credentials in the file of MQTRACE_KAFKA_CONFIG"
)
_ANY_OTHER: Final = "the broker at {servers} did not take what is for the trace topic {topic}: {text}"
_TEXTS: Final[Mapping[str, str]] = {
    "UNKNOWN_TOPIC_OR_PART": _NO_TOPIC,
    "_UNKNOWN_TOPIC": _NO_TOPIC,
    "_MSG_TIMED_OUT": _NO_ANSWER,
    "_TIMED_OUT": _NO_ANSWER,
    "_TRANSPORT": _NO_ANSWER,
    "_ALL_BROKERS_DOWN": _NO_ANSWER,
    "_PURGE_QUEUE": _NO_ANSWER,  # it was our own purge, at the deadline
    "_PURGE_INFLIGHT": _NO_ANSWER,
    "_AUTHENTICATION": _NOT_ALLOWED,
    "SASL_AUTHENTICATION_FAILED": _NOT_ALLOWED,
    "TOPIC_AUTHORIZATION_FAILED": _NOT_ALLOWED,
    "CLUSTER_AUTHORIZATION_FAILED": _NOT_ALLOWED,
}
"""librdkafka's name of an error → what it means here."""


def kafka_failure(code: str, text: str, *, topic: str, properties: Mapping[str, object]) -> str:
    """Return what an error that librdkafka reports, ``text`` under the name ``code``, means for the trace topic."""
    return _TEXTS.get(code, _ANY_OTHER).format(topic=topic, servers=servers_of(properties), code=code, text=text)


def servers_of(properties: Mapping[str, object]) -> str:
    """Return the brokers that client properties name."""
    return str(properties.get("bootstrap.servers") or properties.get("metadata.broker.list"))


class DeliveryFailures:
    """Tells each kind of failure once as a warning, then at DEBUG.

    :attr:`kept` says that a spool keeps what was not delivered.
    """

    def __init__(self) -> None:
        self.kept = False
        self._told: set[str] = set()

    def tell(self, text: str, *, kind: str | None = None, hopeless: bool = False) -> None:
        """Log ``text``, which may differ within its ``kind`` (the text itself); what is ``hopeless`` no spool keeps."""
        kind = text if kind is None else kind
        level = logging.DEBUG if kind in self._told else logging.WARNING
        self._told.add(kind)
        if self.kept and not hopeless:
            _logger.log(level, "mqtrace: native traces wait on disk: %s (said once; counted as spooled)", text)
        else:
            _logger.log(level, "mqtrace: native traces are not delivered: %s (said once; counted in stats())", text)

    def after_fork(self) -> None:
        """A child tells its own."""
        self._told = set()
