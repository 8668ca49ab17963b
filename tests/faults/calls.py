"""Hook calls of a client, and what of each call still reaches the two sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_mqtrace.model import AccessChannel, ContextCode, MessageType, TraceBean, TraceContext, TraceType
from tests.faults.truth import Event

REGION = "cn-shanghai"
STORE_HOST = "10.0.0.5:10911"
_KINDS = {
    TraceType.PUB: "publish",
    TraceType.SUB_BEFORE: "consume",
    TraceType.SUB_AFTER: "consume",
    TraceType.END_TRANSACTION: "transaction_end",
    TraceType.RECALL: "recall",
}


@dataclass(frozen=True)
class Application:
    """A service, the process it runs in, and the group under which it sends or receives."""

    service: str
    group: str
    host: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """One hook call as it really was; times in epoch milliseconds. ``context`` of a delivery is its ``SubAfter``."""

    application: Application
    context: TraceContext
    start_ms: int
    end_ms: int

    @property
    def events(self) -> list[Event]:
        kind = _KINDS[self.context.trace_type]
        group = self.application.group if kind == "consume" else None
        return [Event(kind, bean.msg_id or "", group) for bean in self.context.beans]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One native record (of a delivery: one half) on its way to the trace topic, ``late_ms`` behind its event's end."""

    context: TraceContext
    late_ms: int = 40
    channel: AccessChannel = AccessChannel.LOCAL
    damage: Callable[[bytes], bytes] | None = None


@dataclass(frozen=True, kw_only=True)
class SpanDraft:
    """One span on its way to a file. ``attributes`` replace what it would say (``None``: says nothing).

    Copies with another ``copy`` number have span ids of their own. A ``torn`` span's line is cut off. The messages of
    ``unsampled`` ids were sent unsampled, and the links to them say so.
    """

    call: Call
    context: TraceContext
    start_ms: int
    end_ms: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    copy: int = 0
    torn: bool = False
    unsampled: frozenset[str] = frozenset()


@dataclass
class Draft:
    """What both writers are about to say of a call; a fault is a change to it."""

    call: Call
    records: list[Record]
    spans: list[SpanDraft]

    @classmethod
    def clean(cls, call: Call) -> Draft:
        return cls(
            call,
            [Record(context=context) for context in _records(call)],
            [SpanDraft(call=call, context=call.context, start_ms=call.start_ms, end_ms=call.end_ms)],
        )


def _records(call: Call) -> list[TraceContext]:
    if call.context.trace_type is TraceType.PUB:
        return [call.context._replace(beans=(_joined(call.context.beans),))]
    if call.context.trace_type is not TraceType.SUB_AFTER:
        return [call.context]
    unknown = dict.fromkeys(("cost_ms", "success", "context_code"))
    before = call.context._replace(trace_type=TraceType.SUB_BEFORE, timestamp_ms=call.start_ms, **unknown)
    return [before, call.context._replace(timestamp_ms=call.end_ms)]


def _joined(beans: tuple[TraceBean, ...]) -> TraceBean:
    """Return the one bean that RocketMQ's hook makes of a batch: ids joined with commas, the whole batch's length."""
    if len(beans) == 1:
        return beans[0]
    names = ("msg_id", "offset_msg_id")
    joined = {name: ",".join(getattr(bean, name) for bean in beans) for name in names}
    return beans[0]._replace(body_length=sum(bean.body_length or 0 for bean in beans), **joined)


def _call(
    application: Application, trace_type: TraceType, at_ms: int, *beans: TraceBean, took_ms: int = 0, **fields: Any
) -> Call:
    known = {"timestamp_ms": at_ms, "region_id": REGION, "group_name": application.group, **fields}
    context = TraceContext(trace_type=trace_type, beans=beans, **known)
    return Call(application=application, context=context, start_ms=at_ms, end_ms=at_ms + took_ms)


def sending(application: Application, at_ms: int, *beans: TraceBean, cost_ms: int = 12, **fields: Any) -> Call:
    """Return a send that began at ``at_ms``; several beans are a batch."""
    known = {"cost_ms": cost_ms, "success": True, **fields}
    return _call(application, TraceType.PUB, at_ms, *beans, took_ms=cost_ms, **known)


def consuming(
    application: Application,
    at_ms: int,
    *beans: TraceBean,
    attempt: str,
    cost_ms: int = 30,
    code: ContextCode = ContextCode.SUCCESS,
) -> Call:
    """Return a listener call for ``beans`` that began at ``at_ms``; the native cost is one message's share."""
    outcome = {"success": code in {ContextCode.SUCCESS, ContextCode.TIME_OUT}, "context_code": code}
    known = {"request_id": attempt, "cost_ms": cost_ms // len(beans), **outcome}
    return _call(application, TraceType.SUB_AFTER, at_ms, *beans, took_ms=cost_ms, **known)


def ending(application: Application, at_ms: int, bean: TraceBean, **fields: Any) -> Call:
    """Return the end of a transaction: an instant."""
    ended = bean._replace(transaction_id=bean.msg_id, from_transaction_check=False, **fields)
    return _call(application, TraceType.END_TRANSACTION, at_ms, ended)


def recalling(application: Application, at_ms: int, bean: TraceBean) -> Call:
    named = TraceBean(topic=bean.topic, msg_id=bean.msg_id)
    return _call(application, TraceType.RECALL, at_ms, named, success=True)


def message(msg_id: str, *, topic: str = "orders", number: int = 0, **fields: Any) -> TraceBean:
    named = {"tags": "created", "keys": f"order-{number} customer-{number % 7}", "msg_type": MessageType.NORMAL}
    stored = {"offset_msg_id": f"0A00000500002A9F{number:016X}", "store_host": STORE_HOST}
    defaults = {**named, **stored, "body_length": 120 + number % 50}
    return TraceBean(topic=topic, msg_id=msg_id, **{**defaults, **fields})


def received(bean: TraceBean, *, retry_times: int = 0) -> TraceBean:
    return TraceBean(topic=bean.topic, msg_id=bean.msg_id, keys=bean.keys, retry_times=retry_times)
