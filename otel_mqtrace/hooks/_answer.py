"""This module knows what is said of a message once it is known how it went; put together when the span is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_mqtrace import semconv
from otel_mqtrace.hooks._message import forget_kafka, place_attributes
from otel_mqtrace.spans.mapping import Attributes, cost_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import AttributeValue

__all__ = ["Answer"]


@dataclass
class Answer:
    """What the broker answered to one message, or that nobody did.

    ``opened_with`` is what its span was told at the start, ``start_ns`` and ``end_ns`` are nanoseconds of the epoch,
    ``error`` is an ``error.type``, ``outcome`` names an end without answer. It refers to no span and no call: nothing
    of it waits for the garbage collector.
    """

    opened_with: Mapping[str, AttributeValue]
    start_ns: int
    end_ns: int
    partition: int | None
    offset: int | None
    store_host: str | None
    cluster_id: str | None
    msg_id: str | None
    offset_msg_id: str | None
    body_length: int | None
    error: str | None
    outcome: str | None
    new_id: Callable[[], str]

    def attributes(self) -> Attributes:
        """Return it in the names of the mapping's table: the same ones, whoever asks and when."""
        said: Attributes | None = self.__dict__.get("_said")
        # Two threads may put it together; one id is drawn in it, and the first one counts.
        return self.__dict__.setdefault("_said", self._put_together()) if said is None else said

    def _put_together(self) -> Attributes:
        known = self.opened_with
        said = place_attributes(str(known[semconv.MESSAGING_DESTINATION_NAME]), self.partition, self.offset)
        cost = cost_ms(self.start_ns, self.end_ns)
        said[semconv.MQTRACE_COST_TIME] = cost
        said[semconv.MQTRACE_SUCCESS] = self.error is None
        said[semconv.MQTRACE_REQUEST_ID] = self.new_id()
        if self.error is None and self.outcome is None:  # half-way, as SendMessageTraceHookImpl of RocketMQ has it
            said[semconv.MQTRACE_STORE_TIME] = self.start_ns // 1_000_000 + cost // 2
        told = {
            semconv.MQTRACE_STORE_HOST: self.store_host,
            semconv.MESSAGING_MESSAGE_BODY_SIZE: known.get(semconv.MESSAGING_MESSAGE_BODY_SIZE, self.body_length),
            semconv.MQTRACE_SEND_OUTCOME: self.outcome,
            semconv.ERROR_TYPE: self.error,
            semconv.MESSAGING_KAFKA_CLUSTER_ID: self.cluster_id,
            semconv.MQTRACE_OFFSET_MSG_ID: self.offset_msg_id,
            semconv.MESSAGING_MESSAGE_ID: self.msg_id,
        }
        said |= {name: value for name, value in told.items() if value is not None}
        if self.msg_id is None and semconv.MESSAGING_MESSAGE_ID not in known:
            # What carries no id goes by its physical one, on both sides; what never got a place still needs a name.
            said[semconv.MESSAGING_MESSAGE_ID] = said.get(semconv.MQTRACE_OFFSET_MSG_ID) or self.new_id()
        if known[semconv.MESSAGING_SYSTEM] == semconv.SYSTEM_ROCKETMQ:
            forget_kafka(said)
        return said
