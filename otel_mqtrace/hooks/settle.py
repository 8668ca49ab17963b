"""This module knows what is recorded of one settlement: the offsets committed or stored, the messages acknowledged.

The manual door for any client; nothing is recorded until ``settle_spans`` asks for it::

    hook = SettleHook(group_name="billing", servers="broker:9000")
    call = hook.before("commit")
    client.commit(...)
    hook.after(call, [SettledOffset("orders", partition=3, offset=42)])     # or hook.after(call, error="TIMED_OUT")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.trace import Link, SpanContext, SpanKind

from otel_mqtrace import semconv
from otel_mqtrace.hooks._ending import Ending, say_failure
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.spans.mapping import Attributes, Operation, share_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context

__all__ = ["SettleCall", "SettleHook", "SettledOffset"]

_SETTLE: Final = "settle"


class SettledOffset(NamedTuple):
    """One place that was settled; ``creation`` is the context its message was created in, where that is known.

    ``offset`` is the number the application gave: the next one to read for a commit, the message's own for an
    acknowledgement. ``msg_id`` names the message where it was settled by its id.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    creation: SpanContext | None = None
    msg_id: str | None = None


@dataclass(slots=True)
class SettleCall(Ending):
    """One settlement under way: what it is called, when it began, and what was current then."""

    operation: str
    start_ns: int
    ambient: Context


class SettleHook:
    """``before`` notes when a settlement began, ``after`` records its ``commit T`` CLIENT span. Neither ever raises.

    The span is a child of what is current when the settlement begins: the process span, inside a handler.
    """

    def __init__(  # noqa: PLR0913 - the public door: who the client is, each fact by its name
        self,
        *,
        tracing: Tracing | None = None,
        system: str = "kafka",
        group_name: str | None = None,
        client_id: str | None = None,
        servers: str | None = None,
        facts: ClientFacts | None = None,
    ) -> None:
        self._tracing = tracing or Tracing.create()
        facts = facts or ClientFacts.named(system, group_name=group_name, client_id=client_id, servers=servers)
        self._asked = self._tracing.settings.settle_spans
        self._is_rocketmq = facts.is_rocketmq
        self._constant: Attributes = {**facts.attributes(), semconv.MESSAGING_OPERATION_TYPE: _SETTLE}
        if facts.group_name is not None:
            self._constant[semconv.MESSAGING_CONSUMER_GROUP_NAME] = facts.group_name

    def before(self, operation: str = "commit") -> SettleCall | None:
        """Note that a settlement begins; ``None`` when none is recorded now.

        ``operation`` is the client's own word: ``commit``, ``store``, ``ack``, ``release``, ``reject``.
        """
        return self._before(operation) if self._asked else None

    @guarded("SettleHook.before")
    def _before(self, operation: str) -> SettleCall | None:
        if not is_instrumentation_enabled():
            return None
        return SettleCall(operation, self._tracing.clock.wall_ns(), context.get_current())

    @guarded("SettleHook.after")
    def after(
        self,
        call: SettleCall | None,
        settled: Sequence[SettledOffset] = (),
        *,
        error: str | None = None,
        description: str | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Record the settlement, once; ``error`` is its ``error.type``, the class of ``exception`` unless said.

        Places of topics that are not traced are left out; where no other is left there is no span. Without any place
        (nobody knows what was settled) the span has no destination.
        """
        if call is None or not call.claim():
            return
        traced = [each for each in settled if self._tracing.traces(each.topic)]
        if settled and not traced:
            return
        if error is None and exception is not None:
            error = type(exception).__qualname__
        self._record(call, traced, error, description, exception)

    def _record(
        self,
        call: SettleCall,
        settled: Sequence[SettledOffset],
        error: str | None,
        description: str | None,
        exception: BaseException | None,
    ) -> None:
        tracing = self._tracing
        end_ns = max(tracing.clock.wall_ns(), call.start_ns)
        split = share_attributes(list(map(self._place, settled)))
        attributes = {**split.span, **self._constant, semconv.MESSAGING_OPERATION_NAME: call.operation}
        topics = {each.topic for each in settled}
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error
        span = tracing.open(
            Operation(None, call.operation, _SETTLE, SpanKind.CLIENT),
            topics.pop() if len(topics) == 1 else None,
            context=call.ambient,
            attributes=attributes,
            links=_links(settled, split.links)[: tracing.links_per_span],
            start_ns=call.start_ns,
        )
        if error is not None:
            say_failure(span, description, exception)
        span.end(end_ns)
        if (metrics := tracing.collecting) is not None:
            metrics.operated(attributes, end_ns - call.start_ns)

    def _place(self, settled: SettledOffset) -> Attributes:
        said: Attributes = {semconv.MESSAGING_DESTINATION_NAME: settled.topic}
        if settled.partition is not None and settled.partition >= 0:
            said[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(settled.partition)
        if settled.offset is not None and settled.offset >= 0 and not self._is_rocketmq:
            said[semconv.MESSAGING_KAFKA_OFFSET] = settled.offset
        if settled.msg_id is not None:
            said[semconv.MESSAGING_MESSAGE_ID] = settled.msg_id
        return said


def _links(settled: Sequence[SettledOffset], own: Sequence[Attributes]) -> list[Link]:
    """A link for each creation context that is known, saying which of the places it belongs to."""
    per_place = own or [{}] * len(settled)
    return [
        Link(place.creation, said)
        for place, said in zip(settled, per_place, strict=True)
        if place.creation is not None and place.creation.is_valid
    ]
