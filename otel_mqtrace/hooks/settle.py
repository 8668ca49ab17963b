"""Record one settlement: offsets committed or stored, messages acknowledged.

The hook for your own client; it records only with ``settle_spans``::

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
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import SingleEnd, record_failure
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
from otel_mqtrace.spans.mapping import Attributes, Operation, share_attributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.context import Context


_SETTLE: Final = "settle"


class SettledOffset(NamedTuple):
    """One position that was settled; ``creation`` is the context its message was created in, where that is known.

    ``offset`` is the number the application gave: the next one to read for a commit, the message's own for an
    acknowledgement. ``msg_id`` names the message where it was settled by its id.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    creation: SpanContext | None = None
    msg_id: str | None = None


@dataclass(slots=True)
class SettleCall(SingleEnd):
    """One settlement under way: its operation, when it began, and what was current then."""

    operation: str
    start_ns: int
    current_ctx: Context


class SettleHook:
    """``before`` notes when a settlement began, ``after`` records its ``commit T`` CLIENT span. Neither ever raises.

    The span is a child of what is current when the settlement begins: the process span, inside a handler.
    """

    def __init__(  # noqa: PLR0913 - the public hook: who the client is, each fact by its name
        self,
        *,
        tracing: Tracing | None = None,
        system: str = "kafka",
        group_name: str | None = None,
        client_id: str | None = None,
        servers: str | None = None,
        info: ClientInfo | None = None,
    ) -> None:
        self._tracing = tracing or Tracing.create()
        info = info or ClientInfo.named(system, group_name=group_name, client_id=client_id, servers=servers)
        self._is_enabled = self._tracing.settings.settle_spans
        self._is_rocketmq = info.is_rocketmq
        self._constant: Attributes = {**info.attributes(), semconv.MESSAGING_OPERATION_TYPE: _SETTLE}
        if info.group_name is not None:
            self._constant[semconv.MESSAGING_CONSUMER_GROUP_NAME] = info.group_name

    def before(self, operation: str = "commit") -> SettleCall | None:
        """Begin a settlement; ``None`` while none is recorded.

        ``operation`` is the client's own word: ``commit``, ``store``, ``ack``, ``release``, ``reject``.
        """
        return self._before(operation) if self._is_enabled else None

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
        """Record the settlement, once; ``error`` is its ``error.type``, by default the class of ``exception``.

        Positions of topics that are not traced are left out; without any left no span is recorded. Without any position
        from the client the span has no destination.
        """
        if call is None or not call.try_end():
            return
        traced = [each for each in settled if self._tracing.is_traced(each.topic)]
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
        split = share_attributes(list(map(self._position, settled)))
        attributes = {**split.span, **self._constant, semconv.MESSAGING_OPERATION_NAME: call.operation}
        topics = {each.topic for each in settled}
        if error is not None:
            attributes[semconv.ERROR_TYPE] = error
        span = tracing.start_span(
            Operation(None, call.operation, _SETTLE, SpanKind.CLIENT),
            topics.pop() if len(topics) == 1 else None,
            context=call.current_ctx,
            attributes=attributes,
            links=_links(settled, split.links)[: tracing.links_per_span],
            start_ns=call.start_ns,
        )
        if error is not None:
            record_failure(span, description, exception)
        tracing.end_span(span, end_ns, {})
        if (metrics := tracing.collecting) is not None:
            metrics.operated(attributes, end_ns - call.start_ns)

    def _position(self, settled: SettledOffset) -> Attributes:
        attributes: Attributes = {semconv.MESSAGING_DESTINATION_NAME: settled.topic}
        if settled.partition is not None and settled.partition >= 0:
            attributes[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(settled.partition)
        if settled.offset is not None and settled.offset >= 0 and not self._is_rocketmq:
            attributes[semconv.MESSAGING_KAFKA_OFFSET] = settled.offset
        if settled.msg_id is not None:
            attributes[semconv.MESSAGING_MESSAGE_ID] = settled.msg_id
        return attributes


def _links(settled: Sequence[SettledOffset], own: Sequence[Attributes]) -> list[Link]:
    attributes = own or [{}] * len(settled)
    return [
        Link(position.creation, each)
        for position, each in zip(settled, attributes, strict=True)
        if position.creation is not None and position.creation.is_valid
    ]
