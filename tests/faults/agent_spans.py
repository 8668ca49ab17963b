"""Spans of a RocketMQ call as OpenTelemetry's Java agent writes them: old names and new ones, as recorded.

Names, kinds, parents, links and flags are those of the two recorded runs in ``tests/vectors/dual``.
"""

from collections.abc import Iterable, Mapping
from hashlib import md5
from typing import Any

from otel_mqtrace.model import ContextCode, TraceBean, TraceType
from tests.faults.calls import Application, SpanDraft
from tests.support.otlp_json import CLIENT, CONSUMER, PRODUCER, Span, line, listed, resource, span

_ROOT, _REMOTE, _UNSAMPLED = 259, 771, 770
_SCOPE = "io.opentelemetry.rocketmq-client-4.8"
_COLD_MS = 1  # the native hook runs first
_INSTANT_NS = 8_000
_ID, _SIZE = "messaging.message.id", "messaging.batch.message_count"
_TORN_CHARACTERS = 4


def _hex(text: str, digits: int) -> str:
    return md5(text.encode(), usedforsecurity=False).hexdigest()[:digits]


def send_ids(msg_id: str) -> tuple[str, str]:
    return _hex(f"trace {msg_id}", 32), _hex(f"send {msg_id}", 16)


def agent_spans(draft: SpanDraft, *, old: bool) -> list[Span]:
    """Return what the agent exports of a call; nothing of ends of transactions and recalls."""
    kind = draft.context.trace_type
    if kind is TraceType.PUB:
        return _sends(draft, old=old)
    if kind is not TraceType.SUB_AFTER:
        return []
    if len(draft.context.beans) == 1:
        return [_single_process(draft, old=old)]
    return _old_batch(draft) if old else [_new_batch(draft)]


def _sends(draft: SpanDraft, *, old: bool) -> list[Span]:
    beans = draft.context.beans
    if len(beans) == 1:
        return [_span(draft, "send", beans[0], PRODUCER, _send_result(draft), send_ids(beans[0].msg_id or ""), old=old)]
    creates = [
        _span(draft, "create", bean, PRODUCER, {_ID: bean.msg_id}, send_ids(bean.msg_id or ""), old=False)
        for bean in beans
    ]
    links = [_link(bean.msg_id or "", _ROOT) for bean in beans]
    return [
        *creates,
        _span(draft, "send", beans[0], CLIENT, {_SIZE: len(beans)}, f"batch {beans[0].msg_id}", links=links),
    ]


def _send_result(draft: SpanDraft) -> dict[str, Any]:
    bean = draft.context.beans[0]
    experimental = {"messaging.rocketmq.broker_address": bean.store_host, "messaging.rocketmq.message.tag": bean.tags}
    return experimental | (
        {_ID: bean.msg_id, "messaging.rocketmq.send_result": "SEND_OK"} if bean.offset_msg_id else {}
    )


def _single_process(draft: SpanDraft, *, old: bool) -> Span:
    bean = draft.context.beans[0]
    trace_id, parent_id = send_ids(bean.msg_id or "")
    ids = trace_id, _hex(f"{_call_id(draft)} {bean.msg_id}", 16)
    links = {} if old else {"links": [_link(bean.msg_id or "", _REMOTE)]}
    attributes = _receiver(draft, old=old) | {_ID: bean.msg_id}
    return _span(
        draft, "process", bean, CONSUMER, attributes, ids, old=old, parentSpanId=parent_id, flags=_REMOTE, **links
    )


def _new_batch(draft: SpanDraft) -> Span:
    beans = draft.context.beans
    links = [
        _link(bean.msg_id or "", _UNSAMPLED if bean.msg_id in draft.unsampled else _REMOTE, {_ID: bean.msg_id})
        for bean in beans
    ]
    attributes = _receiver(draft, old=False) | {_SIZE: len(beans)}
    return _span(draft, "process", beans[0], CONSUMER, attributes, _call_id(draft), links=links)


def _old_batch(draft: SpanDraft) -> list[Span]:
    own, receiver = _call_id(draft), _receiver(draft, old=True)
    root = _span(draft, "receive", None, CONSUMER, receiver, own, old=True)
    children = []
    for bean in draft.context.beans:
        fields = {"parentSpanId": root["spanId"], "links": [_link(bean.msg_id or "", _REMOTE)]}
        fields["endTimeUnixNano"] = str(int(root["startTimeUnixNano"]) + _INSTANT_NS)
        ids = root["traceId"], _hex(f"{own} {bean.msg_id}", 16)
        children.append(_span(draft, "process", bean, CONSUMER, receiver | {_ID: bean.msg_id}, ids, old=True, **fields))
    return [root, *children]


def _call_id(draft: SpanDraft) -> str:
    return f"process {draft.context.group_name} {draft.context.request_id} {draft.copy}"


def _receiver(draft: SpanDraft, *, old: bool) -> dict[str, Any]:
    group, code = draft.context.group_name, draft.context.context_code
    attributes: dict[str, Any] = {"thread.name": f"ConsumeMessageThread_{group}_3", "thread.id": "42"}
    if not old:
        attributes["messaging.consumer.group.name"] = group
        if code is not None and code is not ContextCode.SUCCESS:
            attributes["error.type"] = code.name
    return attributes


def _span(
    draft: SpanDraft,
    word: str,
    bean: TraceBean | None,
    kind: int,
    own_attributes: Mapping[str, Any],
    ids: tuple[str, str] | str,
    *,
    old: bool = False,
    **fields: Any,
) -> Span:
    """Return the span of an operation on a message (of several topics: ``None``); both ``ids`` may follow from a text."""
    trace_id, span_id = (_hex(ids, 32), _hex(ids, 16)) if isinstance(ids, str) else ids
    if draft.copy and kind == PRODUCER:
        span_id = _hex(f"{span_id} {draft.copy}", 16)
    word = "publish" if old and word == "send" else word
    topic = "multiple_sources" if bean is None else bean.topic
    attributes: dict[str, Any] = {"messaging.system": "rocketmq"}
    attributes |= {} if bean is None else {"messaging.destination.name": topic}
    names = ("messaging.operation",) if old else ("messaging.operation.name", "messaging.operation.type")
    attributes |= {**dict.fromkeys(names, word), **own_attributes, **draft.attributes}
    status = {"code": 2} if attributes.get("error.type") is not None else {}
    known = {"flags": _ROOT, "name": f"{topic} {word}" if old else f"{word} {topic}", "status": status}
    known |= {"traceId": trace_id, "spanId": span_id, **fields}
    return span(0, kind, draft.start_ms + _COLD_MS, draft.end_ms - draft.start_ms, attributes, **known)


def _link(msg_id: str, flags: int, attributes: Mapping[str, Any] | None = None) -> Span:
    trace_id, span_id = send_ids(msg_id)
    return {"traceId": trace_id, "spanId": span_id, "flags": flags, "attributes": listed(attributes or {})}


def agent_line(application: Application, spans: Iterable[Span], *, torn: bool = False) -> str:
    """Return one line of the Collector's file exporter, cut off when ``torn``."""
    text = line(resource(application.service, *spans, scope=_SCOPE))
    return text[: -_TORN_CHARACTERS - 1] + "\n" if torn else text
